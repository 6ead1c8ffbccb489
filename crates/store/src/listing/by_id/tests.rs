use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use domain::retry::RetryPolicy;
use domain::{
    DueKey, HttpTarget, Occurrence, PollerId, Revision, Schedule, Spec, Status, Target, TenantId, Timestamp, When,
};
use proptest::prelude::*;
use runtime::Runtime;

use super::*;
use crate::listing::{self, By, ListingOrder};
use crate::memory::{MemoryOptions, MemoryStore};
use crate::{Cancellation, Insert};

const TENANT: TenantId = TenantId(1);

fn with_store<T>(test: impl AsyncFnOnce(&MemoryStore) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio.block_on(async { test(&MemoryStore::new(Runtime::real(), MemoryOptions::default())).await })
}

/// Returns the insert of a schedule. If `id` is `None`, the schedule has a server-made id.
fn insert(number: u128, id: Option<&str>, payload: Vec<u8>) -> Insert {
    let incarnation = Incarnation(number << 100 | number);
    let id = id.map_or_else(|| ScheduleId::from_incarnation(incarnation), |id| ScheduleId::new(id).unwrap());
    let at = Timestamp::from_millis(2_000_000_000_000);
    let target = Target::Http(HttpTarget {
        url: "http://localhost/".to_owned(),
        method: "POST".to_owned(),
        headers: Vec::new(),
        timeout: Duration::from_secs(1),
    });
    let occurrence = Occurrence { incarnation, nominal: at, revision: Revision(0), replay: 0 };
    let due = DueKey { position: at, occurrence, attempt: 1, target: target.key() };
    let retry = RetryPolicy { attempts_max: 1, backoff: Duration::from_secs(1), backoff_max: Duration::from_secs(1) };
    let schedule = Schedule {
        tenant: TENANT,
        id,
        incarnation,
        poller: PollerId { tenant: TENANT, generation: 0, number: 0 },
        revision: Revision(0),
        status: Status::Active,
        created_at: at,
        updated_at: at,
        next: Some(at),
        spec: Spec { when: When::At(at), target, payload: payload.into(), labels: Default::default(), retry },
    };
    Insert { schedule: Arc::new(schedule), due, by: None }
}

async fn cancel(store: &MemoryStore, id: &ScheduleId) {
    let record = Cancellation { tenant: TENANT, id: id.clone(), author: None };
    store.append_cancellations(vec![record]).await.unwrap();
}

/// Returns one page and the number of turns that the listing took for the page.
async fn page_of(store: &MemoryStore, by: &By<'_>, after: Option<Place>, limit: usize) -> (Page, usize) {
    let listing = Listing { tenant: TENANT, by: by.clone(), order: ListingOrder::Id, after, limit };
    let turns = Cell::new(0);
    let page = listing::page(store, &listing, async || turns.set(turns.get() + 1)).await.unwrap();
    (page, turns.get())
}

/// Returns the ids of all pages.
async fn listed(store: &MemoryStore, by: &By<'_>, limit: usize) -> Vec<ScheduleId> {
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let (page, turns) = page_of(store, by, after.clone(), limit).await;
        assert!(page.schedules.len() <= limit && turns <= READS_MAX, "a page keeps its limits");
        ids.extend(page.schedules.iter().map(|schedule| schedule.id.clone()));
        let Some(next) = page.next else { return ids };
        assert_ne!(Some(&next), after.as_ref(), "each page ends after the previous page");
        after = Some(next);
    }
}

