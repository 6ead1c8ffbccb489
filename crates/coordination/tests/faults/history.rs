//! What candidates said, by the one clock that all processes of a machine share; and what must be true of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::until;

/// Of `CLOCK_BOOTTIME`.
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
    Refused { to: String },
    Stop,
    Late { to: String, is_taken: bool },
}

#[derive(Clone, Debug)]
struct Said {
    id: String,
    term: u64,
    event: Event,
}

/// When a process led.
#[derive(Clone, Debug)]
pub(crate) struct Leadership {
    pub(crate) id: String,
    pub(crate) term: u64,
    pub(crate) start: Nanos,
    /// The last instant at which its hold was good.
    pub(crate) last_live: Nanos,
}

#[derive(Clone, Default)]
pub(crate) struct History(Arc<Mutex<Vec<Said>>>);

impl History {
    /// A line of a candidate.
    pub(crate) fn note(&self, id: &str, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let event = match words[..] {
            ["start", _, at] => Event::Start(at.parse().unwrap()),
            ["live", _, at] => Event::Live(at.parse().unwrap()),
            ["wrote", _, zxid] => Event::Wrote { zxid: zxid.parse().unwrap() },
            ["refused", _, to, ..] => Event::Refused { to: to.to_owned() },
            ["stop", ..] => Event::Stop,
            ["late", _, to, what] => Event::Late { to: to.to_owned(), is_taken: what == "taken" },
            _ => panic!("a candidate says none of this: {line}"),
        };
        self.0.lock().unwrap().push(Said { id: id.to_owned(), term: words[1].parse().unwrap(), event });
    }

    fn said(&self) -> Vec<Said> {
        self.0.lock().unwrap().clone()
    }

    /// In the order of their terms.
    pub(crate) fn leaderships(&self) -> Vec<Leadership> {
        let mut by_term = BTreeMap::<u64, Leadership>::new();
        for Said { id, term, event } in self.said() {
            match event {
                Event::Start(start) => {
                    let earlier = by_term.insert(term, Leadership { id, term, start, last_live: start });
                    assert!(earlier.is_none(), "two had the term {term}: {earlier:?}");
                }
                Event::Live(at) => by_term.get_mut(&term).expect("it began").last_live = at,
                _ => {}
            }
        }
        by_term.into_values().collect()
    }

    /// Somebody leads under a later term, and has not stopped.
    #[track_caller]
    pub(crate) fn leader_after(&self, term: u64) -> Leadership {
        until("somebody leads", || {
            let last = self.leaderships().pop().filter(|last| last.term > term)?;
            let has_stopped = |said: &Said| said.term == last.term && matches!(said.event, Event::Stop);
            // It is at work.
            let has_written = |said: &Said| said.term == last.term && matches!(said.event, Event::Wrote { .. });
            let said = self.said();
            (said.iter().any(has_written) && !said.iter().any(has_stopped)).then_some(last)
        })
    }

    /// What became of the writes of this term after its leadership was over; waits for all of them.
    #[track_caller]
    pub(crate) fn late_writes_of(&self, term: u64) -> BTreeMap<String, bool> {
        until("it writes late", || {
            let late = self.said().into_iter().filter(|said| said.term == term).filter_map(|said| match said.event {
                Event::Late { to, is_taken } => Some((to, is_taken)),
                _ => None,
            });
            let late: BTreeMap<String, bool> = late.collect();
            (late.len() == 3).then_some(late)
        })
    }

    /// Of all leaderships, each was over before the next began; and no leader was told by the sink that there is a later one.
    #[track_caller]
    pub(crate) fn is_exclusive(&self) {
        let all = self.leaderships();
        for pair in all.windows(2) {
            assert!(pair[0].last_live < pair[1].start, "two led at once: {pair:?}");
        }
        let is_by_sink = |said: &&Said| matches!(&said.event, Event::Refused { to } if to == "sink");
        assert!(self.said().iter().find(is_by_sink).is_none(), "a leader wrote beside a later one: {all:?}");
        self.is_fenced();
    }

    /// The tree took no write of an older term after one of a later.
    #[track_caller]
    pub(crate) fn is_fenced(&self) {
        let mut terms = BTreeMap::new();
        for Said { id, term, event } in self.said() {
            if let Event::Wrote { zxid } = event {
                terms.insert(zxid, (term, id));
            }
        }
        assert!(!terms.is_empty(), "nobody wrote");
        let terms: Vec<_> = terms.into_values().collect();
        assert!(terms.is_sorted_by_key(|(term, _)| *term), "an older term wrote after a later one: {terms:?}");
    }

    /// That it wrote, and was told so.
    pub(crate) fn writes_of(&self, term: u64) -> usize {
        let is_write = |said: &&Said| said.term == term && matches!(said.event, Event::Wrote { .. });
        self.said().iter().filter(is_write).count()
    }
}
