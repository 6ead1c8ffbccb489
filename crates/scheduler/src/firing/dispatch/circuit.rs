//! Circuit breaker of a target. A target that fails repeatedly gets no callbacks for some time, so that its due runs do
//! not use up their attempts.
//!
//! While the circuit is *closed*, callbacks start. After [`FAILURES_MAX`] failures in a row the circuit *opens*: no
//! callback starts for one second. Then one callback starts as a probe. If the probe fails, the wait doubles, up to
//! [`OPEN_MAX`]. If the probe succeeds, the circuit closes.

use std::time::Duration;

use runtime::Monotonic;

/// Number of failures in a row that open a circuit. With a smaller value, a short failure of the target delays
/// callbacks. With a larger value, more runs use up attempts while the target is unavailable.
const FAILURES_MAX: u32 = 50;
const OPEN_FIRST: Duration = Duration::from_secs(1);
/// Longest wait between two probes. This is also the longest time until a recovered target gets a callback.
const OPEN_MAX: Duration = Duration::from_secs(16);
/// Time from the last failure until the dispatch queue may forget the failures.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// Health of a target, according to the result of one attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TargetHealth {
    /// The target responded with a status that does not report overload or unavailability.
    Available,
    /// The target was unreachable, did not respond in time, or reported overload or unavailability (429, 502, 503,
    /// 504).
    Unavailable,
    /// The attempt ended before it reached the target.
    Unknown,
}

#[derive(Debug, Default)]
pub(super) struct Circuit {
    /// Number of failures in a row.
    failures: u32,
    /// Number of times that the circuit has opened since it was last closed. 0 if the circuit is closed.
    opened: u32,
    open_until: Monotonic,
    failed_at: Monotonic,
}

impl Circuit {
    /// Returns the instant of the next probe. Returns `None` if a callback or a probe may start now.
    pub(super) fn open_until(&self, now: Monotonic) -> Option<Monotonic> {
        (self.opened > 0 && now < self.open_until).then_some(self.open_until)
    }

    /// Returns true if the circuit permits only one callback at a time, as a probe.
    pub(super) fn is_probing(&self) -> bool {
        self.opened > 0
    }

    pub(super) fn record(&mut self, health: TargetHealth, now: Monotonic) {
        match health {
            TargetHealth::Unknown => {}
            TargetHealth::Available => *self = Circuit::default(),
            TargetHealth::Unavailable => {
                self.failures = self.failures.saturating_add(1);
                self.failed_at = now;
                // A failure of an attempt that started before the circuit opened does not extend the wait.
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
    fn failed_probe_doubles_the_open_time_of_a_circuit_breaker() {
        let mut circuit = Circuit::default();
        for _ in 1..FAILURES_MAX {
            circuit.record(TargetHealth::Unavailable, at(0));
        }
        circuit.record(TargetHealth::Unknown, at(0));
        assert_eq!(circuit.open_until(at(0)), None);
        let mut now = 0;
        for wait in [1_000, 2_000, 4_000, 8_000, 16_000, 16_000] {
            circuit.record(TargetHealth::Unavailable, at(now));
            // This attempt was in flight when the circuit opened, so its failure does not extend the wait.
            circuit.record(TargetHealth::Unavailable, at(now + 1));
            assert_eq!(circuit.open_until(at(now)), Some(at(now + wait)));
            now += wait;
            assert_eq!((circuit.open_until(at(now)), circuit.is_probing()), (None, true));
        }
        circuit.record(TargetHealth::Available, at(now));
        assert_eq!((circuit.open_until(at(now)), circuit.is_probing()), (None, false));
        circuit.record(TargetHealth::Unavailable, at(now));
        assert!(!circuit.is_probing());
        assert!(!circuit.is_forgotten(at(now)) && circuit.is_forgotten(at(now + 60_000)));
    }
}
