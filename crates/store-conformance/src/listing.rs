//! Test cases of listings of schedules, page by page.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::{DueKey, Incarnation, PollerId, RunState, Schedule, ScheduleId, Status, TenantId};

use crate::Subject;
use crate::fixture::{Fixture, OTHER_TENANT, TENANT, due_of, insert_of, minute, poller, run_of};
use store::listing::{By, Listing, ListingOrder, Page, Place, page};
use store::{Change, ChosenIdPage, ChosenIdRead, Insert, Order};

const LABEL: By<'_> = By::Label { name: "team", value: "blue" };

const OLDEST: ListingOrder = ListingOrder::Created(Order::Oldest);
const NEWEST: ListingOrder = ListingOrder::Created(Order::Newest);

async fn page_of(fixture: &Fixture, by: &By<'_>, order: ListingOrder, after: Option<Place>, limit: usize) -> Page {
    let listing = Listing { tenant: TENANT, by: by.clone(), order, after, limit };
    page(&*fixture.store, &listing, || async {}).await.expect("the store accepts reads")
}

/// Lists the schedules of `tenant` that match `by`, in pages of `limit` schedules. Returns them in the order of their
/// creation, or in the order of their due times for [`By::Due`]. Except for [`By::Due`], asserts that a listing with
/// the newest schedule first contains the same schedules in reverse.
async fn listed_in(fixture: &Fixture, tenant: TenantId, by: &By<'_>, limit: usize) -> Vec<Arc<Schedule>> {
    let entries = listed_in_order(fixture, tenant, by, OLDEST, limit).await;
    if !matches!(by, By::Due { .. }) {
        let mut newest = listed_in_order(fixture, tenant, by, NEWEST, limit).await;
        newest.reverse();
        assert_eq!(names(&newest), names(&entries), "listings by {by:?} contain the same schedules in both orders");
    }
    entries
}

async fn listed_in_order(
    fixture: &Fixture,
    tenant: TenantId,
    by: &By<'_>,
    order: ListingOrder,
    limit: usize,
) -> Vec<Arc<Schedule>> {
    let (mut entries, mut after) = (Vec::new(), None);
    loop {
        let listing = Listing { tenant, by: by.clone(), order, after: after.clone(), limit };
        let page = page(&*fixture.store, &listing, || async {}).await.expect("the store accepts reads");
        assert!(page.schedules.len() <= limit, "a page contains at most `limit` schedules");
        entries.extend(page.schedules);
        let Some(next) = page.next else { return entries };
        assert_ne!(Some(&next), after.as_ref(), "the next page starts after the previous page");
        after = Some(next);
    }
}

async fn listed(fixture: &Fixture, by: &By<'_>, limit: usize) -> Vec<Arc<Schedule>> {
    listed_in(fixture, TENANT, by, limit).await
}

fn names(schedules: &[Arc<Schedule>]) -> Vec<Incarnation> {
    schedules.iter().map(|schedule| schedule.incarnation).collect()
}

fn labelled(mut insert: Insert, name: &str, value: &str) -> Insert {
    Arc::make_mut(&mut insert.schedule).spec.labels.insert(name.to_owned(), value.to_owned());
    insert
}

