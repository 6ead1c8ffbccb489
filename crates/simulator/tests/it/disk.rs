use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use runtime::OpenMode;
use simulator::{Faults, Incident, Simulation};

use crate::{durable_file, seeds_where};

const LOG: &str = "/log";

fn contents(sim: &Simulation) -> Option<Vec<u8>> {
    sim.volume("a").read(LOG)
}

/// Writes `parts` in order to a file, syncs the file after the first `synced` parts, and crashes the member. Returns
/// the bytes of the file after the crash.
fn crash_after_writes(sim: &Simulation, parts: &[&[u8]], synced: usize) -> Vec<u8> {
    sim.run_until(async {
        let file = durable_file(&sim.member("a"), LOG).await;
        let mut offset = 0;
        for (number, part) in parts.iter().enumerate() {
            if number == synced {
                file.sync_data().await.unwrap();
            }
            file.write_at(offset, part).await.unwrap();
            offset += part.len() as u64;
        }
        sim.crash("a");
    });
    contents(sim).expect("the file's name was durable")
}

#[test]
fn crash_retains_synced_bytes_and_a_random_part_of_unsynced_bytes() {
    let parts: [&[u8]; 3] = [&[1; 700], &[2; 5_000], &[3; 100]];
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let sim = Simulation::new(seed);
        let remaining = crash_after_writes(&sim, &parts, 1);
        assert_eq!(remaining[..700], [1; 700]);
        for (at, byte) in remaining.iter().enumerate().skip(700) {
            let written = if at < 5_700 { 2 } else { 3 };
            assert!(*byte == 0 || *byte == written, "byte {at} is {byte}, which was never written");
        }
        lengths.insert(remaining.len());
    }
    assert!(lengths.contains(&700) && lengths.contains(&5_700) && lengths.contains(&5_800), "{lengths:?}");
}

#[test]
fn unsynced_write_survives_a_crash_completely_partly_or_not_at_all() {
    let outcome = |property: fn(&[u8]) -> bool| {
        seeds_where(300, |sim| {
            let remaining = crash_after_writes(sim, &[&[7; 4_096]], usize::MAX);
            property(&remaining)
        })
    };
    let whole = outcome(|remaining| remaining == [7; 4_096]);
    let none = outcome(|remaining| !remaining.contains(&7));
    let torn = outcome(|remaining| remaining.contains(&7) && remaining != [7; 4_096]);
    assert!(whole > 50 && none > 50 && torn > 50, "whole {whole}, none {none}, torn {torn}");
    let counted = seeds_where(300, |sim| {
        crash_after_writes(sim, &[&[7; 4_096]], usize::MAX);
        sim.incidents().count(Incident::TornWrite) > 0
    });
    assert!(counted >= torn);
}

#[test]
fn torn_write_keeps_or_loses_whole_sectors() {
    for seed in 0..200 {
        let remaining = crash_after_writes(&Simulation::new(seed), &[&[7; 100], &[7; 5_000]], 0);
        let mut padded = remaining.clone();
        padded.resize(5_100, 0);
        // The second write starts within the first sector, so this sector has bytes of two writes.
        for (start, end) in
            [(0, 100), (100, 512)].into_iter().chain((1..10).map(|n| (n * 512, (n * 512 + 512).min(5_100))))
        {
            let sector = &padded[start..end];
            assert!(sector.iter().all(|byte| *byte == sector[0]), "seed {seed}: torn inside {start}..{end}");
        }
    }
}

#[test]
fn torn_write_may_lose_a_sector_and_keep_a_later_sector() {
    let holes = seeds_where(200, |sim| {
        let remaining = crash_after_writes(sim, &[&[7; 4_096]], usize::MAX);
        let first_lost = remaining.iter().position(|byte| *byte == 0);
        first_lost.is_some_and(|at| remaining[at..].contains(&7))
    });
    assert!(holes > 10, "{holes}");
}

