//! Schedules told page by page.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::{DueKey, Incarnation, PollerId, RunState, Schedule, Status, TenantId};

use crate::Subject;
use crate::scene::{OTHER_TENANT, Scene, TENANT, due_of, insert_of, minute, poller, run_of};
use store::listing::{By, Listing, Page, Place, page};
use store::{Change, Insert};

const LABEL: By<'_> = By::Label { name: "team", value: "blue" };

async fn page_of(scene: &Scene, by: &By<'_>, after: Option<Place>, limit: usize) -> Page {
    let listing = Listing { tenant: TENANT, by: by.clone(), after, limit };
    page(&*scene.store, &listing).await.expect("the store is read")
}

/// All of [`TENANT`]'s, in the order in which they are told, by pages of `limit`.
async fn listed_in(scene: &Scene, tenant: TenantId, by: &By<'_>, limit: usize) -> Vec<Arc<Schedule>> {
    let (mut told, mut after) = (Vec::new(), None);
    loop {
        let listing = Listing { tenant, by: by.clone(), after, limit };
        let page = page(&*scene.store, &listing).await.expect("the store is read");
        assert!(page.schedules.len() <= limit, "a page has no more than was asked for");
        told.extend(page.schedules);
        let Some(next) = page.next else { return told };
        assert_ne!(Some(next), after, "a page goes on from where the last one ended");
        after = Some(next);
    }
}

async fn listed(scene: &Scene, by: &By<'_>, limit: usize) -> Vec<Arc<Schedule>> {
    listed_in(scene, TENANT, by, limit).await
}

fn names(schedules: &[Arc<Schedule>]) -> Vec<Incarnation> {
    schedules.iter().map(|schedule| schedule.incarnation).collect()
}

fn labelled(mut insert: Insert, name: &str, value: &str) -> Insert {
    Arc::make_mut(&mut insert.schedule).spec.labels.insert(name.to_owned(), value.to_owned());
    insert
}

pub(super) async fn schedules_are_listed_in_the_order_of_their_making(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let mut inserts = Vec::new();
    for number in 0..25 {
        let insert = match number % 5 {
            0 => scene.named(&format!("chosen-{number}"), minute(number)),
            1 => {
                let incarnation = scene.numbers.incarnation();
                insert_of(OTHER_TENANT, incarnation, super::scene::id(&format!("other-{number}")), minute(number))
            }
            _ => scene.unnamed(minute(25 - number)),
        };
        inserts.push(insert);
    }
    scene.store.insert(inserts.clone()).await.expect("the store takes inserts");
    let mut expected: BTreeMap<TenantId, Vec<Arc<Schedule>>> = BTreeMap::new();
    inserts.sort_by_key(|insert| insert.schedule.incarnation);
    for insert in inserts {
        expected.entry(insert.schedule.tenant).or_default().push(insert.schedule);
    }
    for limit in [1, 2, 7, 20, 100] {
        for tenant in [TENANT, OTHER_TENANT] {
            assert_eq!(listed_in(&scene, tenant, &By::All, limit).await, expected[&tenant], "by {limit}");
        }
    }
    assert_eq!(listed_in(&scene, TenantId(3), &By::All, 10).await, []);
    let whole = page_of(&scene, &By::All, None, expected[&TENANT].len()).await;
    assert_eq!((whole.schedules.len(), whole.next), (20, None), "there is nothing after the last one");

    let scene = scene.reopen(subject).await;
    assert_eq!(listed(&scene, &By::All, 7).await, expected[&TENANT]);
}

