//! Tests of several members over one store. The members divide the shards among themselves, hand shards over and take
//! shards over. Every member accepts every request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::id::SHARDS;
use domain::{AttemptResult, Facet, Group, ScheduleId, ShardId, TenantId, When};
use futures_util::future::{join, join_all};
use membership::Ownership;
use membership::memory::{EngineOptions, MemoryOwnership};
use scheduler::{CancelResponse, Create, CreateRejection, Delivery, RedriveResponse, Scheduler};
use simulator::Simulation;
use store::Store;
use store::memory::MemoryOptions;

use crate::harness::{TENANT, put_tenant, spec, tenant};
use crate::test_cluster::*;

pub(crate) fn both_engines(scenario: impl AsyncFn(&Simulation, MemoryOptions)) {
    for seed in 0..2 {
        for options in [MemoryOptions::default(), MemoryOptions::weak()] {
            let sim = Simulation::new(seed);
            sim.run_until(scenario(&sim, options));
        }
    }
}

#[test]
fn members_share_the_shards_and_every_run_fires_once() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, quick).await;
        let (a, b, c) = (cluster.join("a").await, cluster.join("b").await, cluster.join("c").await);
        cluster.wait_until_balanced(&[&a, &b, &c]).await;
        let ids = cluster.schedule("a", &a, cluster.in_ms(500), 500).await;
        cluster.sleep(Duration::from_secs(3)).await;
        let latest = cluster.assert_each_called_once(&ids);
        assert!(latest < Duration::from_millis(50), "{latest:?} late");
        for member in ["a", "b", "c"] {
            let share = cluster.calls().iter().filter(|call| call.member == member).count();
            assert!((100..300).contains(&share), "{member} made {share} of 500 calls");
        }
    });
}

#[test]
fn joining_member_takes_its_share_of_the_shards_without_duplicates() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, slow).await;
        let a = cluster.join("a").await;
        cluster.wait_until_balanced(&[&a]).await;
        let ids = cluster.schedule("a", &a, cluster.in_ms(500), 3_000).await;
        cluster.sleep(Duration::from_millis(900)).await;
        let b = cluster.join("b").await;
        cluster.sleep(Duration::from_millis(900)).await;
        let c = cluster.join("c").await;
        cluster.wait_until_balanced(&[&a, &b, &c]).await;
        cluster.sleep(Duration::from_secs(20)).await;
        let latest = cluster.assert_each_called_once(&ids);
        assert!(latest < Duration::from_millis(100), "{latest:?} late");
        assert!(cluster.calls().iter().any(|call| call.member == "c"), "the last member to join has its share");
    });
}

#[test]
fn stopping_member_hands_over_all_its_shards() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, slow).await;
        let (a, b) = (cluster.join("a").await, cluster.join("b").await);
        cluster.wait_until_balanced(&[&a, &b]).await;
        let ids = cluster.schedule("a", &a, cluster.in_ms(500), 2_000).await;
        cluster.sleep(Duration::from_millis(800)).await;
        let stopping = a.clone();
        cluster.at("a", async move { stopping.stop().await }).await;
        assert_eq!(a.owned(), []);
        cluster.wait_until_balanced(&[&b]).await;
        cluster.sleep(Duration::from_secs(20)).await;
        let latest = cluster.assert_each_called_once(&ids);
        assert!(latest < Duration::from_millis(100), "{latest:?} late");
    });
}

#[test]
fn other_members_fire_runs_of_dead_member_after_its_lease_expires() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, quick).await;
        let (a, b) = (cluster.join("a").await, cluster.join("b").await);
        cluster.wait_until_balanced(&[&a, &b]).await;
        let ids = cluster.schedule("b", &b, cluster.in_ms(100), 6_000).await;
        cluster.sleep(Duration::from_millis(700)).await;
        cluster.sim.kill("a");
        cluster.wait_until_balanced(&[&b]).await;
        cluster.sleep(Duration::from_secs(20)).await;
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let mut latest = Duration::ZERO;
        for call in cluster.calls() {
            latest = latest.max(call.at.since(call.nominal));
            *counts.entry(call.id).or_default() += 1;
        }
        assert!(ids.iter().all(|id| counts.contains_key(id)), "a run was lost");
        let duplicates = counts.values().filter(|count| **count > 1).count();
        assert!(duplicates <= 20, "{duplicates} duplicates, more than were in flight");
        assert!(latest < LEASE + Duration::from_secs(1), "{latest:?} late");
    });
}

