//! Time for which the governor holds starts back.

use std::time::Duration;

use runtime::Monotonic;

/// Time without an end of the hold after which the processors count as saturated. A burst of some tenants holds starts
/// back for a shorter time.
const SATURATED_AFTER: Duration = Duration::from_millis(20);
/// Time for which the processors count as saturated after the last such hold.
const SATURATED_FOR: Duration = Duration::from_secs(1);

/// Periods in which the governor holds starts back.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    /// Begin of the present hold, and instant of the last call of [`Pressure::update`] in it.
    held: Option<(Monotonic, Monotonic)>,
    saturated_until: Option<Monotonic>,
}

impl Pressure {
    /// Records whether the governor holds starts back at `now`. Returns the time of the hold since the last call.
    pub(crate) fn update(&mut self, is_held: bool, now: Monotonic) -> Duration {
        let (since, last) = self.held.unwrap_or((now, now));
        self.held = is_held.then_some((since, now));
        if now.since(since) >= SATURATED_AFTER {
            self.saturated_until = Some(now + SATURATED_FOR);
        }
        now.since(last)
    }

    pub(crate) fn is_saturated(&self, now: Monotonic) -> bool {
        self.saturated_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_millis(millis))
    }

    #[test]
    fn processors_are_saturated_after_a_long_hold_only() {
        let mut pressure = Pressure::default();
        pressure.update(true, at(1_000));
        pressure.update(false, at(1_015));
        pressure.update(true, at(1_020));
        pressure.update(true, at(1_035));
        assert!(!pressure.is_saturated(at(1_035)), "the governor released starts between two short holds");
        pressure.update(true, at(1_040));
        assert!(pressure.is_saturated(at(2_039)));
        assert!(!pressure.is_saturated(at(2_040)));
    }

    #[test]
    fn pressure_returns_the_time_of_each_hold_once() {
        let mut pressure = Pressure::default();
        let held: Vec<u128> = [(true, 0), (true, 5), (false, 9), (false, 20), (true, 30), (false, 31)]
            .map(|(is_held, millis)| pressure.update(is_held, at(millis)).as_millis())
            .into();
        assert_eq!(held, [0, 5, 4, 0, 0, 1]);
    }
}
