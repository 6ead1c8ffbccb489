//! Conformance suite of the inbox port. Engines that have an inbox run this suite in addition to the suite of the store
//! port.

use std::sync::Arc;

use domain::id::SHARDS;
use domain::{Audit, PollerId, Quota, ScheduleId, ShardId, SigningSecret, Tenant, TenantId, Timestamp};
use futures_util::future::BoxFuture;
use store::{Inbox, InboxEntry, InboxRead, InboxRequest, Store};

/// Subject of the suite: a store with an inbox, and the application side of the inbox. The store is empty at first.
pub trait InboxSubject: Send + Sync {
    /// Opens the store. The suite calls this method once.
    fn open(&self) -> BoxFuture<'_, (Arc<dyn Store>, Arc<dyn Inbox>)>;

    /// Makes requests in one transaction of an application, and commits the transaction. The error begins with the name
    /// of the field or quota because of which the engine rejected a request. The transaction then has no effect.
    fn request(&self, requests: Vec<InboxRequest>) -> BoxFuture<'_, Result<(), String>>;

    /// Returns the id and the reason of each dead letter, the oldest entry first.
    fn dead_letters(&self) -> BoxFuture<'_, Vec<(String, String)>>;
}

conformance::suite! { $ dyn InboxSubject, inbox_conformance_tests, [$crate::inbox];
    cases {
        entry_contains_the_request_and_its_poller
        read_returns_only_entries_of_the_shards
        settled_entries_are_deleted
        rejected_entry_becomes_a_dead_letter
        tenants_take_turns_in_a_read
        excepted_tenants_are_omitted
        requests_for_one_id_stay_in_order
        malformed_request_is_rejected
        transaction_beyond_pending_max_is_rejected
        published_usage_counts_waiting_requests
        state_counts_entries_and_dead_letters
    }
}

/// A valid spec, in the form in which PostgreSQL writes JSON.
const SPEC: &str = r#"{"at": "2033-05-18T03:33:20Z", "target": {"http": {"url": "https://example.com/hook"}}}"#;
const ONE: TenantId = TenantId(1);
const OTHER: TenantId = TenantId(2);

fn name_of(tenant: TenantId) -> String {
    format!("tenant-{}", tenant.0)
}

fn tenant(id: TenantId) -> Tenant {
    Tenant::new(id, &name_of(id), 4, SigningSecret::first(vec![7; 32], Timestamp::MIN))
}

fn create(tenant: TenantId, id: &str) -> InboxRequest {
    InboxRequest { tenant: name_of(tenant), id: id.to_owned(), spec: Some(SPEC.to_owned()) }
}

fn cancel(tenant: TenantId, id: &str) -> InboxRequest {
    InboxRequest { spec: None, ..create(tenant, id) }
}

fn poller(tenant: TenantId, generation: u16, pollers: u16, id: &str) -> PollerId {
    PollerId::of(tenant, generation, pollers, &ScheduleId::new(id).expect("the case uses a valid id"))
}

fn ids(entries: &[InboxEntry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.id.as_str()).collect()
}

struct Fixture<'a> {
    subject: &'a dyn InboxSubject,
    store: Arc<dyn Store>,
    inbox: Arc<dyn Inbox>,
}

impl<'a> Fixture<'a> {
    async fn open(subject: &'a dyn InboxSubject) -> Self {
        let (store, inbox) = subject.open().await;
        let fixture = Fixture { subject, store, inbox };
        for id in [ONE, OTHER] {
            fixture.put_tenant(tenant(id)).await;
        }
        fixture
    }

    async fn put_tenant(&self, tenant: Tenant) {
        let entry = Audit::of(&tenant, Timestamp::MIN, "conformance", "tenant.change", "");
        let put = self.store.put_tenant(tenant, entry).await.expect("the store accepts tenants");
        put.expect("no other process changes the tenant");
    }

    async fn request(&self, requests: Vec<InboxRequest>) {
        self.subject.request(requests).await.expect("the engine accepts the requests");
    }