pub(super) async fn schedules_are_listed_in_creation_order(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let mut inserts = Vec::new();
    for number in 0..25 {
        let insert = match number % 5 {
            0 => fixture.named(&format!("chosen-{number}"), minute(number)),
            1 => {
                let incarnation = fixture.numbers.incarnation();
                insert_of(OTHER_TENANT, incarnation, super::fixture::id(&format!("other-{number}")), minute(number))
            }
            _ => fixture.unnamed(minute(25 - number)),
        };
        inserts.push(insert);
    }
    fixture.store.insert(inserts.clone()).await.expect("the store accepts inserts");
    let mut expected: BTreeMap<TenantId, Vec<Arc<Schedule>>> = BTreeMap::new();
    inserts.sort_by_key(|insert| insert.schedule.incarnation);
    for insert in inserts {
        expected.entry(insert.schedule.tenant).or_default().push(insert.schedule);
    }
    for limit in [1, 2, 7, 20, 100] {
        for tenant in [TENANT, OTHER_TENANT] {
            assert_eq!(listed_in(&fixture, tenant, &By::All, limit).await, expected[&tenant], "by {limit}");
        }
    }
    assert_eq!(listed_in(&fixture, TenantId(3), &By::All, 10).await, []);
    for order in [OLDEST, NEWEST] {
        let whole = page_of(&fixture, &By::All, order, None, expected[&TENANT].len()).await;
        assert_eq!((whole.schedules.len(), whole.next), (20, None), "there is no page after the last schedule");
    }

    let fixture = fixture.reopen(subject).await;
    assert_eq!(listed(&fixture, &By::All, 7).await, expected[&TENANT]);
}

pub(super) async fn schedules_are_listed_by_state(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let mut schedules = Vec::new();
    for number in 0..12 {
        schedules.push(fixture.create(fixture.named(&format!("s-{number}"), minute(1))).await);
    }
    for schedule in &schedules[4..10] {
        fixture.owner(schedule.poller).await.finish(schedule, RunState::Succeeded).await;
    }
    for schedule in &schedules[8..11] {
        fixture.owner(schedule.poller).await.write(Change::Cancel(schedule.incarnation)).await;
    }
    // A put reactivates an ended schedule.
    let mut again = fixture.named("s-4", minute(2));
    Arc::make_mut(&mut again.schedule).poller = schedules[4].poller;
    fixture.owner(schedules[4].poller).await.put(&again).await;

    let expected = |numbers: &[usize]| {
        let mut expected: Vec<_> = numbers.iter().map(|number| schedules[*number].incarnation).collect();
        expected.sort();
        expected
    };
    let states = [
        (Status::Active, expected(&[0, 1, 2, 3, 4, 11])),
        (Status::Ended, expected(&[5, 6, 7])),
        (Status::Cancelled, expected(&[8, 9, 10])),
    ];
    for (status, expected) in &states {
        for limit in [1, 2, 100] {
            let entries = listed(&fixture, &By::Status(*status), limit).await;
            assert!(
                entries.iter().all(|schedule| schedule.status == *status),
                "every listed schedule has the requested status"
            );
            assert_eq!(names(&entries), *expected, "{status:?} by {limit}");
        }
    }
    assert_eq!(listed(&fixture, &By::All, 5).await.len(), 12);
    let fixture = fixture.reopen(subject).await;
    for (status, expected) in states {
        assert_eq!(names(&listed(&fixture, &By::Status(status), 3).await), expected, "{status:?} after a reopen");
    }
}

pub(super) async fn schedules_are_listed_by_a_label(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let mut blue = Vec::new();
    for number in 0..9 {
        let insert = fixture.named(&format!("s-{number}"), minute(1));
        let insert = match number % 3 {
            0 => labelled(labelled(insert, "team", "blue"), "order", &number.to_string()),
            1 => labelled(labelled(insert, "team", "red"), "blue", "team"),
            _ => insert,
        };
        let schedule = fixture.create(insert).await;
        if number % 3 == 0 {
            blue.push(schedule);
        }
    }
    let others = insert_of(OTHER_TENANT, fixture.numbers.incarnation(), super::fixture::id("s-0"), minute(1));
    let others = fixture.create(labelled(others, "team", "blue")).await;
    for limit in [1, 2, 100] {
        assert_eq!(listed(&fixture, &LABEL, limit).await, blue, "by {limit}");
    }
    assert_eq!(listed_in(&fixture, OTHER_TENANT, &LABEL, 10).await, [others]);
    let of = async |name, value| names(&listed(&fixture, &By::Label { name, value }, 10).await);
    assert_eq!(of("order", "3").await, [blue[1].incarnation]);
    assert_eq!(of("order", "1").await, []);

    // A listing uses the labels of the current spec. Cancelled schedules keep their labels.
    let mut put = labelled(labelled(fixture.named("s-3", minute(2)), "team", "green"), "order", "3");
    Arc::make_mut(&mut put.schedule).poller = blue[1].poller;
    fixture.owner(blue[1].poller).await.put(&put).await;
    fixture.owner(blue[2].poller).await.write(Change::Cancel(blue[2].incarnation)).await;
    assert_eq!(of("team", "blue").await, [blue[0].incarnation, blue[2].incarnation]);
    assert_eq!(of("team", "green").await, [blue[1].incarnation]);
    assert_eq!(of("order", "3").await, [blue[1].incarnation]);
    let fixture = fixture.reopen(subject).await;
    let green = By::Label { name: "team", value: "green" };
    assert_eq!(names(&listed(&fixture, &green, 10).await), [blue[1].incarnation]);
}

