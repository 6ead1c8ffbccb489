//! Tests of a membership that opens, renews, loses and ends sessions in simulated time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use domain::ShardId;
use futures_util::FutureExt as _;
use membership::memory::{EngineOptions, MemoryOwnership};
use membership::{
    BeforeRenewal, ClaimName, Membership, Options, Ownership, OwnershipError, Profile, Status, View, assign,
};
use runtime::{Runtime, TaskSet};
use simulator::{Handle, Simulation};

const LEASE: Duration = Duration::from_secs(6);

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn always() -> BeforeRenewal {
    Arc::new(|| async { true }.boxed())
}

fn profile(name: &str) -> Profile {
    Profile { name: name.to_owned(), address: format!("{name}:8081"), owns: true, build: "test".to_owned() }
}

fn engine(sim: &Handle, options: EngineOptions) -> MemoryOwnership {
    MemoryOwnership::new(sim.outside(), options)
}

fn slow() -> EngineOptions {
    EngineOptions { latency: Some(millis(1)..=millis(20)), ..EngineOptions::default() }
}

struct Process {
    runtime: Runtime,
    tasks: TaskSet,
    link: Arc<MemoryOwnership>,
    membership: Membership,
}

fn start(runtime: Runtime, engine: &MemoryOwnership, name: &str, before: BeforeRenewal) -> Process {
    let link = Arc::new(engine.reopen(runtime.clone()));
    let tasks = TaskSet::new(&runtime);
    let membership = Membership::join(&runtime, &tasks, link.clone(), profile(name), Options::default(), before);
    Process { runtime, tasks, link, membership }
}

fn shard(number: u16) -> ClaimName {
    ClaimName::shard(ShardId(number))
}

#[test]
fn membership_renews_its_session_and_keeps_its_claims() {
    let sim = Simulation::new(1);
    sim.run_until(async {
        let engine = engine(&sim, slow());
        let process = start(sim.member("a"), &engine, "a", always());
        let lease = process.membership.joined().await.expect("the member joins");
        let claimed = process.membership.claim(vec![shard(1), shard(2)]).await.expect("the claims are free");
        assert_eq!(claimed.held, [true, true]);
        for _ in 0..100 {
            sim.sleep(millis(1_000)).await;
            assert!(lease.is_valid(process.runtime.monotonic()));
        }
        let view = process.membership.refresh().await.expect("the engine responds");
        assert_eq!(view.shards().len(), 2);
        assert_eq!(view.members[0].id, lease.member());
        process.membership.release(vec![shard(1)]).await.expect("the member holds the claim");
        assert_eq!(process.membership.refresh().await.expect("the engine responds").shards().len(), 1);
    });
}

#[test]
fn isolated_member_loses_its_lease_before_its_claim_becomes_free() {
    for seed in 0..20 {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let engine = engine(&sim, slow());
            let (a, b) =
                (start(sim.member("a"), &engine, "a", always()), start(sim.member("b"), &engine, "b", always()));
            let lease = a.membership.joined().await.expect("the member joins");
            b.membership.joined().await.expect("the member joins");
            assert_eq!(a.membership.claim(vec![shard(1)]).await.expect("the claim is free").held, [true]);
            sim.sleep(millis(seed * 173)).await;
            let cut_at = sim.elapsed();
            a.link.cut(true);
            let mut was_valid_until = Duration::ZERO;
            while b.membership.claim(vec![shard(1)]).await.expect("b's session is open").held == [false] {
                if lease.is_valid(a.runtime.monotonic()) {
                    was_valid_until = sim.elapsed();
                }
                sim.sleep(millis(7)).await;
            }
            assert!(!lease.is_valid(a.runtime.monotonic()), "two members hold one claim");
            let gap = sim.elapsed() - was_valid_until;
            assert!(gap > millis(500) && gap < millis(1_000), "the gap is about the margin: {gap:?}");
            assert!(sim.elapsed() - cut_at < LEASE + millis(100), "the claim becomes free within a lease");
        });
    }
}