#[test]
fn every_member_accepts_requests_for_every_schedule() {
    both_engines(async |sim, options| {
        let failing = |delivery: &Delivery| match delivery.schedule.id.as_str().starts_with("dead") {
            true => (Duration::from_millis(1), AttemptResult::Answered(500)),
            false => quick(delivery),
        };
        let cluster = TestCluster::new(sim, options, failing).await;
        let (a, b) = (cluster.join("a").await, cluster.join("b").await);
        cluster.wait_until_balanced(&[&a, &b]).await;
        let far = cluster.in_ms(60_000);
        for n in 0..40 {
            let names = ["a", "b"];
            let members = [a.clone(), b.clone()];
            let (one, other) = (members[n % 2].clone(), members[(n + 1) % 2].clone());
            let id = format!("n{n}");
            let name = ScheduleId::new(&id).unwrap();
            let request = named(&id, far);
            let again = request.clone();
            let created = cluster.at(names[n % 2], async move { one.create(vec![request]).await }).await;
            created.unwrap().pop().unwrap().unwrap();
            let (second, there) = (other.clone(), names[(n + 1) % 2]);
            let exists = cluster.at(there, async move { second.create(vec![again]).await }).await.unwrap();
            assert_eq!(exists, [Err(CreateRejection::Exists)]);
            let (second, moved) = (other.clone(), named(&id, cluster.in_ms(500)));
            let put = cluster.at(there, async move { second.put(moved).await }).await.unwrap().unwrap();
            assert!(!put.created && !put.too_late);
            if n % 4 == 0 {
                let response = cluster.at(there, async move { other.cancel(TENANT, name, None).await }).await.unwrap();
                assert_eq!(response, CancelResponse::Cancelled);
            }
        }
        let (requester, dead) = (a.clone(), (0..8).map(|n| named(&format!("dead{n}"), cluster.in_ms(50))).collect());
        cluster.at("a", async move { requester.create(dead).await }).await.unwrap();
        cluster.sleep(Duration::from_secs(30)).await;
        let fired: BTreeSet<String> =
            cluster.calls().into_iter().map(|call| call.id).filter(|id| id.starts_with('n')).collect();
        let live: BTreeSet<String> = (0..40).filter(|n| n % 4 != 0).map(|n| format!("n{n}")).collect();
        assert_eq!(fired, live, "moved schedules fired, and cancelled ones did not");
        let reading = b.clone();
        let letters = cluster.at("b", async move { reading.dead_letters(TENANT, None, 100).await }).await.unwrap();
        assert_eq!(letters.len(), 8);
        for letter in letters {
            let redriving = b.clone();
            let response =
                cluster.at("b", async move { redriving.redrive(TENANT, letter.occurrence).await }).await.unwrap();
            assert!(matches!(response, RedriveResponse::Redriven(_)), "{response:?}");
        }
    });
}

#[test]
fn cancellation_is_pending_while_the_owner_is_unreachable() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, quick).await;
        let (a, b) = (cluster.join("a").await, cluster.join("b").await);
        cluster.wait_until_balanced(&[&a, &b]).await;
        let ids = cluster.schedule("b", &b, cluster.in_ms(20_000), 40).await;
        cluster.sim.kill("a");
        let mut pending = 0;
        for id in &ids {
            let (requester, id) = (b.clone(), ScheduleId::new(id).unwrap());
            match cluster.at("b", async move { requester.cancel(TENANT, id, None).await }).await.unwrap() {
                CancelResponse::Pending { decided_by } => {
                    assert!(decided_by <= cluster.in_ms(3_500), "{decided_by:?}");
                    pending += 1;
                }
                CancelResponse::Cancelled => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(pending > 0, "the dead member owned some of the schedules");
        cluster.sleep(Duration::from_secs(40)).await;
        assert_eq!(cluster.calls().len(), 0, "a cancelled schedule fired");
    });
}

