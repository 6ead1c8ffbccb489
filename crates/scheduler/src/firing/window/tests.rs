use std::collections::{BTreeMap, BTreeSet};

use domain::{Incarnation, Revision, TargetKey, TenantId, Term};
use proptest::prelude::*;
use store::{DuePage, DueRead};

use super::*;
use crate::options::Options;

mod overdue_reads;

const POLLER: PollerId = PollerId { tenant: TenantId(1), generation: 0, number: 0 };
const START: i64 = 1_000_000 * BUCKET_MILLIS;

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(START + millis)
}

fn key(number: u128, position: i64) -> DueKey {
    let occurrence =
        Occurrence { incarnation: Incarnation(number), nominal: at(position), revision: Revision(0), replay: 0 };
    DueKey { position: at(position), occurrence, attempt: 1, target: TargetKey(1) }
}

fn shard_term(term: u64) -> ShardTerm {
    ShardTerm { term: Term(term), since: at(0), reopened_from: Timestamp::MIN }
}

/// Due rows of the store.
#[derive(Default)]
struct Rows(BTreeSet<DueKey>);

impl Rows {
    fn page(&self, read: DueRead) -> DuePage {
        let after = |key: &&DueKey| match read.after {
            DueBound::Instant(instant) => key.position > instant,
            DueBound::Key(last) => **key > last,
        };
        let mut rows = self.0.iter().filter(after).peekable();
        let mut keys = Vec::new();
        while let Some(key) = rows.next_if(|key| key.position <= read.until && keys.len() < read.limit) {
            keys.push(*key);
        }
        DuePage { keys, next: rows.next().map(|key| key.position) }
    }
}

struct Bench {
    window: Window,
    rows: Rows,
}

impl Bench {
    fn new(keys_max: usize) -> Bench {
        let options = Options { window_keys_max: keys_max, ..Options::default() };
        let mut window = Window::new(&options, at(0));
        window.add_poller(POLLER, shard_term(1), Positions { closed: at(-1), done: at(-1) });
        Bench { window, rows: Rows::default() }
    }

    fn insert(&mut self, key: DueKey) {
        self.rows.0.insert(key);
    }

    fn insert_and_report(&mut self, key: DueKey) {
        self.insert(key);
        assert!(self.window.add_written_row(&InsertLogEntry { poller: POLLER, key }));
    }

    fn plan_reads(&mut self, now: i64) -> Vec<Vec<(PollerIndex, DueRead)>> {
        self.window.plan_reads(at(now), |_| usize::MAX)
    }

    fn read_ahead(&mut self, now: i64) {
        for (index, read) in self.plan_reads(now).concat() {
            let page = self.rows.page(read);
            assert_eq!(self.window.read(index, ReadKind::Ahead, read, &page, |_| usize::MAX), None);
        }
    }

    /// Writes positions and makes the second reads, as the owner does. Returns the written positions.
    fn close(&mut self, now: i64) -> Option<Positions> {
        let mut written = None;
        for (index, positions) in self.window.plan_closings(at(now), |_| usize::MAX) {
            written = Some(positions);
            let mut read = self.window.positions_written(index, positions, |_| usize::MAX);
            while let Some(check) = read {
                let page = self.rows.page(check);
                read = self.window.read(index, ReadKind::Check, check, &page, |_| usize::MAX);
            }
        }
        written
    }

    fn expire(&mut self, now: i64) -> Vec<EntryId> {
        let mut out = Vec::new();
        self.window.expire(at(now), &mut out);
        out
    }

    fn numbers(&self, entries: &[EntryId]) -> Vec<u128> {
        entries.iter().map(|entry| self.window.entry(*entry).key.occurrence.incarnation.0).collect()
    }
}

#[test]
fn window_returns_a_row_once_even_if_it_arrives_repeatedly() {
    let mut bench = Bench::new(10_000);
    bench.insert_and_report(key(1, 500));
    bench.read_ahead(0);
    bench.insert_and_report(key(1, 500));
    let expired = bench.expire(500);
    assert_eq!(bench.numbers(&expired), [1]);
    bench.close(1_000);
    assert!(bench.expire(2_000).is_empty());
}

#[test]
fn second_read_finds_rows_that_first_read_missed() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 300));
    bench.read_ahead(0);
    bench.insert(key(2, 301)); // This row has no entry in the insert log.
    let expired = bench.expire(400);
    assert_eq!(bench.numbers(&expired), [1]);
    bench.close(1_000);
    let found = bench.expire(1_000);
    assert_eq!(bench.numbers(&found), [2]);
}

