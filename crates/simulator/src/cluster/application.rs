//! Simulated application. It requests schedules and cancellations through the inbox, in transactions of its own, and
//! checks that each committed request takes effect exactly once and in its order.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{Incarnation, ScheduleId, Spec, Status, Tenant, Timestamp};
use scheduler::ReadSpec;
use store::{Inbox as _, InboxRequest, Store as _};

use super::test_cluster::{TestCluster, tenant};
use super::{StoreKind, series_end};
use crate::user::{self, Incarnations, expected};

/// Longest time until the members have moved all requests after all faults have ended.
const MOVING_TIME_MAX: Duration = Duration::from_secs(20);

/// Specs that the application requested. The text of a spec in the inbox is the position of the spec in this list.
#[derive(Clone, Default)]
pub(super) struct Specs(Arc<Mutex<Vec<Spec>>>);

impl Specs {
    fn add(&self, spec: Spec) -> String {
        let mut specs = self.0.lock().expect("no holder of this lock panics");
        specs.push(spec);
        (specs.len() - 1).to_string()
    }

    /// Returns the function with which the members read the specs.
    pub(super) fn reader(&self) -> ReadSpec {
        let specs = self.0.clone();
        Arc::new(move |text: &str, _: &Tenant, _: Timestamp| {
            let position: usize = text.parse().map_err(|_| INVALID.to_owned())?;
            let specs = specs.lock().expect("no holder of this lock panics");
            Ok(specs[position].clone())
        })
    }
}

/// Text that is not a spec, and reason with which a member rejects it.
const INVALID: &str = "invalid spec";

/// Effect that a committed request must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Promise {
    Fires,
    IsCancelled,
}

pub(super) struct Application<'a> {
    cluster: &'a TestCluster,
    incarnations: &'a Incarnations,
    transactions: u32,
    created: Vec<(ScheduleId, Incarnation, Promise)>,
    /// Ids of the requests that an owner must reject, in the order of their transactions.
    rejected: Vec<String>,
}

impl<'a> Application<'a> {
    pub(super) fn new(cluster: &'a TestCluster, incarnations: &'a Incarnations) -> Self {
        Application { cluster, incarnations, transactions: 0, created: Vec::new(), rejected: Vec::new() }
    }

    pub(super) async fn run(mut self, until: Duration) -> Self {
        while self.cluster.sim.elapsed() < until {
            let wait = Duration::from_millis(self.draw(500));
            self.cluster.sim.sleep(wait).await;
            self.transactions += 1;
            let id = ScheduleId::new(&format!("sql-{}", self.transactions));
            let id = id.expect("letters, a dash and a number form a valid id");
            match self.draw(8) {
                0..=3 => {
                    let created = self.request(vec![self.create(&id)])[0];
                    self.created.push((id, created, Promise::Fires));
                }
                4 => {
                    let created = self.request(vec![self.create(&id), self.cancel(&id)])[0];
                    self.created.push((id, created, Promise::IsCancelled));
                }
                5 => {
                    let created = self.request(vec![self.create(&id)])[0];
                    let wait = Duration::from_millis(self.draw(300));
                    self.cluster.sim.sleep(wait).await;
                    self.request(vec![self.cancel(&id)]);
                    self.created.push((id, created, Promise::IsCancelled));
                }
                6 => {
                    self.rejected.push(id.to_string());
                    self.request(vec![InboxRequest { spec: Some(INVALID.to_owned()), ..self.create(&id) }]);
                }
                _ => {
                    // The second request has another incarnation, but the id of an existing schedule.
                    let created = self.request(vec![self.create(&id), self.create(&id)])[0];
                    self.rejected.push(id.to_string());
                    self.created.push((id, created, Promise::Fires));
                }
            }
        }
        self
    }

    fn draw(&self, below: u64) -> u64 {
        self.cluster.sim.draw(|random| random.below(below))
    }

    fn create(&self, id: &ScheduleId) -> InboxRequest {
        let now = self.cluster.sim.outside().now();
        let spec = self.cluster.sim.draw(|random| user::spec(random, now));
        InboxRequest { spec: Some(self.cluster.specs().add(spec)), ..self.cancel(id) }
    }

    fn cancel(&self, id: &ScheduleId) -> InboxRequest {
        InboxRequest { tenant: tenant().name, id: id.to_string(), spec: None }
    }

    /// Commits a transaction with these requests, and returns the incarnations of the entries.
    fn request(&self, requests: Vec<InboxRequest>) -> Vec<Incarnation> {
        let id = requests.first().map_or_else(String::new, |request| request.id.clone());
        let committed = self.cluster.local_store().request(requests);
        let committed = committed.expect("the tenant exists, and the ids are valid");
        self.cluster.sim.note(&format!("the application commits requests for {id} with {committed:?}"));
        committed
    }

    /// Waits until the members have moved all requests, and adds the schedules to the history. The scenario calls this
    /// function after all faults have ended.
    pub(super) async fn finish(&self) {
        let store = self.cluster.local_store();
        let started = self.cluster.sim.elapsed();
        loop {
            let state = store.publish_usage().await.expect("the store without faults never fails");
            if state.waiting == 0 {
                break;
            }
            let waited = self.cluster.sim.elapsed() - started;
            assert!(
                waited < MOVING_TIME_MAX,
                "stuck: {} requests wait in the inbox although all faults have ended",
                state.waiting
            );
            self.cluster.sim.sleep(Duration::from_millis(100)).await;
        }
        for (id, incarnation, promise) in &self.created {
            let found = store.load(vec![*incarnation]).await.expect("the store without faults never fails").remove(0);
            let schedule = found.unwrap_or_else(|| {
                panic!("lost: the inbox lost {id}: the transaction committed, but the schedule does not exist")
            });
            self.incarnations.add(*incarnation);
            self.cluster.record.record_home(*incarnation, schedule.poller.shard());
            self.cluster.history.created(*incarnation, expected(&schedule, series_end(&self.cluster.sim)));
            if self.cluster.kind == StoreKind::Weak {
                self.cluster.history.created_in_steps(*incarnation);
            }
            if *promise == Promise::IsCancelled {
                // The application does not learn when the cancellation takes effect, so the schedule may fire before.
                self.cluster.history.change_without_response(*incarnation);
            }
        }
    }

    /// Checks the final states. The scenario calls this function at its end.
    ///
    /// # Panics
    /// Panics if a request had a wrong effect.
    pub(super) async fn check(&self) {
        let store = self.cluster.local_store();
        for (id, incarnation, promise) in &self.created {
            let found = store.load(vec![*incarnation]).await.expect("the store without faults never fails").remove(0);
            let is_cancelled = found.is_some_and(|schedule| schedule.status == Status::Cancelled);
            assert_eq!(
                is_cancelled,
                *promise == Promise::IsCancelled,
                "order: the last request in the inbox for {id} has no effect"
            );
        }
        let mut letters: Vec<String> = store.inbox_dead_letters().into_iter().map(|letter| letter.entry.id).collect();
        letters.sort();
        let mut rejected = self.rejected.clone();
        rejected.sort();
        let lost: Vec<&String> = rejected.iter().filter(|id| !letters.contains(id)).collect();
        assert!(lost.is_empty(), "lost: the inbox has no dead letters for the invalid requests {lost:?}");
        assert_eq!(
            letters, rejected,
            "rejected: the inbox has a dead letter for a valid request, or two for one request"
        );
    }
}
