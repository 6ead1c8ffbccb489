//! State that the store keeps in memory: positions, terms, tenants, hand-overs, counts of active schedules, the insert
//! logs since the start, and the states of a few schedules.

mod active;
mod fresh;
mod insert_log;
mod states;

use std::collections::BTreeMap;

use domain::{PollerId, ShardId, Tenant, TenantId, Term};
use store::{HandedOver, Positions};

pub(crate) use active::Active;
pub(crate) use fresh::Fresh;
pub(crate) use insert_log::InsertLog;
pub(crate) use states::States;

/// State in memory. Only the applying task changes it, and every thread may read it.
#[derive(Debug)]
pub(crate) struct Memory {
    pub positions: BTreeMap<PollerId, Positions>,
    pub terms: BTreeMap<ShardId, Term>,
    pub handed_over: BTreeMap<ShardId, Vec<HandedOver>>,
    pub tenants: BTreeMap<TenantId, Tenant>,
    pub active: Active,
    pub insert_log: InsertLog,
}

impl Memory {
    pub(crate) fn new(insert_log_max: usize) -> Self {
        Memory {
            positions: BTreeMap::new(),
            terms: BTreeMap::new(),
            handed_over: BTreeMap::new(),
            tenants: BTreeMap::new(),
            active: Active::default(),
            insert_log: InsertLog::new(insert_log_max),
        }
    }

    pub(crate) fn positions(&self, poller: PollerId) -> Positions {
        self.positions.get(&poller).copied().unwrap_or_default()
    }
}