pub(super) async fn schedules_are_listed_in_order_of_ids(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    // Server-made ids start with `s` and a digit from 0 to 7. These chosen ids are before, between and after them.
    let like_server_made = ScheduleId::from_incarnation(Incarnation(u128::MAX / 3));
    let chosen = ["a-1", "A", "S-x", "_x", "-", "7", "s", "s-", "s0", "s01", "s4z", "s8", "sale-1", "t", "z", "zz"];
    for name in chosen.into_iter().chain([like_server_made.as_str()]) {
        fixture.create(fixture.named(name, minute(1))).await;
        fixture.create(fixture.unnamed(minute(1))).await;
        let others = insert_of(OTHER_TENANT, fixture.numbers.incarnation(), super::fixture::id(name), minute(1));
        fixture.create(others).await;
    }
    // Some schedules are cancelled, some are ended, and some ids belong to a second schedule.
    let server_made = names(&listed(&fixture, &By::All, 100).await).into_iter().map(ScheduleId::from_incarnation);
    let schedules = fixture.store.get(server_made.map(|id| (TENANT, id)).collect()).await;
    let server_made: Vec<_> = schedules.expect("the store accepts reads").into_iter().flatten().collect();
    assert_eq!(server_made.len(), chosen.len() + 1);
    let named = async |name| fixture.get(TENANT, &super::fixture::id(name)).await.expect("the schedule exists");
    for schedule in [named("A").await, named("s01").await, named("zz").await, server_made[2].clone()] {
        fixture.owner(schedule.poller).await.finish(&schedule, RunState::Succeeded).await;
    }
    let reused = [named("a-1").await, named("sale-1").await, server_made[3].clone()];
    for schedule in reused.iter().chain([&named("S-x").await, &named("s0").await, &server_made[4]]) {
        fixture.owner(schedule.poller).await.write(Change::Cancel(schedule.incarnation)).await;
    }
    for schedule in &reused {
        fixture.create(fixture.named(schedule.id.as_str(), minute(2))).await;
    }

    let fixture = fixture.reopen(subject).await;
    for by in [By::All, By::Status(Status::Active), By::Status(Status::Ended), By::Status(Status::Cancelled)] {
        let mut expected = listed(&fixture, &by, 100).await;
        expected.sort_by(|one, other| one.id.as_str().as_bytes().cmp(other.id.as_str().as_bytes()));
        for limit in [1, 2, 5, 1_000] {
            let found = listed_in_order(&fixture, TENANT, &by, ListingOrder::Id, limit).await;
            let ids: Vec<&str> = found.iter().map(|schedule| schedule.id.as_str()).collect();
            assert_eq!(found, expected, "{by:?} by {limit}: {ids:?}");
        }
        let ids: BTreeSet<&ScheduleId> = expected.iter().map(|schedule| &schedule.id).collect();
        assert_eq!(ids.len(), expected.len(), "each id is listed once");
        assert!(!expected.is_empty());
    }
    let all = listed_in_order(&fixture, TENANT, &By::All, ListingOrder::Id, 7).await;
    assert_eq!(all.len(), 2 * (chosen.len() + 1));
    assert_eq!(listed_in_order(&fixture, TenantId(3), &By::All, ListingOrder::Id, 10).await, []);
}

