//! Timing wheel. It orders entries by the millisecond at which they are due.
//!
//! A ring has one slot per millisecond of the near future. An ordered map contains the entries that are due after the
//! end of the ring. In the ring, the cost of insertion and expiry does not depend on the number of entries (Varghese
//! and Lauck 1987, scheme 5 with an overflow list). The wheel reads no clock: the caller passes the current instant to
//! [`Wheel::expire`]. If the clock goes back, an entry waits until the clock reaches the entry's millisecond again.

use std::collections::BTreeMap;

use domain::Timestamp;

/// Span of the ring in milliseconds. It is a power of two, and longer than the time by which the owner reads due rows
/// ahead of their instants.
const SLOTS: i64 = 8_192;
const SLOT_COUNT: usize = 8_192;
const WORDS: usize = SLOT_COUNT / 64;

#[derive(Debug)]
pub(crate) struct Wheel {
    /// Slots of the ring. Slot `t mod SLOTS` contains the entries due at `t`, for `t` in `[horizon, horizon + SLOTS)`.
    slots: Vec<Vec<u32>>,
    /// One bit per slot. The bit is set if the slot has entries.
    occupied: [u64; WORDS],
    /// First millisecond of the ring. Entries due before this millisecond are in `overdue`.
    horizon: i64,
    overdue: BTreeMap<i64, Vec<u32>>,
    far: BTreeMap<i64, Vec<u32>>,
    len: usize,
}

impl Wheel {
    pub(crate) fn new(now: Timestamp) -> Self {
        Wheel {
            slots: (0..SLOTS).map(|_| Vec::new()).collect(),
            occupied: [0; WORDS],
            horizon: now.as_millis(),
            overdue: BTreeMap::new(),
            far: BTreeMap::new(),
            len: 0,
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, at: Timestamp, entry: u32) {
        let at = at.as_millis();
        self.len += 1;
        if at < self.horizon {
            self.overdue.entry(at).or_default().push(entry);
        } else if at < self.horizon + SLOTS {
            self.put(at, entry);
        } else {
            self.far.entry(at).or_default().push(entry);
        }
    }

    /// Moves all entries due at or before `now` to `out`, in the order of their milliseconds.
    pub(crate) fn expire(&mut self, now: Timestamp, out: &mut Vec<u32>) {
        let now = now.as_millis();
        let before = out.len();
        while let Some(entry) = self.overdue.first_entry().filter(|entry| *entry.key() <= now) {
            out.append(&mut entry.remove());
        }
        while self.horizon <= now {
            match self.next_occupied() {
                Some(at) if at <= now => {
                    let slot = slot(at);
                    out.append(&mut self.slots[slot]);
                    self.occupied[slot / 64] &= !(1 << (slot % 64));
                    self.advance(at + 1, out);
                }
                _ => self.advance(now + 1, out),
            }
        }
        self.len -= out.len() - before;
    }

    /// Returns the instant at which the next entry is due.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        let near = self.overdue.keys().next().copied().or_else(|| self.next_occupied());
        near.or_else(|| self.far.keys().next().copied()).map(Timestamp::from_millis)
    }

    /// Moves the start of the ring to `horizon`. The ring must have no entries before `horizon`. The function also
    /// moves entries out of the map `far`: entries due before `horizon` to `out`, and entries due within the new span
    /// of the ring into the ring.
    fn advance(&mut self, horizon: i64, out: &mut Vec<u32>) {
        self.horizon = horizon;
        while let Some(entry) = self.far.first_entry().filter(|entry| *entry.key() < horizon + SLOTS) {
            let at = *entry.key();
            let mut entries = entry.remove();
            if at < horizon {
                out.append(&mut entries);
            } else {
                entries.into_iter().for_each(|entry| self.put(at, entry));
            }
        }
    }

    fn put(&mut self, at: i64, entry: u32) {
        let slot = slot(at);
        self.slots[slot].push(entry);
        self.occupied[slot / 64] |= 1 << (slot % 64);
    }

    fn next_occupied(&self) -> Option<i64> {
        let start = slot(self.horizon);
        for step in 0..=WORDS {
            let index = (start / 64 + step) % WORDS;
            let mut word = self.occupied[index];
            if step == 0 {
                word &= !0 << (start % 64);
            } else if step == WORDS {
                word &= !(!0 << (start % 64));
            }
            if word != 0 {
                let found = index * 64 + word.trailing_zeros() as usize;
                let distance = (found + SLOT_COUNT - start) % SLOT_COUNT;
                return Some(self.horizon + distance as i64);
            }
        }
        None
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the remainder of a division by `SLOTS` is below `SLOTS`")]
fn slot(at: i64) -> usize {
    at.rem_euclid(SLOTS) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn timing_wheel_entry_expires_at_its_millisecond_and_not_earlier() {
        let mut wheel = Wheel::new(at(1_000));
        let mut out = Vec::new();
        wheel.insert(at(1_005), 7);
        wheel.expire(at(1_004), &mut out);
        assert!(out.is_empty());
        wheel.expire(at(1_005), &mut out);
        assert_eq!(out, [7]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(i64),
        Expire(i64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (-20_000i64..40_000).prop_map(Step::Insert),
            2 => (-50i64..300).prop_map(Step::Expire),
            1 => (-5_000i64..30_000).prop_map(Step::Expire),
        ]
    }

    proptest! {
        /// Compares the wheel with an ordered map, while the clock jumps ahead and back.
        #[test]
        fn timing_wheel_returns_the_same_entries_as_an_ordered_map(steps in prop::collection::vec(step(), 1..200)) {
            let mut now = 1_000_000;
            let mut wheel = Wheel::new(at(now));
            let mut model: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
            for (number, step) in (0u32..).zip(steps) {
                match step {
                    Step::Insert(delta) => {
                        wheel.insert(at(now + delta), number);
                        model.entry(now + delta).or_default().push(number);
                    }
                    Step::Expire(delta) => {
                        now += delta;
                        let mut got = Vec::new();
                        wheel.expire(at(now), &mut got);
                        let later = model.split_off(&(now + 1));
                        let mut want: Vec<u32> = std::mem::replace(&mut model, later).into_values().flatten().collect();
                        got.sort_unstable();
                        want.sort_unstable();
                        prop_assert_eq!(got, want);
                    }
                }
                prop_assert_eq!(wheel.len(), model.values().map(Vec::len).sum::<usize>());
                prop_assert_eq!(wheel.next().map(Timestamp::as_millis), model.keys().next().copied());
            }
        }
    }
}
