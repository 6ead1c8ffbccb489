//! Context that the owner shares with its tasks.

use std::sync::Arc;

use runtime::Runtime;
use store::Store;
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::cluster::events::Events;
use crate::cluster::lease::Lease;
use crate::deliver::Deliver;
use crate::firing::governor::Governor;
use crate::firing::in_flight::InFlight;
use crate::firing::messages::{ToOwner, ToWriter};
use crate::known_tenants::KnownTenants;
use crate::metrics::Metrics;
use crate::shared::SharedSteadyClock;

/// Context that the owner shares with its tasks.
pub(crate) struct Context {
    pub(crate) runtime: Runtime,
    /// Clock by which the owner fires.
    pub(crate) clock: Arc<Clock>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) deliver: Arc<dyn Deliver>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) governor: Arc<Governor>,
    pub(crate) tenants: Arc<KnownTenants>,
    pub(crate) lease: Arc<Lease>,
    pub(crate) to_writer: mpsc::Sender<ToWriter>,
    pub(crate) to_owner: mpsc::Sender<ToOwner>,
    pub(crate) steady: Arc<SharedSteadyClock>,
    /// Queue to which the owner adds its events.
    pub(crate) events: Arc<Events>,
}
