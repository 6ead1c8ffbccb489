//! Trace of all events in order. It always computes a hash of the events, and can also write the events as text.
//!
//! The hash covers every poll of a task, every advance of time, every disk operation with its bytes, and every
//! incident. If two runs have equal hashes, the same events happened in the same order.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::faults::Incident;

/// Amount of text that a trace produces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Text {
    #[default]
    Off,
    /// The trace retains the last [`TAIL_LINES`] lines for [`crate::Handle::trace_tail`]. It omits polls of tasks and
    /// advances of time.
    Tail,
    /// The trace prints every event to standard error when the event happens.
    Print,
}

/// Number of lines that [`Text::Tail`] retains.
pub const TAIL_LINES: usize = 200;

#[derive(Hash)]
pub(crate) enum Event<'a> {
    Poll { member: &'a str, task: &'static str, serial: u64 },
    Advance,
    Spawn { member: &'a str, task: &'static str, serial: u64 },
    End { task: &'static str, serial: u64 },
    Boot { member: &'a str },
    Resume { member: &'a str },
    Incident { member: &'a str, incident: Incident, detail: &'a str },
    Disk { member: &'a str, operation: &'static str, path: &'a str, offset: u64, len: u64, digest: u64 },
    Note(&'a str),
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Poll { member, task, serial } => write!(f, "{member}: polls {task}#{serial}"),
            Event::Advance => write!(f, "time advances"),
            Event::Spawn { member, task, serial } => write!(f, "{member}: spawns {task}#{serial}"),
            Event::End { task, serial } => write!(f, "{task}#{serial} ends"),
            Event::Boot { member } => write!(f, "{member}: boots"),
            Event::Resume { member } => write!(f, "{member}: resumes after its pause"),
            Event::Incident { member, incident, detail } => write!(f, "{member}: {incident:?} {detail}"),
            Event::Disk { member, operation, path, offset, len, .. } => {
                write!(f, "{member}: {operation} {path} at {offset}, {len} bytes")
            }
            Event::Note(text) => write!(f, "note: {text}"),
        }
    }
}

#[derive(Default)]
pub(crate) struct Trace {
    hash: Digest,
    text: Text,
    tail: VecDeque<String>,
}

impl Trace {
    pub(crate) fn set_text(&mut self, text: Text) {
        self.text = text;
    }

    pub(crate) fn record(&mut self, now: Duration, event: &Event<'_>) {
        now.hash(&mut self.hash);
        event.hash(&mut self.hash);
        match self.text {
            Text::Off => {}
            Text::Tail => self.append_to_tail(now, event),
            Text::Print => eprintln!("{} {event}", stamp(now)),
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.finish()
    }

    pub(crate) fn tail(&self) -> Vec<String> {
        self.tail.iter().cloned().collect()
    }

    fn append_to_tail(&mut self, now: Duration, event: &Event<'_>) {
        if matches!(event, Event::Poll { .. } | Event::Advance) {
            return;
        }
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(format!("{} {event}", stamp(now)));
    }
}

fn stamp(now: Duration) -> String {
    format!("{:>14.6}", now.as_secs_f64())
}

/// Returns the hash of the bytes of a disk operation, for [`Event::Disk`].
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let mut digest = Digest::default();
    digest.write(bytes);
    digest.finish()
}

/// Hash function that gives the same result on every machine. The standard library does not guarantee this property for
/// its own hash functions.
#[derive(Clone, Copy)]
struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}