#[test]
fn another_member_becomes_leader_after_leader_dies() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, quick).await;
        let (a, b) = (cluster.join("a").await, cluster.join("b").await);
        cluster.wait_until_balanced(&[&a, &b]).await;
        cluster.sleep(Duration::from_secs(3)).await;
        let leader = async || {
            let view = cluster.engine.view().await.unwrap();
            let id = view.claims.iter().find(|(name, _)| name.as_str() == "leader").map(|(_, id)| *id);
            id.and_then(|id| view.member(id).map(|member| member.name.clone()))
        };
        let first = leader().await.expect("a member leads");
        cluster.sim.kill(&first);
        cluster.sleep(LEASE + Duration::from_secs(3)).await;
        let second = leader().await.expect("another member leads");
        assert_ne!(first, second);
    });
}

#[test]
fn another_member_replaces_a_leader_whose_clock_is_wrong() {
    let sim = Simulation::new(5);
    sim.run_until(async {
        let cluster = TestCluster::new(&sim, MemoryOptions::weak(), quick).await;
        let (a, b) = (cluster.join("a").await, cluster.join("b").await);
        let only = async |wanted: [bool; 2]| {
            for _ in 0..100 {
                if [a.leads(), b.leads()] == wanted {
                    return;
                }
                cluster.sleep(Duration::from_millis(100)).await;
            }
            panic!("the leaders [a, b] are not {wanted:?}");
        };
        cluster.sleep(Duration::from_secs(3)).await;
        let is_a = a.leads();
        only([is_a, !is_a]).await;
        sim.jump_clock(if is_a { "a" } else { "b" }, 3_600_000);
        only([!is_a, is_a]).await;
        sim.jump_clock(if is_a { "a" } else { "b" }, -3_600_000);
        cluster.sleep(Duration::from_secs(5)).await;
        assert_eq!([a.leads(), b.leads()], [!is_a, is_a], "the leader changed without a reason");
    });
}

#[test]
fn members_lose_no_run_while_they_discover_new_pollers() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, quick).await;
        let (a, b) = (cluster.join("a").await, cluster.join("b").await);
        cluster.wait_until_balanced(&[&a, &b]).await;
        let mut ids = cluster.schedule("a", &a, cluster.in_ms(3_000), 100).await;
        let grown = domain::Tenant { version: 2, generations: vec![64, 128], ..tenant(TENANT) };
        put_tenant(&cluster.store, grown.clone()).await.unwrap();
        // The member `b` creates schedules in the new pollers before the owners know these pollers.
        for n in 0..30 {
            let at = cluster.in_ms(400 + 10 * n);
            let request = Create {
                tenant: Arc::new(grown.clone()),
                id: None,
                incarnation: None,
                spec: spec(When::At(at), "http://target.test/"),
                by: None,
            };
            let member = b.clone();
            let created = cluster.at("b", async move { member.create(vec![request]).await }).await.unwrap();
            let schedule = created.into_iter().next().unwrap().unwrap();
            assert_eq!(schedule.poller.generation, 1);
            ids.insert(schedule.id.to_string());
            cluster.sleep(Duration::from_millis(100)).await;
        }
        cluster.sleep(Duration::from_secs(10)).await;
        let latest = cluster.assert_each_called_once(&ids);
        assert!(latest < Duration::from_millis(500), "{latest:?} late");
    });
}

#[test]
fn member_accepts_requests_of_a_new_tenant_without_delay() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, quick).await;
        let (a, b) = (cluster.join("a").await, cluster.join("b").await);
        cluster.wait_until_balanced(&[&a, &b]).await;
        let new = tenant(TenantId(7));
        put_tenant(&cluster.store, new.clone()).await.unwrap();
        let before = sim.elapsed();
        for n in 0..20 {
            let request = Create { tenant: Arc::new(new.clone()), ..named(&format!("n{n}"), cluster.in_ms(5_000)) };
            let member = a.clone();
            let created = cluster.at("a", async move { member.create(vec![request]).await }).await.unwrap();
            assert!(created[0].is_ok(), "{created:?}");
        }
        let took = sim.elapsed() - before;
        assert!(took < Duration::from_millis(500), "{took:?}");
    });
}

