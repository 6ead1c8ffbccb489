use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use paxos::Slot;
use simulator::Random;

use crate::checks::Checks;
use crate::disk::{Disk, Left};
use crate::{Coverage, Failure, Incident, Mutation, OnDisk, Rule, RunConfig, catch, run_core, run_pieces};

/// Runs a test without printing panic messages, because the simulation reports panics as violations.
fn quietly<T>(test: impl FnOnce() -> T) -> T {
    std::panic::set_hook(Box::new(|_| {}));
    let result = test();
    drop(std::panic::take_hook());
    result
}

#[test]
fn paxos_core_breaks_no_checked_rule_in_six_hundred_simulations() {
    let mut coverage = Coverage::default();
    for seed in 0..600 {
        let config = RunConfig::draw(seed, Mutation::None);
        let outcome = run_core(&config, false);
        if let Some(failure) = Failure::of(&config, &outcome) {
            panic!("{failure}");
        }
        assert!(outcome.steps >= 2_000, "seed {seed}: {} steps", outcome.steps);
        coverage.add(&outcome);
    }
    assert_eq!(coverage.missing(), [], "{coverage}");
}

#[test]
fn simulations_with_the_same_seed_have_the_same_trace() {
    for seed in 0..20 {
        let config = RunConfig::draw(seed, Mutation::None);
        let (first, second) = (run_core(&config, true), run_core(&config, true));
        assert_eq!((first.trace_hash, &first.lines), (second.trace_hash, &second.lines), "seed {seed}");
        assert!(first.lines.len() > 100, "the trace has lines");
    }
    let hashes = (0..20).map(|seed| run_core(&RunConfig::draw(seed, Mutation::None), false).trace_hash);
    assert_eq!(hashes.collect::<BTreeSet<_>>().len(), 20, "each seed has a different trace");
}

/// The search for a bug begins at a seed whose run is known to detect the bug, because a full search takes minutes.
/// `cargo xtask simulate --scenario paxos --mutants` runs the full search.
#[test]
fn simulation_detects_every_deliberate_bug() {
    quietly(|| {
        for mutation in Mutation::all() {
            let first = match mutation.to_string().as_str() {
                "SkipsCompareAndSwap" => 46,
                "ComparesMasterRecordOnly" => 1_855,
                "StealsWithoutConsent" => 158,
                "ServesAfterConsent" => 1_322,
                "CountsOldBallot" => 5_169,
                "ChangesMembersTwice" => 501,
                "ShortensFromDecision" => 47,
                "TellsOnce" => 270,
                "TakesFromTheLiving" => 90,
                "LivesOn" => 51,
                "OrdersFromArrival" => 212,
                "LeavesAfterOrders" => 2_341,
                "ExpiresEarly" => 1_244,
                "WallClock" => 42,
                _ => 0,
            };
            let caught = catch(mutation, first..10_000).or_else(|| catch(mutation, 0..first));
            let (seed, violation) = caught.unwrap_or_else(|| panic!("{mutation} is not caught by 10,000 seeds"));
            assert_eq!(
                run_core(&RunConfig::draw(seed, Mutation::None), false).result,
                Ok(()),
                "without the bug that causes {violation}"
            );
        }
    });
}

#[test]
fn failure_report_contains_a_reduced_run_that_also_fails() {
    quietly(|| {
        let mutation = Mutation::all().find(|mutation| mutation.to_string() == "TrimsPastDeadMember").unwrap();
        let (seed, _) = catch(mutation, 0..1_000).unwrap();
        let config = RunConfig::draw(seed, mutation);
        let outcome = run_core(&config, false);
        let failure = Failure::of(&config, &outcome).unwrap();
        assert!(failure.is_repeatable);
        assert_ne!(failure.least.without, 0, "most kinds of faults are left out");
        let again = run_core(&failure.least, false);
        assert_eq!(again.result.unwrap_err().rule, Rule::SnapshotEqualsLog);
        assert!(again.steps <= outcome.steps);
        let text = failure.to_string();
        assert!(text.contains(&format!("--scenario paxos --seed {seed} --steps ")), "{text}");
        assert!(text.contains("--mutant TrimsPastDeadMember"), "{text}");
    });
}

#[test]
fn runner_skips_seeds_that_the_state_file_lists_as_finished() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let run = |seeds| {
        let ran = AtomicU64::new(0);
        let progress = |_: &Coverage| {
            ran.fetch_add(1, Ordering::Relaxed);
        };
        let coverage = run_pieces((0, seeds), 2, Some(&path), progress)?.unwrap();
        std::io::Result::Ok((coverage, ran.into_inner()))
    };
    let (first, pieces) = run(30).unwrap();
    assert_eq!((first.seeds, pieces), (30, 1));
    assert_eq!(run(30).unwrap(), (first, 0));
    let file = std::fs::File::open(&path).unwrap();
    file.lock().unwrap();
    let rejected = run(30).unwrap_err();
    assert!(rejected.to_string().contains("another run may be writing to it"), "{rejected}");
    drop(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let other = text.replacen(|digit: char| digit.is_ascii_hexdigit(), "x", 1);
    std::fs::write(&path, other).unwrap();
    let rejected = run(30).unwrap_err();
    assert!(rejected.to_string().contains("use a new file"), "{rejected}");
}

