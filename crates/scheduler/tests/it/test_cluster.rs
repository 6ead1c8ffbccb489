//! Test cluster. Its members use one store and one ownership engine. It also has a network between the members, and a
//! target that records calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use domain::{AttemptResult, Facet, Group, Hour, ScheduleId, Spec, Timestamp, When};
use futures_util::future::BoxFuture;
use membership::memory::{EngineOptions, MemoryOwnership};
use membership::{Member, Profile};
use runtime::Runtime;
use scheduler::operations::{Cancel, CancelIfBy, Operation as _, PutBy, PutIfBy};
use scheduler::{
    Create, Deliver, Delivered, Delivery, Options, PeerError, Peering, Peers, REQUEST_BYTES_MAX, Registry, Scheduler,
};
use simulator::Simulation;
use store::memory::{MemoryOptions, MemoryStore};
use store::{CountRead, Store};

use crate::harness::{TENANT, put_tenant, spec, tenant};

pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// Record of one attempt at the target.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) member: String,
    pub(crate) id: String,
    pub(crate) nominal: Timestamp,
    pub(crate) at: Timestamp,
}

pub(crate) type Behaviour = dyn Fn(&Delivery) -> (Duration, AttemptResult) + Send + Sync;

pub(crate) struct Target {
    pub(crate) member: String,
    pub(crate) runtime: Runtime,
    pub(crate) behaviour: Arc<Behaviour>,
    pub(crate) calls: Arc<Mutex<Vec<Call>>>,
}

impl Deliver for Target {
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'static, Option<Delivered>> {
        let call = Call {
            member: self.member.clone(),
            id: delivery.schedule.id.to_string(),
            nominal: delivery.occurrence.nominal,
            at: self.runtime.now(),
        };
        self.calls.lock().unwrap().push(call);
        let (takes, result) = (self.behaviour)(&delivery);
        let runtime = self.runtime.clone();
        Box::pin(async move {
            runtime.sleep(takes).await;
            Some(Delivered { result, retry_after: None, excerpt: None })
        })
    }
}

/// Network between the members. It contains the scheduler of each member by the member's name, a flag that makes the
/// network lose cancellation requests, and a flag that makes members reject operations of this build.
#[derive(Clone, Default)]
pub(crate) struct Network(
    pub(crate) Arc<Mutex<BTreeMap<String, Scheduler>>>,
    pub(crate) Arc<AtomicBool>,
    pub(crate) Arc<AtomicBool>,
);

/// Sender of one member's requests to other members. Each request takes some time, and runs in a task of the other
/// member.
pub(crate) struct Wire {
    pub(crate) network: Network,
    pub(crate) runtime: Runtime,
    pub(crate) sim: simulator::Handle,
}

impl Peers for Wire {
    fn request(
        &self,
        to: &Member,
        operation: &'static str,
        request: Bytes,
    ) -> BoxFuture<'static, Result<Bytes, PeerError>> {
        let (id, name, network, runtime) = (to.id, to.name.clone(), self.network.clone(), self.runtime.clone());
        let sim = self.sim.clone();
        Box::pin(async move {
            let unreachable = |reason: &str| PeerError::Unreachable { member: name.clone(), reason: reason.to_owned() };
            runtime.sleep(Duration::from_micros(300)).await;
            if operation == Cancel::NAME && network.1.load(Ordering::Relaxed) {
                return Err(unreachable("lost"));
            }
            if [PutBy::NAME, PutIfBy::NAME, CancelIfBy::NAME].contains(&operation) && network.2.load(Ordering::Relaxed)
            {
                return Err(PeerError::UnknownOperation { member: name });
            }
            let there = network.0.lock().unwrap().get(&name).cloned().ok_or_else(|| unreachable("unknown"))?;
            assert!(request.len() <= REQUEST_BYTES_MAX, "the sender splits a longer request");
            // The network rejects a request to an earlier session of the member, as the HTTP server does.
            if !there.is_member(id) {
                return Err(unreachable("another session"));
            }
            let response = sim.call(&name, async move { there.handle(operation, &request).await }).await;
            let response = response.ok_or_else(|| unreachable("went down"))?;
            runtime.sleep(Duration::from_micros(300)).await;
            Ok(response.expect("members of one build read each other's requests"))
        })
    }
}

