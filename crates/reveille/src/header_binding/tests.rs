use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use domain::retry::RetryPolicy;
use domain::{
    BusTarget, DueKey, HttpTarget, Incarnation, Occurrence, PollerId, Revision, ScheduleId, Secret, SigningSecret,
    Spec, Status, Target, TenantId, Timestamp, When,
};
use runtime::TaskSet;
use store::encryption::OpenError;
use store::memory::{MemoryOptions, MemoryStore};
use store::{Insert, StoreKey};
use store_embedded::EmbeddedStore;
use store_postgres::PostgresStore;
use test_servers::postgres;

use super::*;
use crate::{store_key, transfer};

/// Key with which an earlier build encrypted [`OLD`].
const KEY: &str = "rvsk_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// Header `authorization: Bearer abc` of the schedule `order-7` of the tenant 7, as an earlier build encrypted it.
const OLD: &[u8] = include_bytes!("../../../store/testdata/sealed-v1.bin");
const TENANT: TenantId = TenantId(7);
const URL: &str = "https://example.com/hook";

fn old() -> Secret {
    Secret::Encrypted(Bytes::from_static(OLD))
}

fn schedule(number: u128, id: &str, url: &str, headers: &[(&str, Secret)]) -> Insert {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let http = HttpTarget { url: url.to_owned(), method: "POST".to_owned(), headers, timeout: Duration::from_secs(1) };
    schedule_to(number, id, Target::Http(http))
}

fn bus_target(topic: &str, value: Secret) -> Target {
    let (topic, headers, timeout) =
        (topic.to_owned(), vec![("authorization".to_owned(), value)], Duration::from_secs(1));
    Target::Bus(BusTarget { topic, key: None, headers, cloud_event: None, timeout })
}

fn schedule_to(number: u128, id: &str, target: Target) -> Insert {
    let at = Timestamp::from_millis(2_000_000_000_000);
    let id = ScheduleId::new(id).unwrap();
    let incarnation = Incarnation::new(at, number);
    let occurrence = Occurrence { incarnation, nominal: at, revision: Revision(0), replay: 0 };
    let due = DueKey { position: at, occurrence, attempt: 1, target: target.key() };
    let spec = Spec {
        when: When::At(at),
        target,
        payload: Bytes::new(),
        labels: BTreeMap::new(),
        retry: RetryPolicy::default(),
    };
    let schedule = Schedule {
        tenant: TENANT,
        poller: PollerId::of(TENANT, 0, 1, &id),
        id,
        incarnation,
        revision: Revision(0),
        status: Status::Active,
        created_at: at,
        updated_at: at,
        next: Some(at),
        spec,
    };
    Insert { schedule: schedule.into(), due, by: None }
}

/// Store with an operator and a tenant. `engine` does not encrypt.
struct Opened {
    runtime: Runtime,
    engine: Arc<dyn Store>,
    keys: tempfile::TempDir,
}

impl Opened {
    async fn new(runtime: &Runtime, engine: Arc<dyn Store>) -> Self {
        let opened = Opened { runtime: runtime.clone(), engine, keys: tempfile::tempdir().unwrap() };
        let unlocked = opened.unlocked(&[KEY]).await;
        let egress = domain::Egress::default();
        crate::identity::create_first(runtime, &unlocked, opened.keys.path(), 1, &egress).await.unwrap();
        let tenant = Tenant::new(TENANT, "shop", 1, SigningSecret::first(vec![7; 32], runtime.now()));
        let entry = Audit::of(&tenant, runtime.now(), "test", "tenant.create", "shop");
        unlocked.store.put_tenant(tenant, entry).await.unwrap().unwrap();
        opened
    }

