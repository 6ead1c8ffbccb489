//! Tests of a store that cannot read or list all runs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Incarnation, Occurrence, PastTiming, PollerId, Revision, Schedule, ScheduleId, ShardId, Tenant,
    TenantId, Term,
};
use runtime::Runtime;
use serde_json::{Value, json};
use server::Options;
use store::memory::MemoryStore;
use store::{
    Answer, Cancellation, CancellationResult, ChosenIdPage, ChosenIdRead, Closed, CountPage, CountRead, Cursor,
    DuePage, DueRead, HandOver, HandedOver, Health, Insert, InsertLogEntry, Inserted, ListPage, ListRead, Outdated,
    OwnerWrite, Placed, Positions, RunList, RunRead, Store, StoreError, Usage, WriteRejection, Written,
};

use crate::support::{DeliverByPath, World};

const NEXT_STEP: &str = "the test indexes the runs; wait until it has ended";
const RANGE: &str = "/v1/runs?from=2020-01-01T00:00:00Z";

/// State that the tests of this file set.
#[derive(Default)]
struct Listing {
    is_unindexed: Mutex<bool>,
    /// True if the first page of each listing is empty.
    is_sliced: Mutex<bool>,
    /// Number of reads of several runs that the store has rejected, because one of the runs is damaged. `None` if the
    /// store rejects no such read.
    rejected: Mutex<Option<usize>>,
    /// Number of damaged runs that each read of the store finds.
    unreadable: AtomicUsize,
}

/// Store in memory whose listing of runs is in the state `listing`.
struct Listed {
    store: Arc<MemoryStore>,
    listing: Arc<Listing>,
}