#[test]
fn list_of_all_incidents_is_sorted_by_incident_number() {
    for (index, incident) in Incident::ALL.into_iter().enumerate() {
        assert_eq!(incident as usize, index);
    }
}

fn disk_with(records: u8) -> Disk {
    let mut disk = Disk::default();
    disk.append(1, [vec![0; 20]]);
    disk.sync();
    assert_eq!(disk.synced().0, Some(1));
    disk.append(2, (1..=records).map(|record| vec![record; 20]));
    disk
}

#[test]
fn simulated_crash_may_lose_any_number_of_unsynced_records() {
    let mut left = Vec::new();
    for seed in 0..1_000 {
        let mut disk = disk_with(3);
        let how = disk.crash(&mut Random::new(seed));
        left.push((how, disk.open().unwrap().len() - 1));
    }
    for (how, records) in [(Left::Lost, 0), (Left::Lost, 1), (Left::Torn, 0), (Left::Torn, 2), (Left::All, 3)] {
        let count = left.iter().filter(|found| **found == (how, records)).count();
        assert!(count >= 50, "{how:?}, {records} records: {count} of {}", left.len());
    }
    assert!(left.iter().all(|(how, records)| (*how == Left::All) == (*records == 3)));
}

#[test]
fn later_sync_does_not_restore_records_of_a_failed_sync() {
    let mut known = BTreeSet::new();
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let mut disk = disk_with(3);
        disk.sync();
        disk.append(3, [vec![4; 20]]);
        disk.fail_sync(&mut random);
        disk.sync();
        let (token, fresh) = disk.synced();
        assert_eq!(token, Some(3), "the later sync reports success");
        let records = disk.records(fresh).len();
        assert!(records < 3, "records from before the failure are lost too");
        disk.crash(&mut random);
        assert_eq!(disk.open().unwrap().len(), 1 + records);
        known.insert(records);
    }
    assert_eq!(known.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn opening_the_simulated_disk_detects_a_flipped_bit() {
    let mut flipped = 0;
    for seed in 0..2_000 {
        let mut random = Random::new(seed);
        let mut disk = disk_with(3);
        for token in 3..6 {
            disk.sync();
            disk.append(token, [vec![0; 20], vec![1; 20]]);
            if random.below(3) == 0 {
                disk.fail_sync(&mut random);
            } else {
                disk.synced();
            }
        }
        disk.crash(&mut random);
        if disk.open().is_ok() && disk.flip(&mut random) {
            flipped += 1;
            assert!(disk.open().is_err(), "seed {seed}");
        }
    }
    assert!(flipped > 200, "{flipped}");
}

#[test]
fn checks_detect_acknowledged_slots_that_are_not_durable() {
    let mut checks = Checks::new(3, 1, false);
    let write = |checks: &mut Checks, node, values: &[u64]| {
        values.iter().for_each(|value| checks.change(node, 0, OnDisk::Push { value: *value }));
    };
    let members = || [vec![0, 1, 2], vec![0, 1, 2]];
    for (slot, value) in [(1, 11), (2, 12)] {
        checks.decided(0, 0, Slot(slot), value, value).unwrap();
        checks.contains(0, Slot(slot), slot).unwrap();
    }
    write(&mut checks, 0, &[11, 12]);
    write(&mut checks, 1, &[11]);
    let rule = |result: Result<(), crate::Violation>| result.map_err(|violation| violation.rule);
    assert_eq!(rule(checks.acknowledged(0, Slot(2), 2, members())), Err(Rule::AcknowledgedIsDurable));
    write(&mut checks, 1, &[12, 13]);
    assert_eq!(checks.acknowledged(0, Slot(2), 2, members()), Ok(()));
    // A node may lose slots that are not acknowledged.
    checks.change(1, 0, OnDisk::Truncate { after: Slot(2) });
    assert_eq!(checks.stays_durable(), Ok(()));
    // Acknowledged slots may be in a snapshot, and must be present after a restart.
    checks.change(0, 0, OnDisk::Base { slot: Slot(2) });
    checks.starts(1);
    write(&mut checks, 1, &[11, 12]);
    assert_eq!(checks.stays_durable(), Ok(()));
    checks.starts(1);
    write(&mut checks, 1, &[11]);
    assert_eq!(rule(checks.stays_durable()), Err(Rule::AcknowledgedIsDurable));
    // Slots before the last acknowledged slot must also stay durable.
    write(&mut checks, 1, &[12]);
    checks.change(1, 0, OnDisk::Truncate { after: Slot(0) });
    write(&mut checks, 1, &[14, 12]);
    assert_eq!(rule(checks.stays_durable()), Err(Rule::AcknowledgedIsDurable));
}