    /// Returns the field or quota because of which the engine rejects the requests.
    async fn rejected(&self, requests: Vec<InboxRequest>) -> String {
        let rejection = self.subject.request(requests).await.expect_err("the engine rejects the requests");
        rejection.split(':').next().unwrap_or_default().to_owned()
    }

    async fn read_of(&self, shards: Vec<ShardId>, except: Vec<TenantId>, limit: usize) -> Vec<InboxEntry> {
        let read = InboxRead { shards: shards.into(), except, limit };
        self.inbox.read_inbox(read).await.expect("the inbox accepts reads")
    }

    async fn read(&self) -> Vec<InboxEntry> {
        self.read_of((0..SHARDS).map(ShardId).collect(), Vec::new(), 100).await
    }

    async fn settle(&self, moved: Vec<u64>, rejected: Vec<(u64, String)>) {
        self.inbox.settle_inbox(moved, rejected).await.expect("the inbox accepts settlements");
    }
}

mod cases {
    use super::*;

    pub(super) async fn entry_contains_the_request_and_its_poller(subject: &dyn InboxSubject) {
        let fixture = Fixture::open(subject).await;
        let requests: Vec<InboxRequest> = (0..20).map(|number| create(ONE, &format!("order-{number}"))).collect();
        fixture.request(requests).await;
        fixture.request(vec![cancel(OTHER, "order-0")]).await;
        let entries = fixture.read().await;
        assert_eq!(entries.len(), 21);
        for (number, entry) in entries[..20].iter().enumerate() {
            let id = format!("order-{number}");
            assert_eq!((entry.tenant, &entry.id, entry.spec.as_deref()), (ONE, &id, Some(SPEC)));
            assert_eq!(entry.poller, poller(ONE, 0, 4, &id), "the poller is the home poller of the schedule");
        }
        let last = &entries[20];
        assert_eq!((last.tenant, last.id.as_str(), last.spec.as_deref()), (OTHER, "order-0", None));
        assert_eq!(last.poller, poller(OTHER, 0, 4, "order-0"));
        let mut incarnations: Vec<_> = entries.iter().map(|entry| entry.incarnation).collect();
        incarnations.sort();
        incarnations.dedup();
        assert_eq!(incarnations.len(), 21, "each entry has an incarnation of its own");
        assert_eq!(fixture.read().await, entries, "a read deletes no entries");
    }

    pub(super) async fn read_returns_only_entries_of_the_shards(subject: &dyn InboxSubject) {
        let fixture = Fixture::open(subject).await;
        let names: Vec<String> = (0..20).map(|number| format!("order-{number}")).collect();
        fixture.request(names.iter().map(|id| create(ONE, id)).collect()).await;
        let shard_of = |id: &str| poller(ONE, 0, 4, id).shard();
        let shards: std::collections::BTreeSet<ShardId> = names.iter().map(|id| shard_of(id)).collect();
        assert!(shards.len() > 1, "the case needs entries of several shards");
        let mut read = 0;
        for shard in shards {
            let entries = fixture.read_of(vec![shard], Vec::new(), 100).await;
            let expected: Vec<&str> = names.iter().map(String::as_str).filter(|id| shard_of(id) == shard).collect();
            assert_eq!(ids(&entries), expected);
            read += entries.len();
        }
        assert_eq!(read, 20);
        assert_eq!(fixture.read_of(Vec::new(), Vec::new(), 100).await, []);
    }

    pub(super) async fn settled_entries_are_deleted(subject: &dyn InboxSubject) {
        let fixture = Fixture::open(subject).await;
        fixture.request(vec![create(ONE, "a"), create(ONE, "b"), create(ONE, "c")]).await;
        let entries = fixture.read().await;
        fixture.settle(vec![entries[1].number], Vec::new()).await;
        fixture.settle(vec![entries[1].number, u64::from(u32::MAX)], Vec::new()).await;
        assert_eq!(ids(&fixture.read().await), ["a", "c"]);
        assert_eq!(subject.dead_letters().await, []);
    }

