//! Tests of listings. A listing is complete and in order, no matter how the store divided the schedules into listing
//! rows.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use domain::{Incarnation, ScheduleId, Status, TenantId, Timestamp};
use runtime::Runtime;
use simulator::Simulation;
use store::{Cancellation, Insert, ListBy, ListRead, Order, Store};
use store_embedded::{IndexKind, Options};

use crate::support::{Home, TENANT, one_shot, small};

const DIR: &str = "/data";
const OTHER: TenantId = TenantId(8);
/// Number of schedules that the test inserts. It is more than twice the maximum number of fresh schedules, which are
/// the schedules that no listing row contains yet.
const COUNT: u64 = 9_000;

/// Returns the insert of schedule `number`. The incarnations in each group of five consecutive schedules contain the
/// same millisecond. Every tenth schedule belongs to the tenant `OTHER`.
fn new_schedule(number: u64) -> Insert {
    let at = Timestamp::from_millis(1_700_000_000_000 + i64::try_from(number / 5).unwrap());
    let incarnation = Incarnation::new(at, u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 16);
    let mut insert = one_shot(number, at, None, b"x");
    let schedule = Arc::make_mut(&mut insert.schedule);
    schedule.incarnation = incarnation;
    schedule.id = ScheduleId::from_incarnation(incarnation);
    if number.is_multiple_of(10) {
        schedule.tenant = OTHER;
        schedule.poller.tenant = OTHER;
    }
    insert.due.occurrence.incarnation = incarnation;
    insert
}

/// Lists the schedules with the oldest first and with the newest first, and asserts that both lists contain the same
/// schedules. Returns the list with the oldest first.
async fn listed(store: &dyn Store, tenant: TenantId, by: ListBy, limit: usize) -> Vec<Incarnation> {
    let oldest = listed_in(store, tenant, by, Order::Oldest, limit).await;
    let mut newest = listed_in(store, tenant, by, Order::Newest, limit).await;
    newest.reverse();
    assert!(newest == oldest, "both orders list the same schedules, {tenant:?} by {by:?} and {limit}");
    oldest
}

async fn listed_in(store: &dyn Store, tenant: TenantId, by: ListBy, order: Order, limit: usize) -> Vec<Incarnation> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = store.list(ListRead { tenant, by, order, after, limit }).await.unwrap();
        assert!(page.incarnations.len() <= limit, "a page exceeds its limit");
        found.extend(page.incarnations);
        let Some(next) = page.next else { return found };
        assert!(order.is_after(next, after), "a page does not continue after the last one");
        after = Some(next);
    }
}

fn incarnations_of(tenant: TenantId) -> Vec<Incarnation> {
    let inserts = (0..COUNT).map(new_schedule).filter(|insert| insert.schedule.tenant == tenant);
    inserts.map(|insert| insert.schedule.incarnation).collect::<BTreeSet<_>>().into_iter().collect()
}

async fn check(store: &dyn Store, limits: &[usize]) {
    for tenant in [TENANT, OTHER] {
        let expected = incarnations_of(tenant);
        for limit in limits {
            assert_eq!(listed(store, tenant, ListBy::All, *limit).await, expected, "{tenant:?} by {limit}");
        }
    }
}

#[test]
fn listing_is_complete_and_in_order_after_a_process_kill() {
    for (seed, index, checkpoint_bytes) in [(1, IndexKind::Map, 1 << 30), (2, IndexKind::Map, 300_000)] {
        let sim = Simulation::new(seed);
        let open = async |runtime: &Runtime| {
            Home::open(runtime, Path::new(DIR), Options { checkpoint_bytes, ..small(index) }).await
        };
        sim.run_until(async {
            let home = open(&sim.member("a")).await;
            // The order of the inserts differs slightly from the order of the creation times.
            for first in (0..COUNT).step_by(90) {
                let numbers = (first..(first + 90).min(COUNT)).rev();
                home.store.insert(numbers.map(new_schedule).collect()).await.unwrap();
            }
            check(&*home.store, &[7, 100, 5_000, 100_000]).await;

            sim.kill("a");
            let runtime = sim.restart("a");
            let home = open(&runtime).await;
            check(&*home.store, &[100, 5_000]).await;

            // The test cancels few schedules, which are far apart in the listing.
            let cancelled = [3, 4_001, 4_006, 8_999].map(new_schedule);
            for insert in &cancelled {
                let mark = Cancellation { tenant: TENANT, id: insert.schedule.id.clone(), author: None };
                home.store.append_cancellations(vec![mark]).await.unwrap();
            }
            let cancelled = cancelled.map(|insert| insert.schedule.incarnation);
            for limit in [1, 3, 100] {
                assert_eq!(listed(&*home.store, TENANT, ListBy::Status(Status::Cancelled), limit).await, cancelled);
            }
            let active = listed(&*home.store, TENANT, ListBy::Status(Status::Active), 1_000).await;
            assert_eq!(active.len(), incarnations_of(TENANT).len() - cancelled.len());
            home.close().await;
            let home = open(&runtime).await;
            check(&*home.store, &[1_000]).await;
            home.close().await;
        });
    }
}
