//! Tests of conditional changes that several members make to one schedule at the same time, while the schedule fires or
//! another request cancels it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::{Revision, Schedule, ScheduleId, Status, Timestamp, When};
use futures_util::future::{join, join_all};
use scheduler::{CancelResponse, Create, PutResponse, Scheduler, Timing};
use store::Store as _;

use crate::cluster::both_engines;
use crate::harness::TENANT;
use crate::test_cluster::{TestCluster, named, quick};

const ID: &str = "invoice-7";

/// Returns a request for a schedule that does not fire during a test.
fn far(cluster: &TestCluster) -> Create {
    named(ID, cluster.in_ms(60_000))
}

async fn get(scheduler: &Scheduler) -> Option<Arc<Schedule>> {
    scheduler.get(TENANT, ScheduleId::new(ID).unwrap()).await.unwrap()
}

/// Adds a label to the schedule, and repeats the request if another change took effect first. Returns `None` if the
/// schedule is cancelled.
async fn add_label(scheduler: Scheduler, request: Create, label: String) -> Option<PutResponse> {
    loop {
        let found = get(&scheduler).await.unwrap();
        if found.status == Status::Cancelled {
            return None;
        }
        let mut spec = found.spec.clone();
        spec.labels.insert(label.clone(), String::new());
        let request = Create { spec, ..request.clone() };
        if let Some(response) = scheduler.put_if(request, Some(found.seen()), Timing::Kept).await.unwrap() {
            return Some(response.unwrap());
        }
    }
}

#[test]
fn concurrent_changes_through_several_members_all_take_effect() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, quick).await;
        let members = [("a", cluster.join("a").await), ("b", cluster.join("b").await)];
        cluster.wait_until_balanced(&[&members[0].1, &members[1].1]).await;
        let request = far(&cluster);
        let makes = members.iter().cycle().take(6).map(|(name, member)| {
            let (member, request) = (member.clone(), request.clone());
            cluster.at(name, async move { member.put_if(request, None, Timing::Restarted).await.unwrap() })
        });
        let created = join_all(makes).await;
        assert_eq!(created.iter().flatten().count(), 1, "exactly one request created the schedule");

        let changes = members.iter().cycle().take(12).enumerate().map(|(number, (name, member))| {
            cluster.at(name, add_label(member.clone(), request.clone(), format!("n{number}")))
        });
        let changed = join_all(changes).await;
        assert!(changed.iter().all(|response| response.as_ref().is_some_and(|response| !response.created)));
        let now = get(&members[0].1).await.unwrap();
        assert_eq!((now.spec.labels.len(), now.revision.0), (12, 12), "{now:?}");
    });
}

#[test]
fn past_timings_name_the_key_of_a_change_through_any_member() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, quick).await;
        let (a, b) = (cluster.join("a").await, cluster.join("b").await);
        cluster.wait_until_balanced(&[&a, &b]).await;
        for is_earlier_build in [false, true] {
            cluster.network.2.store(is_earlier_build, Ordering::Relaxed);
            let request = Create { by: Some("k1".to_owned()), ..far(&cluster) };
            for (name, member) in [("a", &a), ("b", &b), ("a", &a)] {
                let (member, request) = (member.clone(), request.clone());
                cluster.at(name, async move { member.put(request).await.unwrap().unwrap() }).await;
            }
            let (found, member, put) = (get(&b).await.unwrap(), b.clone(), request.clone());
            let seen = Some(found.seen());
            let put = async move { member.put_if(put, seen, Timing::Restarted).await.unwrap() };
            cluster.at("b", put).await.expect("no other request changes the schedule").unwrap();
            for (name, member) in [("a", &a), ("b", &b)] {
                let (found, member) = (get(member).await.unwrap(), member.clone());
                let cancel = async move { member.cancel_if(&found, Some("k1".to_owned())).await.unwrap() };
                assert_eq!(cluster.at(name, cancel).await, Some(CancelResponse::Cancelled));
            }
            let past = cluster.store.past_timings(found.incarnation, Revision(0), 10).await.unwrap();
            let with_key = past.iter().filter(|past| past.by.as_deref() == Some("k1")).count();
            // Each request went to the owner directly, or through the other member.
            match is_earlier_build {
                false => assert_eq!((past.len(), with_key), (4, 4)),
                true => assert!(past.len() == 4 && (1..4).contains(&with_key), "{past:?}"),
            }
        }
    });
}