#[test]
fn window_repeats_a_failed_read_that_looks_for_missed_rows() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 300));
    bench.read_ahead(0);
    bench.insert(key(2, 301)); // The owner has not yet read the insert-log entry of this row.
    let expired = bench.expire(400);
    bench.window.resolve(expired[0]);
    let (index, positions) = bench.window.plan_closings(at(1_000), |_| usize::MAX)[0];
    assert!(bench.window.positions_written(index, positions, |_| usize::MAX).is_some());
    bench.window.read_failed(index, ReadKind::Check);
    bench.close(1_001);
    let found = bench.expire(1_001);
    assert_eq!(bench.numbers(&found), [2]);
}

#[test]
fn owner_raises_an_old_closed_before_a_recurring_key_is_due() {
    let mut bench = Bench::new(10_000);
    let closed_early = |bench: &mut Bench, number: u128, due: i64| {
        bench.insert_and_report(key(number, due));
        assert_eq!(bench.close(due - 2_500), None, "the key is not in the window yet");
        bench.read_ahead(due - 1_500);
        let written = bench.close(due - 1_500);
        for entry in bench.expire(due) {
            bench.window.resolve(entry);
        }
        while bench.close(due + 1_000).is_some() {}
        written.map(|positions| positions.closed)
    };
    let early = |due: i64| Some(bucket_end(bucket(at(due - 1_500)) - 2));
    assert_eq!(closed_early(&mut bench, 1, 10_000), early(10_000), "the owner has never raised `closed`");
    assert_eq!(closed_early(&mut bench, 2, 20_000), None, "the poller may have no recurring keys");
    bench.window.set_recurring(POLLER);
    assert_eq!(closed_early(&mut bench, 3, 30_000), early(30_000));
    assert_eq!(closed_early(&mut bench, 4, 32_000), None, "`closed` is not old");
}

#[test]
fn watermark_does_not_pass_a_key_without_an_outcome() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 300));
    bench.insert(key(2, 700));
    bench.read_ahead(0);
    let expired = bench.expire(800);
    bench.window.resolve(expired[1]);
    let first = bench.close(2_000).unwrap();
    assert!(first.closed >= at(700), "closed advances");
    assert!(first.done < at(300), "done waits for the open key");
    let second = bench.close(3_000).unwrap();
    assert_eq!(second.closed, first.closed, "an open key alone causes no further closing");
    assert!(second.done < at(300));
    assert_eq!(bench.close(3_500), None);
    bench.window.resolve(expired[0]);
    let last = bench.close(4_000).unwrap();
    assert!(last.done >= at(700));
    assert_eq!(bench.window.len(), 0, "keys up to done are forgotten");
}

#[test]
fn window_adds_row_that_a_creator_writes_during_a_read() {
    let mut bench = Bench::new(10_000);
    let (index, read) = bench.plan_reads(0).concat()[0];
    let page = bench.rows.page(read);
    bench.insert_and_report(key(1, 900)); // A creator writes this row after the read.
    bench.window.read(index, ReadKind::Ahead, read, &page, |_| usize::MAX);
    let expired = bench.expire(900);
    assert_eq!(bench.numbers(&expired), [1]);
}

#[test]
fn later_read_finds_a_new_row_beyond_the_current_page() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 100));
    let (index, read) = bench.plan_reads(0).concat()[0];
    let page = bench.rows.page(read);
    // A creator writes this row after the read. The row lies after the end of the page.
    bench.insert_and_report(key(2, 5_000));
    bench.window.read(index, ReadKind::Ahead, read, &page, |_| usize::MAX);
    bench.read_ahead(4_000);
    let expired = bench.expire(5_000);
    assert_eq!(bench.numbers(&expired), [1, 2]);
}

#[test]
fn window_ignores_a_repeated_report_of_an_earlier_attempt() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 300));
    bench.read_ahead(0);
    let expired = bench.expire(300);
    bench.window.resolve(expired[0]);
    let retry = DueKey { position: at(600), attempt: 2, ..key(1, 300) };
    bench.insert_and_report(retry);
    bench.insert_and_report(key(1, 300));
    let again = bench.expire(700);
    assert_eq!(again.len(), 1);
    assert_eq!(bench.window.entry(again[0]).key, retry);
}

