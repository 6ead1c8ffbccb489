//! Supervisor of the owner. If the owner panics, the supervisor starts another owner. It also runs the periodic tasks
//! that read cancellation records and tenants, and that update metrics.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::cluster::ownership::{Before, apply_all_cancellations, new_pollers, send_gained, take};
use crate::firing::context::Context;
use crate::firing::messages::Gained;
use crate::firing::outcome_writer::OutcomeWriter;
use crate::firing::owner::Owner;
use crate::metrics::count_store_error;
use crate::shared::{OwnerHandle, Shared};
use crate::tenants::Tenants;

/// Capacities, in messages, of the outcome writer's queue and the owner's queue. The number of attempts in flight
/// limits the number of messages in these queues.
const WRITER_MESSAGES_MAX: usize = 8_192;
const OWNER_MESSAGES_MAX: usize = 8_192;
/// Time between two reads of cancellation records.
const CANCELLATIONS_PERIOD: Duration = Duration::from_secs(1);
/// Time between two reads of the tenants from the store.
const TENANTS_PERIOD: Duration = Duration::from_secs(2);
/// Time between two updates of the metrics of stored schedules and bytes. A shorter time causes more reads of the
/// store.
const COUNT_PERIOD: Duration = Duration::from_secs(10);
const RETRY_WAIT: Duration = Duration::from_millis(200);

async fn watch_cancellations(shared: Arc<Shared>) {
    loop {
        shared.runtime.sleep(CANCELLATIONS_PERIOD).await;
        if let Err(error) = apply_all_cancellations(&shared).await {
            count_store_error(&shared.metrics, "marks", &error);
        }
    }
}

/// Reads the tenants periodically, because another member may have changed them.
async fn watch_tenants(shared: Arc<Shared>) {
    loop {
        shared.runtime.sleep(TENANTS_PERIOD).await;
        if let Err(error) = Tenants::new(shared.clone()).refresh().await {
            count_store_error(&shared.metrics, "tenants", &error);
        }
    }
}

/// Updates the metrics of stored schedules and bytes periodically.
async fn count_stored(shared: Arc<Shared>) {
    loop {
        match Tenants::new(shared.clone()).usage_of_all().await {
            Ok(usage) => shared.metrics.set_usage(&usage),
            Err(error) => count_store_error(&shared.metrics, "usage", &error),
        }
        shared.runtime.sleep(COUNT_PERIOD).await;
    }
}

/// Runs the owner until the caller cancels `stop`. The first owner starts with the shards in `taken`. If the owner
/// panics, another owner takes the shards under new terms.
pub(crate) async fn supervise(shared: Arc<Shared>, taken: Gained, stop: CancellationToken) {
    let mut taken = Some(taken);
    loop {
        let serving = serve(shared.clone(), taken.take(), stop.clone());
        if AssertUnwindSafe(serving).catch_unwind().await.is_ok() {
            return;
        }
        shared.metrics.panics.inc();
        tracing::error!("owner panicked; a new owner in this process takes its shards");
    }
}

/// Takes all owned shards again, under new terms. Takes no shard if the lease has ended, because another member may have
/// taken the shards.
async fn regain(shared: &Shared) -> Gained {
    loop {
        let has_lease = shared.lease.is_valid(shared.runtime.monotonic());
        let owned = if has_lease { shared.shards.owned() } else { Vec::new() };
        match take(shared, &owned, &Before::default()).await {
            Ok(gained) => return gained,
            Err(error) => count_store_error(&shared.metrics, "take", &error),
        }
        shared.runtime.sleep(RETRY_WAIT).await;
    }
}

/// Adds to `taken` the pollers that tenants got after this member filled `taken`. When the tenants got these pollers,
/// no owner was running that could receive them.
async fn with_new_pollers(shared: &Shared, mut taken: Gained) -> Gained {
    let known = taken.pollers.iter().map(|(poller, _, _)| *poller).collect();
    loop {
        match new_pollers(shared, shared.tenants.pollers(), &known).await {
            Ok(pollers) => {
                taken.pollers.extend(pollers);
                return taken;
            }
            Err(error) => count_store_error(&shared.metrics, "positions", &error),
        }
        shared.runtime.sleep(RETRY_WAIT).await;
    }
}

async fn serve(shared: Arc<Shared>, taken: Option<Gained>, stop: CancellationToken) {
    let moving = shared.moving.lock().await;
    let (to_writer, writer_messages) = mpsc::channel(WRITER_MESSAGES_MAX);
    let (to_owner, owner_messages) = mpsc::channel(OWNER_MESSAGES_MAX);
    let outcome_writer = OutcomeWriter {
        runtime: shared.runtime.clone(),
        store: shared.store.clone(),
        metrics: shared.metrics.clone(),
        messages: writer_messages,
        to_owner: to_owner.clone(),
        closed: BTreeMap::new(),
    };
    *shared.owner.lock().expect("no holder of this lock panics") =
        Some(OwnerHandle { to_owner: to_owner.clone(), to_writer: to_writer.clone() });
    // The next owner may repeat attempts that the previous owner had in flight.
    shared.in_flight.clear();
    let gained = match taken {
        Some(taken) => with_new_pollers(&shared, taken).await,
        None => regain(&shared).await,
    };
    send_gained(&shared, gained).await;
    drop(moving);
    let context = Arc::new(Context {
        runtime: shared.runtime.clone(),
        clock: shared.clock.clone(),
        store: shared.store.clone(),
        deliver: shared.deliver.clone(),
        metrics: shared.metrics.clone(),
        in_flight: shared.in_flight.clone(),
        governor: shared.governor.clone(),
        tenants: shared.tenants.clone(),
        lease: shared.lease.clone(),
        to_writer,
        to_owner,
        steady: shared.steady.clone(),
        events: shared.events.clone(),
    });
    let tasks = runtime::TaskSet::new(&shared.runtime);
    tasks.spawn("outcome writer", outcome_writer.run());
    tasks.spawn("marks", watch_cancellations(shared.clone()));
    tasks.spawn("tenants", watch_tenants(shared.clone()));
    tasks.spawn("count", count_stored(shared.clone()));
    let options = shared.options.clone();
    Owner::new(context, options, owner_messages, shared.nudge.clone()).run(stop).await;
}