#[test]
fn concurrent_change_does_not_undo_a_cancellation() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, quick).await;
        let (a, b) = (cluster.join("a").await, cluster.join("b").await);
        cluster.wait_until_balanced(&[&a, &b]).await;
        for round in 0..20_u64 {
            let (member, request) = (a.clone(), far(&cluster));
            let put = request.clone();
            cluster.at("a", async move { member.put(put).await.unwrap().unwrap() }).await;
            let found = get(&a).await.unwrap();
            let changes = (0..3).map(|number| {
                let changing = add_label(b.clone(), request.clone(), format!("n{number}"));
                cluster.at("b", changing)
            });
            let cancelling = async {
                cluster.sleep(Duration::from_micros(700 * round)).await;
                let (cancels, id) = (a.clone(), ScheduleId::new(ID).unwrap());
                cluster.at("a", async move { cancels.cancel(TENANT, id, None).await.unwrap() }).await
            };
            let (changed, cancelled) = join(join_all(changes), cancelling).await;
            assert_eq!(cancelled, CancelResponse::Cancelled);
            let now = get(&b).await.unwrap();
            assert_eq!(
                (now.incarnation, now.status),
                (found.incarnation, Status::Cancelled),
                "a change undid the cancellation"
            );
            let created = u32::try_from(changed.iter().flatten().count()).unwrap();
            assert_eq!(now.revision.0, found.revision.0 + created + 1, "every acknowledged change took effect");
            let cancels = b.clone();
            let gone = cluster.at("b", async move { cancels.cancel_if(&found, None).await.unwrap() }).await;
            assert_eq!(gone, None, "the version has changed");
            let cancels = b.clone();
            let again = cluster.at("b", async move { cancels.cancel_if(&now, None).await.unwrap() }).await;
            assert_eq!(again, Some(CancelResponse::Cancelled));
        }
        cluster.sleep(Duration::from_secs(90)).await;
        assert_eq!(cluster.calls().len(), 0);
    });
}

#[test]
fn frequent_label_changes_do_not_change_the_timing_of_a_schedule() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, quick).await;
        let (a, b) = (cluster.join("a").await, cluster.join("b").await);
        cluster.wait_until_balanced(&[&a, &b]).await;
        let mut request = far(&cluster);
        request.spec.when = When::every(Duration::from_secs(1));
        let (member, put) = (a.clone(), request.clone());
        let created = cluster.at("a", async move { member.put_if(put, None, Timing::Restarted).await }).await;
        let created = created.unwrap().unwrap().unwrap().schedule;
        let first = created.next.unwrap();
        for number in 0..300 {
            cluster.at("b", add_label(b.clone(), request.clone(), format!("n{}", number % 10))).await.unwrap();
            cluster.sleep(Duration::from_millis(37)).await;
        }
        let changed = get(&a).await.unwrap();
        let every = When::Every { interval: Duration::from_secs(1), since: Some(created.updated_at) };
        assert_eq!(changed.spec.when, every, "the instants still count from the creation");
        let passed = changed.updated_at.since(created.updated_at);
        assert!(
            passed > Duration::from_secs(11),
            "`updated_at` is the instant of the last change, not {passed:?} later"
        );
        cluster.sleep(Duration::from_secs(1)).await;
        let instant = |number: usize| first + Duration::from_secs(number as u64);
        let mut called: Vec<Timestamp> = cluster.calls().iter().map(|call| call.nominal).collect();
        called.dedup();
        assert!(called.len() >= 11, "{} calls in more than 11 s", called.len());
        assert!(called.iter().enumerate().all(|(number, nominal)| *nominal == instant(number)), "{called:?}");
        let duplicates = cluster.calls().len() - called.len();
        assert!(duplicates <= 2, "{duplicates} duplicates: only a change during a start permits one");
    });
}

#[test]
fn conditional_cancellation_is_never_pending() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, quick).await;
        let (a, b) = (cluster.join("a").await, cluster.join("b").await);
        cluster.wait_until_balanced(&[&a, &b]).await;
        let ids = cluster.schedule("b", &b, cluster.in_ms(60_000), 20).await;
        let mut found = Vec::new();
        for id in &ids {
            found.extend(b.get(TENANT, ScheduleId::new(id).unwrap()).await.unwrap());
        }
        cluster.sim.kill("a");
        let mut unreachable = 0;
        for schedule in &found {
            let (cancels, schedule) = (b.clone(), schedule.clone());
            match cluster.at("b", async move { cancels.cancel_if(&schedule, None).await }).await {
                Ok(response) => assert_eq!(response, Some(CancelResponse::Cancelled)),
                Err(_) => unreachable += 1,
            }
        }
        assert!(unreachable > 0, "the dead member owned some of the schedules");
        cluster.sleep(Duration::from_secs(5)).await;
        for schedule in found {
            let (cancels, id) = (b.clone(), schedule.id.clone());
            let now = b.get(TENANT, id).await.unwrap().unwrap();
            let response = cluster.at("b", async move { cancels.cancel_if(&now, None).await.unwrap() }).await;
            assert_eq!(response, Some(CancelResponse::Cancelled), "a new owner applies the cancellation");
        }
        cluster.sleep(Duration::from_secs(70)).await;
        assert_eq!(cluster.calls().len(), 0);
    });
}
