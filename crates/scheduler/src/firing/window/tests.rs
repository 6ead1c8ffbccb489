use std::collections::{BTreeMap, BTreeSet};

use domain::{Incarnation, Revision, TargetKey, TenantId, Term};
use proptest::prelude::*;
use store::{DuePage, DueRead};

use super::*;
use crate::options::Options;

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
    ShardTerm { term: Term(term), since: at(0) }
}

/// The store's side: rows and nothing else.
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

    fn arrive(&mut self, key: DueKey) {
        self.insert(key);
        assert!(self.window.arrived(&Arrival { poller: POLLER, key }));
    }

    fn read_ahead(&mut self, now: i64) {
        for (index, read) in self.window.plan_reads(at(now), |_| usize::MAX) {
            let page = self.rows.page(read);
            assert_eq!(self.window.read(index, ReadKind::Ahead, read, &page, |_| usize::MAX), None);
        }
    }

    /// Writes positions, reads again, as the owner does; the positions that were written.
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
fn a_row_is_known_once_however_often_it_is_read() {
    let mut bench = Bench::new(10_000);
    bench.arrive(key(1, 500));
    bench.read_ahead(0);
    bench.arrive(key(1, 500));
    let expired = bench.expire(500);
    assert_eq!(bench.numbers(&expired), [1]);
    bench.close(1_000);
    assert!(bench.expire(2_000).is_empty());
}

#[test]
fn the_second_read_finds_what_the_first_one_missed() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 300));
    bench.read_ahead(0);
    bench.insert(key(2, 301)); // Without an arrival.
    let expired = bench.expire(400);
    assert_eq!(bench.numbers(&expired), [1]);
    bench.close(1_000);
    let found = bench.expire(1_000);
    assert_eq!(bench.numbers(&found), [2]);
}

#[test]
fn a_second_read_that_fails_is_made_again() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 300));
    bench.read_ahead(0);
    bench.insert(key(2, 301)); // Its arrival is told too late.
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
fn done_never_passes_an_open_key_and_follows_once_it_is_resolved() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 300));
    bench.insert(key(2, 700));
    bench.read_ahead(0);
    let expired = bench.expire(800);
    bench.window.resolve(expired[1]);
    let first = bench.close(2_000).unwrap();
    assert!(first.closed >= at(700), "closed goes on");
    assert!(first.done < at(300), "done waits for the open key");
    let second = bench.close(3_000).unwrap();
    assert_eq!(second.closed, first.closed, "nothing is closed and read again for its sake");
    assert!(second.done < at(300));
    assert_eq!(bench.close(3_500), None);
    bench.window.resolve(expired[0]);
    let last = bench.close(4_000).unwrap();
    assert!(last.done >= at(700));
    assert_eq!(bench.window.len(), 0, "nothing is remembered of what is done");
}

#[test]
fn a_row_that_arrives_while_a_read_is_under_way_is_not_lost() {
    let mut bench = Bench::new(10_000);
    let reads = bench.window.plan_reads(at(0), |_| usize::MAX);
    let (index, read) = reads[0];
    let page = bench.rows.page(read);
    bench.arrive(key(1, 900)); // After the page was made.
    bench.window.read(index, ReadKind::Ahead, read, &page, |_| usize::MAX);
    let expired = bench.expire(900);
    assert_eq!(bench.numbers(&expired), [1]);
}

#[test]
fn a_row_beyond_a_read_that_is_under_way_is_read_in_its_turn() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 100));
    let (index, read) = bench.window.plan_reads(at(0), |_| usize::MAX)[0];
    let page = bench.rows.page(read);
    bench.arrive(key(2, 5_000)); // After the page was made, and beyond its end.
    bench.window.read(index, ReadKind::Ahead, read, &page, |_| usize::MAX);
    bench.read_ahead(4_000);
    let expired = bench.expire(5_000);
    assert_eq!(bench.numbers(&expired), [1, 2]);
}

#[test]
fn a_retry_is_news_and_its_first_attempt_is_not() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 300));
    bench.read_ahead(0);
    let expired = bench.expire(300);
    bench.window.resolve(expired[0]);
    let retry = DueKey { position: at(600), attempt: 2, ..key(1, 300) };
    bench.arrive(retry);
    bench.arrive(key(1, 300));
    let again = bench.expire(700);
    assert_eq!(again.len(), 1);
    assert_eq!(bench.window.entry(again[0]).key, retry);
}

#[test]
fn a_retry_supersedes_the_attempt_before_it_or_waits_for_its_end() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 300));
    bench.read_ahead(0);
    let first = bench.expire(300)[0];
    assert_eq!(bench.window.may_start(first), MayStart::Yes);
    bench.arrive(DueKey { position: at(301), attempt: 2, ..key(1, 300) });
    let second = bench.expire(301)[0];
    assert_eq!(bench.window.may_start(first), MayStart::Superseded);
    assert_eq!(bench.window.may_start(second), MayStart::NotYet);
    bench.window.resolve(first);
    assert_eq!(bench.window.may_start(second), MayStart::Yes);
}

