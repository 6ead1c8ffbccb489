use super::{Coverage, Failure, Incident, Knobs, Mutation, Rule, catch, run_core};

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
    assert_eq!(hashes.collect::<std::collections::BTreeSet<_>>().len(), 20, "and no two have the same");
}

/// The search begins where each was caught before, as the whole takes minutes: `cargo xtask simulate --scenario paxos --mutants`.
#[test]
fn every_deliberate_bug_is_caught() {
    quietly(|| {
        for mutation in Mutation::all() {
            let first = match mutation.to_string().as_str() {
                "SkipsCompareAndSwap" => 190,
                "ComparesMasterRecordOnly" => 7_481,
                "StealsWithoutConsent" => 99,
                "ServesAfterConsent" => 1_712,
                "CountsOldBallot" => 982,
                "ChangesMembersTwice" => 247,
                "ShortensFromDecision" => 2_119,
                "TakesFromTheLiving" => 1_162,
                "LivesOn" => 4_948,
                "WallClock" => 22,
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
        let (seed, _) = catch(mutation, 4..1_000).unwrap();
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
fn incidents_have_the_places_of_their_names() {
    for (index, incident) in Incident::ALL.into_iter().enumerate() {
        assert_eq!(incident as usize, index);
    }
}
