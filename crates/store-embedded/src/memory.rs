//! State that the store keeps in memory: positions, terms, tenants, hand-overs, and the numbers of schedules and bytes
//! of each tenant. The state also includes the changed counts of runs, the insert logs since the start, and the states
//! of a few schedules.

mod counted;
mod fresh;
mod insert_log;
mod states;
mod usage;

use std::collections::BTreeMap;

use domain::{PollerId, ShardId, Tenant, TenantId, Term};
use store::{HandedOver, Positions};

use crate::codec::positions::PollerState;

pub(crate) use counted::Counted;
pub(crate) use fresh::Fresh;
pub(crate) use insert_log::InsertLog;
pub(crate) use states::States;
pub(crate) use usage::Usages;

/// State in memory. Only the task that applies journal entries changes the state, except that an owner's read of the
/// insert log drops entries. Every thread may read the state.
#[derive(Debug)]
pub(crate) struct Memory {
    pub pollers: BTreeMap<PollerId, PollerState>,
    pub terms: BTreeMap<ShardId, Term>,
    pub handed_over: BTreeMap<ShardId, Vec<HandedOver>>,
    pub tenants: BTreeMap<TenantId, Tenant>,
    pub usages: Usages,
    pub counted: Counted,
    pub insert_log: InsertLog,
}

impl Memory {
    pub(crate) fn new(insert_log_max: usize) -> Self {
        Memory {
            pollers: BTreeMap::new(),
            terms: BTreeMap::new(),
            handed_over: BTreeMap::new(),
            tenants: BTreeMap::new(),
            usages: Usages::default(),
            counted: Counted::default(),
            insert_log: InsertLog::new(insert_log_max),
        }
    }

    pub(crate) fn positions(&self, poller: PollerId) -> Positions {
        self.poller(poller).positions
    }

    pub(crate) fn poller(&self, poller: PollerId) -> PollerState {
        self.pollers.get(&poller).copied().unwrap_or_default()
    }
}
