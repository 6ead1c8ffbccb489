//! Runs the conformance suite of the recipes on the tree in memory. Also tests the recipes in simulations with faults
//! and many seeds.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use coordination_conformance::Case;
use coordination_conformance::tree::Subject;
use reveille_coordination::Term;
use reveille_coordination::memory::MemoryOptions;
use reveille_coordination::recipes::{
    Candidate, Client, Discovery, Ended, LeaderSelector, Leading, Service, Source, Trust, Values,
};
use reveille_coordination::tree::{Acl, NodePath, SessionOptions};
use runtime::{Runtime, TaskSet};
use simulator::Simulation;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::support::{MemoryForest, slow, with_real_runtime};

mod real {
    use super::*;

    coordination_conformance::recipe_conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        with_real_runtime(async |runtime| case.run(&MemoryForest::new(runtime, MemoryOptions::default())).await);
    }
}

/// Runs the cases in a simulation. Its seed determines the interleaving of the calls.
mod simulated {
    use super::*;

    coordination_conformance::recipe_conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        for seed in 0..8 {
            let sim = Simulation::new(seed);
            sim.run_until(async { case.run(&MemoryForest::new(sim.outside(), slow())).await });
        }
    }
}

#[test]
fn locks_and_bags_stay_in_order_when_sequence_numbers_overflow() {
    for seed in 0..8 {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let forest = MemoryForest::new(sim.outside(), slow());
            let set_next = |path: &NodePath, next| forest.trees().set_sequence(path, next);
            coordination_conformance::recipes::locks_and_bags_keep_their_order_when_sequence_numbers_overflow(
                &forest, set_next,
            )
            .await;
        });
    }
}

/// Present leader, and the terms of all leaderships until now. Criterion A1 requires that two members never lead at the
/// same time.
#[derive(Default)]
struct Leaders {
    leader: Option<usize>,
    terms: Vec<Term>,
}

/// Leads until the leadership ends or the member resigns.
async fn lead(leaders: &Mutex<Leaders>, member: usize, leading: Leading, runtime: &Runtime, may_resign: bool) {
    {
        let mut leaders = leaders.lock().expect("no code panics while it holds this mutex");
        assert_eq!(leaders.leader.replace(member), None, "two members lead");
        assert!(
            leaders.terms.last() < Some(&leading.term),
            "terms must rise: {:?}, then {:?}",
            leaders.terms,
            leading.term
        );
        leaders.terms.push(leading.term);
    }
    let longest = Duration::from_millis(if may_resign { runtime.random() % 2_000 } else { u64::from(u32::MAX) });
    let _ended = runtime.timeout(longest, leading.over.cancelled()).await;
    leaders.lock().expect("no code panics while it holds this mutex").leader = None;
}

#[test]
fn at_most_one_process_leads_during_connection_cuts() {
    const MEMBERS: usize = 4;
    let mut leaderships = 0;
    for seed in 0..40 {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let runtime = sim.outside();
            let forest = MemoryForest::new(runtime.clone(), slow());
            let (leaders, stop) = (Arc::<Mutex<Leaders>>::default(), CancellationToken::new());
            let (mut processes, tasks) = (Vec::new(), TaskSet::new(&runtime));
            for member in 0..MEMBERS {
                let process = forest.process().await;
                let options = SessionOptions { timeout: Duration::from_secs(2), ..SessionOptions::default() };
                let client = Client::new(&runtime, process.clone(), options);
                let trust = if seed % 2 == 0 { Trust::UntilSuspended } else { Trust::UntilLost };
                let candidate = Candidate { trust, ..Candidate::new("candidate") };
                let selector = LeaderSelector::new(&client, NodePath::new("/throne").unwrap(), candidate);
                let (leaders, stop, runtime) = (leaders.clone(), stop.clone(), runtime.clone());
                tasks.spawn("candidate", async move {
                    let may_resign = member % 2 == 0;
                    let led = selector.run(&stop, |leading| lead(&leaders, member, leading, &runtime, may_resign));
                    led.await.unwrap();
                });
                processes.push(process);
            }
            for _ in 0..40 {
                runtime.sleep(Duration::from_millis(sim.draw(|random| random.below(1_500)))).await;
                let (member, is_cut) = (sim.draw(|random| random.below(4)), sim.draw(simulator::Random::coin));
                processes[usize::try_from(member).unwrap()].cut(is_cut);
            }
            processes.iter().for_each(|process| process.cut(false));
            // Criterion A6: a member leads soon after the connections are restored.
            let before = leaders.lock().unwrap().terms.len();
            runtime.sleep(Duration::from_secs(15)).await;
            let terms = leaders.lock().unwrap().terms.len();
            assert!(leaders.lock().unwrap().leader.is_some() || terms > before, "seed {seed}: no member leads");
            stop.cancel();
            tasks.join().await;
            assert_eq!(leaders.lock().unwrap().leader, None);
            leaderships += terms;
        });
    }
    assert!(leaderships > 200, "{leaderships}");
}

