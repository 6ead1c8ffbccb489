//! Records the events that the candidates report, and checks the promises of leader election against these events. All
//! times are from one clock that all processes of the machine share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::until;

/// Time of `CLOCK_BOOTTIME`.
pub(crate) type Nanos = u128;

pub(crate) fn now() -> Nanos {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap()).as_nanos()
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Start(Nanos),
    Live(Nanos),
    Wrote { zxid: i64 },
    Rejected { to: String },
    Stop,
    Late { to: String, is_taken: bool },
}

#[derive(Clone, Debug)]
struct Entry {
    id: String,
    term: u64,
    event: Event,
}

/// Leadership of one process.
#[derive(Clone, Debug)]
pub(crate) struct Leadership {
    pub(crate) id: String,
    pub(crate) term: u64,
    pub(crate) start: Nanos,
    /// Last reported instant at which the leader's guard was valid.
    pub(crate) last_live: Nanos,
}

#[derive(Clone, Default)]
pub(crate) struct History(Arc<Mutex<Vec<Entry>>>);

impl History {
    /// Records a line of a candidate's output.
    pub(crate) fn record(&self, id: &str, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let event = match words[..] {
            ["start", _, at] => Event::Start(at.parse().unwrap()),
            ["live", _, at] => Event::Live(at.parse().unwrap()),
            ["wrote", _, zxid] => Event::Wrote { zxid: zxid.parse().unwrap() },
            ["refused", _, to, ..] => Event::Rejected { to: to.to_owned() },
            ["stop", ..] => Event::Stop,
            ["late", _, to, result] => Event::Late { to: to.to_owned(), is_taken: result == "taken" },
            _ => panic!("unknown line of a candidate: {line}"),
        };
        self.0.lock().unwrap().push(Entry { id: id.to_owned(), term: words[1].parse().unwrap(), event });
    }

    fn entries(&self) -> Vec<Entry> {
        self.0.lock().unwrap().clone()
    }

    /// Returns the leaderships sorted by term.
    pub(crate) fn leaderships(&self) -> Vec<Leadership> {
        let mut by_term = BTreeMap::<u64, Leadership>::new();
        for Entry { id, term, event } in self.entries() {
            match event {
                Event::Start(start) => {
                    let earlier = by_term.insert(term, Leadership { id, term, start, last_live: start });
                    assert!(earlier.is_none(), "two leaderships have the term {term}: {earlier:?}");
                }
                Event::Live(at) => {
                    by_term.get_mut(&term).expect("a `start` line precedes every `live` line").last_live = at
                }
                _ => {}
            }
        }
        by_term.into_values().collect()
    }

    /// Waits until a candidate leads with a term above `term` and the tree has accepted a write with the candidate's
    /// term. Returns this leadership.
    #[track_caller]
    pub(crate) fn leader_after(&self, term: u64) -> Leadership {
        until("a candidate leads", || {
            let last = self.leaderships().pop().filter(|last| last.term > term)?;
            let has_stopped = |entry: &Entry| entry.term == last.term && matches!(entry.event, Event::Stop);
            // A write that the tree accepted proves that the leader is working.
            let has_written = |entry: &Entry| entry.term == last.term && matches!(entry.event, Event::Wrote { .. });
            let entries = self.entries();
            (entries.iter().any(has_written) && !entries.iter().any(has_stopped)).then_some(last)
        })
    }

    /// Waits for the results of the writes that the leader with `term` tries after the end of its leadership, one write
    /// to each target. Returns for each target whether it accepted the write.
    #[track_caller]
    pub(crate) fn late_writes_of(&self, term: u64) -> BTreeMap<String, bool> {
        until("the former leader has tried its late writes", || {
            let late =
                self.entries().into_iter().filter(|entry| entry.term == term).filter_map(|entry| match entry.event {
                    Event::Late { to, is_taken } => Some((to, is_taken)),
                    _ => None,
                });
            let late: BTreeMap<String, bool> = late.collect();
            (late.len() == 3).then_some(late)
        })
    }

    /// Asserts that each leadership ended before the next leadership began. Also asserts that the service `Sink`
    /// rejected no write during a leadership.
    #[track_caller]
    pub(crate) fn assert_exclusive(&self) {
        let all = self.leaderships();
        for pair in all.windows(2) {
            assert!(pair[0].last_live < pair[1].start, "two leaderships overlap: {pair:?}");
        }
        let is_rejected_by_sink = |entry: &&Entry| matches!(&entry.event, Event::Rejected { to } if to == "sink");
        assert!(
            self.entries().iter().find(is_rejected_by_sink).is_none(),
            "a leader wrote while a later one led: {all:?}"
        );
        self.assert_fenced();
    }

    /// Asserts that the tree accepted no write with an older term after a write with a later term.
    #[track_caller]
    pub(crate) fn assert_fenced(&self) {
        let mut terms = BTreeMap::new();
        for Entry { id, term, event } in self.entries() {
            if let Event::Wrote { zxid } = event {
                terms.insert(zxid, (term, id));
            }
        }
        assert!(!terms.is_empty(), "no candidate wrote");
        let terms: Vec<_> = terms.into_values().collect();
        assert!(
            terms.is_sorted_by_key(|(term, _)| *term),
            "a write of an older term follows one of a later term: {terms:?}"
        );
    }

    /// Returns the number of writes with this term that the tree accepted.
    pub(crate) fn writes_of(&self, term: u64) -> usize {
        let is_write = |entry: &&Entry| entry.term == term && matches!(entry.event, Event::Wrote { .. });
        self.entries().iter().filter(is_write).count()
    }
}
