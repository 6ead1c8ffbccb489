//! Turns that the tenants take for long reads from the store: reads of listings, runs, dead letters and audit logs.
//!
//! Only a limited number of these reads run at a time, and one tenant runs at most half of that number. While attempts
//! wait for the processors, only one read runs at a time. Waiting tenants take turns. Each read has a limited length,
//! and a long listing needs one turn for each of its reads. A tenant therefore waits only for a few short reads, even
//! if other tenants make many requests (docs/decisions/0197-let-tenants-take-turns-at-long-reads.md).
//!
//! Invariant: a tenant is in the list [`State::order`] if and only if one of its requests waits for a turn.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use domain::TenantId;
use tokio::sync::oneshot;

use crate::firing::governor::Governor;

/// Largest number of long reads that run at the same time.
const READS_MAX: usize = 4;
/// Largest number of long reads that run at the same time while attempts wait for the processors
/// (docs/decisions/0246-queue-starts-before-the-processors.md).
const READS_SATURATED_MAX: usize = 1;
/// Largest number of long reads of one tenant that run at the same time.
const READS_PER_TENANT: usize = 2;

#[derive(Clone, Debug)]
pub(crate) struct Turns {
    state: Arc<Mutex<State>>,
    governor: Arc<Governor>,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    tenants: BTreeMap<TenantId, Requests>,
    /// Order in which waiting tenants take their turns.
    order: VecDeque<TenantId>,
}

#[derive(Debug, Default)]
struct Requests {
    running: usize,
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

/// Permit for one long read from the store. When the holder drops the permit, the next waiting request gets its turn.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Turns,
    tenant: TenantId,
}

impl Turns {
    pub(crate) fn new(governor: Arc<Governor>) -> Self {
        Turns { state: Arc::default(), governor }
    }

    /// Waits for a turn of the tenant.
    pub(crate) async fn take(&self, tenant: TenantId) -> Turn {
        let receiver = {
            let mut state = self.state();
            let requests = state.tenants.entry(tenant).or_default();
            let is_first = requests.waiting.is_empty();
            let (sender, receiver) = oneshot::channel();
            requests.waiting.push_back(sender);
            if is_first {
                state.order.push_back(tenant);
            }
            receiver
        };
        self.start_next();
        receiver.await.expect("a waiting request stays in the queue until it gets its turn")
    }

    /// Gives turns to waiting requests while the limits permit further reads.
    fn start_next(&self) {
        loop {
            let reads_max = if self.governor.is_saturated() { READS_SATURATED_MAX } else { READS_MAX };
            let Some((tenant, sender)) = self.state().next(reads_max) else { return };
            // If the caller no longer waits, `send` returns the turn, and the drop of the turn lets the next request
            // start.
            drop(sender.send(Turn { turns: self.clone(), tenant }));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

impl State {
    /// Removes from its queue the next request that may start, and counts this request as running.
    fn next(&mut self, reads_max: usize) -> Option<(TenantId, oneshot::Sender<Turn>)> {
        if self.running >= reads_max {
            return None;
        }
        let may_start = |tenant: &TenantId| self.tenants[tenant].running < READS_PER_TENANT;
        let at = self.order.iter().position(may_start)?;
        let tenant = self.order.remove(at)?;
        let requests = self.tenants.get_mut(&tenant)?;
        let sender = requests.waiting.pop_front()?;
        requests.running += 1;
        self.running += 1;
        if !requests.waiting.is_empty() {
            self.order.push_back(tenant);
        }
        Some((tenant, sender))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        {
            let mut state = self.turns.state();
            state.running -= 1;
            let requests =
                state.tenants.get_mut(&self.tenant).expect("each tenant with a running read exists in `tenants`");
            requests.running -= 1;
            if requests.running == 0 && requests.waiting.is_empty() {
                state.tenants.remove(&self.tenant);
            }
        }
        self.turns.start_next();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const BUSY: TenantId = TenantId(1);
    const QUIET: TenantId = TenantId(2);

    fn turns() -> Turns {
        Turns::new(Arc::new(Governor::new(1)))
    }

    #[test]
    fn request_of_an_idle_tenant_does_not_wait_for_a_busy_tenant() {
        let turns = turns();
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(turns.take(BUSY))).collect();
        let running: Vec<Turn> = waiting.iter_mut().filter_map(|request| request.as_mut().now_or_never()).collect();
        assert_eq!(running.len(), READS_PER_TENANT);
        assert!(turns.take(QUIET).now_or_never().is_some());
    }

    #[test]
    fn one_read_runs_at_a_time_while_the_processors_are_saturated() {
        let turns = turns();
        turns.governor.set_saturated(true);
        let first = turns.take(BUSY).now_or_never().unwrap();
        let mut quiet = Box::pin(turns.take(QUIET));
        assert!(quiet.as_mut().now_or_never().is_none());
        let mut busy: Vec<_> = (0..4).map(|_| Box::pin(turns.take(BUSY))).collect();
        assert!(busy.iter_mut().all(|request| request.as_mut().now_or_never().is_none()));
        turns.governor.set_saturated(false);
        drop(first);
        assert!(quiet.as_mut().now_or_never().is_some());
        let started: Vec<Turn> = busy.iter_mut().filter_map(|request| request.as_mut().now_or_never()).collect();
        assert_eq!(started.len(), READS_PER_TENANT, "after the saturation, more reads run at a time");
    }

    #[test]
    fn single_request_of_a_tenant_overtakes_requests_of_busy_tenants() {
        let turns = turns();
        let started: Arc<Mutex<Vec<TenantId>>> = Arc::default();
        let request = |tenant: TenantId| {
            let (turns, started) = (turns.clone(), started.clone());
            async move {
                let _turn = turns.take(tenant).await;
                started.lock().unwrap().push(tenant);
                tokio::task::yield_now().await;
            }
        };
        let busy = (0..100).map(|number| request(TenantId(10 + number % 5)));
        let mut all = futures_util::future::join_all(busy.chain([request(QUIET)]));
        while (&mut all).now_or_never().is_none() {}
        let started = started.lock().unwrap();
        let quiet = started.iter().position(|tenant| *tenant == QUIET).unwrap();
        assert!(quiet <= READS_MAX + 5, "{quiet} requests of 5 busy tenants started first");
    }

    #[test]
    fn waiting_request_that_the_caller_drops_uses_no_turn() {
        let turns = turns();
        let first = turns.take(BUSY).now_or_never().unwrap();
        let second = turns.take(BUSY).now_or_never().unwrap();
        let mut abandoned = Box::pin(turns.take(BUSY));
        assert!(abandoned.as_mut().now_or_never().is_none());
        let mut waiting = Box::pin(turns.take(BUSY));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(abandoned);
        drop(first);
        assert!(waiting.as_mut().now_or_never().is_some());
        drop(second);
        assert!(turns.state().tenants.is_empty() && turns.state().order.is_empty() && turns.state().running == 0);
    }
}