pub(crate) struct TestCluster {
    pub(crate) sim: simulator::Handle,
    pub(crate) store: MemoryStore,
    pub(crate) engine: MemoryOwnership,
    pub(crate) network: Network,
    pub(crate) behaviour: Arc<Behaviour>,
    pub(crate) calls: Arc<Mutex<Vec<Call>>>,
}

impl TestCluster {
    pub(crate) async fn new(
        sim: &Simulation,
        options: MemoryOptions,
        behaviour: impl Fn(&Delivery) -> (Duration, AttemptResult) + Send + Sync + 'static,
    ) -> Self {
        let outside = sim.outside();
        let store = MemoryStore::new(outside.clone(), options.clone());
        let mut tenant = tenant(TENANT);
        tenant.generations = vec![64];
        let local_store = store.reopen(sim.outside()).with_options(MemoryOptions::default());
        put_tenant(&local_store, tenant.clone()).await.expect("the local store never fails");
        let latency = Some(Duration::from_micros(200)..=Duration::from_millis(2));
        let fail_one_in = options.fail_one_in;
        let engine = MemoryOwnership::new(outside, EngineOptions { latency, fail_one_in, ..EngineOptions::default() });
        let behaviour = Arc::new(behaviour);
        TestCluster {
            sim: (**sim).clone(),
            store,
            engine,
            network: Network::default(),
            behaviour,
            calls: Arc::default(),
        }
    }

    /// Starts a member.
    pub(crate) async fn join(&self, name: &str) -> Scheduler {
        let runtime = if self.network.0.lock().unwrap().contains_key(name) && !self.sim.is_up(name) {
            self.sim.restart(name)
        } else {
            self.sim.member(name)
        };
        let target = Target {
            member: name.to_owned(),
            runtime: runtime.clone(),
            behaviour: self.behaviour.clone(),
            calls: self.calls.clone(),
        };
        let peers = Wire { network: self.network.clone(), runtime: runtime.clone(), sim: self.sim.clone() };
        let (target, peers): (Arc<dyn Deliver>, Arc<dyn Peers>) = (Arc::new(target), Arc::new(peers));
        let scheduler = loop {
            let profile =
                Profile { name: name.to_owned(), address: name.to_owned(), owns: true, build: "test".to_owned() };
            let peering = Peering {
                ownership: Arc::new(self.engine.reopen(runtime.clone())),
                peers: peers.clone(),
                profile,
                options: membership::Options::with_lease(LEASE),
                registry: Registry::default(),
            };
            let store: Arc<dyn Store> = Arc::new(self.store.reopen(runtime.clone()));
            let (runtime, target) = (runtime.clone(), target.clone());
            let joining = async move { Scheduler::join(&runtime, store, target, Options::default(), peering).await };
            // The store may fail while the member starts. The test cluster then starts the member again.
            if let Ok(scheduler) = self.at(name, joining).await {
                break scheduler;
            }
        };
        self.network.0.lock().unwrap().insert(name.to_owned(), scheduler.clone());
        scheduler
    }