pub(super) async fn chosen_ids_are_read_in_pages(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let mut expected: BTreeMap<ScheduleId, Incarnation> = BTreeMap::new();
    let like_server_made = ScheduleId::from_incarnation(Incarnation(7));
    for name in ["b", "B", "_", "-", "a", "a-", "s", "zz", like_server_made.as_str()] {
        let schedule = fixture.create(fixture.named(name, minute(1))).await;
        expected.insert(schedule.id.clone(), schedule.incarnation);
        fixture.create(fixture.unnamed(minute(1))).await;
    }
    let id = super::fixture::id("of-another-tenant");
    fixture.create(insert_of(OTHER_TENANT, fixture.numbers.incarnation(), id, minute(1))).await;
    let cancelled = fixture.get(TENANT, &super::fixture::id("a")).await.expect("the schedule exists");
    fixture.owner(cancelled.poller).await.write(Change::Cancel(cancelled.incarnation)).await;
    let expected: Vec<_> = expected.into_iter().collect();
    for limit in [1, 2, 5, 9, 100] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let read = ChosenIdRead { tenant: TENANT, after, limit };
            let ChosenIdPage { ids, has_more } =
                fixture.store.list_chosen_ids(read).await.expect("the store accepts reads");
            assert!(ids.len() <= limit, "a page contains at most `limit` ids");
            found.extend(ids);
            if !has_more {
                break;
            }
            after = found.last().map(|(id, _)| id.clone());
        }
        assert_eq!(found, expected, "by {limit}");
    }
}

pub(super) async fn reused_id_is_listed_once(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let first = fixture.create(labelled(fixture.named("again", minute(1)), "team", "blue")).await;
    fixture.owner(first.poller).await.write(Change::Cancel(first.incarnation)).await;
    assert_eq!(
        names(&listed(&fixture, &By::All, 10).await),
        [first.incarnation],
        "the listing contains a cancelled schedule until another schedule uses its id"
    );
    assert_eq!(names(&listed(&fixture, &LABEL, 10).await), [first.incarnation]);
    let second = fixture.create(labelled(fixture.named("again", minute(1)), "team", "blue")).await;
    for by in [By::All, LABEL, By::Status(Status::Active)] {
        assert_eq!(names(&listed(&fixture, &by, 1).await), [second.incarnation], "{by:?}");
    }
    assert_eq!(listed(&fixture, &By::Status(Status::Cancelled), 10).await, []);
}