#[test]
fn membership_replaces_lost_session_but_old_lease_stays_invalid() {
    let sim = Simulation::new(3);
    sim.run_until(async {
        let engine = engine(&sim, slow());
        let a = start(sim.member("a"), &engine, "a", always());
        let first = a.membership.joined().await.expect("the member joins");
        a.membership.claim(vec![shard(1)]).await.expect("the claim is free");
        let mut status = a.membership.status();
        a.link.cut(true);
        status.wait_for(|status| matches!(status, Status::Lost)).await.expect("the status channel stays open");
        assert!(!first.is_valid(a.runtime.monotonic()));
        assert!(a.membership.lease().is_none());
        assert_eq!(a.membership.claim(vec![shard(1)]).await.map(|_| ()), Err(OwnershipError::Lost));
        sim.sleep(LEASE * 2).await;
        a.link.cut(false);
        let second = a.membership.joined().await.expect("the member joins again");
        assert_ne!(first.member(), second.member());
        assert!(second.is_valid(a.runtime.monotonic()) && !first.is_valid(a.runtime.monotonic()));
        assert!(a.membership.refresh().await.expect("the engine responds").claims.is_empty());
    });
}

#[test]
fn lease_ends_while_its_member_is_paused() {
    let sim = Simulation::new(4);
    sim.run_until(async {
        let engine = engine(&sim, slow());
        let a = start(sim.member("a"), &engine, "a", always());
        let first = a.membership.joined().await.expect("the member joins");
        sim.pause("a", LEASE * 2);
        sim.sleep(LEASE * 2 - millis(1)).await;
        assert!(!first.is_valid(a.runtime.monotonic()), "the lease ends without a message");
        sim.sleep(millis(500)).await;
        let second = a.membership.joined().await.expect("the member joins again");
        assert_ne!(first.member(), second.member());
    });
}

