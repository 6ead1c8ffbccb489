use super::*;

const WINDOW: Duration = Duration::from_secs(60);

fn run(id: &str, due: Time) -> Run {
    let json =
        format!(r#"{{"id":"{id}","state":"succeeded","scheduled_at":"{due}","revision":0,"replay":0,"attempts":[]}}"#);
    serde_json::from_str(&json).unwrap()
}

fn second(number: i64) -> Time {
    Time(number * 1_000)
}

fn tail(start: Time) -> Tail {
    Tail { start, window: WINDOW, searched: None, seen: BTreeSet::new() }
}

#[test]
fn search_advances_although_no_run_matches() {
    let mut tail = tail(second(1_000));
    for now in 1_000..4_600 {
        let search = tail.search(second(now));
        let oldest = if search.is_whole { now - 60 - 6 } else { now - 4 };
        assert!(search.from >= second(oldest.max(1_000)) && search.until == second(now + 3), "{now}");
        tail.complete(&search);
    }
    assert!(tail.search(second(4_600)).from >= second(4_534));
    let away = tail.search(second(9_000));
    assert!(away.is_whole && away.from <= second(4_540), "the search covers the time in which the server was away");
    let future = Tail { start: second(99_999), ..tail };
    let search = future.search(second(9_000));
    assert_eq!((search.from, search.until), (second(99_999), second(99_999)), "the range is never inverted");
}

#[test]
fn most_searches_are_short() {
    let mut tail = tail(second(1_000));
    let mut searched = 0;
    for now in 1_000..1_600 {
        let search = tail.search(second(now));
        searched += search.until.0 - search.from.0;
        tail.complete(&search);
    }
    assert!(searched < 20 * 600_000, "each instant is searched less than 20 times: {searched}");
}

/// Run of the model: its due instant, the time at which the server stores its outcome, and how often it was printed.
struct Outcome {
    due: i64,
    stored: i64,
    printed: u32,
}

/// Follows the runs of a simulated server for ten minutes, and returns the runs. `skew` is the error of the clock of
/// each of two members in milliseconds.
fn followed(seed: u64, skew: [i64; 2]) -> Vec<Outcome> {
    let mut state = seed;
    let mut random = |bound: i64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i64::try_from(state >> 33).unwrap() % bound
    };
    let begin = 1_000_000;
    let mut runs: Vec<Outcome> = (0..6_000)
        .map(|number| {
            let due = begin + number * 100 + random(3) * 50;
            let delay =
                [random(100), random(5_000), random(30_000), random(58_000)][usize::try_from(random(4)).unwrap()];
            Outcome { due, stored: due + delay, printed: 0 }
        })
        .collect();
    let mut tail = tail(Time(begin));
    let (mut time, mut number) = (begin, 0);
    while time < begin + 700_000 {
        let member = skew[number % 2];
        let search = tail.search(Time((time + member).div_euclid(1_000) * 1_000));
        for (id, of) in runs.iter_mut().enumerate() {
            // A search takes some time. It may or may not find a run that the server stores during this time.
            let is_found = of.stored <= time + random(2) * 200;
            let is_in_range = (search.from.0..search.until.0).contains(&of.due);
            if is_found && is_in_range && tail.is_new(&search, &run(&id.to_string(), Time(of.due))) {
                of.printed += 1;
            }
            assert!(tail.seen.len() < 800, "the command remembers a window of runs");
        }
        tail.complete(&search);
        (time, number) = (time + 1_000 + random(3) * 150, number + 1);
    }
    runs
}

#[test]
fn run_within_the_window_is_printed_once() {
    for seed in 0..3 {
        for skew in [[0, 0], [900, -900]] {
            let runs = followed(seed, skew);
            let wrong = runs.iter().find(|run| run.printed != 1);
            let wrong = wrong.map(|run| (run.due, run.stored, run.printed));
            assert_eq!(wrong, None, "due, stored and number of prints with seed {seed} and {skew:?}");
        }
    }
}

#[test]
fn first_search_of_a_long_range_remembers_only_the_window() {
    let mut tail = tail(second(0));
    let now = 86_400;
    let search = tail.search(second(now));
    assert_eq!((search.from, search.until), (second(0), second(now + 3)));
    for number in 0..now {
        assert!(tail.is_new(&search, &run(&number.to_string(), second(number))));
        assert!(tail.seen.len() <= 61);
    }
    tail.complete(&search);
    let again = tail.search(second(now + 6));
    assert_eq!((again.from, again.is_whole), (second(now - 60), true));
    for number in now - 60..now {
        assert!(!tail.is_new(&again, &run(&number.to_string(), second(number))), "{number} was printed");
    }
    assert!(tail.is_new(&again, &run("late", second(now - 59))));
    tail.complete(&again);
    assert_eq!(tail.seen.len(), 54, "the command forgets the runs before the next window");
}