    pub(super) async fn rejected_entry_becomes_a_dead_letter(subject: &dyn InboxSubject) {
        let fixture = Fixture::open(subject).await;
        fixture.request(vec![create(ONE, "a"), create(ONE, "b"), cancel(OTHER, "c")]).await;
        let numbers: Vec<u64> = fixture.read().await.iter().map(|entry| entry.number).collect();
        let unknown = u64::from(u32::MAX);
        let reject = |number: u64, reason: &str| (number, reason.to_owned());
        fixture.settle(vec![numbers[1]], vec![reject(numbers[0], "first"), reject(unknown, "unknown")]).await;
        // A second member that has read the same entries cannot reject them again.
        fixture.settle(Vec::new(), vec![reject(numbers[0], "again"), reject(numbers[1], "moved")]).await;
        fixture.settle(Vec::new(), vec![reject(numbers[2], "third")]).await;
        let letter = |id: &str, reason: &str| (id.to_owned(), reason.to_owned());
        assert_eq!(subject.dead_letters().await, [letter("a", "first"), letter("c", "third")]);
        assert_eq!(fixture.read().await, []);
    }

    pub(super) async fn tenants_take_turns_in_a_read(subject: &dyn InboxSubject) {
        let fixture = Fixture::open(subject).await;
        fixture.request((0..50).map(|number| create(ONE, &format!("order-{number}"))).collect()).await;
        fixture.request(vec![create(OTHER, "x"), create(OTHER, "y"), create(OTHER, "z")]).await;
        let all: Vec<ShardId> = (0..SHARDS).map(ShardId).collect();
        let read = fixture.read_of(all.clone(), Vec::new(), 4).await;
        assert_eq!(ids(&read), ["order-0", "order-1", "x", "y"]);
        let read = fixture.read_of(all, Vec::new(), 10).await;
        let expected = ["order-0", "order-1", "order-2", "order-3", "order-4", "order-5", "order-6", "x", "y", "z"];
        assert_eq!(ids(&read), expected, "a tenant with many entries uses the turns that another tenant leaves");
    }

    pub(super) async fn excepted_tenants_are_omitted(subject: &dyn InboxSubject) {
        let fixture = Fixture::open(subject).await;
        fixture.request(vec![create(ONE, "a"), create(OTHER, "b"), create(ONE, "c")]).await;
        let all: Vec<ShardId> = (0..SHARDS).map(ShardId).collect();
        assert_eq!(ids(&fixture.read_of(all.clone(), vec![ONE], 100).await), ["b"]);
        assert_eq!(fixture.read_of(all, vec![ONE, OTHER], 100).await, []);
    }

    pub(super) async fn requests_for_one_id_stay_in_order(subject: &dyn InboxSubject) {
        let fixture = Fixture::open(subject).await;
        let (old, new) = (|id: &str| poller(ONE, 0, 4, id), |id: &str| poller(ONE, 1, 64, id));
        let moves = |id: &String| old(id).shard() != new(id).shard();
        let id = (0..).map(|number| format!("order-{number}")).find(moves).expect("most ids get another shard");
        fixture.request(vec![create(ONE, &id), cancel(ONE, &id)]).await;
        fixture.put_tenant(Tenant { version: 2, generations: vec![4, 64], ..tenant(ONE) }).await;
        fixture.request(vec![create(ONE, &id), create(ONE, "other")]).await;

        let (old, new) = (old(&id), new(&id));
        let of_new = fixture.read_of(vec![new.shard(), poller(ONE, 1, 64, "other").shard()], Vec::new(), 100).await;
        assert_eq!(ids(&of_new), ["other"], "the owner of the new shard waits for the owner of the old shard");
        let of_old = fixture.read_of(vec![old.shard()], Vec::new(), 100).await;
        let request = |entry: &InboxEntry| (entry.poller, entry.spec.is_some());
        assert_eq!(of_old.iter().map(request).collect::<Vec<_>>(), [(old, true), (old, false)]);
        fixture.settle(vec![of_old[0].number], Vec::new()).await;
        assert_eq!(fixture.read_of(vec![new.shard()], Vec::new(), 100).await, []);
        fixture.settle(Vec::new(), vec![(of_old[1].number, "a rejected entry blocks no other entry".to_owned())]).await;
        let of_new = fixture.read_of(vec![new.shard()], Vec::new(), 100).await;
        assert_eq!(of_new.iter().map(request).collect::<Vec<_>>(), [(new, true)]);
    }

