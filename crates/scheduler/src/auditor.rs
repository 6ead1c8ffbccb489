//! Auditor. The leader compares the outcomes in the store with the timings of the schedules, again and again, and
//! reports the differences that last.
//!
//! The module [`store::audit`] reads the facts, and [`domain::audit`] compares them. This module limits the rate of the
//! reads. The module `audits` keeps the result. A new leader starts with a pass over the whole audited stretch, so no
//! progress is stored.
//!
//! Invariants: the auditor only reads. While another task of this member reads for users, the auditor waits for its
//! turn like any tenant. Two leaders at the same time are harmless.
//!
//! docs/decisions/0245-compare-outcomes-with-timings.md gives the reasons for the design.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{TenantId, Timestamp};
use runtime::{Monotonic, Runtime};
use store::StoreError;
use store::audit::{NamedDifference, Pace};

use crate::audits::Pass;
use crate::metrics::count_store_error;
use crate::shared::Shared;
use crate::turns::Turn;

/// Time from the start of this member to its first pass.
const START_PAUSE: Duration = Duration::from_secs(10);
/// Time between two passes.
const PASS_PAUSE: Duration = Duration::from_secs(60);
/// Time between the two examinations of the suspects. A hand-over, a store failure or a creator that confirms its row
/// takes less time.
const EXAMINE_AGAIN_AFTER: Duration = Duration::from_secs(30);
/// Length of the audited stretch. No class of retention deletes history that is younger than a day, also not during a
/// change of the class. The rest of the day is a margin for clocks.
const STRETCH: Duration = Duration::from_secs(22 * 3_600);
/// Difference between the retention of a store and the audited stretch of a store with a shorter retention.
const HISTORY_MARGIN: Duration = Duration::from_secs(2 * 3_600);
/// Factor by which the rests of the auditor are longer than its reads.
const REST_FACTOR: u32 = 9;
/// Shortest rest. After shorter reads, the auditor rests once for several of them.
const REST_MIN: Duration = Duration::from_millis(5);
/// Longest rest. A read can take long while this process is suspended.
const REST_MAX: Duration = Duration::from_secs(600);
/// Time between two checks of the leadership.
const LEADERSHIP_PERIOD: Duration = Duration::from_secs(1);
/// Maximum number of differences that one audit logs one by one.
const LOGGED_MAX: usize = 100;

/// Audits the store while `leads` returns true. Never returns.
pub(crate) async fn audit(shared: Arc<Shared>, leads: impl Fn() -> bool) {
    let mut pause = START_PAUSE;
    loop {
        wait(&shared, &leads, pause).await;
        pause = PASS_PAUSE;
        if !leads() {
            continue;
        }
        let lost = async {
            while leads() {
                shared.runtime.sleep(LEADERSHIP_PERIOD).await;
            }
        };
        let audited = tokio::select! {
            biased;
            () = lost => None,
            audited = audit_once(&shared) => Some(audited),
        };
        match audited {
            Some(Ok(())) => {}
            Some(Err(error)) => count_store_error(&shared.metrics, "audit", &error),
            None => forget(&shared),
        }
    }
}

/// Waits between two audits. A member that is no longer the leader forgets its result.
async fn wait(shared: &Shared, leads: impl Fn() -> bool, pause: Duration) {
    let mut rest = pause;
    while !rest.is_zero() {
        let step = rest.min(LEADERSHIP_PERIOD);
        shared.runtime.sleep(step).await;
        rest -= step;
        if !leads() {
            forget(shared);
        }
    }
}

fn forget(shared: &Shared) {
    shared.audits.clear();
    shared.metrics.unaccounted.set(0);
    shared.metrics.audit_completed.set(0);
}

/// Makes one complete audit, and keeps its result.
async fn audit_once(shared: &Arc<Shared>) -> Result<(), StoreError> {
    let pace = Paced { shared: shared.clone(), debt: Arc::default() };
    let mut pass = Pass::new(pace.start());
    for tenant in shared.store.tenants().await? {
        pass.add(tenant.id, store::audit::audit(&*shared.store, &pace, &tenant).await?);
    }
    for tenant in &pass.incomplete {
        tracing::warn!(tenant = tenant.0, "the audit skipped schedules, because the store cannot read some rows");
    }
    let completed_at = shared.clock.now();
    let (new, gone) = shared.audits.replace(pass, completed_at);
    let unlogged = new.len().saturating_sub(LOGGED_MAX);
    for NamedDifference { tenant, difference, schedule } in new.into_iter().take(LOGGED_MAX) {
        tracing::warn!(
            tenant = tenant.0,
            %schedule,
            run = %difference.occurrence.run_id(),
            instant = %difference.occurrence.nominal,
            kind = difference.kind.name(),
            "the store's records do not match the timing of a schedule; see `reveille audit`"
        );
    }
    if unlogged > 0 {
        tracing::warn!(unlogged, "the audit found more new differences than it logs; see `reveille audit`");
    }
    if gone > 0 {
        tracing::info!(gone, "differences between records and timings no longer exist or are older than the audit");
    }
    shared.metrics.unaccounted.set(i64::try_from(shared.audits.len()).unwrap_or(i64::MAX));
    shared.metrics.audit_completed.set(completed_at.as_millis() / 1_000);
    Ok(())
}

/// Pace of the reads of one audit.
struct Paced {
    shared: Arc<Shared>,
    debt: Arc<Mutex<Debt>>,
}

#[derive(Default)]
struct Debt {
    /// Time for which the auditor still has to rest.
    owed: Duration,
    /// End of the last turn. After it, the auditor compares what it has read.
    compares_since: Option<Monotonic>,
}

/// Turn whose end sets the rest before a later turn.
struct TimedTurn {
    runtime: Runtime,
    debt: Arc<Mutex<Debt>>,
    since: Monotonic,
    _turn: Turn,
}

impl Drop for TimedTurn {
    fn drop(&mut self) {
        let now = self.runtime.monotonic();
        let mut debt = self.debt.lock().expect("no holder of this lock panics");
        debt.owed += now.since(self.since) * REST_FACTOR;
        debt.compares_since = Some(now);
    }
}

impl Pace for Paced {
    type Turn = TimedTurn;

    async fn turn(&self, tenant: TenantId) -> TimedTurn {
        let Paced { shared, debt } = self;
        let rest = {
            let mut debt = debt.lock().expect("no holder of this lock panics");
            let compared =
                debt.compares_since.take().map_or(Duration::ZERO, |since| shared.runtime.monotonic().since(since));
            debt.owed += compared * REST_FACTOR;
            if debt.owed < REST_MIN { Duration::ZERO } else { std::mem::take(&mut debt.owed) }
        };
        if !rest.is_zero() {
            shared.runtime.sleep(rest.min(REST_MAX)).await;
        }
        let turn = shared.turns.take(tenant).await;
        let (runtime, debt, since) = (shared.runtime.clone(), debt.clone(), shared.runtime.monotonic());
        TimedTurn { runtime, debt, since, _turn: turn }
    }

    async fn pause(&self) {
        self.debt.lock().expect("no holder of this lock panics").compares_since = None;
        self.shared.runtime.sleep(EXAMINE_AGAIN_AFTER).await;
    }

    fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    fn start(&self) -> Timestamp {
        let history = self.shared.options.history.saturating_sub(HISTORY_MARGIN);
        self.now() - STRETCH.min(history)
    }
}