/// As an owner that starts again reads them, the first of them before the others.
#[test]
fn an_attempt_waits_for_all_before_it_though_one_in_between_was_superseded() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 300));
    bench.read_ahead(0);
    let first = bench.expire(300)[0];
    assert_eq!(bench.window.may_start(first), MayStart::Yes);
    let attempt = |attempt: u16| DueKey { position: at(300 + i64::from(attempt)), attempt, ..key(1, 300) };
    (2..5).for_each(|number| bench.arrive(attempt(number)));
    let [second, third, fourth] = bench.expire(304)[..] else { panic!("three are due") };
    for superseded in [third, second] {
        assert_eq!(bench.window.may_start(superseded), MayStart::Superseded);
        bench.window.resolve(superseded);
    }
    assert_eq!(bench.window.may_start(fourth), MayStart::NotYet, "the first is in flight");
    bench.window.resolve(first);
    assert_eq!(bench.window.may_start(fourth), MayStart::Yes);
}

#[test]
fn a_deferred_key_comes_back_at_its_later_position_only() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 300));
    bench.read_ahead(0);
    let expired = bench.expire(300);
    let later = DueKey { position: at(1_500), ..key(1, 300) };
    bench.insert(later);
    bench.window.deferred(expired[0], at(1_500));
    assert!(bench.window.arrived(&Arrival { poller: POLLER, key: later }));
    bench.close(1_000);
    assert!(bench.expire(1_400).is_empty(), "the old row is read again and recognised");
    let back = bench.expire(1_500);
    assert_eq!(bench.numbers(&back), [1]);
}

#[test]
fn what_finds_no_room_is_read_again_from_the_store() {
    let mut bench = Bench::new(1);
    // In the least window a tenant has room for a page.
    for number in 0..PAGE_KEYS as u128 {
        bench.insert(key(number, 500));
    }
    bench.read_ahead(0);
    assert_eq!(bench.window.len(), PAGE_KEYS);
    bench.arrive(key(9_999, 400));
    bench.read_ahead(0);
    let fired = bench.expire(500);
    assert_eq!(fired.len(), PAGE_KEYS);
    for entry in fired {
        bench.window.resolve(entry);
    }
    bench.close(600);
    assert_eq!(bench.window.len(), PAGE_KEYS, "their bucket is not closed yet");
    bench.window.keys_max += 1;
    bench.read_ahead(600);
    let late = bench.expire(600);
    assert!(bench.numbers(&late) == [9_999]);
}