#[test]
fn requests_for_the_same_ids_do_not_delay_the_hand_over_of_shards() {
    both_engines(async |sim, mut options| {
        options.latency = Some(Duration::ZERO..=Duration::from_millis(10));
        let cluster = TestCluster::new(sim, options, quick).await;
        let a = cluster.join("a").await;
        cluster.wait_until_balanced(&[&a]).await;
        let far = cluster.in_ms(3_600_000);
        let over = Arc::new(AtomicBool::new(false));
        let clients = (0..16).map(|client| {
            let (over, a, outside, sim) = (over.clone(), a.clone(), cluster.sim.outside(), cluster.sim.clone());
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
                let b = cluster.join("b").await;
                cluster.wait_until_balanced(&[&a, &b]).await;
                cluster.at("b", async move { b.stop().await }).await;
                cluster.wait_until_balanced(&[&a]).await;
            }
            over.store(true, Ordering::Relaxed);
        };
        join(join_all(clients), coming_and_going).await;
    });
}

/// Returns options of a slow store that writes in several steps, so that other requests run between the steps of each
/// request.
fn slow_store() -> MemoryOptions {
    MemoryOptions { latency: Some(Duration::ZERO..=Duration::from_millis(20)), ..MemoryOptions::weak() }
}

fn for_each_seed(seeds: u64, scenario: impl AsyncFn(&Simulation)) {
    for seed in 0..seeds {
        let sim = Simulation::new(seed);
        sim.run_until(scenario(&sim));
    }
}

#[test]
fn no_shard_has_two_owners_while_members_join() {
    for_each_seed(8, async |sim| {
        let cluster = TestCluster::new(sim, slow_store(), quick).await;
        let a = cluster.join("a").await;
        cluster.wait_until_balanced(&[&a]).await;
        let (b, c) = (cluster.join("b").await, cluster.join("c").await);
        for _ in 0..400 {
            let mut owned: Vec<_> = [&a, &b, &c].into_iter().flat_map(Scheduler::owned).collect();
            let count = owned.len();
            owned.sort_unstable();
            owned.dedup();
            assert_eq!(owned.len(), count, "a shard has two owners");
            cluster.sleep(Duration::from_millis(5)).await;
        }
        cluster.wait_until_balanced(&[&a, &b, &c]).await;
    });
}

#[test]
fn every_shard_gets_an_owner_despite_intermittent_store_failures() {
    for_each_seed(8, async |sim| {
        let cluster =
            TestCluster::new(sim, MemoryOptions { fail_one_in: Some(8), ..MemoryOptions::default() }, quick).await;
        let mut members = Vec::new();
        for name in ["a", "b", "c", "d"] {
            members.push(cluster.join(name).await);
            cluster.sleep(Duration::from_millis(700)).await;
        }
        cluster.wait_until_balanced(&members.iter().collect::<Vec<_>>()).await;
    });
}

#[test]
fn member_cancels_no_attempt_in_flight_during_a_hand_over() {
    for_each_seed(6, async |sim| {
        let slower = |_: &Delivery| (Duration::from_secs(4), AttemptResult::Answered(200));
        let cluster = TestCluster::new(sim, slow_store(), slower).await;
        let a = cluster.join("a").await;
        cluster.wait_until_balanced(&[&a]).await;
        let ids = cluster.schedule("a", &a, cluster.in_ms(300), 200).await;
        cluster.sleep(Duration::from_millis(900)).await;
        assert_eq!(cluster.calls().len(), ids.len(), "all attempts have started");
        let cancelling = ids.iter().enumerate().map(async |(number, id)| {
            cluster.sleep(Duration::from_millis(4 * number as u64)).await;
            let (member, id) = (a.clone(), ScheduleId::new(id).unwrap());
            cluster.at("a", async move { member.cancel(TENANT, id, None).await }).await.unwrap()
        });
        let joining = async {
            cluster.sleep(Duration::from_millis(300)).await;
            cluster.join("b").await
        };
        let (responses, b) = join(join_all(cancelling), joining).await;
        cluster.wait_until_balanced(&[&a, &b]).await;
        let cancelled = responses.iter().filter(|response| **response == CancelResponse::Cancelled).count();
        assert_eq!(cancelled, 0, "all attempts were in flight");
    });
}