#[test]
fn truncated_bytes_of_a_file_become_zeros_when_it_grows_again() {
    let sim = Simulation::new(0);
    sim.run_until(async {
        let file = durable_file(&sim.member("a"), LOG).await;
        file.write_at(0, &[7; 10_000]).await.unwrap();
        file.allocate(5_000).await.unwrap();
        file.allocate(10_000).await.unwrap();
    });
    let mut expected = vec![7; 5_000];
    expected.resize(10_000, 0);
    assert!(contents(&sim) == Some(expected));
}

#[test]
fn later_unsynced_write_may_survive_without_an_earlier_write() {
    let reordered = seeds_where(100, |sim| {
        let remaining = crash_after_writes(sim, &[&[1; 512], &[2; 512]], usize::MAX);
        remaining.len() == 1_024 && remaining[0] == 0 && remaining[512] == 2
    });
    assert!(reordered > 5, "{reordered}");
}

#[test]
fn unsynced_writes_survive_a_process_kill_until_a_later_crash() {
    for seed in 0..20 {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let file = durable_file(&sim.member("a"), LOG).await;
            file.write_at(0, &[9; 2_000]).await.unwrap();
            sim.kill("a");
        });
        assert_eq!(contents(&sim), Some(vec![9; 2_000]));
    }
    let lost = seeds_where(50, |sim| {
        sim.run_until(async {
            let file = durable_file(&sim.member("a"), LOG).await;
            file.write_at(0, &[9; 2_000]).await.unwrap();
            sim.kill("a");
            let _up = sim.restart("a");
            sim.crash("a");
        });
        contents(sim) != Some(vec![9; 2_000])
    });
    assert!(lost > 10, "{lost}");
}

#[test]
fn file_name_is_durable_only_after_a_sync_of_its_folder() {
    let lost = seeds_where(100, |sim| {
        sim.run_until(async {
            let file = sim.member("a").disk().open(Path::new(LOG), OpenMode::CreateNew).await.unwrap();
            file.write_at(0, b"bytes").await.unwrap();
            file.sync_data().await.unwrap();
            sim.crash("a");
        });
        match contents(sim) {
            None => true,
            Some(bytes) => {
                assert_eq!(bytes, b"bytes", "a surviving name has its synced bytes");
                false
            }
        }
    });
    assert!((20..80).contains(&lost), "{lost}");
}

#[test]
fn crash_may_lose_folder_unless_its_parent_was_synced() {
    let run = |sim: &Simulation, sync_parent: bool| {
        sim.run_until(async {
            let (a, folder) = (sim.member("a"), Path::new("/data/log"));
            a.disk().create_dir_all(folder).await.unwrap();
            let _file = durable_file(&a, "/data/log/1").await;
            if sync_parent {
                a.disk().sync_dir(Path::new("/data")).await.unwrap();
                a.disk().sync_dir(Path::new("/")).await.unwrap();
            }
            sim.crash("a");
        });
        sim.volume("a").files("/data/log").is_empty()
    };
    assert_eq!(seeds_where(50, |sim| run(sim, true)), 0);
    assert!(seeds_where(50, |sim| run(sim, false)) > 20);
}

#[test]
fn crash_after_rename_leaves_old_or_new_file() {
    let (mut before, mut after) = (0, 0);
    for seed in 0..100 {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let a = sim.member("a");
            for (path, byte) in [("/new", b"n"), (LOG, b"o")] {
                let file = durable_file(&a, path).await;
                file.write_at(0, byte).await.unwrap();
                file.sync_data().await.unwrap();
            }
            a.disk().rename(Path::new("/new"), Path::new(LOG)).await.unwrap();
            assert_eq!(a.disk().list(Path::new("/")).await.unwrap(), ["log"]);
            sim.crash("a");
        });
        let log = contents(&sim).expect("one of the two files exists");
        match (log.as_slice(), sim.volume("a").files("/").contains("new")) {
            (b"o", true) => before += 1,
            (b"n", false) => after += 1,
            other => panic!("neither before nor after: {other:?}"),
        }
    }
    assert!(before > 20 && after > 20);
}

