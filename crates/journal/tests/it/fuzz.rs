//! Tests that corrupt a journal at random. `Journal::open` never panics, and a reader never returns a wrong entry.

use std::path::{Path, PathBuf};

use journal::{Journal, OpenError};
use runtime::{OpenMode, Runtime, TaskSet};
use simulator::{Random, Simulation, run_seeds};

use crate::support::{DIR, History, end, read_all, seeds, small};

#[test]
fn journal_with_corrupted_files_never_returns_a_wrong_entry() {
    run_seeds("journal-fuzz", seeds(400), |sim| {
        let history = History::default();
        let a = sim.member("a");
        let mut random = Random::new(sim.seed());
        let write = {
            let history = history.clone();
            async move {
                let tasks = TaskSet::new(&a);
                let journal = history.open(&a, &tasks, Path::new(DIR), small()).await.unwrap();
                for sizes in [vec![100; 5], vec![9000], vec![50, 4000], vec![11_000, 11_000], vec![3; 10], vec![2500]] {
                    for response in history.append(&journal, sizes).await {
                        response.await.unwrap();
                    }
                }
                history.release(&journal, random.below(9));
                end(&journal, tasks).await;
                let mutations = 1 + random.index(4);
                for _ in 0..mutations {
                    mutate(&a, &mut random).await;
                }
                open_again(&a, &history).await;
                // The test opens the journal a second time, because the first open may have changed its files.
                open_again(&a, &history).await;
            }
        };
        sim.run_until(async { sim.call("a", write).await.unwrap() });
        assert_eq!(sim.halts("a"), Vec::<String>::new());
    });
}

async fn open_again(runtime: &Runtime, history: &History) {
    let tasks = TaskSet::new(runtime);
    match Journal::<()>::open(runtime, &tasks, Path::new(DIR), small()).await {
        Ok(opened) => {
            let entries = read_all(&opened.journal, opened.first).await;
            for (index, entry) in (opened.first..).zip(&entries) {
                let state = history.state();
                assert_eq!(Some(entry), state.appended.get(usize::try_from(index).unwrap() - 1), "entry {index}");
            }
            opened.journal.close().await;
            tasks.join().await;
        }
        Err(OpenError::Damaged(_) | OpenError::Version { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Applies one random change to a file. A disk, a person or a program may cause such a change.
async fn mutate(runtime: &Runtime, random: &mut Random) {
    let disk = runtime.disk();
    let segments = || async {
        let names = disk.list(Path::new(DIR)).await.unwrap();
        let paths = names.iter().filter(|name| name.starts_with("segment")).map(|name| Path::new(DIR).join(name));
        paths.collect::<Vec<PathBuf>>()
    };
    let paths = segments().await;
    if paths.is_empty() {
        return;
    }
    let path = &paths[random.index(paths.len())];
    let other = &paths[random.index(paths.len())];
    let file = disk.open(path, OpenMode::ReadWrite).await.unwrap();
    let length = file.len().await.unwrap();
    let at = random.below(length.max(1));
    let block = at / 4096 * 4096;
    match random.below(8) {
        0 => disk.remove(path).await.unwrap(),
        1 => file.allocate(at).await.unwrap(),
        2 if path != other => disk.rename(path, other).await.unwrap(),
        3 => file.write_at(block, &vec![0; 4096]).await.unwrap(),
        4 => {
            // This change simulates a block that the disk wrote to the wrong place.
            let from = disk.open(other, OpenMode::Read).await.unwrap();
            let mut bytes = vec![0; 4096];
            let from_length = from.len().await.unwrap();
            if from_length >= 4096 {
                from.read_at(random.below(from_length / 4096) * 4096, &mut bytes).await.unwrap();
                file.write_at(block, &bytes).await.unwrap();
            }
        }
        5 => {
            let bytes: Vec<u8> = (0..random.index(64)).map(|_| random.bits().to_le_bytes()[0]).collect();
            file.write_at(at, &bytes).await.unwrap();
        }
        // This change overwrites one of the first 64 bytes of a block, which often belong to a header. Headers are the
        // most critical part of a journal.
        6 => file.write_at(block + random.below(64), &[random.bits().to_le_bytes()[0]]).await.unwrap(),
        _ => file.write_at(at, &[random.bits().to_le_bytes()[0]]).await.unwrap(),
    }
}

#[test]
fn simulations_with_the_same_seed_have_the_same_trace() {
    let hash = |seed| {
        let sim = Simulation::new(seed);
        let history = History::default();
        let a = sim.member("a");
        let work = async move {
            let tasks = TaskSet::new(&a);
            let journal = history.open(&a, &tasks, Path::new(DIR), small()).await.unwrap();
            for response in history.append(&journal, [100, 9000, 9000, 9000]).await {
                response.await.unwrap();
            }
            end(&journal, tasks).await;
        };
        sim.run_until(async { sim.call("a", work).await.unwrap() });
        sim.trace_hash()
    };
    assert_eq!(hash(7), hash(7));
    assert_ne!(hash(7), hash(8));
}
