//! Nonces of handled requests. The listener remembers them, so that it handles no request twice.
//!
//! The listener remembers the nonce of a request until the age check rejects a repetition of the request. It measures
//! this time by the monotonic clock, but the age check uses the wall clock. Suppose that an operator sets the wall
//! clock back by more than the limit of the age check. Then earlier requests become recent again, although the listener
//! has forgotten their nonces. A process that recorded these requests can replay them until the member's session ends.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use runtime::Monotonic;

pub(crate) struct Nonces {
    seen: HashSet<u128>,
    /// Nonces, sorted by the time at which the listener can forget them.
    ends: BinaryHeap<Reverse<(Monotonic, u128)>>,
    max: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Noted {
    New,
    Precondition,
    /// The number of remembered nonces has reached its limit, so the listener does not remember this nonce.
    Full,
}

impl Nonces {
    pub(crate) fn new(max: usize) -> Self {
        Nonces { seen: HashSet::new(), ends: BinaryHeap::new(), max }
    }

    /// Remembers `nonce` until `end`, the first instant at which the age check rejects its request.
    pub(crate) fn note(&mut self, nonce: u128, now: Monotonic, end: Monotonic) -> Noted {
        while let Some(Reverse((ended_at, ended))) = self.ends.peek().copied() {
            if ended_at > now {
                break;
            }
            self.ends.pop();
            self.seen.remove(&ended);
        }
        if self.seen.contains(&nonce) {
            return Noted::Precondition;
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
    fn repeated_nonce_is_rejected_until_it_expires() {
        let mut nonces = Nonces::new(10);
        assert_eq!(nonces.note(1, at(0), at(30)), Noted::New);
        assert_eq!(nonces.note(2, at(1), at(20)), Noted::New);
        assert_eq!(nonces.note(1, at(29), at(59)), Noted::Precondition);
        assert_eq!(nonces.note(2, at(29), at(59)), Noted::New);
        assert_eq!(nonces.note(1, at(30), at(60)), Noted::New);
    }

    #[test]
    fn number_of_remembered_nonces_never_exceeds_the_limit() {
        let mut nonces = Nonces::new(2);
        assert_eq!(nonces.note(1, at(0), at(30)), Noted::New);
        assert_eq!(nonces.note(2, at(0), at(30)), Noted::New);
        assert_eq!(nonces.note(3, at(0), at(30)), Noted::Full);
        assert_eq!(nonces.note(1, at(0), at(30)), Noted::Precondition);
        assert_eq!(nonces.note(3, at(30), at(60)), Noted::New);
        assert_eq!((nonces.seen.len(), nonces.ends.len()), (1, 1));
    }
}