    /// Returns the store with these keys, of which the first encrypts.
    async fn unlocked(&self, keys: &[&str]) -> Unlocked {
        use std::os::unix::fs::PermissionsExt;

        let path = self.keys.path().join("store.key");
        std::fs::write(&path, keys.join("\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        store_key::unlock(&self.runtime, self.engine.clone(), &path, false).await.unwrap()
    }

    async fn migrate(&self, keys: &[&str]) -> anyhow::Result<Bound> {
        migrate(&self.runtime, &self.unlocked(keys).await).await
    }

    async fn insert(&self, inserts: Vec<Insert>) {
        self.engine.insert(inserts).await.unwrap();
    }

    async fn write(&self, poller: PollerId, change: Change) {
        let term = self.engine.take(vec![poller.shard()]).await.unwrap()[0];
        self.engine.write(vec![OwnerWrite { term, poller, change }]).await.unwrap()[0].as_ref().unwrap();
    }

    async fn get(&self, id: &str) -> Arc<Schedule> {
        let name = (TENANT, ScheduleId::new(id).unwrap());
        self.engine.get(vec![name]).await.unwrap().remove(0).unwrap()
    }

    async fn open(&self, id: &str, name: &str) -> Result<Bytes, OpenError> {
        opened_header(&self.unlocked(&[KEY]).await, id, name).await
    }

    /// Replaces the URL and the header `authorization` of a schedule without the API.
    async fn tamper(&self, id: &str, url: &str, value: Option<Secret>) {
        let mut schedule = self.get(id).await;
        let Target::Http(http) = &mut Arc::make_mut(&mut schedule).spec.target else {
            panic!("the target is an HTTP target")
        };
        http.url = url.to_owned();
        if let Some(value) = value {
            http.headers = vec![("authorization".to_owned(), value)];
        }
        self.write(schedule.poller, Change::Reencrypt(schedule)).await;
    }

    /// Replaces the target of a schedule without the API. The new target gets the stored headers.
    async fn tamper_target(&self, id: &str, mut target: Target) {
        let mut schedule = self.get(id).await;
        *target.headers_mut() = schedule.spec.target.headers().to_vec();
        Arc::make_mut(&mut schedule).spec.target = target;
        self.write(schedule.poller, Change::Reencrypt(schedule)).await;
    }

    async fn set_record(&self, record: Option<Secret>) {
        let operators = self.engine.tenants().await.unwrap().remove(0);
        let changed = Tenant { header_binding: record, version: operators.version + 1, ..operators };
        let entry = Audit::of(&changed, self.runtime.now(), "test", "test", "");
        self.engine.put_tenant(changed, entry).await.unwrap().unwrap();
    }

    async fn record(&self) -> Option<Secret> {
        self.engine.tenants().await.unwrap().remove(0).header_binding
    }
}

/// Decrypts a header of a schedule as a callback does.
async fn opened_header(unlocked: &Unlocked, id: &str, name: &str) -> Result<Bytes, OpenError> {
    let id = ScheduleId::new(id).unwrap();
    let schedule = unlocked.store.get(vec![(TENANT, id.clone())]).await.unwrap().remove(0).unwrap();
    let origin = schedule.spec.target.origin();
    let (_, value) = schedule.spec.target.headers().iter().find(|(known, _)| known == name).unwrap();
    unlocked.keyring.open(Place::Header { tenant: TENANT, schedule: &id, name, origin: &origin }, value)
}

/// Runs `test` with each engine.
fn on_every_engine(test: impl AsyncFn(Opened)) {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    tokio.block_on(async {
        let (runtime, folder) = (Runtime::real(), tempfile::tempdir().unwrap());
        let memory = MemoryStore::new(runtime.clone(), MemoryOptions::default());
        test(Opened::new(&runtime, Arc::new(memory)).await).await;

        let tasks = TaskSet::new(&runtime);
        let options = store_embedded::Options::default();
        let embedded = EmbeddedStore::open(&runtime, &tasks, &folder.path().join("store"), options).await.unwrap();
        let embedded = Arc::new(embedded);
        test(Opened::new(&runtime, embedded.clone()).await).await;
        embedded.close().await;
        tasks.join().await;

        let (tasks, url) = (TaskSet::new(&runtime), postgres::shared().create_database().unwrap());
        let options = store_postgres::Options::default();
        store_postgres::migrate(&runtime, &url, &options).await.unwrap();
        let postgres = Arc::new(PostgresStore::open(&runtime, &tasks, &url, options).await.unwrap());
        test(Opened::new(&runtime, postgres.clone()).await).await;
        postgres.close();
        tasks.join().await;
    });
}

fn error_text<T>(result: anyhow::Result<T>) -> String {
    format!("{:#}", result.err().expect("the result is an error"))
}

#[test]
fn migration_binds_the_headers_of_an_earlier_build_once() {
    on_every_engine(async |opened| {
        let plain = [("x-plain", Secret::from("plain"))];
        let order = schedule(1, "order-7", URL, &[("authorization", old()), plain[0].clone()]);
        let due = order.due;
        let ended = schedule(2, "ended", URL, &plain);
        opened.insert(vec![order, ended.clone(), schedule(3, "moved", URL, &[("authorization", old())])]).await;
        opened.insert(vec![schedule(4, "without-headers", URL, &[])]).await;
        let Schedule { incarnation, revision, poller, .. } = *ended.schedule;
        opened.write(poller, Change::End { incarnation, revision }).await;
        let before = opened.get("order-7").await;

        let bound = opened.migrate(&[KEY]).await.unwrap();
        assert_eq!(bound, Bound { schedules: 2, failed: 1 }, "the header of `moved` belongs to another schedule");
        assert_eq!(opened.open("order-7", "authorization").await, Ok("Bearer abc".into()));
        for id in ["order-7", "ended"] {
            assert_eq!(opened.open(id, "x-plain").await, Ok("plain".into()));
        }
        assert_eq!(opened.open("moved", "authorization").await, Err(OpenError::NotBound));
        let after = opened.get("order-7").await;
        assert_eq!((after.edition(), after.next, after.updated_at), (before.edition(), before.next, before.updated_at));
        assert_eq!(opened.get("ended").await.status, Status::Ended);
        let read = store::DueRead {
            poller,
            after: store::DueBound::Instant(Timestamp::MIN),
            until: Timestamp::MAX,
            limit: 10,
        };
        assert!(opened.engine.due(vec![read]).await.unwrap()[0].keys.contains(&due));

        opened.tamper("order-7", "https://evil.example", None).await;
        assert_eq!(opened.open("order-7", "authorization").await, Err(OpenError::Forged));
        opened.tamper("order-7", "https://evil.example", Some(old())).await;
        assert_eq!(opened.migrate(&[KEY]).await.unwrap(), Bound::default(), "the migration is complete");
        assert_eq!(opened.open("order-7", "authorization").await, Err(OpenError::NotBound));
    });
}

#[test]
fn new_store_has_no_headers_to_bind() {
    on_every_engine(async |opened| {
        assert_eq!(opened.migrate(&[KEY]).await.unwrap(), Bound::default());
        let unlocked = opened.unlocked(&[KEY]).await;
        assert!(is_complete(&*unlocked.store, &unlocked.keyring).await.unwrap());
        let headers = [("authorization", "Bearer abc".into())];
        unlocked.store.insert(vec![schedule(1, "order-7", URL, &headers)]).await.unwrap();
        assert_eq!(opened.open("order-7", "authorization").await, Ok("Bearer abc".into()));
        opened.tamper("order-7", "https://example.com:8443/hook", None).await;
        assert_eq!(opened.open("order-7", "authorization").await, Err(OpenError::Forged));
    });
}

#[test]
fn interrupted_migration_continues() {
    on_every_engine(async |opened| {
        let unlocked = opened.unlocked(&[KEY]).await;
        record(&opened.runtime, &*opened.engine, &unlocked.keyring, Progress::Started).await.unwrap();
        assert!(!is_complete(&*unlocked.store, &unlocked.keyring).await.unwrap());
        unlocked.store.insert(vec![schedule(1, "done", URL, &[("x-plain", "plain".into())])]).await.unwrap();
        opened.insert(vec![schedule(2, "order-7", URL, &[("authorization", old())])]).await;
        assert_eq!(opened.migrate(&[KEY]).await.unwrap(), Bound { schedules: 1, failed: 0 });
        assert_eq!(opened.open("order-7", "authorization").await, Ok("Bearer abc".into()));
        assert_eq!(opened.open("done", "x-plain").await, Ok("plain".into()));
    });
}

#[test]
fn migration_rejects_a_store_whose_record_was_removed_or_replaced() {
    on_every_engine(async |opened| {
        opened.migrate(&[KEY]).await.unwrap();
        let genuine = opened.record().await.unwrap();
        let store = opened.unlocked(&[KEY]).await.store;
        store.insert(vec![schedule(1, "bound", URL, &[("x-plain", "plain".into())])]).await.unwrap();
        opened.insert(vec![schedule(2, "order-7", "https://evil.example", &[("authorization", old())])]).await;

        opened.set_record(None).await;
        let error = error_text(opened.migrate(&[KEY]).await);
        assert!(error.contains("of the schedule bound") && error.contains("restore a backup"), "{error}");
        let Secret::Encrypted(bytes) = &genuine else { panic!("the record is encrypted") };
        let mut changed = bytes.to_vec();
        *changed.last_mut().unwrap() ^= 1;
        for forged in [Secret::Encrypted(changed.into()), old()] {
            opened.set_record(Some(forged)).await;
            let error = error_text(opened.migrate(&[KEY]).await);
            assert!(error.contains("record of the header migration"), "{error}");
        }
        assert_eq!(opened.record().await, Some(old()));
        assert_eq!(opened.open("order-7", "authorization").await, Err(OpenError::NotBound));
        opened.set_record(Some(genuine)).await;
        assert_eq!(opened.migrate(&[KEY]).await.unwrap(), Bound::default());
    });
}

#[test]
fn migration_encrypts_with_the_first_of_several_keys() {
    on_every_engine(async |opened| {
        opened.insert(vec![schedule(1, "order-7", URL, &[("authorization", old())])]).await;
        let (new, text) = StoreKey::generate(&opened.runtime);
        assert_eq!(opened.migrate(&[&text, KEY]).await.unwrap(), Bound { schedules: 1, failed: 0 });
        assert_eq!(opened.open("order-7", "authorization").await, Err(OpenError::UnknownKey(new.id())));
        let rotated = opened.unlocked(&[KEY, &text]).await;
        assert!(is_complete(&*rotated.store, &rotated.keyring).await.unwrap());
    });
}

#[test]
fn copy_binds_the_headers_of_a_source_that_has_not_migrated() {
    on_every_engine(async |source| {
        let key = source.keys.path().join("store.key");
        let copied = async || {
            let copy = MemoryStore::new(source.runtime.clone(), MemoryOptions::default());
            transfer::copy(&source.runtime, &*source.engine, &copy, "the target", &key).await.unwrap();
            let unlocked = store_key::unlock(&source.runtime, Arc::new(copy), &key, false).await.unwrap();
            assert!(is_complete(&*unlocked.store, &unlocked.keyring).await.unwrap());
            opened_header(&unlocked, "order-7", "authorization").await
        };
        source.insert(vec![schedule(1, "order-7", URL, &[("authorization", old())])]).await;
        assert_eq!(copied().await, Ok("Bearer abc".into()));
        assert_eq!(source.open("order-7", "authorization").await, Err(OpenError::NotBound), "the source is unchanged");
        source.migrate(&[KEY]).await.unwrap();
        assert_eq!(copied().await, Ok("Bearer abc".into()));
        source.tamper("order-7", "https://evil.example", Some(old())).await;
        assert_eq!(copied().await, Err(OpenError::NotBound));
    });
}

#[test]
fn header_of_a_bus_target_is_bound_to_its_topic() {
    on_every_engine(async |opened| {
        opened.migrate(&[KEY]).await.unwrap();
        let store = opened.unlocked(&[KEY]).await.store;
        store.insert(vec![schedule_to(1, "order-7", bus_target("orders", "Bearer abc".into()))]).await.unwrap();
        let stored = opened.get("order-7").await;
        assert!(stored.spec.target.headers()[0].1.is_encrypted());
        assert_eq!(opened.open("order-7", "authorization").await, Ok("Bearer abc".into()));

        let copy = Arc::new(MemoryStore::new(opened.runtime.clone(), MemoryOptions::default()));
        let key = opened.keys.path().join("store.key");
        transfer::copy(&opened.runtime, &*opened.engine, &*copy, "the target", &key).await.unwrap();
        let unlocked = store_key::unlock(&opened.runtime, copy.clone(), &key, false).await.unwrap();
        assert_eq!(opened_header(&unlocked, "order-7", "authorization").await, Ok("Bearer abc".into()));
        let name = (TENANT, ScheduleId::new("order-7").unwrap());
        let copied = copy.get(vec![name]).await.unwrap().remove(0).unwrap();
        assert_eq!(copied.spec.target.origin(), "bus:orders");

        for moved in [bus_target("payments", "".into()), bus_target("Orders", "".into())] {
            opened.tamper_target("order-7", moved).await;
            assert_eq!(opened.open("order-7", "authorization").await, Err(OpenError::Forged));
        }
        let Target::Http(http) = schedule(2, "url", "bus:orders", &[]).schedule.spec.target.clone() else {
            panic!("the target is an HTTP target")
        };
        opened.tamper_target("order-7", Target::Http(http)).await;
        assert_eq!(opened.open("order-7", "authorization").await, Err(OpenError::Forged));
    });
}
