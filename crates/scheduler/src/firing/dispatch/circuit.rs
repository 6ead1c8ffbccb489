//! A target that fails again and again is left alone for a while, instead of using up the attempts of all that is due to it.
//!
//! *Closed*: callbacks go. After [`FAILURES_MAX`] failures in a row it *opens*: none goes for a second, then one goes as a probe;
//! if that fails, too, none goes for twice as long, up to [`OPEN_MAX`]; if it does not, the circuit is closed.

use std::time::Duration;

use runtime::Monotonic;

/// Failures in a row that open a circuit. Fewer let a hiccup hold up callbacks, more use up attempts on a target that is away.
const FAILURES_MAX: u32 = 50;
const OPEN_FIRST: Duration = Duration::from_secs(1);
/// So late, at most, is it noticed that a target is back.
const OPEN_MAX: Duration = Duration::from_secs(16);
/// Failures that are longer ago do not count.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// What an attempt tells of its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TargetSays {
    /// It is there, whatever it makes of this callback.
    Here,
    /// It cannot be reached, does not answer in time, or says that it is overloaded or away (429, 502, 503, 504).
    Away,
    /// Nothing: the attempt ended before it.
    Nothing,
}

#[derive(Debug, Default)]
pub(super) struct Circuit {
    /// In a row.
    failures: u32,
    /// How often in a row it opened; 0: it is closed.
    opened: u32,
    open_until: Monotonic,
    failed_at: Monotonic,
}

impl Circuit {
    /// When a probe may go; `None`: callbacks go, or a probe.
    pub(super) fn open_until(&self, now: Monotonic) -> Option<Monotonic> {
        (self.opened > 0 && now < self.open_until).then_some(self.open_until)
    }

    /// One callback at a time is enough to see whether the target is back.
    pub(super) fn is_probing(&self) -> bool {
        self.opened > 0
    }

    pub(super) fn hear(&mut self, says: TargetSays, now: Monotonic) {
        match says {
            TargetSays::Nothing => {}
            TargetSays::Here => *self = Circuit::default(),
            TargetSays::Away => {
                self.failures = self.failures.saturating_add(1);
                self.failed_at = now;
                // What went before it opened tells nothing new.
                if self.failures >= FAILURES_MAX && self.open_until(now).is_none() {
                    let wait = OPEN_FIRST.saturating_mul(1 << self.opened.min(8)).min(OPEN_MAX);
                    self.opened = self.opened.saturating_add(1);
                    self.open_until = now + wait;
                }
            }
        }
    }

    pub(super) fn is_forgotten(&self, now: Monotonic) -> bool {
        self.failures == 0 || now.since(self.failed_at) >= FORGOTTEN_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_millis(millis))
    }

    #[test]
    fn failures_in_a_row_open_it_for_longer_and_longer_and_one_answer_closes_it() {
        let mut circuit = Circuit::default();
        for _ in 1..FAILURES_MAX {
            circuit.hear(TargetSays::Away, at(0));
        }
        circuit.hear(TargetSays::Nothing, at(0));
        assert_eq!(circuit.open_until(at(0)), None);
        let mut now = 0;
        for wait in [1_000, 2_000, 4_000, 8_000, 16_000, 16_000] {
            circuit.hear(TargetSays::Away, at(now));
            // Those that were in flight then.
            circuit.hear(TargetSays::Away, at(now + 1));
            assert_eq!(circuit.open_until(at(now)), Some(at(now + wait)));
            now += wait;
            assert_eq!((circuit.open_until(at(now)), circuit.is_probing()), (None, true));
        }
        circuit.hear(TargetSays::Here, at(now));
        assert_eq!((circuit.open_until(at(now)), circuit.is_probing()), (None, false));
        circuit.hear(TargetSays::Away, at(now));
        assert!(!circuit.is_probing());
        assert!(!circuit.is_forgotten(at(now)) && circuit.is_forgotten(at(now + 60_000)));
    }
}
