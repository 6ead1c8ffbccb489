//! What is small enough to be kept in memory whole: positions, terms, tenants, and the arrivals since the start. And the
//! states of a few schedules.

mod active;
mod arrivals;
mod fresh;
mod states;

use std::collections::BTreeMap;

use domain::{PollerId, ShardId, Tenant, TenantId, Term};
use store::{HandedOver, Positions};

pub(crate) use active::Active;
pub(crate) use arrivals::Arrivals;
pub(crate) use fresh::Fresh;
pub(crate) use states::States;

/// Changed by the thread that applies, read by all.
#[derive(Debug)]
pub(crate) struct Memory {
    pub positions: BTreeMap<PollerId, Positions>,
    pub terms: BTreeMap<ShardId, Term>,
    pub handed_over: BTreeMap<ShardId, Vec<HandedOver>>,
    pub tenants: BTreeMap<TenantId, Tenant>,
    pub active: Active,
    pub arrivals: Arrivals,
}

impl Memory {
    pub(crate) fn new(arrivals_max: usize) -> Self {
        Memory {
            positions: BTreeMap::new(),
            terms: BTreeMap::new(),
            handed_over: BTreeMap::new(),
            tenants: BTreeMap::new(),
            active: Active::default(),
            arrivals: Arrivals::new(arrivals_max),
        }
    }

    pub(crate) fn positions(&self, poller: PollerId) -> Positions {
        self.positions.get(&poller).copied().unwrap_or_default()
    }
}