#[test]
fn retry_waits_for_an_unfinished_previous_attempt() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 300));
    bench.read_ahead(0);
    let first = bench.expire(300)[0];
    assert_eq!(bench.window.may_start(first), MayStart::Yes);
    bench.insert_and_report(DueKey { position: at(301), attempt: 2, ..key(1, 300) });
    let second = bench.expire(301)[0];
    assert_eq!(bench.window.may_start(first), MayStart::Superseded);
    assert_eq!(bench.window.may_start(second), MayStart::NotYet);
    bench.window.resolve(first);
    assert_eq!(bench.window.may_start(second), MayStart::Yes);
}

/// After a restart, an owner reads the rows in this order: first the row of the first attempt, then the rows of the
/// later attempts.
#[test]
fn attempt_waits_for_all_earlier_attempts() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 300));
    bench.read_ahead(0);
    let first = bench.expire(300)[0];
    assert_eq!(bench.window.may_start(first), MayStart::Yes);
    let attempt = |attempt: u16| DueKey { position: at(300 + i64::from(attempt)), attempt, ..key(1, 300) };
    (2..5).for_each(|number| bench.insert_and_report(attempt(number)));
    let [second, third, fourth] = bench.expire(304)[..] else { panic!("three are due") };
    for superseded in [third, second] {
        assert_eq!(bench.window.may_start(superseded), MayStart::Superseded);
        bench.window.resolve(superseded);
    }
    assert_eq!(bench.window.may_start(fourth), MayStart::NotYet, "the first attempt is in flight");
    bench.window.resolve(first);
    assert_eq!(bench.window.may_start(fourth), MayStart::Yes);
}

#[test]
fn window_returns_a_deferred_key_only_at_its_later_position() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 300));
    bench.read_ahead(0);
    let expired = bench.expire(300);
    let later = DueKey { position: at(1_500), ..key(1, 300) };
    bench.insert(later);
    bench.window.deferred(expired[0], at(1_500));
    assert!(bench.window.add_written_row(&InsertLogEntry { poller: POLLER, key: later }));
    bench.close(1_000);
    assert!(bench.expire(1_400).is_empty(), "the window recognises the old row");
    let back = bench.expire(1_500);
    assert_eq!(bench.numbers(&back), [1]);
}

#[test]
fn age_of_a_deferred_row_counts_from_its_due_instant() {
    let age = |bench: &mut Bench, now: i64| {
        let (deferred, oldest) = bench.window.overdue(at(now));
        (deferred, oldest.map(|oldest| oldest.as_millis() - START))
    };
    let mut bench = Bench::new(10_000);
    assert_eq!(age(&mut bench, 0), (0, None));
    bench.insert(key(1, 300));
    assert_eq!(age(&mut bench, 0), (0, None));
    bench.read_ahead(0);
    assert_eq!(age(&mut bench, 300), (0, Some(256)), "the start of the bucket of the open key");
    let expired = bench.expire(300);
    let later = DueKey { position: at(60_000), ..key(1, 300) };
    bench.rows.0.clear();
    bench.window.deferred(expired[0], at(60_000));
    bench.insert_and_report(later);
    bench.close(1_000);
    assert_eq!(age(&mut bench, 59_000), (1, Some(300)), "the row is not in the window");
    bench.read_ahead(59_000);
    assert_eq!(age(&mut bench, 61_000), (0, Some(256)), "the key is open again");
    let expired = bench.expire(61_000);
    bench.window.resolve(expired[0]);
    assert_eq!(age(&mut bench, 61_000), (0, None));
}

#[test]
fn age_of_a_row_that_the_window_has_no_space_for_counts() {
    let mut bench = Bench::new(1);
    for number in 0..=PAGE_KEYS as u128 {
        bench.insert(key(number, 500));
    }
    bench.read_ahead(0);
    for entry in bench.expire(500) {
        bench.window.resolve(entry);
    }
    assert_eq!(bench.window.overdue(at(10_000)), (0, Some(at(500))));
}

#[test]
fn window_later_reads_the_row_that_it_skipped_while_it_was_full() {
    let mut bench = Bench::new(1);
    // In the smallest window, a tenant has capacity for one page.
    for number in 0..PAGE_KEYS as u128 {
        bench.insert(key(number, 500));
    }
    bench.read_ahead(0);
    assert_eq!(bench.window.len(), PAGE_KEYS);
    bench.insert_and_report(key(9_999, 400));
    bench.read_ahead(0);
    let fired = bench.expire(500);
    assert_eq!(fired.len(), PAGE_KEYS);
    for entry in fired {
        bench.window.resolve(entry);
    }
    bench.close(600);
    assert_eq!(bench.window.len(), PAGE_KEYS, "the bucket of the keys is not closed yet");
    bench.window.keys_max += 1;
    bench.read_ahead(600);
    let late = bench.expire(600);
    assert!(bench.numbers(&late) == [9_999]);
}