pub(super) async fn schedules_are_listed_by_their_state(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let mut schedules = Vec::new();
    for number in 0..12 {
        schedules.push(scene.create(scene.named(&format!("s-{number}"), minute(1))).await);
    }
    for schedule in &schedules[4..10] {
        scene.owner(schedule.poller).await.finish(schedule, RunState::Succeeded).await;
    }
    for schedule in &schedules[8..11] {
        scene.owner(schedule.poller).await.write(Change::Cancel(schedule.incarnation)).await;
    }
    // One that has ended goes on.
    let mut again = scene.named("s-4", minute(2));
    Arc::make_mut(&mut again.schedule).poller = schedules[4].poller;
    scene.owner(schedules[4].poller).await.put(&again).await;

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
            let told = listed(&scene, &By::Status(*status), limit).await;
            assert!(told.iter().all(|schedule| schedule.status == *status), "as they are now");
            assert_eq!(names(&told), *expected, "{status:?} by {limit}");
        }
    }
    assert_eq!(listed(&scene, &By::All, 5).await.len(), 12);
    let scene = scene.reopen(subject).await;
    for (status, expected) in states {
        assert_eq!(names(&listed(&scene, &By::Status(status), 3).await), expected, "{status:?} after a reopen");
    }
}

pub(super) async fn schedules_are_listed_by_a_label(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let mut blue = Vec::new();
    for number in 0..9 {
        let insert = scene.named(&format!("s-{number}"), minute(1));
        let insert = match number % 3 {
            0 => labelled(labelled(insert, "team", "blue"), "order", &number.to_string()),
            1 => labelled(labelled(insert, "team", "red"), "blue", "team"),
            _ => insert,
        };
        let schedule = scene.create(insert).await;
        if number % 3 == 0 {
            blue.push(schedule);
        }
    }
    let others = insert_of(OTHER_TENANT, scene.numbers.incarnation(), super::scene::id("s-0"), minute(1));
    let others = scene.create(labelled(others, "team", "blue")).await;
    for limit in [1, 2, 100] {
        assert_eq!(listed(&scene, &LABEL, limit).await, blue, "by {limit}");
    }
    assert_eq!(listed_in(&scene, OTHER_TENANT, &LABEL, 10).await, [others]);
    let of = async |name, value| names(&listed(&scene, &By::Label { name, value }, 10).await);
    assert_eq!(of("order", "3").await, [blue[1].incarnation]);
    assert_eq!(of("order", "1").await, []);

    // Those of the present spec count, and those of what is over, too.
    let mut put = labelled(labelled(scene.named("s-3", minute(2)), "team", "green"), "order", "3");
    Arc::make_mut(&mut put.schedule).poller = blue[1].poller;
    scene.owner(blue[1].poller).await.put(&put).await;
    scene.owner(blue[2].poller).await.write(Change::Cancel(blue[2].incarnation)).await;
    assert_eq!(of("team", "blue").await, [blue[0].incarnation, blue[2].incarnation]);
    assert_eq!(of("team", "green").await, [blue[1].incarnation]);
    assert_eq!(of("order", "3").await, [blue[1].incarnation]);
    let scene = scene.reopen(subject).await;
    let green = By::Label { name: "team", value: "green" };
    assert_eq!(names(&listed(&scene, &green, 10).await), [blue[1].incarnation]);
}

pub(super) async fn an_id_that_is_taken_again_is_listed_once(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let first = scene.create(labelled(scene.named("again", minute(1)), "team", "blue")).await;
    scene.owner(first.poller).await.write(Change::Cancel(first.incarnation)).await;
    assert_eq!(names(&listed(&scene, &By::All, 10).await), [first.incarnation], "a cancelled one until then");
    assert_eq!(names(&listed(&scene, &LABEL, 10).await), [first.incarnation]);
    let second = scene.create(labelled(scene.named("again", minute(1)), "team", "blue")).await;
    for by in [By::All, LABEL, By::Status(Status::Active)] {
        assert_eq!(names(&listed(&scene, &by, 1).await), [second.incarnation], "{by:?}");
    }
    assert_eq!(listed(&scene, &By::Status(Status::Cancelled), 10).await, []);
}

