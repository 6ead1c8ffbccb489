//! Several members over one store: shards are shared out, handed over and taken over, and any member takes any request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::id::SHARDS;
use domain::{AttemptResult, ScheduleId, ShardId, TenantId, When};
use futures_util::future::{join, join_all};
use membership::Ownership;
use scheduler::{CancelAnswer, Create, CreateRefusal, Delivery, RedriveAnswer, Scheduler};
use simulator::Simulation;
use store::Store;
use store::memory::MemoryOptions;

use crate::house::{TENANT, put_tenant, spec, tenant};
use crate::town::*;

pub(crate) fn both_engines(scenario: impl AsyncFn(&Simulation, MemoryOptions)) {
    for seed in 0..2 {
        for options in [MemoryOptions::default(), MemoryOptions::weak()] {
            let sim = Simulation::new(seed);
            sim.run_until(scenario(&sim, options));
        }
    }
}

#[test]
fn members_share_the_shards_and_what_is_due_fires_once() {
    both_engines(async |sim, options| {
        let town = Town::new(sim, options, quick).await;
        let (a, b, c) = (town.join("a").await, town.join("b").await, town.join("c").await);
        town.settle(&[&a, &b, &c]).await;
        let ids = town.schedule("a", &a, town.in_ms(500), 500).await;
        town.sleep(Duration::from_secs(3)).await;
        let latest = town.each_once(&ids);
        assert!(latest < Duration::from_millis(50), "{latest:?} late");
        for member in ["a", "b", "c"] {
            let share = town.calls().iter().filter(|call| call.member == member).count();
            assert!((100..300).contains(&share), "{member} made {share} of 500 calls");
        }
    });
}

#[test]
fn a_member_that_joins_takes_its_share_at_once_and_nothing_in_flight_is_doubled() {
    both_engines(async |sim, options| {
        let town = Town::new(sim, options, slow).await;
        let a = town.join("a").await;
        town.settle(&[&a]).await;
        let ids = town.schedule("a", &a, town.in_ms(500), 3_000).await;
        town.sleep(Duration::from_millis(900)).await;
        let b = town.join("b").await;
        town.sleep(Duration::from_millis(900)).await;
        let c = town.join("c").await;
        town.settle(&[&a, &b, &c]).await;
        town.sleep(Duration::from_secs(20)).await;
        let latest = town.each_once(&ids);
        assert!(latest < Duration::from_millis(100), "{latest:?} late");
        assert!(town.calls().iter().any(|call| call.member == "c"), "the last to come has its share");
    });
}

#[test]
fn a_member_that_stops_hands_everything_over() {
    both_engines(async |sim, options| {
        let town = Town::new(sim, options, slow).await;
        let (a, b) = (town.join("a").await, town.join("b").await);
        town.settle(&[&a, &b]).await;
        let ids = town.schedule("a", &a, town.in_ms(500), 2_000).await;
        town.sleep(Duration::from_millis(800)).await;
        let stopping = a.clone();
        town.at("a", async move { stopping.stop().await }).await;
        assert_eq!(a.owned(), []);
        town.settle(&[&b]).await;
        town.sleep(Duration::from_secs(20)).await;
        let latest = town.each_once(&ids);
        assert!(latest < Duration::from_millis(100), "{latest:?} late");
    });
}

#[test]
fn the_shards_of_a_dead_member_fire_again_a_lease_later() {
    both_engines(async |sim, options| {
        let town = Town::new(sim, options, quick).await;
        let (a, b) = (town.join("a").await, town.join("b").await);
        town.settle(&[&a, &b]).await;
        let ids = town.schedule("b", &b, town.in_ms(100), 6_000).await;
        town.sleep(Duration::from_millis(700)).await;
        town.sim.kill("a");
        town.settle(&[&b]).await;
        town.sleep(Duration::from_secs(20)).await;
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let mut latest = Duration::ZERO;
        for call in town.calls() {
            latest = latest.max(call.at.since(call.nominal));
            *counts.entry(call.id).or_default() += 1;
        }
        assert!(ids.iter().all(|id| counts.contains_key(id)), "lost");
        let doubled = counts.values().filter(|count| **count > 1).count();
        assert!(doubled <= 20, "{doubled} doubled, of which few were in flight");
        assert!(latest < LEASE + Duration::from_secs(1), "{latest:?} late");
    });
}