#[test]
fn leader_guard_becomes_invalid_before_the_leader_is_notified() {
    let mut unnotified = 0;
    for seed in 0..20 {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let (runtime, leads) = (sim.member("a"), CancellationToken::new());
            let forest = MemoryForest::new(runtime.clone(), slow());
            let options = SessionOptions { timeout: Duration::from_secs(2), ..SessionOptions::default() };
            let client = Client::new(&runtime, forest.process().await, options);
            let candidate = Candidate { trust: Trust::UntilLost, ..Candidate::new("a") };
            let selector = LeaderSelector::new(&client, NodePath::new("/throne").unwrap(), candidate);
            let (seen, saw) = oneshot::channel();
            let (tasks, led, clock) = (TaskSet::new(&runtime), leads.clone(), runtime.clone());
            tasks.spawn("leader", async move {
                let held = selector.lead().await.unwrap();
                let never = CancellationToken::new();
                let work = async |leading: Leading| {
                    assert!(leading.is_valid());
                    led.cancel();
                    while leading.is_valid() {
                        clock.sleep(Duration::from_millis(10)).await;
                    }
                    leading.over.is_cancelled()
                };
                seen.send(held.run(&never, Duration::ZERO, work).await).unwrap();
            });
            leads.cancelled().await;
            sim.pause("a", Duration::from_secs(5));
            unnotified += u32::from(saw.await.unwrap() == Ended::Done(false));
        });
    }
    assert!(unnotified > 0, "in some seeds the clock shows the end before the notification");
}

#[test]
fn discovery_uses_files_while_the_engine_is_unreachable() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("kestrel")).unwrap();
    let file = "server_list:\n- {host: a, port: 1}\n- {host: b, port: 2}\n";
    std::fs::write(folder.path().join("kestrel/platform.yml"), file).unwrap();
    std::fs::write(folder.path().join("kestrel/bad.yml"), "server_list: 7").unwrap();
    with_real_runtime(async |runtime| {
        let forest = MemoryForest::new(runtime.clone(), MemoryOptions::default());
        let (process, other) = (forest.process().await, forest.process().await);
        let open = |process| Client::new(&runtime, process, SessionOptions::default());
        let (client, theirs) = (open(process.clone()), open(other));
        let service = |name: &str| Service { class: "kestrel".to_owned(), name: name.to_owned() };
        let root = NodePath::new(Discovery::ROOT).unwrap();
        let discovery = Discovery::new(&client, root.clone(), Acl::Open);
        let folders = vec![folder.path().join("nowhere"), folder.path().to_owned()];
        let discovery = discovery.with_files(folders);
        process.cut(true);
        let mut found = discovery.follow(&service("platform")).await.unwrap();
        assert_eq!(found.now().source, Source::Files);
        let hosts: Vec<_> = found.now().all.iter().map(|instance| instance.payload["host"].clone()).collect();
        assert_eq!(hosts, ["a", "b"]);
        process.cut(false);
        let registered = Discovery::new(&theirs, root, Acl::Open).register(&service("platform"), "k", Values::new());
        let seen = found.until(|found| found.source == Source::Engine && found.all[0].key == "k");
        assert!(runtime.timeout(Duration::from_secs(10), seen).await.is_some());
        drop(registered);
        let gone = found.until(|found| found.source == Source::Files && found.all.len() == 2);
        assert!(runtime.timeout(Duration::from_secs(10), gone).await.is_some());
        // Discovery treats an invalid file like a missing file.
        assert_eq!(discovery.follow(&service("bad")).await.unwrap().now().source, Source::Engine);
    });
}