    pub(super) async fn malformed_request_is_rejected(subject: &dyn InboxSubject) {
        let fixture = Fixture::open(subject).await;
        let operator = Tenant { generations: Vec::new(), ..tenant(Tenant::OPERATOR) };
        fixture.put_tenant(operator).await;
        let unknown = create(TenantId(3), "b");
        assert_eq!(fixture.rejected(vec![create(ONE, "a"), unknown.clone()]).await, "tenant");
        assert_eq!(fixture.rejected(vec![InboxRequest { spec: None, ..unknown }]).await, "tenant");
        assert_eq!(fixture.rejected(vec![create(Tenant::OPERATOR, "a")]).await, "tenant");
        let long = "x".repeat(129);
        for id in ["", "a b", "ü", "a.b", &long] {
            assert_eq!(fixture.rejected(vec![create(ONE, id)]).await, "id", "{id:?}");
            assert_eq!(fixture.rejected(vec![cancel(ONE, id)]).await, "id", "{id:?}");
        }
        assert_eq!(fixture.read().await, [], "a rejected request undoes its whole transaction");
        fixture.request(vec![create(ONE, &long[1..])]).await;
    }

    pub(super) async fn transaction_beyond_pending_max_is_rejected(subject: &dyn InboxSubject) {
        let fixture = Fixture::open(subject).await;
        let mut limited = Tenant { version: 2, ..tenant(ONE) };
        limited.quotas.set(Quota::PendingMax, Some(3));
        limited.ceilings.set(Quota::PendingMax, Some(3));
        fixture.put_tenant(limited).await;
        let creates = |ids: &[&str]| ids.iter().map(|id| create(ONE, id)).collect::<Vec<_>>();
        assert_eq!(fixture.rejected(creates(&["a", "b", "c", "d"])).await, "pending_max");
        fixture.request(creates(&["a", "b"])).await;
        assert_eq!(fixture.rejected(creates(&["c", "d"])).await, "pending_max");
        fixture.request(creates(&["c"])).await;
        assert_eq!(fixture.rejected(creates(&["d"])).await, "pending_max");
        fixture.request(vec![cancel(ONE, "a"), create(OTHER, "d")]).await;
        let numbers = fixture.read().await.iter().map(|entry| entry.number).collect();
        fixture.settle(numbers, Vec::new()).await;
        fixture.request(creates(&["d"])).await;
    }

    pub(super) async fn published_usage_counts_waiting_requests(subject: &dyn InboxSubject) {
        let fixture = Fixture::open(subject).await;
        let mut limited = Tenant { version: 2, ..tenant(ONE) };
        limited.quotas.set(Quota::PendingMax, Some(2));
        limited.ceilings.set(Quota::PendingMax, Some(2));
        fixture.put_tenant(limited).await;
        fixture.request(vec![create(ONE, "a"), cancel(ONE, "x")]).await;
        fixture.inbox.publish_usage().await.expect("the inbox accepts publications");
        assert_eq!(fixture.rejected(vec![create(ONE, "b"), create(ONE, "c")]).await, "pending_max");
        fixture.request(vec![create(ONE, "b")]).await;
    }

    pub(super) async fn state_counts_entries_and_dead_letters(subject: &dyn InboxSubject) {
        let fixture = Fixture::open(subject).await;
        let state = async || fixture.inbox.publish_usage().await.expect("the inbox accepts publications");
        assert_eq!(state().await, store::InboxState::default());
        fixture.request(vec![create(ONE, "a"), create(OTHER, "b"), cancel(ONE, "c")]).await;
        let before = state().await;
        assert_eq!((before.waiting, before.dead_letters, before.oldest.is_some()), (3, 0, true));
        let entries = fixture.read().await;
        fixture.settle(vec![entries[0].number], vec![(entries[1].number, "reason".to_owned())]).await;
        let after = state().await;
        assert_eq!((after.waiting, after.dead_letters), (1, 1));
        assert!(after.oldest >= before.oldest);
    }
}
