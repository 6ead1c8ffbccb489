//! Single-node harness. It runs a scheduler, its store and a receiver that records calls, in a simulated world.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use domain::retry::RetryPolicy;
use domain::{
    AttemptResult, Audit, HttpTarget, Occurrence, Schedule, ScheduleId, SigningSecret, Spec, Target, Tenant, TenantId,
    Timestamp, When,
};
use futures_util::future::BoxFuture;
use runtime::Runtime;
use scheduler::{Create, CreateRejection, Deliver, Delivered, Delivery, Options, Registry, Scheduler};
use simulator::Simulation;
use store::memory::{MemoryOptions, MemoryStore};
use store::{Store, StoreError};

/// Record of one attempt at the receiver.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) occurrence: Occurrence,
    pub(crate) attempt: u16,
    pub(crate) at: Timestamp,
}

type Behaviour = dyn Fn(&Delivery) -> (Duration, AttemptResult) + Send + Sync;

/// Receiver that responds as `behaviour` determines, and records each call.
pub(crate) struct Receiver {
    runtime: Runtime,
    behaviour: Box<Behaviour>,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Deliver for Receiver {
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'static, Option<Delivered>> {
        let call = Call {
            id: delivery.schedule.id.to_string(),
            occurrence: delivery.occurrence,
            attempt: delivery.attempt,
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

pub(crate) struct Harness {
    pub(crate) runtime: Runtime,
    pub(crate) store: MemoryStore,
    pub(crate) scheduler: Scheduler,
    pub(crate) calls: Arc<Mutex<Vec<Call>>>,
}

pub(crate) const TENANT: TenantId = TenantId(1);

pub(crate) fn tenant(id: TenantId) -> Tenant {
    Tenant::new(id, &format!("tenant-{}", id.0), 4, SigningSecret::first(vec![7; 32], Timestamp::MIN))
}

pub(crate) async fn put_tenant(store: &MemoryStore, tenant: Tenant) -> Result<(), StoreError> {
    let entry = Audit::of(&tenant, Timestamp::MIN, "test", "tenant.change", "");
    store.put_tenant(tenant, entry).await.map(|put| put.expect("no other process changes the tenant"))
}

impl Harness {
    pub(crate) async fn open(
        runtime: Runtime,
        options: Options,
        behaviour: impl Fn(&Delivery) -> (Duration, AttemptResult) + Send + Sync + 'static,
    ) -> Harness {
        let store = MemoryStore::new(runtime.clone(), MemoryOptions::default());
        for id in [1, 2] {
            put_tenant(&store, tenant(TenantId(id))).await.unwrap();
        }
        Harness::reopen(runtime, store, options, behaviour).await.unwrap()
    }

    pub(crate) async fn reopen(
        runtime: Runtime,
        store: MemoryStore,
        options: Options,
        behaviour: impl Fn(&Delivery) -> (Duration, AttemptResult) + Send + Sync + 'static,
    ) -> Result<Harness, StoreError> {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let receiver = Receiver { runtime: runtime.clone(), behaviour: Box::new(behaviour), calls: calls.clone() };
        let engine: Arc<dyn Store> = Arc::new(store.reopen(runtime.clone()));
        let scheduler = Scheduler::start(&runtime, engine, Arc::new(receiver), options, Registry::default()).await?;
        Ok(Harness { runtime, store, scheduler, calls })
    }

    pub(crate) fn in_ms(&self, millis: i64) -> Timestamp {
        Timestamp::from_millis(self.runtime.now().as_millis() + millis)
    }

    pub(crate) async fn create(&self, id: &str, when: When) -> Arc<Schedule> {
        self.create_for(TENANT, id, when, "http://receiver.test/a").await
    }

    pub(crate) async fn create_for(&self, owner: TenantId, id: &str, when: When, url: &str) -> Arc<Schedule> {
        self.try_create(owner, id, when, url).await.unwrap().unwrap()
    }

    pub(crate) async fn try_create(
        &self,
        owner: TenantId,
        id: &str,
        when: When,
        url: &str,
    ) -> Result<Result<Arc<Schedule>, CreateRejection>, StoreError> {
        let request = Create {
            tenant: Arc::new(tenant(owner)),
            id: Some(ScheduleId::new(id).unwrap()),
            incarnation: None,
            spec: spec(when, url),
            by: None,
        };
        Ok(self.scheduler.create(vec![request]).await?.pop().unwrap())
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// Waits in simulated time until the receiver has recorded `count` calls.
    pub(crate) async fn wait_for_calls(&self, count: usize) {
        while self.calls.lock().unwrap().len() < count {
            self.runtime.sleep(Duration::from_millis(1)).await;
        }
    }
}

pub(crate) fn spec(when: When, url: &str) -> Spec {
    Spec {
        when,
        target: Target::Http(HttpTarget {
            url: url.to_owned(),
            method: "POST".to_owned(),
            headers: Vec::new(),
            timeout: Duration::from_secs(10),
        }),
        payload: Bytes::from_static(b"{}"),
        labels: BTreeMap::new(),
        retry: RetryPolicy { attempts_max: 3, backoff: Duration::from_secs(1), backoff_max: Duration::from_secs(60) },
    }
}

pub(crate) fn ok(_: &Delivery) -> (Duration, AttemptResult) {
    (Duration::from_millis(3), AttemptResult::Answered(200))
}

pub(crate) fn simulate<F: Future<Output = ()>>(scenario: impl FnOnce(Runtime) -> F) {
    let sim = Simulation::new(1);
    sim.run_until(async { scenario(sim.member("a")).await });
}