macro_rules! forward {
    ($($name:ident($($argument:ident: $of:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self, $($argument: $of),*) -> $answer {
            self.store.$name($($argument),*)
        })*
    };
}

impl Store for Listed {
    fn list_runs(&self, read: RunRead) -> Answer<'_, RunList> {
        Box::pin(async move {
            let is_unindexed = *self.listing.is_unindexed.lock().unwrap();
            if is_unindexed && read.schedules.is_none() {
                return Err(StoreError::Unindexed(NEXT_STEP.to_owned()));
            }
            if *self.listing.is_sliced.lock().unwrap() && read.after.is_none() {
                let next =
                    Occurrence { incarnation: Incarnation(0), nominal: read.until, revision: Revision(0), replay: 0 };
                return Ok(RunList { next: Some(next), ..RunList::default() });
            }
            let unreadable = self.listing.unreadable.load(Ordering::Relaxed);
            Ok(RunList { unreadable, ..self.store.list_runs(read).await? })
        })
    }

    fn find_runs(&self, occurrences: Vec<Occurrence>) -> Answer<'_, Vec<Option<Run>>> {
        let mut rejected = self.listing.rejected.lock().unwrap();
        match &mut *rejected {
            Some(count) if occurrences.len() > 1 => {
                *count += 1;
                Box::pin(async { Err(StoreError::Damaged("one of the runs".to_owned())) })
            }
            _ => self.store.find_runs(occurrences),
        }
    }

    forward! {
        insert(inserts: Vec<Insert>) -> Answer<'_, Vec<Inserted>>;
        closed(pollers: Vec<PollerId>) -> Answer<'_, Vec<Closed>>;
        place(rows: Vec<(PollerId, DueKey)>) -> Answer<'_, Vec<Placed>>;
        append_cancellations(marks: Vec<Cancellation>) -> Answer<'_, Vec<CancellationResult>>;
        get(names: Vec<(TenantId, ScheduleId)>) -> Answer<'_, Vec<Option<Arc<Schedule>>>>;
        load(incarnations: Vec<Incarnation>) -> Answer<'_, Vec<Option<Arc<Schedule>>>>;
        list(read: ListRead) -> Answer<'_, ListPage>;
        list_chosen_ids(read: ChosenIdRead) -> Answer<'_, ChosenIdPage>;
        runs(incarnation: Incarnation, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>>;
        past_timings(incarnation: Incarnation, from: Revision, limit: usize) -> Answer<'_, Vec<PastTiming>>;
        counts(read: CountRead) -> Answer<'_, CountPage>;
        dead_letters(tenant: TenantId, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>>;
        usage(tenants: Vec<TenantId>) -> Answer<'_, Vec<Usage>>;
        tenants() -> Answer<'_, Vec<Tenant>>;
        put_tenant(tenant: Tenant, entry: Audit) -> Answer<'_, Result<(), Outdated>>;
        audit(tenant: TenantId, after: u64, limit: usize) -> Answer<'_, Vec<Audit>>;
        health() -> Health;
        take(shards: Vec<ShardId>) -> Answer<'_, Vec<Term>>;
        positions(pollers: Vec<PollerId>) -> Answer<'_, Vec<Positions>>;
        insert_log(shards: Arc<[ShardId]>, cursor: Cursor, limit: usize) -> Answer<'_, (Vec<InsertLogEntry>, Cursor)>;
        cancellations(shards: Arc<[ShardId]>, cursor: Cursor) -> Answer<'_, (Vec<(ShardId, Incarnation)>, Cursor)>;
        due(reads: Vec<DueRead>) -> Answer<'_, Vec<DuePage>>;
        write(writes: Vec<OwnerWrite>) -> Answer<'_, Vec<Result<Written, WriteRejection>>>;
        hand_over(lists: Vec<HandOver>) -> Answer<'_, Vec<Result<(), WriteRejection>>>;
        handed_over(shards: Vec<ShardId>) -> Answer<'_, Vec<Vec<HandedOver>>>;
    }
}

/// Starts a server with the schedule `a`, which has a run.
async fn start() -> (World, Arc<Listing>) {
    let listing = Arc::new(Listing::default());
    let wrapped = listing.clone();
    let wrap = move |store| -> Arc<dyn Store> { Arc::new(Listed { store, listing: wrapped }) };
    let world = World::start_wrapped(Runtime::real(), Arc::new(DeliverByPath), Options::default(), wrap).await;
    let target = json!({ "http": { "url": "http://127.0.0.1:9/204" } });
    let body = json!({ "id": "a", "at": world.runtime.now().to_string(), "target": target });
    assert_eq!(world.send("POST", "/v1/schedules", &body.to_string()).await.status, 201);
    let wait = async { while world.send("GET", RANGE, "").await.json()["runs"] == json!([]) {} };
    world.runtime.timeout(Duration::from_secs(20), wait).await.expect("the schedule has a run");
    (world, listing)
}

#[tokio::test]
async fn listing_without_an_index_is_rejected_with_the_next_step() {
    let (world, listing) = start().await;
    *listing.is_unindexed.lock().unwrap() = true;
    let rejected = world.send("GET", RANGE, "").await;
    assert_eq!((rejected.status, rejected.header("retry-after")), (503, Some("10")), "{}", rejected.body);
    assert_eq!((rejected.text("/code"), rejected.text("/detail")), ("runs_not_indexed".into(), NEXT_STEP.into()));
    for path in ["/v1/runs?schedule=a", "/v1/schedules/a/runs"] {
        let of_schedule = world.send("GET", path, "").await;
        assert_eq!(of_schedule.json()["runs"].as_array().map(Vec::len), Some(1), "{path}: {}", of_schedule.body);
    }
    *listing.is_unindexed.lock().unwrap() = false;
    assert_eq!(world.send("GET", RANGE, "").await.status, 200);
    world.stop().await;
}

#[tokio::test]
async fn page_states_the_number_of_damaged_runs() {
    let (world, listing) = start().await;
    assert_eq!(world.send("GET", RANGE, "").await.json().get("unreadable"), None, "the field is absent without them");
    listing.unreadable.store(2, Ordering::Relaxed);
    for path in [RANGE, "/v1/runs?schedule=a"] {
        let page = world.send("GET", path, "").await.json();
        assert_eq!((&page["unreadable"], page["runs"].as_array().map(Vec::len)), (&json!(2), Some(1)), "{page}");
        assert_eq!(page["next_page_token"], Value::Null);
    }
    world.stop().await;
}

#[tokio::test]
async fn explanation_reads_on_after_an_empty_page_of_runs() {
    let (world, listing) = start().await;
    *listing.is_sliced.lock().unwrap() = true;
    let runs = world.send("GET", "/v1/runs?schedule=a", "").await.json();
    let at = runs["runs"][0]["scheduled_at"].as_str().unwrap_or_else(|| panic!("{runs}")).to_owned();
    let explanation = world.send("GET", &format!("/v1/schedules/a/explain?at={at}"), "").await;
    assert_eq!(explanation.text("/verdict"), "fired", "{}", explanation.body);
    world.stop().await;
}

/// The shards are new, so the owner looks for runs of earlier owners before each first attempt.
#[tokio::test]
async fn damaged_run_delays_no_other_run_of_its_batch() {
    let (world, listing) = start().await;
    *listing.rejected.lock().unwrap() = Some(0);
    let at = (world.runtime.now() + Duration::from_millis(500)).to_string();
    let target = json!({ "http": { "url": "http://127.0.0.1:9/204" } });
    for id in 0..20 {
        let body = json!({ "id": format!("batch-{id}"), "at": at, "target": target }).to_string();
        assert_eq!(world.send("POST", "/v1/schedules", &body).await.status, 201);
    }
    let runs = async || world.send("GET", RANGE, "").await.json()["runs"].as_array().map(Vec::len);
    let wait = async { while runs().await != Some(21) {} };
    world.runtime.timeout(Duration::from_secs(20), wait).await.expect("each schedule has a run");
    assert!(*listing.rejected.lock().unwrap() > Some(0), "the store rejected a batch");
    world.stop().await;
}