#[test]
fn successful_sync_does_not_make_writes_of_a_failed_sync_durable() {
    let lost = seeds_where(100, |sim| {
        sim.run_until(async {
            let file = durable_file(&sim.member("a"), LOG).await;
            file.write_at(0, &[1; 4_096]).await.unwrap();
            file.sync_data().await.unwrap();
            file.write_at(0, &[2; 4_096]).await.unwrap();
            sim.set_faults(Faults { sync_fail: 1.0, ..Faults::default() });
            assert!(file.sync_data().await.is_err());
            sim.set_faults(Faults::default());
            file.sync_data().await.unwrap();
            sim.crash("a");
        });
        let remaining = contents(sim).unwrap();
        assert!(remaining.len() == 4_096 && remaining.iter().all(|byte| [1, 2].contains(byte)));
        remaining.contains(&1)
    });
    assert!((40..95).contains(&lost), "{lost}");
}

#[test]
fn sync_makes_only_writes_before_its_start_durable() {
    let lost = seeds_where(50, |sim| {
        sim.run_until(async {
            let file = durable_file(&sim.member("a"), LOG).await;
            file.write_at(0, &[1; 512]).await.unwrap();
            let sync = file.sync_data();
            let write = async {
                sim.sleep(Duration::from_micros(10)).await;
                file.write_at(512, &[2; 512]).await.unwrap();
            };
            futures_util::join!(sync, write).0.unwrap();
            sim.crash("a");
        });
        let remaining = contents(sim).unwrap();
        assert_eq!(remaining[..512], [1; 512]);
        remaining.len() < 1_024
    });
    assert!(lost > 10, "{lost}");
}

#[test]
fn slow_sync_takes_at_least_one_second() {
    let sim = Simulation::new(0);
    sim.set_faults(Faults { sync_slow: 1.0, ..Faults::default() });
    sim.run_until(async {
        let file = durable_file(&sim.member("a"), LOG).await;
        file.sync_data().await.unwrap();
    });
    assert!(sim.elapsed() >= Duration::from_secs(1));
    assert_eq!(sim.incidents().count(Incident::SlowSync), 1);
}