#[test]
fn member_whose_renewal_check_fails_does_not_renew_its_lease() {
    for takes_too_long in [false, true] {
        let sim = Simulation::new(5);
        sim.run_until(async {
            let engine = engine(&sim, slow());
            let (agrees, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
            let before: BeforeRenewal = {
                let (agrees, asked) = (agrees.clone(), asked.clone());
                Arc::new(move || {
                    asked.fetch_add(1, Ordering::Relaxed);
                    match agrees.load(Ordering::Relaxed) {
                        true => async { true }.boxed(),
                        false if takes_too_long => std::future::pending().boxed(),
                        false => async { false }.boxed(),
                    }
                })
            };
            let a = start(sim.member("a"), &engine, "a", before);
            let first = a.membership.joined().await.expect("the member joins");
            assert_eq!(asked.load(Ordering::Relaxed), 0);
            sim.sleep(LEASE * 3).await;
            assert!(first.is_valid(a.runtime.monotonic()) && asked.load(Ordering::Relaxed) >= 8);
            agrees.store(false, Ordering::Relaxed);
            let mut status = a.membership.status();
            status.wait_for(|status| matches!(status, Status::Lost)).await.expect("the status channel stays open");
            assert!(!first.is_valid(a.runtime.monotonic()));
        });
    }
}

#[test]
fn lease_duration_counts_from_the_start_of_the_renewal_check() {
    let sim = Simulation::new(6);
    sim.run_until(async {
        let engine = engine(&sim, EngineOptions::default());
        let runtime = sim.member("a");
        let began = Arc::new(std::sync::Mutex::new(Vec::new()));
        let before: BeforeRenewal = {
            let (runtime, began) = (runtime.clone(), began.clone());
            Arc::new(move || {
                let (runtime, began) = (runtime.clone(), began.clone());
                async move {
                    began.lock().expect("no holder of this lock panics").push(runtime.monotonic());
                    runtime.sleep(millis(900)).await;
                    true
                }
                .boxed()
            })
        };
        let a = start(runtime, &engine, "a", before);
        let lease = a.membership.joined().await.expect("the member joins");
        sim.sleep(LEASE * 2).await;
        let last = *began.lock().expect("no holder of this lock panics").last().expect("it renews");
        let valid = lease.deadline().since(last);
        assert!(valid <= LEASE - millis(600), "valid for {valid:?} after the check began");
    });
}

#[test]
fn leaving_member_frees_its_claims_at_once() {
    let sim = Simulation::new(7);
    sim.run_until(async {
        let engine = engine(&sim, slow());
        let (a, b) = (start(sim.member("a"), &engine, "a", always()), start(sim.member("b"), &engine, "b", always()));
        let lease = a.membership.joined().await.expect("the member joins");
        b.membership.joined().await.expect("the member joins");
        a.membership.claim(vec![shard(1)]).await.expect("the claim is free");
        let left_at = sim.elapsed();
        let mut view = b.membership.view();
        let leaving = a.membership.leave();
        leaving.await;
        assert!(!lease.is_valid(a.runtime.monotonic()));
        assert!(matches!(&*a.membership.status().borrow(), Status::Left));
        assert_eq!(a.membership.joined().await.map(|_| ()), Err(OwnershipError::Lost));
        view.wait_for(|view| view.claims.is_empty() && view.members.len() == 1)
            .await
            .expect("the view channel stays open");
        assert!(sim.elapsed() - left_at < millis(150), "{:?}", sim.elapsed() - left_at);
        // After the member `a` leaves, its tasks end by themselves: the test does not drop their task set.
        a.tasks.join().await;
    });
}

#[test]
fn shards_of_a_dead_member_are_free_when_its_lease_ends() {
    let sim = Simulation::new(8);
    sim.run_until(async {
        let engine = engine(&sim, slow());
        let (a, b) = (start(sim.member("a"), &engine, "a", always()), start(sim.member("b"), &engine, "b", always()));
        a.membership.joined().await.expect("the member joins");
        b.membership.joined().await.expect("the member joins");
        a.membership.claim(vec![shard(1)]).await.expect("the claim is free");
        let mut view = b.membership.view();
        view.wait_for(|view| view.claims.len() == 1).await.expect("the view channel stays open");
        let crashed_at = sim.elapsed();
        sim.crash("a");
        view.wait_for(|view| view.claims.is_empty()).await.expect("the view channel stays open");
        assert!(sim.elapsed() - crashed_at < LEASE + millis(100), "{:?}", sim.elapsed() - crashed_at);
    });
}

#[test]
fn member_measures_its_clock_offset_from_the_engine_clock() {
    for (ahead, is_off) in [(0, false), (400, false), (2_000, true), (-2_000, true)] {
        let sim = Simulation::new(9);
        sim.run_until(async {
            let engine = engine(&sim, EngineOptions { clock_ahead_millis: ahead, ..slow() });
            let a = start(sim.member("a"), &engine, "a", always());
            a.membership.joined().await.expect("the member joins");
            let offset = a.membership.clock_offset().expect("the offset was measured");
            let wrong_by = Duration::from_millis(offset.ahead_millis.abs_diff(ahead));
            assert!(wrong_by <= offset.uncertainty && offset.uncertainty < millis(25), "{offset:?}");
            assert_eq!(a.membership.clock_is_off(), is_off, "{ahead}");
            let reported = match &*a.membership.status().borrow() {
                Status::Joined { clock_is_off, .. } => *clock_is_off,
                other => panic!("unexpected status: {other:?}"),
            };
            assert_eq!(reported, is_off);

            // The machine's own clock jumps, and the next renewal detects the jump.
            sim.jump_clock("a", ahead - 3_000);
            let mut status = a.membership.status();
            let is_now_off = |status: &Status| matches!(status, Status::Joined { clock_is_off: true, .. });
            status.wait_for(is_now_off).await.expect("the status channel stays open");
            sim.jump_clock("a", 3_000);
            let is_right = |status: &Status| matches!(status, Status::Joined { clock_is_off: false, .. });
            status.wait_for(is_right).await.expect("the status channel stays open");
        });
    }
}

#[test]
fn member_with_a_wrong_clock_takes_no_shards() {
    for seed in 0..10 {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let engine = engine(&sim, EngineOptions { fail_one_in: Some(5), ..slow() });
            let (a, b) =
                (start(sim.member("a"), &engine, "a", always()), start(sim.member("b"), &engine, "b", always()));
            let lease = a.membership.joined().await.expect("the member joins");
            let mut view = b.membership.view();
            let mut until_it = async |owns: bool| {
                let is_so = |view: &Arc<View>| view.member(lease.member()).is_some_and(|a| a.owns == owns);
                let seen = sim.outside().timeout(LEASE, view.wait_for(is_so)).await;
                drop(seen.expect("the view changes within a lease").expect("the view channel stays open"));
            };
            until_it(true).await;
            sim.jump_clock("a", 2_000);
            until_it(false).await;
            sim.jump_clock("a", -2_000);
            until_it(true).await;
            assert!(lease.is_valid(a.runtime.monotonic()), "the session continues");
        });
    }
}

