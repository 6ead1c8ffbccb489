//! Changes that name what they saw: by any member, at once, while what they are about fires and is cancelled.

use std::sync::Arc;
use std::time::Duration;

use domain::{Schedule, ScheduleId, Status, Timestamp, When};
use futures_util::future::{join, join_all};
use scheduler::{CancelAnswer, Create, PutAnswer, Scheduler, Timing};

use crate::cluster::both_engines;
use crate::house::TENANT;
use crate::town::{Town, named, quick};

const ID: &str = "invoice-7";

/// A schedule that never fires while a test looks.
fn far(town: &Town) -> Create {
    named(ID, town.in_ms(60_000))
}

async fn get(scheduler: &Scheduler) -> Option<Arc<Schedule>> {
    scheduler.get(TENANT, ScheduleId::new(ID).unwrap()).await.unwrap()
}

/// Adds a label to what is there, as often as it takes; `None` if it is cancelled.
async fn add_label(scheduler: Scheduler, request: Create, label: String) -> Option<PutAnswer> {
    loop {
        let found = get(&scheduler).await.unwrap();
        if found.status == Status::Cancelled {
            return None;
        }
        let mut spec = found.spec.clone();
        spec.labels.insert(label.clone(), String::new());
        let request = Create { spec, ..request.clone() };
        if let Some(answer) = scheduler.put_if(request, Some(found.seen()), Timing::Kept).await.unwrap() {
            return Some(answer.unwrap());
        }
    }
}

#[test]
fn changes_at_once_at_any_member_all_survive() {
    both_engines(async |sim, options| {
        let town = Town::new(sim, options, quick).await;
        let members = [("a", town.join("a").await), ("b", town.join("b").await)];
        town.settle(&[&members[0].1, &members[1].1]).await;
        let request = far(&town);
        let makes = members.iter().cycle().take(6).map(|(name, member)| {
            let (member, request) = (member.clone(), request.clone());
            town.at(name, async move { member.put_if(request, None, Timing::Anew).await.unwrap() })
        });
        let made = join_all(makes).await;
        assert_eq!(made.iter().flatten().count(), 1, "one of them made it");

        let changes = members.iter().cycle().take(12).enumerate().map(|(number, (name, member))| {
            town.at(name, add_label(member.clone(), request.clone(), format!("n{number}")))
        });
        let changed = join_all(changes).await;
        assert!(changed.iter().all(|answer| answer.as_ref().is_some_and(|answer| !answer.created)));
        let now = get(&members[0].1).await.unwrap();
        assert_eq!((now.spec.labels.len(), now.revision.0), (12, 12), "{now:?}");
    });
}

#[test]
fn a_change_and_a_cancellation_at_once_leave_it_cancelled() {
    both_engines(async |sim, options| {
        let town = Town::new(sim, options, quick).await;
        let (a, b) = (town.join("a").await, town.join("b").await);
        town.settle(&[&a, &b]).await;
        for round in 0..20_u64 {
            let (make, request) = (a.clone(), far(&town));
            let asked = request.clone();
            town.at("a", async move { make.put(asked).await.unwrap().unwrap() }).await;
            let found = get(&a).await.unwrap();
            let changes = (0..3).map(|number| {
                let changing = add_label(b.clone(), request.clone(), format!("n{number}"));
                town.at("b", changing)
            });
            let cancelling = async {
                town.sleep(Duration::from_micros(700 * round)).await;
                let (cancels, id) = (a.clone(), ScheduleId::new(ID).unwrap());
                town.at("a", async move { cancels.cancel(TENANT, id).await.unwrap() }).await
            };
            let (changed, cancelled) = join(join_all(changes), cancelling).await;
            assert_eq!(cancelled, CancelAnswer::Cancelled);
            let now = get(&b).await.unwrap();
            assert_eq!((now.incarnation, now.status), (found.incarnation, Status::Cancelled), "no change undoes it");
            let made = u32::try_from(changed.iter().flatten().count()).unwrap();
            assert_eq!(now.revision.0, found.revision.0 + made + 1, "what was answered was made");
            let cancels = b.clone();
            let gone = town.at("b", async move { cancels.cancel_if(&found).await.unwrap() }).await;
            assert_eq!(gone, None, "it is another edition now");
            let cancels = b.clone();
            let again = town.at("b", async move { cancels.cancel_if(&now).await.unwrap() }).await;
            assert_eq!(again, Some(CancelAnswer::Cancelled));
        }
        town.sleep(Duration::from_secs(90)).await;
        assert_eq!(town.calls().len(), 0);
    });
}

#[test]
fn a_schedule_whose_contents_change_all_the_time_keeps_its_beat() {
    both_engines(async |sim, options| {
        let town = Town::new(sim, options, quick).await;
        let (a, b) = (town.join("a").await, town.join("b").await);
        town.settle(&[&a, &b]).await;
        let mut request = far(&town);
        request.spec.when = When::Every(Duration::from_secs(1));
        let (make, asked) = (a.clone(), request.clone());
        let made = town.at("a", async move { make.put_if(asked, None, Timing::Anew).await }).await;
        let first = made.unwrap().unwrap().unwrap().schedule.next.unwrap();
        for number in 0..300 {
            town.at("b", add_label(b.clone(), request.clone(), format!("n{}", number % 10))).await.unwrap();
            town.sleep(Duration::from_millis(37)).await;
        }
        town.sleep(Duration::from_secs(1)).await;
        let beat = |number: usize| first + Duration::from_secs(number as u64);
        let mut called: Vec<Timestamp> = town.calls().iter().map(|call| call.nominal).collect();
        called.dedup();
        assert!(called.len() >= 11, "{} calls in 11 s and more", called.len());
        assert!(called.iter().enumerate().all(|(number, nominal)| *nominal == beat(number)), "{called:?}");
        let doubled = town.calls().len() - called.len();
        assert!(doubled <= 2, "{doubled} doubled: only what changes while it starts can be");
    });
}

#[test]
fn a_conditional_cancellation_waits_for_the_owner_and_is_never_pending() {
    both_engines(async |sim, options| {
        let town = Town::new(sim, options, quick).await;
        let (a, b) = (town.join("a").await, town.join("b").await);
        town.settle(&[&a, &b]).await;
        let ids = town.schedule("b", &b, town.in_ms(60_000), 20).await;
        let mut found = Vec::new();
        for id in &ids {
            found.extend(b.get(TENANT, ScheduleId::new(id).unwrap()).await.unwrap());
        }
        town.sim.kill("a");
        let mut unreachable = 0;
        for schedule in &found {
            let (cancels, schedule) = (b.clone(), schedule.clone());
            match town.at("b", async move { cancels.cancel_if(&schedule).await }).await {
                Ok(answer) => assert_eq!(answer, Some(CancelAnswer::Cancelled)),
                Err(_) => unreachable += 1,
            }
        }
        assert!(unreachable > 0, "the dead member owned none of them");
        town.sleep(Duration::from_secs(5)).await;
        for schedule in found {
            let (cancels, id) = (b.clone(), schedule.id.clone());
            let now = b.get(TENANT, id).await.unwrap().unwrap();
            let answer = town.at("b", async move { cancels.cancel_if(&now).await.unwrap() }).await;
            assert_eq!(answer, Some(CancelAnswer::Cancelled), "once there is an owner again");
        }
        town.sleep(Duration::from_secs(70)).await;
        assert_eq!(town.calls().len(), 0);
    });
}
