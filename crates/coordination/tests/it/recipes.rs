//! The recipes keep their promises on the tree in memory; and over many seeds of faults.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use coordination::Term;
use coordination::memory::MemoryOptions;
use coordination::recipes::{
    Candidate, Client, Discovery, Ended, LeaderSelector, Leading, Service, Source, Trust, Values,
};
use coordination::tree::{Acl, NodePath, SessionOptions};
use coordination_conformance::Case;
use coordination_conformance::tree::Subject;
use runtime::{Runtime, TaskSet};
use simulator::Simulation;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::support::{MemoryForest, on_real, slow};

mod real {
    use super::*;

    coordination_conformance::recipe_conformance_tests!(run);

    fn run(case: Case<dyn Subject>) {
        on_real(async |runtime| case.run(&MemoryForest::new(runtime, MemoryOptions::default())).await);
    }
}

/// Calls interleave as the seed says.
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
fn a_line_goes_on_past_the_last_number() {
    for seed in 0..8 {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let forest = MemoryForest::new(sim.outside(), slow());
            let set_next = |path: &NodePath, next| forest.trees().set_sequence(path, next);
            coordination_conformance::recipes::a_line_goes_on_past_the_last_number(&forest, set_next).await;
        });
    }
}

/// Whoever leads now: criterion A1 is that there is never a second.
#[derive(Default)]
struct Throne {
    holder: Option<usize>,
    terms: Vec<Term>,
}

/// Until it is told that it is over.
async fn sit(throne: &Mutex<Throne>, member: usize, leading: Leading, runtime: &Runtime, may_tire: bool) {
    {
        let mut throne = throne.lock().expect("nothing panics in here");
        assert_eq!(throne.holder.replace(member), None, "two lead");
        assert!(throne.terms.last() < Some(&leading.term), "terms rise: {:?}, then {:?}", throne.terms, leading.term);
        throne.terms.push(leading.term);
    }
    let tired = Duration::from_millis(if may_tire { runtime.random() % 2_000 } else { u64::from(u32::MAX) });
    let _told = runtime.timeout(tired, leading.over.cancelled()).await;
    throne.lock().expect("nothing panics in here").holder = None;
}

#[test]
fn a1_there_is_never_a_second_leader_whatever_is_cut() {
    const MEMBERS: usize = 4;
    let mut leaderships = 0;
    for seed in 0..40 {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let runtime = sim.outside();
            let forest = MemoryForest::new(runtime.clone(), slow());
            let (throne, stop) = (Arc::<Mutex<Throne>>::default(), CancellationToken::new());
            let (mut processes, tasks) = (Vec::new(), TaskSet::new(&runtime));
            for member in 0..MEMBERS {
                let process = forest.process().await;
                let options = SessionOptions { timeout: Duration::from_secs(2), ..SessionOptions::default() };
                let client = Client::new(&runtime, process.clone(), options);
                let trust = if seed % 2 == 0 { Trust::UntilSuspended } else { Trust::UntilLost };
                let candidate = Candidate { acl: Acl::Open, trust, ..Candidate::new("somebody") };
                let selector = LeaderSelector::new(&client, NodePath::new("/throne").unwrap(), candidate);
                let (throne, stop, runtime) = (throne.clone(), stop.clone(), runtime.clone());
                tasks.spawn("candidate", async move {
                    let may_tire = member % 2 == 0;
                    let led = selector.run(&stop, |leading| sit(&throne, member, leading, &runtime, may_tire));
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
            // A6: somebody leads soon, and goes on to.
            let before = throne.lock().unwrap().terms.len();
            runtime.sleep(Duration::from_secs(15)).await;
            let terms = throne.lock().unwrap().terms.len();
            assert!(throne.lock().unwrap().holder.is_some() || terms > before, "seed {seed}: nobody leads");
            stop.cancel();
            tasks.join().await;
            assert_eq!(throne.lock().unwrap().holder, None);
            leaderships += terms;
        });
    }
    assert!(leaderships > 200, "{leaderships}");
}

#[test]
fn who_stood_still_sees_by_the_clock_that_it_leads_no_more_also_before_it_is_told() {
    let mut untold = 0;
    for seed in 0..20 {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let (runtime, leads) = (sim.member("a"), CancellationToken::new());
            let forest = MemoryForest::new(runtime.clone(), slow());
            let options = SessionOptions { timeout: Duration::from_secs(2), ..SessionOptions::default() };
            let client = Client::new(&runtime, forest.process().await, options);
            let candidate = Candidate { acl: Acl::Open, trust: Trust::UntilLost, ..Candidate::new("a") };
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
            untold += u32::from(saw.await.unwrap() == Ended::Done(false));
        });
    }
    assert!(untold > 0, "the clock says it first, now and then");
}

#[test]
fn files_stand_in_for_an_engine_that_cannot_be_reached() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("kestrel")).unwrap();
    let file = "server_list:\n- {host: a, port: 1}\n- {host: b, port: 2}\n";
    std::fs::write(folder.path().join("kestrel/platform.yml"), file).unwrap();
    std::fs::write(folder.path().join("kestrel/bad.yml"), "server_list: 7").unwrap();
    on_real(async |runtime| {
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
        // A file that is not understood is as none.
        assert_eq!(discovery.follow(&service("bad")).await.unwrap().now().source, Source::Engine);
    });
}