#[test]
fn endless_lease_of_a_single_process_needs_no_renewals() {
    let sim = Simulation::new(10);
    sim.run_until(async {
        let runtime = sim.member("a");
        let engine = Arc::new(MemoryOwnership::single(runtime.clone()));
        let tasks = TaskSet::new(&runtime);
        let before: BeforeRenewal = Arc::new(|| panic!("an endless lease needs no renewal"));
        let options = Options::with_lease(Duration::MAX);
        let membership = Membership::join(&runtime, &tasks, engine, profile("a"), options, before);
        let lease = membership.joined().await.expect("the member joins");
        assert_eq!(membership.claim(vec![shard(1)]).await.expect("the claim is free").held, [true]);
        sim.sleep(Duration::from_secs(3_600)).await;
        assert!(lease.is_valid(runtime.monotonic()));
        membership.leave().await;
        assert!(!lease.is_valid(runtime.monotonic()));
    });
}

/// Members join, leave, stall and fail, and each member claims the shards that `assign::plan` assigns to it. No two
/// members own the same shard at the same time. At the end, every shard has an owner.
#[test]
fn shard_never_has_two_owners_under_faults() {
    const SHARDS: u16 = 16;
    let mut moves = 0;
    for seed in 0..30 {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let engine = engine(
                &sim,
                EngineOptions {
                    fail_one_in: Some(8),
                    latency: Some(millis(1)..=millis(300)),
                    ..EngineOptions::default()
                },
            );
            let owned = Arc::new(std::sync::Mutex::new(Vec::new()));
            let mut processes = Vec::new();
            for name in ["a", "b", "c"] {
                let process = start(sim.member(name), &engine, name, always());
                process
                    .tasks
                    .spawn("owner", own(process.membership.clone(), process.runtime.clone(), owned.clone(), SHARDS));
                processes.push(process);
            }
            for _ in 0..150 {
                sim.sleep(millis(200)).await;
                let victim = usize::try_from(sim.outside().random() % 3).expect("the remainder is small");
                match sim.outside().random() % 60 {
                    0 => sim.pause(["a", "b", "c"][victim], millis(9_000)),
                    1..=3 => processes[victim].link.cut(true),
                    4..=20 => processes[victim].link.cut(false),
                    _ => {}
                }
                moves += check_and_prune(&mut owned.lock().expect("no holder of this lock panics"));
            }
            processes.iter().for_each(|process| process.link.cut(false));
            let limit = sim.elapsed() + LEASE * 6;
            while owned_now(&owned.lock().expect("no holder of this lock panics")).len() < usize::from(SHARDS) {
                assert!(sim.elapsed() < limit, "seed {seed}: shards without an owner");
                sim.sleep(millis(100)).await;
            }
        });
    }
    assert!(moves > 300, "too few shards moved: {moves}");
}