pub(super) async fn listing_is_complete_during_concurrent_changes(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let mut stay = Vec::new();
    let mut go = Vec::new();
    for number in 0..40 {
        let insert = match number % 4 {
            0 => fixture.unnamed(minute(number)),
            2 => fixture.named(&format!("t-{number}"), minute(number)),
            _ => fixture.named(&format!("s-{number}"), minute(number)),
        };
        let schedule = fixture.create(labelled(insert, "team", "blue")).await;
        if number % 4 == 1 { go.push(schedule) } else { stay.push(schedule.incarnation) }
    }
    let pollers: Vec<PollerId> = (0..4).map(|number| poller(TENANT, number)).collect();
    let due = By::Due { pollers: &pollers, from: minute(0), until: minute(60) };
    let both = |by: By<'static>| [(by.clone(), OLDEST), (by, NEWEST)];
    let listings = [By::All, By::Status(Status::Active), LABEL].into_iter().flat_map(both);
    let by_id = [By::All, By::Status(Status::Active)].map(|by| (by, ListingOrder::Id));
    for (by, order) in listings.chain(by_id).chain([(due, OLDEST)]) {
        let (mut entries, mut after) = (Vec::new(), None);
        loop {
            let page = page_of(&fixture, &by, order, after, 3).await;
            entries.extend(names(&page.schedules));
            let insert = labelled(fixture.unnamed(minute(50)), "team", "blue");
            fixture.create(insert).await;
            if let Some(schedule) = go.pop() {
                fixture.owner(schedule.poller).await.write(Change::Cancel(schedule.incarnation)).await;
            }
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        let count = entries.len();
        entries.sort();
        entries.dedup();
        assert_eq!(entries.len(), count, "the listing by {by:?} in the order {order:?} contains each schedule once");
        let missed: Vec<_> = stay.iter().filter(|incarnation| !entries.contains(incarnation)).collect();
        assert!(missed.is_empty(), "{missed:?} by {by:?} in the order {order:?}");
    }
}

pub(super) async fn schedules_are_listed_by_due_time(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let pollers: Vec<PollerId> = (0..4).map(|number| poller(TENANT, number)).collect();
    let mut schedules = Vec::new();
    for number in 0..30 {
        let at = minute(1 + number * 7 % 10);
        let poller = pollers[usize::try_from(number).expect("few") % 3];
        schedules.push(fixture.create(fixture.unnamed_in(poller, at)).await);
    }
    let other = fixture.create(fixture.unnamed_in(poller(OTHER_TENANT, 0), minute(5))).await;
    let order = |schedule: &Arc<Schedule>| (schedule.next, schedule.incarnation);
    schedules.sort_by_key(order);
    let due = |from, until| By::Due { pollers: &pollers, from: minute(from), until: minute(until) };
    for limit in [1, 4, 100] {
        let entries = listed(&fixture, &due(3, 8), limit).await;
        let expected = schedules.iter().filter(|schedule| (Some(minute(3))..Some(minute(8))).contains(&schedule.next));
        assert_eq!(
            entries,
            expected.cloned().collect::<Vec<_>>(),
            "page limit {limit}: the range of due times includes its start and excludes its end"
        );
    }
    assert_eq!(listed(&fixture, &due(8, 3), 10).await, [], "an empty range of due times lists no schedules");
    let none: Vec<PollerId> = Vec::new();
    assert_eq!(listed(&fixture, &By::Due { pollers: &none, from: minute(0), until: minute(9) }, 10).await, []);

    // The listing omits cancelled and ended schedules. It contains each deferred, retried or advanced schedule once, at
    // the schedule's `next`.
    let [cancelled, deferred, retried, moved, over, rest @ ..] = &schedules[..] else {
        unreachable!("the case created thirty schedules")
    };
    let key = |schedule: &Schedule| due_of(schedule, schedule.next.expect("an active schedule has a next occurrence"));
    fixture.owner(cancelled.poller).await.write(Change::Cancel(cancelled.incarnation)).await;
    let later = DueKey { position: minute(9), ..key(deferred) };
    fixture.owner(deferred.poller).await.write(Change::Defer(later)).await;
    let retry = DueKey { position: minute(9), attempt: 2, ..key(retried) };
    let run = run_of(TENANT, retry.occurrence, RunState::Retrying);
    fixture.owner(retried.poller).await.write(Change::Run { run, then: Some(retry), ends: false, origin: None }).await;
    let owner = fixture.owner(moved.poller).await;
    let next = due_of(moved, minute(9));
    owner.write(Change::Advance { incarnation: moved.incarnation, revision: moved.revision, due: next }).await;
    fixture.owner(over.poller).await.finish(over, RunState::Succeeded).await;
    let mut expected = vec![deferred.clone(), retried.clone(), fixture.now(moved).await];
    expected.extend(rest.iter().cloned());
    expected.sort_by_key(order);
    for limit in [1, 4, 100] {
        assert_eq!(listed(&fixture, &due(0, 60), limit).await, expected, "by {limit}");
    }
    assert!(!expected.contains(&other));
}