#[derive(Clone, Debug)]
enum Step {
    /// A row this far from now, told by an arrival at once or later.
    Insert {
        in_millis: i64,
        told: bool,
    },
    Pass(i64),
    /// Arrivals that were not told yet are.
    Arrivals,
    ReadAhead,
    Close,
    /// Resolves, or defers by so much, the n-th of what is open.
    Settle {
        n: usize,
        defer: Option<i64>,
    },
    /// A new owner, from what is durable.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0i64..4_000, any::<bool>()).prop_map(|(in_millis, told)| Step::Insert { in_millis, told }),
        4 => (1i64..800).prop_map(Step::Pass),
        2 => Just(Step::Arrivals),
        3 => Just(Step::ReadAhead),
        3 => Just(Step::Close),
        6 => (0usize..8, prop::option::weighted(0.2, 1i64..3_000)).prop_map(|(n, defer)| Step::Settle { n, defer }),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    /// Creators that keep their half of the bargain, an owner that keeps its own: every row is fired and settled, none
    /// early, none twice within an owner's life.
    #[test]
    fn every_row_is_fired_once(steps in prop::collection::vec(step(), 1..120)) {
        let mut bench = Bench::new(100_000);
        let mut now = 0;
        let mut number = 0;
        let mut durable = Positions { closed: at(-1), done: at(-1) };
        let mut open: Vec<EntryId> = Vec::new();
        let mut untold: Vec<DueKey> = Vec::new();
        let mut fired_in_life: BTreeMap<(u128, Timestamp), u32> = BTreeMap::new();
        let mut settled: BTreeSet<u128> = BTreeSet::new();
        let finish = [Step::Arrivals, Step::ReadAhead, Step::Pass(9_000), Step::ReadAhead, Step::Close, Step::ReadAhead, Step::Pass(9_000),
            Step::ReadAhead, Step::Close, Step::Pass(1)];
        for step in steps.into_iter().chain(finish) {
            match step {
                Step::Insert { in_millis, told } => {
                    let position = (now + in_millis).max(durable.closed.as_millis() - START + 1);
                    number += 1;
                    let mut row = key(number, position);
                    row.occurrence.nominal = at(now + in_millis);
                    if told {
                        bench.arrive(row);
                    } else {
                        bench.insert(row);
                        untold.push(row);
                    }
                }
                Step::Arrivals => for key in untold.drain(..) {
                    bench.window.arrived(&Arrival { poller: POLLER, key });
                },
                Step::Pass(millis) => now += millis,
                Step::ReadAhead => bench.read_ahead(now),
                Step::Close => if let Some(positions) = bench.close(now) {
                    durable.closed = durable.closed.max(positions.closed);
                    durable.done = durable.done.max(positions.done);
                },
                Step::Settle { n, defer } => if !open.is_empty() {
                    let entry = open.remove(n % open.len());
                    let row = bench.window.entry(entry).key;
                    match defer {
                        Some(by) => {
                            let to = now.max(row.position.as_millis() - START) + by;
                            let to = to.max(durable.closed.as_millis() - START + 1);
                            let later = DueKey { position: at(to), ..row };
                            bench.insert(later);
                            bench.window.deferred(entry, later.position);
                            bench.window.arrived(&Arrival { poller: POLLER, key: later });
                        }
                        None => {
                            prop_assert!(settled.insert(row.occurrence.incarnation.0), "settled twice");
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
                    // What has its outcome is recognised by its run's record, which is not the window's part.
                    bench.rows.0.retain(|row| !settled.contains(&row.occurrence.incarnation.0));
                    open.clear();
                    untold.clear();
                    fired_in_life.clear();
                }
            }
            for entry in bench.expire(now) {
                let row = bench.window.entry(entry).key;
                prop_assert!(row.position <= at(now), "early");
                let id = row.occurrence.incarnation.0;
                if settled.contains(&id) {
                    bench.window.resolve(entry);
                    continue;
                }
                let times = fired_in_life.entry((id, row.position)).or_default();
                *times += 1;
                prop_assert_eq!(*times, 1, "twice");
                open.push(entry);
            }
        }
        for entry in open {
            let row = bench.window.entry(entry).key;
            settled.insert(row.occurrence.incarnation.0);
        }
        for row in &bench.rows.0 {
            let id = row.occurrence.incarnation.0;
            prop_assert!(settled.contains(&id), "{:?} was never fired; closed {:?} now {:?}", row, durable.closed, at(now));
        }
    }
}

const OTHER: PollerId = PollerId { number: 1, ..POLLER };

#[test]
fn of_a_shard_that_is_let_go_nothing_is_left_once_all_has_been_given_back() {
    let mut bench = Bench::new(10_000);
    bench.window.add_poller(OTHER, shard_term(1), Positions { closed: at(-1), done: at(-1) });
    bench.read_ahead(0);
    for number in 1..=4 {
        bench.arrive(key(number, 100 * i64::try_from(number).unwrap()));
    }
    assert!(bench.window.arrived(&Arrival { poller: OTHER, key: key(5, 100) }));
    let expired = bench.expire(200);
    assert_eq!(bench.numbers(&expired), [1, 5, 2]);
    let [queued, stays, in_flight] = expired[..] else { unreachable!("three expired") };
    bench.window.release(&BTreeSet::from([POLLER.shard()]));
    assert!(bench.window.is_gone(queued) && bench.window.is_gone(in_flight) && !bench.window.is_gone(stays));
    assert!(!bench.window.arrived(&Arrival { poller: POLLER, key: key(6, 300) }));

    // The same rows are read by the one who has the shard next, be it this one again.
    bench.window.add_poller(POLLER, shard_term(2), Positions { closed: at(-1), done: at(-1) });
    bench.read_ahead(200);
    let again = bench.expire(250);
    assert_eq!(bench.numbers(&again), [1, 2]);
    assert!(again.iter().all(|entry| ![queued, in_flight].contains(entry)), "their old numbers are still held");
    bench.window.free(queued);
    bench.window.resolve(in_flight);
    // What had waited in the wheel is freed by it; what was read again fires.
    let last = bench.expire(1_000);
    assert_eq!(bench.numbers(&last), [3, 4]);
    assert_eq!(bench.window.len(), 5, "four of the one, one of the other");
}

#[test]
fn reads_and_positions_of_a_poller_that_is_gone_come_to_nothing() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 300));
    let reads = bench.window.plan_reads(at(0), |_| usize::MAX);
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
    assert!(
        bench.window.plan_reads(at(500), |_| usize::MAX).is_empty()
            && bench.window.plan_closings(at(5_000), |_| usize::MAX).is_empty()
    );
}

#[test]
fn an_attempt_that_is_held_keeps_its_row_from_firing_and_done_from_passing() {
    let mut bench = Bench::new(10_000);
    bench.insert(key(1, 300));
    let entry = bench.window.hold(POLLER, key(1, 300)).expect("its poller is served");
    bench.read_ahead(0);
    assert!(bench.expire(1_000).is_empty(), "the row that is read is the one that is held");
    bench.close(2_000);
    bench.close(4_000);
    let positions = bench.close(6_000);
    assert!(positions.is_none_or(|positions| positions.done < at(300)), "{positions:?}");
    bench.window.wait_again(entry, at(6_000));
    assert_eq!(bench.expire(6_000), [entry]);
    bench.window.resolve(entry);
    assert!(bench.close(8_000).is_some_and(|positions| positions.done > at(300)));

    assert_eq!(bench.window.hold(POLLER, key(2, 200)), None, "its poller is done with that");
    assert_eq!(bench.window.hold(OTHER, key(2, 9_000)), None, "its poller is not served");
}