#[derive(Clone, Debug)]
enum Step {
    /// Inserts a row that is due after `in_millis` milliseconds. If `is_reported` is true, the window receives the row
    /// at once. Otherwise, it receives the row in a later step.
    Insert {
        in_millis: i64,
        is_reported: bool,
    },
    Pass(i64),
    /// Reports to the window the rows that the window has not received yet.
    ReportRows,
    ReadAhead,
    Close,
    /// Resolves the n-th open key, or defers this key by a number of milliseconds.
    Finish {
        n: usize,
        defer: Option<i64>,
    },
    /// Starts another owner from the durable state.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0i64..4_000, any::<bool>()).prop_map(|(in_millis, is_reported)| Step::Insert { in_millis, is_reported }),
        4 => (1i64..800).prop_map(Step::Pass),
        2 => Just(Step::ReportRows),
        3 => Just(Step::ReadAhead),
        3 => Just(Step::Close),
        6 => (0usize..8, prop::option::weighted(0.2, 1i64..3_000)).prop_map(|(n, defer)| Step::Finish { n, defer }),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    /// Creators and the owner take their steps in a random order. Every row eventually fires. No row fires early, and
    /// no row fires twice at the same owner.
    #[test]
    fn every_row_fires_and_no_owner_fires_a_row_twice(steps in prop::collection::vec(step(), 1..120)) {
        let mut bench = Bench::new(100_000);
        let mut now = 0;
        let mut number = 0;
        let mut durable = Positions { closed: at(-1), done: at(-1) };
        let mut open: Vec<EntryId> = Vec::new();
        let mut unreported: Vec<DueKey> = Vec::new();
        let mut fired_in_life: BTreeMap<(u128, Timestamp), u32> = BTreeMap::new();
        let mut finished: BTreeSet<u128> = BTreeSet::new();
        let finish = [
            Step::ReportRows,
            Step::ReadAhead,
            Step::Pass(9_000),
            Step::ReadAhead,
            Step::Close,
            Step::ReadAhead,
            Step::Pass(9_000),
            Step::ReadAhead,
            Step::Close,
            Step::Pass(1),
        ];
        for step in steps.into_iter().chain(finish) {
            match step {
                Step::Insert { in_millis, is_reported } => {
                    let position = (now + in_millis).max(durable.closed.as_millis() - START + 1);
                    number += 1;
                    let mut row = key(number, position);
                    row.occurrence.nominal = at(now + in_millis);
                    if is_reported {
                        bench.insert_and_report(row);
                    } else {
                        bench.insert(row);
                        unreported.push(row);
                    }
                }
                Step::ReportRows => for key in unreported.drain(..) {
                    bench.window.add_written_row(&InsertLogEntry { poller: POLLER, key });
                },
                Step::Pass(millis) => now += millis,
                Step::ReadAhead => bench.read_ahead(now),
                Step::Close => if let Some(positions) = bench.close(now) {
                    durable.closed = durable.closed.max(positions.closed);
                    durable.done = durable.done.max(positions.done);
                },
                Step::Finish { n, defer } => if !open.is_empty() {
                    let entry = open.remove(n % open.len());
                    let row = bench.window.entry(entry).key;
                    match defer {
                        Some(by) => {
                            let to = now.max(row.position.as_millis() - START) + by;
                            let to = to.max(durable.closed.as_millis() - START + 1);
                            let later = DueKey { position: at(to), ..row };
                            bench.insert(later);
                            bench.window.deferred(entry, later.position);
                            bench.window.add_written_row(&InsertLogEntry { poller: POLLER, key: later });
                        }
                        None => {
                            prop_assert!(finished.insert(row.occurrence.incarnation.0), "resolved twice");
                            bench.window.resolve(entry);
                        }
                    }
                },
                Step::Restart => {
                    let rows = std::mem::take(&mut bench.rows);
                    bench = Bench::new(100_000);
                    bench.window = Window::new(&Options::default(), at(now));
                    bench.window.add_poller(POLLER, shard_term(2), durable);
                    bench.rows = rows;
                    // A real owner reads the records of runs, and ignores the row of an occurrence with an outcome. The
                    // window does not read these records, so the test removes the row.
                    bench.rows.0.retain(|row| !finished.contains(&row.occurrence.incarnation.0));
                    open.clear();
                    unreported.clear();
                    fired_in_life.clear();
                }
            }
            for entry in bench.expire(now) {
                let row = bench.window.entry(entry).key;
                prop_assert!(row.position <= at(now), "fired early");
                let id = row.occurrence.incarnation.0;
                if finished.contains(&id) {
                    bench.window.resolve(entry);
                    continue;
                }
                let times = fired_in_life.entry((id, row.position)).or_default();
                *times += 1;
                prop_assert_eq!(*times, 1, "fired twice");
                open.push(entry);
            }
        }
        for entry in open {
            let row = bench.window.entry(entry).key;
            finished.insert(row.occurrence.incarnation.0);
        }
        for row in &bench.rows.0 {
            let id = row.occurrence.incarnation.0;
            let closed = durable.closed;
            prop_assert!(finished.contains(&id), "{:?} never fired; closed {:?} now {:?}", row, closed, at(now));
        }
    }
}

