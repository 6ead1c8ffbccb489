//! Decision whether the writer waits between two commits, so that the next commit gathers more entries.
//!
//! The cost of a commit does not depend on its number of entries: the sync, and waking the waiting callers. On a fast
//! disk, a busy journal would make thousands of small commits per second, which would occupy the cores. But if every
//! caller waits for a response before it appends again, a delay gathers no entries and slows every caller down. The
//! queue's length does not distinguish the two cases. The writer therefore tries a delay, and keeps it while the rate
//! stays high enough.
//!
//! docs/decisions/0012-delay-commits-under-load.md gives the reasons for the design.

use std::time::Duration;

use runtime::Monotonic;

/// Delay before the next commit. Under load, the latency of an append grows by this value.
const DELAY: Duration = Duration::from_millis(1);
/// Duration of one measurement of the rate.
const ROUND: Duration = Duration::from_millis(50);
/// Time without a commit after which the measurement of the round is discarded.
const IDLE: Duration = Duration::from_millis(10);
/// Fraction of the rate without delay. The delay stays in use while the rate with delay is at least this high.
const RATE_RETAINED: f64 = 0.9;
/// Rounds with delay, after which the rate without delay is measured again.
const ROUNDS_WITH: u32 = 64;
/// Rounds without delay after the first failed trial, and the maximum: each further failed trial doubles them.
const ROUNDS_WITHOUT: (u32, u32) = (4, 256);

pub(crate) struct Linger {
    waits: bool,
    /// Rounds of the current mode that are left before the other mode is tried.
    rounds_left: u32,
    /// Rounds without delay after the next failed trial.
    rounds_without: u32,
    /// Entries per second in the last round without delay.
    rate_without: f64,
    began: Monotonic,
    last: Monotonic,
    entries: usize,
    commits: u32,
}

impl Linger {
    pub(crate) fn new(now: Monotonic) -> Self {
        Linger {
            waits: false,
            rounds_left: 1,
            rounds_without: ROUNDS_WITHOUT.0,
            rate_without: 0.0,
            began: now,
            last: now,
            entries: 0,
            commits: 0,
        }
    }

    /// Records a commit of `entries` entries. Returns the delay before the next commit.
    pub(crate) fn after_commit(&mut self, entries: usize, now: Monotonic) -> Option<Duration> {
        self.entries += entries;
        self.commits += 1;
        let elapsed = now.since(self.began);
        let was_idle = now.since(std::mem::replace(&mut self.last, now)) >= IDLE;
        if elapsed >= ROUND && !was_idle {
            self.end_round(elapsed);
        }
        if elapsed >= ROUND || was_idle {
            (self.began, self.entries, self.commits) = (now, 0, 0);
        }
        self.waits.then_some(DELAY)
    }

    fn end_round(&mut self, elapsed: Duration) {
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no exact count")]
        let rate = self.entries as f64 / elapsed.as_secs_f64();
        self.rounds_left = self.rounds_left.saturating_sub(1);
        if !self.waits {
            self.rate_without = rate;
            // Do not wait if each entry depends on the response to the one before, or if the disk is slow enough to
            // gather entries by itself.
            let are_many = self.entries >= 2 * self.commits as usize;
            let are_small = 4 * DELAY * self.commits > elapsed;
            self.waits = self.rounds_left == 0 && are_many && are_small;
            self.rounds_left = if self.waits { ROUNDS_WITH } else { self.rounds_left };
        } else if rate < RATE_RETAINED * self.rate_without {
            self.waits = false;
            self.rounds_left = self.rounds_without;
            self.rounds_without = ROUNDS_WITHOUT.1.min(2 * self.rounds_without);
        } else {
            self.rounds_without = ROUNDS_WITHOUT.0;
            self.waits = self.rounds_left > 0;
            self.rounds_left = self.rounds_left.max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Duration of a commit.
    const COMMIT: Duration = Duration::from_micros(250);

    /// Simulates `seconds` seconds. `gathered` returns the number of entries that arrive in the given time since the
    /// start of the last commit. Returns the numbers of entries and of commits.
    fn run(seconds: u64, gathered: impl Fn(Duration) -> usize) -> (usize, u32) {
        let mut now = Monotonic::from_start(Duration::ZERO);
        let mut linger = Linger::new(now);
        let (mut since_last, mut entries, mut commits) = (COMMIT, 0, 0);
        while now.since_start() < Duration::from_secs(seconds) {
            let batch = gathered(since_last).max(1);
            now = now + COMMIT;
            let delay = linger.after_commit(batch, now).unwrap_or_default();
            now = now + delay;
            since_last = COMMIT + delay;
            entries += batch;
            commits += 1;
        }
        (entries, commits)
    }

    #[test]
    fn entries_at_a_steady_rate_are_gathered() {
        let (entries, commits) = run(10, |since_last| usize::try_from(since_last.as_micros() / 50).unwrap());
        assert!(entries >= 195_000, "{entries} entries");
        assert!((8_000..10_000).contains(&commits), "{commits} commits");
    }

    #[test]
    fn few_mutually_waiting_callers_are_not_delayed() {
        let plain = 40_000 * 4;
        let (entries, _) = run(10, |_| 4);
        assert!(entries * 100 >= plain * 95, "{entries} entries of {plain}");
    }

    #[test]
    fn idle_time_between_bursts_does_not_count_as_a_low_rate() {
        let mut now = Monotonic::from_start(Duration::ZERO);
        let mut linger = Linger::new(now);
        let mut waited = 0;
        for commit in 0..10_000 {
            let delay = linger.after_commit(if waited == 0 { 5 } else { 25 }, now).unwrap_or_default();
            waited = delay.as_micros();
            let rest = if commit % 1_000 == 0 { Duration::from_secs(1) } else { Duration::ZERO };
            now = now + COMMIT + delay + rest;
        }
        assert!(linger.waits && linger.rounds_without == ROUNDS_WITHOUT.0);
    }

    #[test]
    fn single_caller_is_never_delayed() {
        assert_eq!(run(10, |_| 1), (40_000, 40_000));
    }
}
