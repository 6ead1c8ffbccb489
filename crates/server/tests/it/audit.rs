//! Tests of the result of the auditor, with a server on which the time passes faster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::{
    DueKey, HttpTarget, Incarnation, Occurrence, PollerId, RetryPolicy, Revision, Schedule, ScheduleId, Spec, Status,
    Target, TenantId, Timestamp, When,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use runtime::{Disk, Monotonic, Place, Runtime, TaskHandle};
use server::Options;
use store::memory::MemoryStore;
use store::{Change, Insert, OwnerWrite, Positions, Store};

use crate::support::{DeliverByPath, FOREIGN_KEY, KEY, OPERATOR_KEY, World};

/// Factor by which both clocks of the server are faster than the real clocks. The auditor confirms a difference after
/// 40 s.
const SPEED: u32 = 20;

/// Real machine whose clocks are fast.
struct Fast {
    real: Runtime,
    wall: Timestamp,
    since: Duration,
}

impl runtime::World for Fast {
    fn now(&self) -> Timestamp {
        self.wall + (self.real.monotonic().since_start() - self.since) * SPEED
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic::from_start(self.real.monotonic().since_start() * SPEED)
    }

    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()> {
        self.real.world().sleep_until(Monotonic::from_start(at.since_start() / SPEED + Duration::from_millis(1)))
    }

    fn random(&self) -> u64 {
        self.real.world().random()
    }

    fn spawn(&self, name: &'static str, place: Place, future: BoxFuture<'static, ()>) -> TaskHandle {
        self.real.world().spawn(name, place, future)
    }

    fn disk(&self) -> Arc<dyn Disk> {
        self.real.world().disk()
    }

    fn halt(&self, reason: &str) {
        self.real.world().halt(reason);
    }
}

/// Writes a schedule of `tenant-1` whose due row no owner reads any more. Returns its occurrence.
fn plant_unread_row(store: &MemoryStore, now: Timestamp) -> Occurrence {
    let nominal = now - Duration::from_secs(1_800);
    let incarnation = Incarnation::new(now - Duration::from_secs(3_600), 7);
    let id = ScheduleId::new("lost").unwrap();
    let poller = PollerId::of(TenantId(1), 0, 4, &id);
    let target = Target::Http(HttpTarget {
        url: "http://127.0.0.1:9/200".to_owned(),
        method: "POST".to_owned(),
        headers: Vec::new(),
        timeout: Duration::from_secs(10),
    });
    let key = target.key();
    let (payload, labels, retry) = (Bytes::new(), BTreeMap::new(), RetryPolicy::default());
    let schedule = Schedule {
        tenant: TenantId(1),
        id,
        incarnation,
        poller,
        revision: Revision(0),
        status: Status::Active,
        created_at: now - Duration::from_secs(3_600),
        updated_at: now - Duration::from_secs(3_600),
        next: Some(nominal),
        spec: Spec { when: When::At(nominal), target, payload, labels, retry },
    };
    let occurrence = Occurrence { incarnation, nominal, revision: Revision(0), replay: 0 };
    let due = DueKey { position: nominal, occurrence, attempt: 1, target: key };
    let insert = Insert { schedule: Arc::new(schedule), due, by: None };
    store.insert(vec![insert]).now_or_never().expect("the store responds at once").unwrap();
    let term = store.take(vec![poller.shard()]).now_or_never().expect("the store responds at once").unwrap()[0];
    let done = now - Duration::from_secs(60);
    let change = Change::Positions(Positions { closed: done, done });
    let written = store.write(vec![OwnerWrite { term, poller, change }]).now_or_never();
    assert!(written.expect("the store responds at once").unwrap()[0].is_ok());
    occurrence
}

#[tokio::test]
async fn audit_lists_a_lost_due_row_to_its_tenant_and_operators() {
    let real = Runtime::real();
    let (wall, since) = (real.now(), real.monotonic().since_start());
    let fast = Runtime::new(Arc::new(Fast { real, wall, since }));
    let mut planted = None;
    let wrap = |store: Arc<MemoryStore>| -> Arc<dyn Store> {
        planted = Some(plant_unread_row(&store, wall));
        store
    };
    let world = World::start_wrapped(fast, Arc::new(DeliverByPath), Options::default(), wrap).await;
    let planted = planted.expect("the server has started");
    let mut polls = 0;
    let found = loop {
        let audit = world.send_as(OPERATOR_KEY, "GET", "/v1/audit", "").await.json();
        if audit.get("completed_at").is_some() {
            break audit;
        }
        polls += 1;
        assert!(polls < 100, "the first audit ends");
        world.runtime.sleep(Duration::from_secs(4)).await;
    };
    let finding = &found["findings"][0];
    let text = "the schedule waits for the occurrence, but it has no due row; \
                replace the schedule so that it fires again";
    let expected = serde_json::json!({
        "kind": "missing_due_row",
        "text": text,
        "tenant": "tenant-1",
        "schedule": "lost",
        "at": planted.nominal.to_string(),
        "run": planted.run_id().to_string(),
        "found_at": finding["found_at"],
    });
    assert_eq!((&found["unaccounted"], finding), (&1.into(), &expected));
    let own = world.send_as(KEY, "GET", "/v1/audit", "").await.json();
    assert_eq!(own["findings"], serde_json::json!([expected]));
    let foreign = world.send_as(FOREIGN_KEY, "GET", "/v1/audit", "").await.json();
    assert_eq!((&foreign["unaccounted"], &foreign["findings"]), (&0.into(), &serde_json::json!([])));
    world.stop().await;
}

#[tokio::test]
async fn audit_is_visible_to_admins_and_operators() {
    let world = World::start().await;
    for key in [KEY, FOREIGN_KEY, OPERATOR_KEY] {
        let audit = world.send_as(key, "GET", "/v1/audit", "").await;
        assert_eq!(audit.status, 200, "{}", audit.body);
        let json = audit.json();
        assert_eq!(
            (&json["unaccounted"], &json["truncated"], &json["incomplete"]),
            (&0.into(), &false.into(), &false.into())
        );
        assert_eq!(json["findings"], serde_json::json!([]));
        assert!(json.get("completed_at").is_none(), "the first audit begins later: {json}");
    }
    for role in ["writer", "reader"] {
        let body = format!(r#"{{"role":"{role}"}}"#);
        let key = world.send("POST", "/v1/tenants/tenant-1/keys", &body).await.text("/secret");
        let rejected = world.send_as(&key, "GET", "/v1/audit", "").await;
        assert_eq!((rejected.status, rejected.text("/code").as_str()), (403, "role_forbidden"));
    }
    let query = world.send("GET", "/v1/audit?limit=1", "").await;
    assert_eq!((query.status, query.text("/code").as_str()), (400, "invalid_parameter"));
    world.stop().await;
}