pub(super) async fn a_listing_misses_and_doubles_nothing_while_others_come_and_go(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let mut stay = Vec::new();
    let mut go = Vec::new();
    for number in 0..40 {
        let insert = labelled(scene.named(&format!("s-{number}"), minute(number)), "team", "blue");
        let schedule = scene.create(insert).await;
        if number % 4 == 1 { go.push(schedule) } else { stay.push(schedule.incarnation) }
    }
    let pollers: Vec<PollerId> = (0..4).map(|number| poller(TENANT, number)).collect();
    let due = By::Due { pollers: &pollers, from: minute(0), until: minute(60) };
    for by in [By::All, By::Status(Status::Active), LABEL, due] {
        let (mut told, mut after) = (Vec::new(), None);
        loop {
            let page = page_of(&scene, &by, after, 3).await;
            told.extend(names(&page.schedules));
            let insert = labelled(scene.unnamed(minute(50)), "team", "blue");
            scene.create(insert).await;
            if let Some(schedule) = go.pop() {
                scene.owner(schedule.poller).await.write(Change::Cancel(schedule.incarnation)).await;
            }
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        let count = told.len();
        told.sort();
        told.dedup();
        assert_eq!(told.len(), count, "none is told twice by {by:?}");
        let missed: Vec<_> = stay.iter().filter(|incarnation| !told.contains(incarnation)).collect();
        assert!(missed.is_empty(), "{missed:?} by {by:?}");
    }
}

pub(super) async fn schedules_are_listed_by_what_is_due(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let pollers: Vec<PollerId> = (0..4).map(|number| poller(TENANT, number)).collect();
    let mut schedules = Vec::new();
    for number in 0..30 {
        let at = minute(1 + number * 7 % 10);
        let poller = pollers[usize::try_from(number).expect("few") % 3];
        schedules.push(scene.create(scene.unnamed_in(poller, at)).await);
    }
    let other = scene.create(scene.unnamed_in(poller(OTHER_TENANT, 0), minute(5))).await;
    let order = |schedule: &Arc<Schedule>| (schedule.next, schedule.incarnation);
    schedules.sort_by_key(order);
    let due = |from, until| By::Due { pollers: &pollers, from: minute(from), until: minute(until) };
    for limit in [1, 4, 100] {
        let told = listed(&scene, &due(3, 8), limit).await;
        let expected = schedules.iter().filter(|schedule| (Some(minute(3))..Some(minute(8))).contains(&schedule.next));
        assert_eq!(told, expected.cloned().collect::<Vec<_>>(), "by {limit}: the start is included, the end is not");
    }
    assert_eq!(listed(&scene, &due(8, 3), 10).await, [], "an empty stretch");
    let nobodys: Vec<PollerId> = Vec::new();
    assert_eq!(listed(&scene, &By::Due { pollers: &nobodys, from: minute(0), until: minute(9) }, 10).await, []);

    // What is cancelled, put off, tried again, moved or over is not told, or where it is now, and once.
    let [cancelled, deferred, retried, moved, over, rest @ ..] = &schedules[..] else {
        unreachable!("there are thirty")
    };
    let key = |schedule: &Schedule| due_of(schedule, schedule.next.expect("it is active"));
    scene.owner(cancelled.poller).await.write(Change::Cancel(cancelled.incarnation)).await;
    let later = DueKey { position: minute(9), ..key(deferred) };
    scene.owner(deferred.poller).await.write(Change::Defer(later)).await;
    let retry = DueKey { position: minute(9), attempt: 2, ..key(retried) };
    let run = run_of(TENANT, retry.occurrence, RunState::Retrying);
    scene.owner(retried.poller).await.write(Change::Run { run, then: Some(retry), ends: false }).await;
    let owner = scene.owner(moved.poller).await;
    let next = due_of(moved, minute(9));
    owner.write(Change::Advance { incarnation: moved.incarnation, revision: moved.revision, due: next }).await;
    scene.owner(over.poller).await.finish(over, RunState::Succeeded).await;
    let mut expected = vec![deferred.clone(), retried.clone(), scene.now(moved).await];
    expected.extend(rest.iter().cloned());
    expected.sort_by_key(order);
    for limit in [1, 4, 100] {
        assert_eq!(listed(&scene, &due(0, 60), limit).await, expected, "by {limit}");
    }
    assert!(!expected.contains(&other));
}