#[test]
fn full_disk_rejects_growth_and_accepts_overwrites() {
    let sim = Simulation::new(0);
    sim.run_until(async {
        let (a, volume) = (sim.member("a"), sim.volume("a"));
        let file = durable_file(&a, LOG).await;
        volume.set_capacity(10_000);
        file.allocate(8_000).await.unwrap();
        assert_eq!(a.disk().free_bytes(Path::new("/")).await.unwrap(), 2_000);
        assert_eq!(file.write_at(8_000, &[1; 4_000]).await.unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(file.allocate(20_000).await.unwrap_err().kind(), ErrorKind::StorageFull);
        file.write_at(0, &[1; 8_000]).await.unwrap();
        volume.set_capacity(30_000);
        file.allocate(20_000).await.unwrap();
        file.allocate(0).await.unwrap();
        let second = durable_file(&a, "/second").await;
        second.allocate(30_000).await.unwrap();
        a.disk().remove(Path::new("/second")).await.unwrap();
        assert_eq!(volume.used_bytes(), 30_000, "an open file without a name uses space");
        drop(second);
        assert_eq!(volume.used_bytes(), 0);
    });
    assert!(sim.incidents().count(Incident::DiskFull) >= 2);
}

#[test]
fn read_returns_flipped_bit_before_and_after_a_crash() {
    let sim = Simulation::new(0);
    sim.run_until(async {
        let file = durable_file(&sim.member("a"), LOG).await;
        file.write_at(0, &[0; 10]).await.unwrap();
        file.sync_data().await.unwrap();
        sim.volume("a").flip_bit(LOG, 3, 4);
        let mut byte = [0];
        file.read_at(3, &mut byte).await.unwrap();
        assert_eq!(byte, [16]);
        sim.crash("a");
    });
    assert_eq!(contents(&sim).unwrap(), [0, 0, 0, 16, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn simulator_cuts_the_power_during_the_chosen_disk_operation() {
    for number in 1..=6 {
        let sim = Simulation::new(number);
        let _a = sim.member("a");
        sim.volume("a").crash_at_operation(number);
        let steps = sim.run_until(async {
            let a = sim.member("a");
            let work = async move {
                let file = durable_file(&a, LOG).await; // Two operations.
                file.write_at(0, &[1]).await.unwrap();
                file.sync_data().await.unwrap(); // Two more.
                file.len().await.unwrap();
            };
            sim.call("a", work).await
        });
        assert_eq!(steps, None);
        assert_eq!(sim.volume("a").operations(), number);
        assert_eq!(sim.incidents().count(Incident::Crash), 1);
    }
}

#[test]
fn folder_lock_detects_the_removal_of_its_file() {
    let sim = Simulation::new(1);
    sim.run_until(async {
        let disk = sim.member("a").disk();
        let path = Path::new("/lock");
        let lock = disk.lock(path).await.unwrap();
        lock.verify().await.unwrap();
        disk.remove(path).await.unwrap();
        assert!(lock.verify().await.is_err());
        assert_eq!(disk.lock(path).await.err().unwrap().kind(), ErrorKind::WouldBlock);
        assert!(lock.verify().await.is_err(), "the file that the second call created is another file");
        drop(lock);
        disk.lock(path).await.unwrap().verify().await.unwrap();
    });
}

#[test]
fn file_lock_lasts_until_its_guard_drops_or_its_member_crashes() {
    let sim = Simulation::new(0);
    sim.run_until(async {
        let disk = sim.member("a").disk();
        let path = Path::new("/lock");
        let guard = disk.lock(path).await.unwrap();
        assert_eq!(disk.lock(path).await.err().unwrap().kind(), ErrorKind::WouldBlock);
        drop(guard);
        let guard = disk.lock(path).await.unwrap();
        sim.crash("a");
        let disk = sim.restart("a").disk();
        let _mine = disk.lock(path).await.unwrap();
        drop(guard);
        assert!(disk.lock(path).await.is_err(), "the guard of a dead process releases no lock");
    });
}

#[test]
fn simulated_disk_returns_the_same_error_kinds_as_a_file_system() {
    let sim = Simulation::new(0);
    sim.run_until(async {
        let disk = sim.member("a").disk();
        let kind = async |path: &str, mode| disk.open(Path::new(path), mode).await.err().map(|error| error.kind());
        assert_eq!(kind("/none", OpenMode::ReadWrite).await, Some(ErrorKind::NotFound));
        assert_eq!(kind("/none/file", OpenMode::CreateNew).await, Some(ErrorKind::NotFound));
        let file = durable_file(&sim.member("a"), LOG).await;
        assert_eq!(kind(LOG, OpenMode::CreateNew).await, Some(ErrorKind::AlreadyExists));
        file.write_at(0, &[1, 2, 3]).await.unwrap();
        let mut four = [0; 4];
        assert_eq!(file.read_at(0, &mut four).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let read_only = disk.open(Path::new(LOG), OpenMode::Read).await.unwrap();
        assert_eq!(read_only.write_at(0, &[1]).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(disk.list(Path::new("/none")).await.unwrap_err().kind(), ErrorKind::NotFound);
        let unnamed = disk.open_unnamed(Path::new("/")).await.unwrap();
        unnamed.write_at(0, &[1, 2, 3, 4]).await.unwrap();
        unnamed.read_at(0, &mut four).await.unwrap();
        assert_eq!(
            (four, disk.list(Path::new("/")).await.unwrap().len()),
            ([1, 2, 3, 4], 1),
            "only the log has a name"
        );
        assert_eq!(disk.remove(Path::new("/none")).await.unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn disk_operations_fail_with_the_configured_probability() {
    let sim = Simulation::new(5);
    sim.run_until(async {
        let file = durable_file(&sim.member("a"), LOG).await;
        sim.set_faults(Faults { write_fail: 0.5, read_fail: 0.5, ..Faults::default() });
        let (mut writes, mut reads) = (0, 0);
        for _ in 0..200 {
            writes += u64::from(file.write_at(0, &[1; 10]).await.is_err());
            reads += u64::from(file.read_at(0, &mut []).await.is_err());
        }
        assert!((60..140).contains(&writes) && (60..140).contains(&reads));
        let incidents = sim.incidents();
        assert_eq!(incidents.count(Incident::FailedWrite), writes);
        assert_eq!(incidents.count(Incident::FailedRead), reads);
    });
}