/// An owned shard, the lease of its owner, and the runtime whose clock the lease uses.
type Owned = (ShardId, membership::Lease, Runtime);

fn owned_now(owned: &[Owned]) -> BTreeSet<ShardId> {
    let is_valid = |(_, lease, runtime): &&Owned| lease.is_valid(runtime.monotonic());
    owned.iter().filter(is_valid).map(|(shard, ..)| *shard).collect()
}

/// Removes the owned shards whose lease has ended, and returns their number. Also asserts that no shard has two owners.
fn check_and_prune(owned: &mut Vec<Owned>) -> usize {
    let before = owned.len();
    owned.retain(|(_, lease, runtime)| lease.is_valid(runtime.monotonic()));
    assert_eq!(owned_now(owned).len(), owned.len(), "two members own one shard: {owned:?}");
    before - owned.len()
}

/// Claims the shards that `assign::plan` assigns to the member, and releases all other shards of the member.
async fn own(membership: Membership, runtime: Runtime, owned: Arc<std::sync::Mutex<Vec<Owned>>>, shards: u16) {
    let mut view = membership.view();
    loop {
        let seen = view.borrow_and_update().clone();
        let Some(lease) = membership.lease() else {
            runtime.sleep(millis(50)).await;
            continue;
        };
        let plan = assign::plan(&seen.shards(), &seen.owners(), shards);
        let (mine, not_mine): (Vec<ShardId>, Vec<ShardId>) =
            (0..shards).map(ShardId).partition(|shard| plan.get(shard) == Some(&lease.member()));
        // The member removes a shard from `owned` before it releases the claim on this shard. It also releases claims
        // that the view shows, but that `owned` does not contain. Such a claim can exist after the response to a claim
        // or to a release got lost.
        owned
            .lock()
            .expect("no holder of this lock panics")
            .retain(|(shard, of, _)| of.member() != lease.member() || !not_mine.contains(shard));
        let still_held = seen.shards().into_iter().filter(|(_, holder)| *holder == lease.member());
        let surplus = still_held.map(|(shard, _)| shard).filter(|shard| not_mine.contains(shard));
        let _retried = membership.release(surplus.map(ClaimName::shard).collect()).await;
        let names: Vec<ClaimName> = mine.iter().copied().map(ClaimName::shard).collect();
        if let Ok(claimed) = membership.claim(names).await {
            let mut owned = owned.lock().expect("no holder of this lock panics");
            for (shard, _) in mine.iter().zip(claimed.held).filter(|(_, held)| *held) {
                owned.retain(|(known, of, _)| !(known == shard && of.member() == claimed.lease.member()));
                owned.push((*shard, claimed.lease.clone(), runtime.clone()));
            }
            check_and_prune(&mut owned);
        }
        runtime.timeout(millis(1_000), view.changed()).await;
    }
}

/// Tests the engine alone, without a membership.
#[test]
fn endless_session_ends_only_when_its_member_leaves() {
    let sim = Simulation::new(11);
    sim.run_until(async {
        let engine = MemoryOwnership::single(sim.outside());
        let id = membership::MemberId(1);
        let member = membership::Member {
            id,
            name: "a".to_owned(),
            address: "a:1".to_owned(),
            owns: true,
            build: "test".to_owned(),
        };
        engine.join(member, millis(1)).await.expect("the member joins");
        sim.sleep(LEASE).await;
        engine.renew(id, millis(1)).await.expect("the session never ends");
        engine.leave(id).await.expect("the member leaves");
        assert_eq!(engine.renew(id, millis(1)).await, Err(OwnershipError::Lost));
    });
}
