//! The nonces that were seen, so that no request is answered twice.
//!
//! A nonce is remembered for as long as its request's time is within the limit. By the monotonic clock: if this
//! member's wall clock is set back by more than the limit, requests of the stretch that comes again could be repeated
//! to it by who has listened, as long as its session is the same.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use runtime::Monotonic;

pub(crate) struct Nonces {
    seen: HashSet<u128>,
    /// Which of them can be forgotten when.
    ends: BinaryHeap<Reverse<(Monotonic, u128)>>,
    max: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Noted {
    New,
    Seen,
    /// As many as may be are remembered; this one is not.
    Full,
}

impl Nonces {
    pub(crate) fn new(max: usize) -> Self {
        Nonces { seen: HashSet::new(), ends: BinaryHeap::new(), max }
    }

    /// Remembers `nonce` until `end`, the first moment at which its request is too old by itself.
    pub(crate) fn note(&mut self, nonce: u128, now: Monotonic, end: Monotonic) -> Noted {
        while let Some(Reverse((ended_at, ended))) = self.ends.peek().copied() {
            if ended_at > now {
                break;
            }
            self.ends.pop();
            self.seen.remove(&ended);
        }
        if self.seen.contains(&nonce) {
            return Noted::Seen;
        }
        if self.seen.len() >= self.max {
            return Noted::Full;
        }
        self.seen.insert(nonce);
        self.ends.push(Reverse((end, nonce)));
        Noted::New
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn a_nonce_is_new_once_until_its_end() {
        let mut nonces = Nonces::new(10);
        assert_eq!(nonces.note(1, at(0), at(30)), Noted::New);
        assert_eq!(nonces.note(2, at(1), at(20)), Noted::New);
        assert_eq!(nonces.note(1, at(29), at(59)), Noted::Seen);
        assert_eq!(nonces.note(2, at(29), at(59)), Noted::New);
        assert_eq!(nonces.note(1, at(30), at(60)), Noted::New);
    }

    #[test]
    fn no_more_are_remembered_than_may_be() {
        let mut nonces = Nonces::new(2);
        assert_eq!(nonces.note(1, at(0), at(30)), Noted::New);
        assert_eq!(nonces.note(2, at(0), at(30)), Noted::New);
        assert_eq!(nonces.note(3, at(0), at(30)), Noted::Full);
        assert_eq!(nonces.note(1, at(0), at(30)), Noted::Seen);
        assert_eq!(nonces.note(3, at(30), at(60)), Noted::New);
        assert_eq!((nonces.seen.len(), nonces.ends.len()), (1, 1));
    }
}
