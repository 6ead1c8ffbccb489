//! State that the parts of a member share. The state remains when an owner ends and another owner starts.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use domain::{ShardId, Term, Timestamp};
use prometheus_client::registry::Registry;
use runtime::Runtime;
use store::{Cursor, Store, StoreError};
use tokio::sync::{Notify, RwLockReadGuard, mpsc};

use crate::ahead::Reopened;
use crate::audits::Audits;
use crate::clock::Clock;
use crate::cluster::events::Events;
use crate::cluster::lease::Lease;
use crate::cluster::shards::{NotOwned, Shards};
use crate::deliver::Deliver;
use crate::firing::governor::Governor;
use crate::firing::in_flight::InFlight;
use crate::firing::messages::{ToOwner, ToWriter};
use crate::firing::steady::SteadyClock;
use crate::known_tenants::KnownTenants;
use crate::metrics::{Change, Metrics};
use crate::options::Options;
use crate::turns::Turns;

pub(crate) struct Shared {
    pub(crate) runtime: Runtime,
    /// Clock by which this member fires.
    pub(crate) clock: Arc<Clock>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) deliver: Arc<dyn Deliver>,
    pub(crate) options: Options,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) governor: Arc<Governor>,
    pub(crate) tenants: Arc<KnownTenants>,
    pub(crate) nudge: Arc<Notify>,
    pub(crate) lease: Arc<Lease>,
    pub(crate) shards: Shards,
    /// Lock for changes of the owned shards and for the start of another owner.
    pub(crate) moving: tokio::sync::Mutex<()>,
    /// Cursor after the last cancellation record that this member has applied for the owned shards.
    pub(crate) cancellations: tokio::sync::Mutex<Cursor>,
    /// Channels to the current owner and its outcome writer.
    pub(crate) owner: Mutex<Option<OwnerHandle>>,
    pub(crate) events: Arc<Events>,
    pub(crate) steady: Arc<SharedSteadyClock>,
    pub(crate) reopened: Reopened,
    /// Turns that the tenants take for long reads from the store.
    pub(crate) turns: Turns,
    pub(crate) audits: Audits,
}

#[derive(Clone)]
pub(crate) struct OwnerHandle {
    pub(crate) to_owner: mpsc::Sender<ToOwner>,
    pub(crate) to_writer: mpsc::Sender<ToWriter>,
}

impl Shared {
    /// Creates the state of a member that owns no shard. Reads the tenants and registers the metrics in `registry`.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub(crate) async fn new(
        runtime: &Runtime,
        store: Arc<dyn Store>,
        deliver: Arc<dyn Deliver>,
        options: Options,
        lease: Lease,
        mut registry: Registry,
    ) -> Result<(Arc<Self>, Registry), StoreError> {
        let tenants = Arc::new(KnownTenants::default());
        let epoch = store.epoch();
        tenants.replace(store.tenants().await?, epoch);
        let metrics = Arc::new(Metrics::new(&mut registry, runtime.clone()));
        let events = Arc::new(Events::new(options.in_flight_max));
        let clock = Arc::new(Clock::new(runtime.clone()));
        let governor = Arc::new(Governor::new(options.starts_ready_max));
        let shared = Shared {
            runtime: runtime.clone(),
            clock: clock.clone(),
            store,
            deliver,
            options,
            metrics,
            in_flight: Arc::new(InFlight::default()),
            governor: governor.clone(),
            tenants,
            nudge: Arc::new(Notify::new()),
            lease: Arc::new(lease),
            shards: Shards::none(),
            moving: tokio::sync::Mutex::default(),
            cancellations: tokio::sync::Mutex::default(),
            owner: Mutex::new(None),
            events,
            steady: Arc::new(SharedSteadyClock::new(runtime, clock)),
            reopened: Reopened::default(),
            turns: Turns::new(governor),
            audits: Audits::default(),
        };
        Ok((Arc::new(shared), registry))
    }

    /// Returns true if this member owns the shard now and its lease is valid by its own clock.
    pub(crate) fn owns(&self, shard: ShardId) -> bool {
        self.shards.shard_term(shard).is_some() && self.lease.is_valid(self.runtime.monotonic())
    }

    /// Returns a guard for an owner-only operation. This member does not hand over the shard until the caller drops the
    /// guard.
    pub(crate) async fn enter(&self, shard: ShardId) -> Result<RwLockReadGuard<'_, ()>, NotOwned> {
        let guard = self.shards.enter(shard).await?;
        if self.owns(shard) { Ok(guard) } else { Err(NotOwned(shard)) }
    }

    /// Records in the metrics that this member has gained, handed over or lost `count` shards.
    pub(crate) fn count_shard_changes(&self, change: &'static str, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.metrics.shard_owner_changes.get_or_create(&Change { change }).inc_by(count);
        let owned = i64::try_from(self.shards.owned().len()).unwrap_or(i64::MAX);
        self.metrics.shards_owned.set(owned);
    }

    /// Notifies the owners of these shards that the shards have new rows that are due soon.
    pub(crate) fn nudge(&self, shards: BTreeSet<ShardId>) {
        self.nudge.notify_one();
        let others: BTreeSet<ShardId> =
            shards.into_iter().filter(|shard| self.shards.shard_term(*shard).is_none()).collect();
        if !others.is_empty() {
            self.events.report_near(others);
        }
    }

    /// Reports that the shard has an owner under a later term. The caller calls this function after the store has
    /// rejected a write under `term`. This member then releases the shard, and takes it again if the assignment plan
    /// assigns the shard to this member.
    pub(crate) fn superseded(&self, shard: ShardId, term: Term) {
        self.events.report_superseded(shard, term);
    }

    /// Sends a message to the current owner. Returns `false` if no owner runs. The next owner then reads the state from
    /// the store.
    pub(crate) async fn send(&self, message: ToOwner) -> bool {
        let Some(owner) = self.owner() else { return false };
        owner.to_owner.send(message).await.is_ok()
    }

    /// Returns the channels to the current owner. Returns `None` if no owner runs.
    pub(crate) fn owner(&self) -> Option<OwnerHandle> {
        self.owner.lock().expect("no holder of this lock panics").clone()
    }
}

/// Steady clock that the creators and the owner of this process share.
pub(crate) struct SharedSteadyClock {
    runtime: Runtime,
    clock: Arc<Clock>,
    steady: Mutex<SteadyClock>,
}

impl SharedSteadyClock {
    fn new(runtime: &Runtime, clock: Arc<Clock>) -> Self {
        let steady = Mutex::new(SteadyClock::new(clock.now(), runtime.monotonic()));
        SharedSteadyClock { runtime: runtime.clone(), clock, steady }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let ((wall, limit), monotonic) = (self.clock.now_and_limit(), self.runtime.monotonic());
        let mut steady = self.steady.lock().expect("no holder of this lock panics");
        if limit.is_some() {
            // The coordination engine's clock confirms each leap: before the leap, this member's clock was behind.
            *steady = SteadyClock::new(wall, monotonic);
            return wall;
        }
        steady.at(wall, monotonic)
    }
}