#[test]
fn any_member_takes_any_request() {
    both_engines(async |sim, options| {
        let failing = |delivery: &Delivery| match delivery.schedule.id.as_str().starts_with("dead") {
            true => (Duration::from_millis(1), AttemptResult::Answered(500)),
            false => quick(delivery),
        };
        let town = Town::new(sim, options, failing).await;
        let (a, b) = (town.join("a").await, town.join("b").await);
        town.settle(&[&a, &b]).await;
        let far = town.in_ms(60_000);
        for n in 0..40 {
            let names = ["a", "b"];
            let members = [a.clone(), b.clone()];
            let (one, other) = (members[n % 2].clone(), members[(n + 1) % 2].clone());
            let id = format!("n{n}");
            let name = ScheduleId::new(&id).unwrap();
            let asked = named(&id, far);
            let again = asked.clone();
            let made = town.at(names[n % 2], async move { one.create(vec![asked]).await }).await;
            made.unwrap().pop().unwrap().unwrap();
            let (second, there) = (other.clone(), names[(n + 1) % 2]);
            let exists = town.at(there, async move { second.create(vec![again]).await }).await.unwrap();
            assert_eq!(exists, [Err(CreateRefusal::Exists)]);
            let (second, moved) = (other.clone(), named(&id, town.in_ms(500)));
            let put = town.at(there, async move { second.put(moved).await }).await.unwrap().unwrap();
            assert!(!put.created && !put.too_late);
            if n % 4 == 0 {
                let answer = town.at(there, async move { other.cancel(TENANT, name).await }).await.unwrap();
                assert_eq!(answer, CancelAnswer::Cancelled);
            }
        }
        let (asking, dead) = (a.clone(), (0..8).map(|n| named(&format!("dead{n}"), town.in_ms(50))).collect());
        town.at("a", async move { asking.create(dead).await }).await.unwrap();
        town.sleep(Duration::from_secs(30)).await;
        let fired: BTreeSet<String> =
            town.calls().into_iter().map(|call| call.id).filter(|id| id.starts_with('n')).collect();
        let live: BTreeSet<String> = (0..40).filter(|n| n % 4 != 0).map(|n| format!("n{n}")).collect();
        assert_eq!(fired, live, "what was moved has fired, and nothing that was cancelled");
        let reading = b.clone();
        let letters = town.at("b", async move { reading.dead_letters(TENANT, None, 100).await }).await.unwrap();
        assert_eq!(letters.len(), 8);
        for letter in letters {
            let redriving = b.clone();
            let answer = town.at("b", async move { redriving.redrive(TENANT, letter.occurrence).await }).await.unwrap();
            assert!(matches!(answer, RedriveAnswer::Redriven(_)), "{answer:?}");
        }
    });
}