/// Id of a new schedule. `None` is a server-made id.
fn new_id() -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        3 => Just(None),
        1 => "[A-Za-z0-9_-]{1,3}".prop_map(Some),
        1 => "s[0-7a][0-9a-z_-]{0,4}".prop_map(Some),
        // Such an id has the form of a server-made id, and may be equal to the server-made id of another schedule.
        1 => (0..80_u128, any::<bool>()).prop_map(|(number, is_near)| {
            let number = number << 100 | number;
            Some(ScheduleId::from_incarnation(Incarnation(number + u128::from(is_near))).as_str().to_owned())
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn listing_contains_each_matching_schedule_once_in_order_of_ids(
        news in prop::collection::vec((new_id(), prop::bool::weighted(0.3)), 0..80),
    ) {
        with_store(async |store| {
            for (number, (id, is_cancelled)) in (1..).zip(&news) {
                let insert = insert(number, id.as_deref(), Vec::new());
                let id = insert.schedule.id.clone();
                store.insert(vec![insert]).await.unwrap();
                if *is_cancelled {
                    cancel(store, &id).await;
                }
            }
            let ids: std::collections::BTreeSet<ScheduleId> =
                (1..).zip(&news).map(|(number, (id, _))| insert(number, id.as_deref(), Vec::new()).schedule.id.clone()).collect();
            let now = store.get(ids.iter().map(|id| (TENANT, id.clone())).collect()).await.unwrap();
            for by in [By::All, By::Status(Status::Active), By::Status(Status::Cancelled)] {
                let is_listed = |status| match by {
                    By::Status(of) => status == of,
                    _ => true,
                };
                let expected = now.iter().flatten().filter(|schedule| is_listed(schedule.status));
                let expected: Vec<ScheduleId> = expected.map(|schedule| schedule.id.clone()).collect();
                for limit in [1, 2, 7, 1_000] {
                    assert_eq!(listed(store, &by, limit).await, expected, "{by:?} in pages of {limit}");
                }
            }
        });
    }
}

#[test]
fn page_before_the_server_made_ids_needs_one_read() {
    with_store(async |store| {
        for (number, id) in (1..).zip([Some("a"), Some("b"), Some("c"), None, None, Some("t")]) {
            store.insert(vec![insert(number, id, Vec::new())]).await.unwrap();
        }
        let (page, turns) = page_of(store, &By::All, None, 2).await;
        let b = ScheduleId::new("b").unwrap();
        assert_eq!((page.schedules.len(), page.next, turns), (2, Some(Place::Id(b)), 1));
        let after_server_made = Place::Id(ScheduleId::new("sz").unwrap());
        let (page, turns) = page_of(store, &By::All, Some(after_server_made), 1).await;
        assert_eq!((page.schedules.len(), page.next), (1, None));
        assert!(turns <= 2, "{turns}");
    });
}

/// The store must read past the incarnations of all schedules before it can list a chosen id that is after the
/// server-made ids.
#[test]
fn every_page_reaches_a_later_id_even_if_few_candidates_match() {
    with_store(async |store| {
        let inserts = (1..=5_000).map(|number| insert(number, Some(&format!("user-{number:04}")), Vec::new()));
        store.insert(inserts.collect()).await.unwrap();
        let (mut pages, mut after) = (0, None);
        let first = loop {
            let (page, turns) = page_of(store, &By::All, after, 10).await;
            assert!(turns <= READS_MAX);
            pages += 1;
            if let Some(first) = page.schedules.first() {
                break first.clone();
            }
            after = page.next;
        };
        assert_eq!(first.id.as_str(), "user-0001");
        assert!(pages <= 5, "{pages} pages");
        assert_eq!(listed(store, &By::All, 1_000).await.len(), 5_000);
        let cancelled = ScheduleId::new("user-4999").unwrap();
        cancel(store, &cancelled).await;
        assert_eq!(listed(store, &By::Status(Status::Cancelled), 3).await, [cancelled]);
    });
}

#[test]
fn page_ends_at_its_maximum_number_of_bytes() {
    with_store(async |store| {
        for number in 1..=100 {
            let id = Some(format!("c-{number:03}")).filter(|_| number % 2 == 0);
            store.insert(vec![insert(number, id.as_deref(), vec![0; 60_000])]).await.unwrap();
        }
        let (page, _) = page_of(store, &By::All, None, 1_000).await;
        assert!((60..80).contains(&page.schedules.len()) && page.next.is_some(), "{}", page.schedules.len());
        assert_eq!(listed(store, &By::All, 1_000).await.len(), 100);
    });
}