    /// Runs `work` as a task of the member.
    pub(crate) async fn at<T: Send + 'static>(&self, name: &str, work: impl Future<Output = T> + Send + 'static) -> T {
        self.sim.call(name, work).await.expect("the member is up")
    }

    pub(crate) async fn sleep(&self, duration: Duration) {
        self.sim.outside().sleep(duration).await;
    }

    pub(crate) fn in_ms(&self, millis: i64) -> Timestamp {
        Timestamp::from_millis(self.sim.outside().now().as_millis() + millis)
    }

    /// Waits until each member owns an equal share of the shards.
    pub(crate) async fn wait_until_balanced(&self, members: &[&Scheduler]) {
        for _ in 0..2_000 {
            let counts: Vec<usize> = members.iter().map(|member| member.owned().len()).collect();
            let spread = counts.iter().max().unwrap() - counts.iter().min().unwrap();
            if counts.iter().sum::<usize>() == 256 && spread <= 1 {
                return;
            }
            self.sleep(Duration::from_millis(5)).await;
        }
        panic!(
            "the shards are not balanced: {:?}",
            members.iter().map(|member| member.owned().len()).collect::<Vec<_>>()
        );
    }

    /// Returns the number of counted runs in each group of a facet.
    pub(crate) async fn counted_runs(&self, facet: Facet) -> BTreeMap<Group, u64> {
        let store = self.store.reopen(self.sim.outside()).with_options(MemoryOptions::default());
        let (from, until) = (Hour(0), Hour::of(Timestamp::MAX));
        let page = store.counts(CountRead { tenant: TENANT, facet, from, until }).await.unwrap();
        let mut runs = BTreeMap::new();
        for (group, tallies) in page.hours.iter().flat_map(|(_, counts)| counts.groups()) {
            *runs.entry(group.clone()).or_default() += tallies.values().map(|tally| tally.runs).sum::<u64>();
        }
        runs
    }

    /// Creates `count` one-shot schedules with generated ids through `member`. One schedule is due per millisecond.
    /// Each has the label `team:blue`.
    pub(crate) async fn schedule(
        &self,
        name: &str,
        member: &Scheduler,
        from: Timestamp,
        count: usize,
    ) -> BTreeSet<String> {
        let requests = (0..count).map(|n| {
            let at = from + Duration::from_millis(n as u64);
            let labels = BTreeMap::from([("team".to_owned(), "blue".to_owned())]);
            Create {
                tenant: Arc::new(cluster_tenant()),
                id: None,
                incarnation: None,
                spec: Spec { labels, ..spec(When::At(at), "http://target.test/") },
                by: None,
            }
        });
        let (member, requests) = (member.clone(), requests.collect());
        let created = self.at(name, async move { member.create(requests).await }).await.unwrap();
        created.into_iter().map(|created| created.unwrap().id.to_string()).collect()
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// Asserts that the target got exactly one call for each of `ids`, and returns the largest lateness of the calls.
    pub(crate) fn assert_each_called_once(&self, ids: &BTreeSet<String>) -> Duration {
        let mut counts: BTreeMap<String, usize> = ids.iter().map(|id| (id.clone(), 0)).collect();
        let mut latest = Duration::ZERO;
        for call in self.calls() {
            assert!(call.at >= call.nominal, "early: {call:?}");
            latest = latest.max(call.at.since(call.nominal));
            *counts.entry(call.id).or_default() += 1;
        }
        let lost = counts.values().filter(|count| **count == 0).count();
        let duplicates = counts.values().filter(|count| **count > 1).count();
        assert_eq!((lost, duplicates), (0, 0), "lost and duplicate calls");
        latest
    }
}

pub(crate) fn cluster_tenant() -> domain::Tenant {
    domain::Tenant { generations: vec![64], ..tenant(TENANT) }
}

pub(crate) fn named(id: &str, at: Timestamp) -> Create {
    Create {
        tenant: Arc::new(cluster_tenant()),
        id: Some(ScheduleId::new(id).unwrap()),
        incarnation: None,
        spec: spec(When::At(at), "http://target.test/"),
        by: None,
    }
}

pub(crate) fn quick(_: &Delivery) -> (Duration, AttemptResult) {
    (Duration::from_millis(3), AttemptResult::Answered(200))
}

pub(crate) fn slow(_: &Delivery) -> (Duration, AttemptResult) {
    (Duration::from_millis(150), AttemptResult::Answered(200))
}
