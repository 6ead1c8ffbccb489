//! State that the parts of a member share, and that outlives an owner.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use domain::{ShardId, Term};
use prometheus_client::registry::Registry;
use runtime::Runtime;
use store::{Cursor, Store, StoreError};
use tokio::sync::{Notify, RwLockReadGuard, mpsc};

use crate::cluster::events::Events;
use crate::cluster::lease::Lease;
use crate::cluster::shards::{NotOwned, Shards};
use crate::deliver::Deliver;
use crate::firing::in_flight::InFlight;
use crate::firing::messages::{ToOwner, ToWriter};
use crate::known_tenants::KnownTenants;
use crate::metrics::{Change, Metrics};
use crate::options::Options;

pub(crate) struct Shared {
    pub(crate) runtime: Runtime,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) deliver: Arc<dyn Deliver>,
    pub(crate) options: Options,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) tenants: Arc<KnownTenants>,
    pub(crate) nudge: Arc<Notify>,
    pub(crate) lease: Arc<Lease>,
    pub(crate) shards: Shards,
    /// Lock for changes of the owned shards and for the start of another owner.
    pub(crate) moving: tokio::sync::Mutex<()>,
    /// Cursor up to which the cancellation records of the owned shards are applied.
    pub(crate) cancellations: tokio::sync::Mutex<Cursor>,
    /// Channels to the present owner and its outcome writer.
    pub(crate) owner: Mutex<Option<OwnerHandle>>,
    pub(crate) events: Arc<Events>,
}

#[derive(Clone)]
pub(crate) struct OwnerHandle {
    pub(crate) to_owner: mpsc::Sender<ToOwner>,
    pub(crate) to_writer: mpsc::Sender<ToWriter>,
}

impl Shared {
    /// Reads the tenants and registers the metrics in `registry`. The member owns no shard yet.
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
        tenants.replace(store.tenants().await?);
        let metrics = Arc::new(Metrics::new(&mut registry, runtime.clone()));
        let events = Arc::new(Events::new(options.in_flight_max));
        let shared = Shared {
            runtime: runtime.clone(),
            store,
            deliver,
            options,
            metrics,
            in_flight: Arc::new(InFlight::default()),
            tenants,
            nudge: Arc::new(Notify::new()),
            lease: Arc::new(lease),
            shards: Shards::none(),
            moving: tokio::sync::Mutex::default(),
            cancellations: tokio::sync::Mutex::default(),
            owner: Mutex::new(None),
            events,
        };
        Ok((Arc::new(shared), registry))
    }

    /// Returns true if this member owns the shard now, by its own clock.
    pub(crate) fn owns(&self, shard: ShardId) -> bool {
        self.shards.shard_term(shard).is_some() && self.lease.is_valid(self.runtime.monotonic())
    }

    /// Guards an owner-only operation: the shard cannot be handed over until the guard is dropped.
    pub(crate) async fn enter(&self, shard: ShardId) -> Result<RwLockReadGuard<'_, ()>, NotOwned> {
        let guard = self.shards.enter(shard).await?;
        if self.owns(shard) { Ok(guard) } else { Err(NotOwned(shard)) }
    }

    /// Counts gained, handed-over or lost shards.
    pub(crate) fn count_shard_changes(&self, change: &'static str, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.metrics.shard_owner_changes.get_or_create(&Change { change }).inc_by(count);
        let owned = i64::try_from(self.shards.owned().len()).unwrap_or(i64::MAX);
        self.metrics.shards_owned.set(owned);
    }

    /// Notifies the owners of these shards of new rows that are due soon.
    pub(crate) fn nudge(&self, shards: BTreeSet<ShardId>) {
        self.nudge.notify_one();
        let others: BTreeSet<ShardId> =
            shards.into_iter().filter(|shard| self.shards.shard_term(*shard).is_none()).collect();
        if !others.is_empty() {
            self.events.report_near(others);
        }
    }

    /// Reports that another member has taken the shard, because a write under `term` was rejected. The shard is
    /// released, and can be taken again if the plan assigns it to this member.
    pub(crate) fn superseded(&self, shard: ShardId, term: Term) {
        self.events.report_superseded(shard, term);
    }

    /// Sends a message to the present owner. Returns `false` if there is none; the next owner reads the state from the
    /// store.
    pub(crate) async fn send(&self, message: ToOwner) -> bool {
        let Some(owner) = self.owner() else { return false };
        owner.to_owner.send(message).await.is_ok()
    }

    /// Returns the channels to the present owner.
    pub(crate) fn owner(&self) -> Option<OwnerHandle> {
        self.owner.lock().expect("no holder of this lock panics").clone()
    }
}