/// Starts a cluster with the members `a` and `b`, and waits until attempts of 4 s are in flight. Returns the members, and
/// the ids of the schedules.
async fn with_slow_attempts(sim: &Simulation) -> (TestCluster, Scheduler, Scheduler, BTreeSet<String>) {
    let slower = |_: &Delivery| (Duration::from_secs(4), AttemptResult::Answered(200));
    let cluster = TestCluster::new(sim, slow_store(), slower).await;
    let (a, b) = (cluster.join("a").await, cluster.join("b").await);
    cluster.wait_until_balanced(&[&a, &b]).await;
    let ids = cluster.schedule("a", &a, cluster.in_ms(300), 100).await;
    cluster.sleep(Duration::from_millis(900)).await;
    assert_eq!(cluster.calls().len(), ids.len(), "all attempts have started");
    (cluster, a, b, ids)
}

#[test]
fn member_that_stops_during_a_hand_over_repeats_no_attempt() {
    for_each_seed(8, async |sim| {
        let (cluster, a, b, ids) = with_slow_attempts(sim).await;
        // The member `a` hands over all shards, because its clock is wrong. From the start of the hand-over, it owns
        // none of them.
        sim.jump_clock("a", 3_600_000);
        while !a.owned().is_empty() {
            cluster.sleep(Duration::from_millis(1)).await;
        }
        cluster.at("a", async move { a.stop().await }).await;
        cluster.wait_until_balanced(&[&b]).await;
        cluster.sleep(Duration::from_secs(10)).await;
        cluster.assert_each_called_once(&ids);
    });
}

#[test]
fn member_whose_clock_falls_behind_hands_over_its_attempts_in_flight() {
    for_each_seed(8, async |sim| {
        let (cluster, _a, b, ids) = with_slow_attempts(sim).await;
        sim.jump_clock("a", -3_600_000);
        cluster.wait_until_balanced(&[&b]).await;
        cluster.sleep(Duration::from_secs(10)).await;
        cluster.assert_each_called_once(&ids);
    });
}

#[test]
fn handed_over_attempts_count_with_their_host_and_labels() {
    for_each_seed(8, async |sim| {
        let (cluster, _a, b, ids) = with_slow_attempts(sim).await;
        sim.jump_clock("a", -3_600_000);
        cluster.wait_until_balanced(&[&b]).await;
        cluster.sleep(Duration::from_secs(10)).await;
        for (facet, name, value) in [(Facet::Host, "", "target.test"), (Facet::Label, "team", "blue")] {
            let group = Group::Value { name: name.to_owned(), value: value.to_owned() };
            assert_eq!(cluster.counted_runs(facet).await, BTreeMap::from([(group, ids.len() as u64)]));
        }
    });
}

#[test]
fn schedules_of_a_member_that_starts_with_a_fast_clock_fire_on_time() {
    for_each_seed(8, async |sim| {
        let mut cluster = TestCluster::new(sim, MemoryOptions::default(), quick).await;
        // The member `c` compares its clock with the engine's clock only after it has received the requests.
        let latency = Some(Duration::from_millis(50)..=Duration::from_millis(100));
        cluster.engine = MemoryOwnership::new(sim.outside(), EngineOptions { latency, ..EngineOptions::default() });
        let (a, b) = (cluster.join("a").await, cluster.join("b").await);
        cluster.wait_until_balanced(&[&a, &b]).await;
        drop(sim.member("c"));
        sim.jump_clock("c", 3_600_000);
        let c = cluster.join("c").await;
        let ids = cluster.schedule("c", &c, cluster.in_ms(300), 20).await;
        cluster.sleep(Duration::from_secs(5)).await;
        cluster.assert_each_called_once(&ids);
    });
}

