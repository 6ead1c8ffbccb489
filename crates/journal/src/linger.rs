//! Decision whether the writer waits between two commits. During a wait, the queue collects more entries for the next
//! commit.
//!
//! A commit requires a sync and the wake-up of the waiting callers. This work does not depend on the number of entries.
//! Without a delay, a busy journal on a fast disk would write thousands of small commits per second, and these commits
//! would occupy the cores. But if every caller waits for a response before its next append, a delay collects no entries
//! and slows every caller down. The queue's length does not show whether the callers wait for responses. The writer
//! therefore tries a delay, and continues to use the delay while the rate of entries is high enough.
//!
//! docs/decisions/0012-delay-commits-under-load.md gives the reasons for the design.

use std::time::Duration;

use runtime::Monotonic;

/// Delay before the next commit. Under load, the latency of an append increases by this value.
const DELAY: Duration = Duration::from_millis(1);
/// Duration of a round. The writer measures the rate of entries once per round.
const ROUND: Duration = Duration::from_millis(50);
/// Time without a commit after which the writer discards the measurement of the round.
const IDLE: Duration = Duration::from_millis(10);
/// Minimum ratio of the rate of entries with delay to the rate of entries without delay. The writer uses the delay
/// while the ratio is at least this value.
const RATE_RETAINED: f64 = 0.9;
/// Number of rounds with delay, after which the writer measures the rate without delay again.
const ROUNDS_WITH: u32 = 64;
/// Minimum and maximum number of rounds without delay after a failed trial of the delay. A trial fails if the delay
/// lowers the rate of entries too much. Each further failed trial doubles the number.
const ROUNDS_WITHOUT: (u32, u32) = (4, 256);

pub(crate) struct Linger {
    waits: bool,
    /// Number of rounds before the writer tries its other mode. Its two modes are commits with delay and commits
    /// without delay.
    rounds_left: u32,
    /// Number of rounds without delay after the next failed trial of the delay.
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
        #[expect(clippy::cast_precision_loss, reason = "an approximate rate is sufficient")]
        let rate = self.entries as f64 / elapsed.as_secs_f64();
        self.rounds_left = self.rounds_left.saturating_sub(1);
        if !self.waits {
            self.rate_without = rate;
            // The writer does not delay commits if each entry depends on the response to the previous entry. It also
            // does not delay them if commits take so long that many entries arrive during a commit.
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

    /// Duration of a simulated commit.
    const COMMIT: Duration = Duration::from_micros(250);

    /// Simulates commits for `seconds` seconds. `gathered` receives the time since the start of the last commit, and
    /// returns the number of entries that arrive in this time. The simulation returns the total numbers of entries and
    /// commits.
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
    fn writer_combines_steadily_arriving_entries_into_fewer_records() {
        let (entries, commits) = run(10, |since_last| usize::try_from(since_last.as_micros() / 50).unwrap());
        assert!(entries >= 195_000, "{entries} entries");
        assert!((8_000..10_000).contains(&commits), "{commits} commits");
    }

    #[test]
    fn writer_rarely_delays_the_entries_of_a_few_callers() {
        let plain = 40_000 * 4;
        let (entries, _) = run(10, |_| 4);
        assert!(entries * 100 >= plain * 95, "{entries} entries of {plain}");
    }

    #[test]
    fn writer_ignores_idle_time_when_it_measures_the_entry_rate() {
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
    fn writer_never_delays_the_entries_of_a_single_caller() {
        assert_eq!(run(10, |_| 1), (40_000, 40_000));
    }
}