#[test]
fn a_cancellation_whose_owner_cannot_be_reached_is_pending_and_decided_in_time() {
    both_engines(async |sim, options| {
        let town = Town::new(sim, options, quick).await;
        let (a, b) = (town.join("a").await, town.join("b").await);
        town.settle(&[&a, &b]).await;
        let ids = town.schedule("b", &b, town.in_ms(20_000), 40).await;
        town.sim.kill("a");
        let mut pending = 0;
        for id in &ids {
            let (asking, id) = (b.clone(), ScheduleId::new(id).unwrap());
            match town.at("b", async move { asking.cancel(TENANT, id).await }).await.unwrap() {
                CancelAnswer::Pending { decided_by } => {
                    assert!(decided_by <= town.in_ms(3_500), "{decided_by:?}");
                    pending += 1;
                }
                CancelAnswer::Cancelled => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(pending > 0, "the dead member owned none of them");
        town.sleep(Duration::from_secs(40)).await;
        assert_eq!(town.calls().len(), 0, "none of them fires");
    });
}

#[test]
fn one_member_leads_and_another_when_it_is_gone() {
    both_engines(async |sim, options| {
        let town = Town::new(sim, options, quick).await;
        let (a, b) = (town.join("a").await, town.join("b").await);
        town.settle(&[&a, &b]).await;
        town.sleep(Duration::from_secs(3)).await;
        let leader = async || {
            let view = town.engine.view().await.unwrap();
            let id = view.claims.iter().find(|(name, _)| name.as_str() == "leader").map(|(_, id)| *id);
            id.and_then(|id| view.member(id).map(|member| member.name.clone()))
        };
        let first = leader().await.expect("somebody leads");
        town.sim.kill(&first);
        town.sleep(LEASE + Duration::from_secs(3)).await;
        let second = leader().await.expect("somebody leads again");
        assert_ne!(first, second);
    });
}

#[test]
fn a_member_whose_clock_is_off_does_not_lead() {
    let sim = Simulation::new(5);
    sim.run_until(async {
        let town = Town::new(&sim, MemoryOptions::weak(), quick).await;
        let (a, b) = (town.join("a").await, town.join("b").await);
        let only = async |wanted: [bool; 2]| {
            for _ in 0..100 {
                if [a.leads(), b.leads()] == wanted {
                    return;
                }
                town.sleep(Duration::from_millis(100)).await;
            }
            panic!("it is not so that {wanted:?} lead");
        };
        town.sleep(Duration::from_secs(3)).await;
        let is_a = a.leads();
        only([is_a, !is_a]).await;
        sim.jump_clock(if is_a { "a" } else { "b" }, 3_600_000);
        only([!is_a, is_a]).await;
        sim.jump_clock(if is_a { "a" } else { "b" }, -3_600_000);
        town.sleep(Duration::from_secs(5)).await;
        assert_eq!([a.leads(), b.leads()], [!is_a, is_a], "nobody takes it from the one that has it");
    });
}

#[test]
fn a_tenant_that_gets_more_pollers_loses_nothing_while_members_learn_of_them_one_by_one() {
    both_engines(async |sim, options| {
        let town = Town::new(sim, options, quick).await;
        let (a, b) = (town.join("a").await, town.join("b").await);
        town.settle(&[&a, &b]).await;
        let mut ids = town.schedule("a", &a, town.in_ms(3_000), 100).await;
        let grown = domain::Tenant { version: 2, generations: vec![64, 128], ..tenant(TENANT) };
        put_tenant(&town.store, grown.clone()).await.unwrap();
        // Asked of a member that knows of the new pollers before the owners do.
        for n in 0..30 {
            let at = town.in_ms(400 + 10 * n);
            let request = Create {
                tenant: Arc::new(grown.clone()),
                id: None,
                incarnation: None,
                spec: spec(When::At(at), "http://target.test/"),
            };
            let member = b.clone();
            let made = town.at("b", async move { member.create(vec![request]).await }).await.unwrap();
            let schedule = made.into_iter().next().unwrap().unwrap();
            assert_eq!(schedule.poller.generation, 1);
            ids.insert(schedule.id.to_string());
            town.sleep(Duration::from_millis(100)).await;
        }
        town.sleep(Duration::from_secs(10)).await;
        let latest = town.each_once(&ids);
        assert!(latest < Duration::from_millis(500), "{latest:?} late");
    });
}

#[test]
fn a_member_that_is_asked_for_a_tenant_it_has_not_heard_of_looks_at_once() {
    both_engines(async |sim, options| {
        let town = Town::new(sim, options, quick).await;
        let (a, b) = (town.join("a").await, town.join("b").await);
        town.settle(&[&a, &b]).await;
        let new = tenant(TenantId(7));
        put_tenant(&town.store, new.clone()).await.unwrap();
        let before = sim.elapsed();
        for n in 0..20 {
            let request = Create { tenant: Arc::new(new.clone()), ..named(&format!("n{n}"), town.in_ms(5_000)) };
            let member = a.clone();
            let made = town.at("a", async move { member.create(vec![request]).await }).await.unwrap();
            assert!(made[0].is_ok(), "{made:?}");
        }
        let took = sim.elapsed() - before;
        assert!(took < Duration::from_millis(500), "{took:?}");
    });
}

#[test]
fn requests_for_one_id_do_not_hold_up_a_hand_over() {
    both_engines(async |sim, mut options| {
        options.latency = Some(Duration::ZERO..=Duration::from_millis(10));
        let town = Town::new(sim, options, quick).await;
        let a = town.join("a").await;
        town.settle(&[&a]).await;
        let far = town.in_ms(3_600_000);
        let over = Arc::new(AtomicBool::new(false));
        let clients = (0..16).map(|client| {
            let (over, a, outside, sim) = (over.clone(), a.clone(), town.sim.outside(), town.sim.clone());
            async move {
                while !over.load(Ordering::Relaxed) {
                    let (member, request) = (a.clone(), named(&format!("n{}", client % 4), far));
                    sim.call("a", async move {
                        match client / 4 % 2 {
                            0 => drop(member.create(vec![request]).await),
                            _ => drop(member.put(request).await),
                        }
                    })
                    .await;
                    outside.sleep(Duration::from_micros(100)).await;
                }
            }
        });
        let coming_and_going = async {
            for _ in 0..5 {
                let b = town.join("b").await;
                town.settle(&[&a, &b]).await;
                town.at("b", async move { b.stop().await }).await;
                town.settle(&[&a]).await;
            }
            over.store(true, Ordering::Relaxed);
        };
        join(join_all(clients), coming_and_going).await;
    });
}

/// Slow and in steps, so that much happens between two of them.
fn slow_store() -> MemoryOptions {
    MemoryOptions { latency: Some(Duration::ZERO..=Duration::from_millis(20)), ..MemoryOptions::weak() }
}

fn on_a_slow_store(seeds: u64, scenario: impl AsyncFn(&Simulation)) {
    for seed in 0..seeds {
        let sim = Simulation::new(seed);
        sim.run_until(scenario(&sim));
    }
}

#[test]
fn no_shard_has_two_owners_while_members_come_and_go() {
    on_a_slow_store(8, async |sim| {
        let town = Town::new(sim, slow_store(), quick).await;
        let a = town.join("a").await;
        town.settle(&[&a]).await;
        let (b, c) = (town.join("b").await, town.join("c").await);
        for _ in 0..400 {
            let mut owned: Vec<_> = [&a, &b, &c].into_iter().flat_map(Scheduler::owned).collect();
            let count = owned.len();
            owned.sort_unstable();
            owned.dedup();
            assert_eq!(owned.len(), count, "a shard has two owners");
            town.sleep(Duration::from_millis(5)).await;
        }
        town.settle(&[&a, &b, &c]).await;
    });
}

#[test]
fn shards_that_are_claimed_and_not_owned_find_an_owner() {
    on_a_slow_store(8, async |sim| {
        let town = Town::new(sim, MemoryOptions { fail_one_in: Some(8), ..MemoryOptions::default() }, quick).await;
        let mut members = Vec::new();
        for name in ["a", "b", "c", "d"] {
            members.push(town.join(name).await);
            town.sleep(Duration::from_millis(700)).await;
        }
        town.settle(&members.iter().collect::<Vec<_>>()).await;
    });
}

#[test]
fn a_cancellation_in_a_hand_over_sees_what_is_in_flight() {
    on_a_slow_store(6, async |sim| {
        let slower = |_: &Delivery| (Duration::from_secs(4), AttemptResult::Answered(200));
        let town = Town::new(sim, slow_store(), slower).await;
        let a = town.join("a").await;
        town.settle(&[&a]).await;
        let ids = town.schedule("a", &a, town.in_ms(300), 200).await;
        town.sleep(Duration::from_millis(900)).await;
        assert_eq!(town.calls().len(), ids.len(), "all have begun");
        let cancelling = ids.iter().enumerate().map(async |(number, id)| {
            town.sleep(Duration::from_millis(4 * number as u64)).await;
            let (asked, id) = (a.clone(), ScheduleId::new(id).unwrap());
            town.at("a", async move { asked.cancel(TENANT, id).await }).await.unwrap()
        });
        let joining = async {
            town.sleep(Duration::from_millis(300)).await;
            town.join("b").await
        };
        let (answers, b) = join(join_all(cancelling), joining).await;
        town.settle(&[&a, &b]).await;
        let cancelled = answers.iter().filter(|answer| **answer == CancelAnswer::Cancelled).count();
        assert_eq!(cancelled, 0, "all were in flight");
    });
}

#[test]
fn a_mark_that_comes_while_its_shard_does_is_obeyed() {
    on_a_slow_store(10, async |sim| {
        let town = Town::new(sim, slow_store(), quick).await;
        let (a, b, c) = (town.join("a").await, town.join("b").await, town.join("c").await);
        town.settle(&[&a, &b, &c]).await;
        let ids = town.schedule("a", &a, town.in_ms(12_000), 500).await;
        town.network.1.store(true, Ordering::Relaxed);
        let cancelling = ids.iter().enumerate().map(async |(number, id)| {
            town.sleep(Duration::from_millis(4 * number as u64)).await;
            let (asked, id) = (c.clone(), ScheduleId::new(id).unwrap());
            town.at("c", async move { asked.cancel(TENANT, id).await }).await.unwrap()
        });
        let leaving = async {
            town.sleep(Duration::from_millis(500)).await;
            let a = a.clone();
            town.at("a", async move { a.stop().await }).await;
        };
        let (answers, ()) = join(join_all(cancelling), leaving).await;
        let is_decided =
            |answer: &CancelAnswer| matches!(answer, CancelAnswer::Pending { .. } | CancelAnswer::Cancelled);
        assert!(answers.iter().all(is_decided), "{answers:?}");
        town.settle(&[&b, &c]).await;
        town.sleep(Duration::from_secs(16)).await;
        assert_eq!(town.calls().len(), 0, "each was decided before it was due");
    });
}

#[test]
fn an_owner_that_wakes_too_late_leaves_the_arrivals_to_the_next() {
    on_a_slow_store(12, async |sim| {
        let options = MemoryOptions { latency: slow_store().latency, ..MemoryOptions::default() };
        let town = Town::new(sim, options, quick).await;
        let (a, b) = (town.join("a").await, town.join("b").await);
        town.settle(&[&a, &b]).await;
        let mut ids = BTreeSet::new();
        for _ in 0..4 {
            sim.pause("a", LEASE + Duration::from_millis(1_500));
            // These wait for the end of the pause, too, and come to shards that were a's, and are b's.
            let asked = (0..20).map(|_| town.schedule("a", &a, town.in_ms(4_000), 2));
            ids.extend(join_all(asked).await.into_iter().flatten());
            town.settle(&[&a, &b]).await;
        }
        town.sleep(Duration::from_secs(8)).await;
        town.each_once(&ids);
    });
}

/// As a member does that wakes from a pause in the midst of taking a shard, or one that nobody knows of.
#[test]
fn an_owner_whose_shards_somebody_else_has_taken_takes_them_back_and_keeps_the_rest() {
    both_engines(async |sim, options| {
        let town = Town::new(sim, options, quick).await;
        let (a, b) = (town.join("a").await, town.join("b").await);
        town.settle(&[&a, &b]).await;
        let far = town.in_ms(3_600_000);
        let names = (0..40).map(|n| named(&format!("n{n}"), far)).collect();
        let making = a.clone();
        assert!(town.at("a", async move { making.create(names).await }).await.is_ok_and(|made| made.len() == 40));
        let before = town.engine.view().await.unwrap().members;

        town.store.take((0..SHARDS).map(ShardId).collect()).await.unwrap();
        for n in 0..40 {
            let asked = sim.elapsed();
            loop {
                let (member, id) = (b.clone(), format!("n{n}"));
                let is_done = match n % 2 {
                    0 => town.at("b", async move { member.put(named(&id, far)).await }).await.is_ok(),
                    _ => {
                        let id = ScheduleId::new(&id).unwrap();
                        let answer = town.at("b", async move { member.cancel(TENANT, id).await }).await;
                        // What is pending is asked for again, and then cancelled already.
                        matches!(answer, Ok(CancelAnswer::Cancelled | CancelAnswer::NotFound))
                    }
                };
                if is_done {
                    break;
                }
                assert!(sim.elapsed() - asked < Duration::from_secs(10), "n{n} cannot be changed");
                town.sleep(Duration::from_millis(100)).await;
            }
        }
        town.settle(&[&a, &b]).await;
        let after = town.engine.view().await.unwrap().members;
        assert_eq!(before.iter().map(|it| it.id).collect::<Vec<_>>(), after.iter().map(|it| it.id).collect::<Vec<_>>());
    });
}