#[test]
fn cancellation_during_a_hand_over_prevents_every_callback() {
    for_each_seed(10, async |sim| {
        let cluster = TestCluster::new(sim, slow_store(), quick).await;
        let (a, b, c) = (cluster.join("a").await, cluster.join("b").await, cluster.join("c").await);
        cluster.wait_until_balanced(&[&a, &b, &c]).await;
        let ids = cluster.schedule("a", &a, cluster.in_ms(12_000), 500).await;
        cluster.network.1.store(true, Ordering::Relaxed);
        let cancelling = ids.iter().enumerate().map(async |(number, id)| {
            cluster.sleep(Duration::from_millis(4 * number as u64)).await;
            let (member, id) = (c.clone(), ScheduleId::new(id).unwrap());
            cluster.at("c", async move { member.cancel(TENANT, id, None).await }).await.unwrap()
        });
        let leaving = async {
            cluster.sleep(Duration::from_millis(500)).await;
            let a = a.clone();
            cluster.at("a", async move { a.stop().await }).await;
        };
        let (responses, ()) = join(join_all(cancelling), leaving).await;
        let is_decided =
            |response: &CancelResponse| matches!(response, CancelResponse::Pending { .. } | CancelResponse::Cancelled);
        assert!(responses.iter().all(is_decided), "{responses:?}");
        cluster.wait_until_balanced(&[&b, &c]).await;
        cluster.sleep(Duration::from_secs(16)).await;
        assert_eq!(cluster.calls().len(), 0, "a schedule fired after its cancellation");
    });
}

#[test]
fn owner_with_an_expired_lease_deletes_no_rows_of_the_insert_log() {
    for_each_seed(12, async |sim| {
        let options = MemoryOptions { latency: slow_store().latency, ..MemoryOptions::default() };
        let cluster = TestCluster::new(sim, options, quick).await;
        let (a, b) = (cluster.join("a").await, cluster.join("b").await);
        cluster.wait_until_balanced(&[&a, &b]).await;
        let mut ids = BTreeSet::new();
        for _ in 0..4 {
            sim.pause("a", LEASE + Duration::from_millis(1_500));
            // These schedules are due after the end of the pause. Some of them are in shards that `a` owned before the
            // pause and that `b` owns after it.
            let creates = (0..20).map(|_| cluster.schedule("a", &a, cluster.in_ms(4_000), 2));
            ids.extend(join_all(creates).await.into_iter().flatten());
            cluster.wait_until_balanced(&[&a, &b]).await;
        }
        cluster.sleep(Duration::from_secs(8)).await;
        cluster.assert_each_called_once(&ids);
    });
}

/// The test calls `take` directly. This call simulates a member that resumes from a pause while it takes shards, or a
/// process that the members do not know.
#[test]
fn owner_takes_back_shards_that_another_process_took() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, quick).await;
        let (a, b) = (cluster.join("a").await, cluster.join("b").await);
        cluster.wait_until_balanced(&[&a, &b]).await;
        let far = cluster.in_ms(3_600_000);
        let names = (0..40).map(|n| named(&format!("n{n}"), far)).collect();
        let member = a.clone();
        assert!(
            cluster.at("a", async move { member.create(names).await }).await.is_ok_and(|created| created.len() == 40)
        );
        let before = cluster.engine.view().await.unwrap().members;

        cluster.store.take((0..SHARDS).map(ShardId).collect()).await.unwrap();
        for n in 0..40 {
            let started = sim.elapsed();
            loop {
                let (member, id) = (b.clone(), format!("n{n}"));
                let is_done = match n % 2 {
                    0 => cluster.at("b", async move { member.put(named(&id, far)).await }).await.is_ok(),
                    _ => {
                        let id = ScheduleId::new(&id).unwrap();
                        let response = cluster.at("b", async move { member.cancel(TENANT, id, None).await }).await;
                        // The test repeats a pending cancellation. The repeated request may find that the schedule is
                        // already cancelled.
                        matches!(response, Ok(CancelResponse::Cancelled | CancelResponse::NotFound))
                    }
                };
                if is_done {
                    break;
                }
                assert!(sim.elapsed() - started < Duration::from_secs(10), "n{n} cannot be changed");
                cluster.sleep(Duration::from_millis(100)).await;
            }
        }
        cluster.wait_until_balanced(&[&a, &b]).await;
        let after = cluster.engine.view().await.unwrap().members;
        assert_eq!(before.iter().map(|it| it.id).collect::<Vec<_>>(), after.iter().map(|it| it.id).collect::<Vec<_>>());
    });
}