const OTHER: PollerId = PollerId { number: 1, ..POLLER };

#[test]
fn window_forgets_all_keys_of_released_shard() {
    let mut bench = Bench::new(10_000);
    bench.window.add_poller(OTHER, shard_term(1), Positions { closed: at(-1), done: at(-1) });
    bench.read_ahead(0);
    for number in 1..=4 {
        bench.insert_and_report(key(number, 100 * i64::try_from(number).unwrap()));
    }
    assert!(bench.window.add_written_row(&InsertLogEntry { poller: OTHER, key: key(5, 100) }));
    let expired = bench.expire(200);
    assert_eq!(bench.numbers(&expired), [1, 5, 2]);
    let [queued, stays, in_flight] = expired[..] else { unreachable!("three expired") };
    bench.window.release(&BTreeSet::from([POLLER.shard()]));
    assert!(
        bench.window.is_released(queued) && bench.window.is_released(in_flight) && !bench.window.is_released(stays)
    );
    assert!(!bench.window.add_written_row(&InsertLogEntry { poller: POLLER, key: key(6, 300) }));

    // The next owner of the shard, possibly this owner again, reads the same rows.
    bench.window.add_poller(POLLER, shard_term(2), Positions { closed: at(-1), done: at(-1) });
    bench.read_ahead(200);
    let again = bench.expire(250);
    assert_eq!(bench.numbers(&again), [1, 2]);
    assert!(again.iter().all(|entry| ![queued, in_flight].contains(entry)), "the old numbers are still in use");
    bench.window.free(queued);
    bench.window.resolve(in_flight);
    // The window frees the released keys that come out of the wheel. The keys that the owner has read again fire.
    let last = bench.expire(1_000);
    assert_eq!(bench.numbers(&last), [3, 4]);
    assert_eq!(bench.window.len(), 5, "four keys of one poller, one of the other");
}

#[test]
fn window_ignores_late_results_for_a_released_poller() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 300));
    let reads = bench.plan_reads(0).concat();
    bench.window.release(&BTreeSet::from([POLLER.shard()]));
    for (index, read) in reads {
        let page = bench.rows.page(read);
        assert_eq!(page.keys.len(), 1);
        assert_eq!(bench.window.read(index, ReadKind::Ahead, read, &page, |_| usize::MAX), None);
        bench.window.read_failed(index, ReadKind::Check);
        assert_eq!(
            bench.window.positions_written(index, Positions { closed: at(5), done: at(4) }, |_| usize::MAX),
            None
        );
    }
    assert_eq!(bench.window.len(), 0);
    assert!(bench.plan_reads(500).is_empty() && bench.window.plan_closings(at(5_000), |_| usize::MAX).is_empty());
}

#[test]
fn window_does_not_start_a_handed_over_attempt_again() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 300));
    let entry = bench.window.add_handed_over(POLLER, key(1, 300)).expect("the poller is served");
    bench.read_ahead(0);
    assert!(bench.expire(1_000).is_empty(), "the row belongs to the handed-over attempt");
    bench.close(2_000);
    bench.close(4_000);
    let positions = bench.close(6_000);
    assert!(positions.is_none_or(|positions| positions.done < at(300)), "{positions:?}");
    bench.window.wait_again(entry, at(6_000));
    assert_eq!(bench.expire(6_000), [entry]);
    bench.window.resolve(entry);
    assert!(bench.close(8_000).is_some_and(|positions| positions.done > at(300)));

    assert_eq!(bench.window.add_handed_over(POLLER, key(2, 200)), None, "the poller's done has passed the key");
    assert_eq!(bench.window.add_handed_over(OTHER, key(2, 9_000)), None, "the poller is not served");
}
