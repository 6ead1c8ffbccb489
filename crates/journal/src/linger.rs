//! Whether the writer waits a little between two commits, so that the next one gathers more entries.
//!
//! A commit costs the same however many entries it has: the sync, and waking whoever waits. On a fast disk a busy
//! journal would make thousands of small ones a second, and the cores would do little else. But if all who append wait
//! for an answer before they append again, waiting gathers nothing and makes everyone slower. No look at the queue
//! tells the two apart, so it is tried, and kept while the rate does not suffer.

use std::time::Duration;

use runtime::Monotonic;

/// How long the writer waits. It is as much as the latency of an append grows by under load.
const PAUSE: Duration = Duration::from_millis(1);
/// How long a rate is measured for.
const ROUND: Duration = Duration::from_millis(50);
/// After so long without a commit, what was measured of the round says nothing.
const IDLE: Duration = Duration::from_millis(10);
/// Waiting goes on while the rate is at least this part of the rate without.
const RATE_KEPT: f64 = 0.9;
/// Rounds with waiting, after which the rate without is measured again.
const ROUNDS_WITH: u32 = 64;
/// Rounds without after the first failed trial; doubled by each that follows, up to the second.
const ROUNDS_WITHOUT: (u32, u32) = (4, 256);

pub(crate) struct Linger {
    waits: bool,
    /// Of this kind, until the other is tried.
    rounds_left: u32,
    /// After the next failed trial.
    rounds_without: u32,
    /// Entries a second in the last round without waiting.
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

    /// A commit of so many entries has ended: how long to wait before the next.
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
        self.waits.then_some(PAUSE)
    }

    fn end_round(&mut self, elapsed: Duration) {
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = self.entries as f64 / elapsed.as_secs_f64();
        self.rounds_left = self.rounds_left.saturating_sub(1);
        if !self.waits {
            self.rate_without = rate;
            // Not if each is waited for by the next, nor where the disk makes them gather already.
            let are_many = self.entries >= 2 * self.commits as usize;
            let are_small = 4 * PAUSE * self.commits > elapsed;
            self.waits = self.rounds_left == 0 && are_many && are_small;
            self.rounds_left = if self.waits { ROUNDS_WITH } else { self.rounds_left };
        } else if rate < RATE_KEPT * self.rate_without {
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

    /// What a commit takes.
    const COMMIT: Duration = Duration::from_micros(250);

    /// Entries in so many seconds, if `gathered` tells how many there are after so long since the last commit began.
    fn run(seconds: u64, gathered: impl Fn(Duration) -> usize) -> (usize, u32) {
        let mut now = Monotonic::from_start(Duration::ZERO);
        let mut linger = Linger::new(now);
        let (mut since_last, mut entries, mut commits) = (COMMIT, 0, 0);
        while now.since_start() < Duration::from_secs(seconds) {
            let batch = gathered(since_last).max(1);
            now = now + COMMIT;
            let pause = linger.after_commit(batch, now).unwrap_or_default();
            now = now + pause;
            since_last = COMMIT + pause;
            entries += batch;
            commits += 1;
        }
        (entries, commits)
    }

    #[test]
    fn entries_that_come_at_a_rate_are_gathered() {
        let (entries, commits) = run(10, |since_last| usize::try_from(since_last.as_micros() / 50).unwrap());
        assert!(entries >= 195_000, "{entries} entries");
        assert!((8_000..10_000).contains(&commits), "{commits} commits");
    }

    #[test]
    fn few_who_wait_for_each_other_are_not_made_to_wait_longer() {
        let plain = 40_000 * 4;
        let (entries, _) = run(10, |_| 4);
        assert!(entries * 100 >= plain * 95, "{entries} entries of {plain}");
    }

    #[test]
    fn a_rest_between_two_bursts_is_not_taken_for_a_low_rate() {
        let mut now = Monotonic::from_start(Duration::ZERO);
        let mut linger = Linger::new(now);
        let mut waited = 0;
        for commit in 0..10_000 {
            let pause = linger.after_commit(if waited == 0 { 5 } else { 25 }, now).unwrap_or_default();
            waited = pause.as_micros();
            let rest = if commit % 1_000 == 0 { Duration::from_secs(1) } else { Duration::ZERO };
            now = now + COMMIT + pause + rest;
        }
        assert!(linger.waits && linger.rounds_without == ROUNDS_WITHOUT.0);
    }

    #[test]
    fn one_alone_never_waits() {
        assert_eq!(run(10, |_| 1), (40_000, 40_000));
    }
}
