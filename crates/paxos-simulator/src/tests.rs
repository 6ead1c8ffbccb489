use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use paxos::Slot;
use simulator::Random;

use crate::checks::Checks;
use crate::disk::{Disk, Left};
use crate::{Coverage, Failure, Incident, Knobs, Mutation, OnDisk, Rule, catch, run_core, run_pieces};

/// Panics on purpose are violations here.
fn quietly<T>(test: impl FnOnce() -> T) -> T {
    std::panic::set_hook(Box::new(|_| {}));
    let result = test();
    drop(std::panic::take_hook());
    result
}

#[test]
fn nothing_goes_wrong_in_some_hundred_seeds() {
    let mut coverage = Coverage::default();
    for seed in 0..600 {
        let knobs = Knobs::draw(seed, Mutation::None);
        let outcome = run_core(&knobs, false);
        if let Some(failure) = Failure::of(&knobs, &outcome) {
            panic!("{failure}");
        }
        assert!(outcome.steps >= 2_000, "seed {seed}: {} steps", outcome.steps);
        coverage.add(&outcome);
    }
    assert_eq!(coverage.missing(), [], "{coverage}");
}

#[test]
fn one_seed_is_one_trace() {
    for seed in 0..20 {
        let knobs = Knobs::draw(seed, Mutation::None);
        let (first, second) = (run_core(&knobs, true), run_core(&knobs, true));
        assert_eq!((first.trace_hash, &first.lines), (second.trace_hash, &second.lines), "seed {seed}");
        assert!(first.lines.len() > 100, "it can be read");
    }
    let hashes = (0..20).map(|seed| run_core(&Knobs::draw(seed, Mutation::None), false).trace_hash);
    assert_eq!(hashes.collect::<BTreeSet<_>>().len(), 20, "and no two have the same");
}

/// The search begins where each was caught before, as the whole takes minutes: `cargo xtask simulate --scenario paxos --mutants`.
#[test]
fn every_deliberate_bug_is_caught() {
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
            assert_eq!(run_core(&Knobs::draw(seed, Mutation::None), false).result, Ok(()), "but for {violation}");
        }
    });
}

#[test]
fn what_fails_is_shown_with_less_trouble_and_in_fewer_steps() {
    quietly(|| {
        let mutation = Mutation::all().find(|mutation| mutation.to_string() == "TrimsPastDeadMember").unwrap();
        let (seed, _) = catch(mutation, 0..1_000).unwrap();
        let knobs = Knobs::draw(seed, mutation);
        let outcome = run_core(&knobs, false);
        let failure = Failure::of(&knobs, &outcome).unwrap();
        assert!(failure.is_repeatable);
        assert_ne!(failure.least.without, 0, "most trouble has no part in it");
        let again = run_core(&failure.least, false);
        assert_eq!(again.result.unwrap_err().rule, Rule::SnapshotIsTheLog);
        assert!(again.steps <= outcome.steps);
        let told = failure.to_string();
        assert!(told.contains(&format!("--scenario paxos --seed {seed} --steps ")), "{told}");
        assert!(told.contains("--mutant TrimsPastDeadMember"), "{told}");
    });
}

#[test]
fn what_was_run_before_is_not_run_again_but_by_another_build() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let run = |seeds| {
        let ran = AtomicU64::new(0);
        let told = |_: &Coverage| {
            ran.fetch_add(1, Ordering::Relaxed);
        };
        let coverage = run_pieces((0, seeds), 2, Some(&path), told)?.unwrap();
        std::io::Result::Ok((coverage, ran.into_inner()))
    };
    let (first, pieces) = run(30).unwrap();
    assert_eq!((first.seeds, pieces), (30, 1));
    assert_eq!(run(30).unwrap(), (first, 0));
    let file = std::fs::File::open(&path).unwrap();
    file.lock().unwrap();
    let refused = run(30).unwrap_err();
    assert!(refused.to_string().contains("another run writes to"), "{refused}");
    drop(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let other = text.replacen(|digit: char| digit.is_ascii_hexdigit(), "x", 1);
    std::fs::write(&path, other).unwrap();
    let refused = run(30).unwrap_err();
    assert!(refused.to_string().contains("begin another file"), "{refused}");
}

#[test]
fn incidents_have_the_places_of_their_names() {
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
fn a_loss_of_power_leaves_nothing_or_all_or_whole_records_or_a_torn_one() {
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
fn what_a_failed_sync_dropped_is_not_there_though_the_next_one_succeeds() {
    let mut known = BTreeSet::new();
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let mut disk = disk_with(3);
        disk.sync();
        disk.append(3, [vec![4; 20]]);
        disk.fail_sync(&mut random);
        disk.sync();
        let (token, fresh) = disk.synced();
        assert_eq!(token, Some(3), "it says so");
        let records = disk.records(fresh).len();
        assert!(records < 3, "and has not even what was there before the failure");
        disk.crash(&mut random);
        assert_eq!(disk.open().unwrap().len(), 1 + records);
        known.insert(records);
    }
    assert_eq!(known.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_bit_that_flips_is_found_whatever_was_cut_before() {
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
fn what_was_acknowledged_has_to_stay_on_a_quorums_disks() {
    let mut checks = Checks::new(3, 1, false);
    let write = |checks: &mut Checks, node, values: &[u64]| {
        values.iter().for_each(|value| checks.change(node, 0, OnDisk::Push { value: *value }));
    };
    let members = || [vec![0, 1, 2], vec![0, 1, 2]];
    for (slot, value) in [(1, 11), (2, 12)] {
        checks.decided(0, 0, Slot(slot), value, value).unwrap();
        checks.holds(0, Slot(slot), slot).unwrap();
    }
    write(&mut checks, 0, &[11, 12]);
    write(&mut checks, 1, &[11]);
    let rule = |result: Result<(), crate::Violation>| result.map_err(|violation| violation.rule);
    assert_eq!(rule(checks.acknowledged(0, Slot(2), 2, members())), Err(Rule::AcknowledgedIsDurable));
    write(&mut checks, 1, &[12, 13]);
    assert_eq!(checks.acknowledged(0, Slot(2), 2, members()), Ok(()));
    // What is not acknowledged may go.
    checks.change(1, 0, OnDisk::Truncate { after: Slot(2) });
    assert_eq!(checks.stays_durable(), Ok(()));
    // What is may be in a snapshot, and has to come back with a restart.
    checks.change(0, 0, OnDisk::Base { slot: Slot(2) });
    checks.starts(1);
    write(&mut checks, 1, &[11, 12]);
    assert_eq!(checks.stays_durable(), Ok(()));
    checks.starts(1);
    write(&mut checks, 1, &[11]);
    assert_eq!(rule(checks.stays_durable()), Err(Rule::AcknowledgedIsDurable));
    // A slot below the last one that was acknowledged is as firm.
    write(&mut checks, 1, &[12]);
    checks.change(1, 0, OnDisk::Truncate { after: Slot(0) });
    write(&mut checks, 1, &[14, 12]);
    assert_eq!(rule(checks.stays_durable()), Err(Rule::AcknowledgedIsDurable));
}
