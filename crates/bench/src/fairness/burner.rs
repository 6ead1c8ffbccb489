//! Use of processor time by the control run. The control uses as much processor time as the attack used, so that a lack
//! of processor time does not cause the difference between the two runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use runtime::{Monotonic, Runtime, TaskSet};

use crate::process::cpu;

/// Threads that use processor time until the caller drops this value. They have a low priority, like the threads of an
/// attack.
pub(super) struct Burner {
    stop: Arc<AtomicBool>,
    _tasks: TaskSet,
}

/// Processor time that the server and this process use together.
#[derive(Clone, Copy)]
struct Budget {
    server: Option<u32>,
    /// Mean number of processors in use.
    processors: f64,
    since: Monotonic,
    used_before: Duration,
}

/// Longest time between two measurements of the used processor time.
const STEP: Duration = Duration::from_millis(5);

impl Burner {
    /// Starts threads that use processor time, so that this process and the process `server` together use a mean of
    /// `processors` processors.
    pub(super) fn start(runtime: &Runtime, server: Option<u32>, processors: f64) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let budget = Budget { server, processors, since: runtime.monotonic(), used_before: used(server) };
        let (tasks, stop) = (TaskSet::new(runtime), Arc::new(AtomicBool::new(false)));
        for _ in 0..threads {
            let (runtime, stop) = (runtime.clone(), stop.clone());
            tasks.spawn_background("burner", async move { burn(&runtime, budget, threads, &stop).await });
        }
        Burner { stop, _tasks: tasks }
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Returns the processor time that this process and the process `server` have used since their start.
fn used(server: Option<u32>) -> Duration {
    server.map_or(Duration::ZERO, cpu) + cpu(std::process::id())
}

async fn burn(runtime: &Runtime, budget: Budget, threads: usize, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let now = runtime.monotonic();
        let missing = budget.missing(now, used(budget.server));
        if missing.is_zero() {
            runtime.sleep(STEP).await;
            continue;
        }
        let busy_for = (missing / u32::try_from(threads).unwrap_or(u32::MAX)).min(STEP);
        while runtime.monotonic().since(now) < busy_for {
            std::hint::spin_loop();
        }
    }
}

impl Budget {
    /// Returns the processor time that the processes must still use to reach the budget at `now`. `used` is the
    /// processor time that they have used since their start.
    fn missing(&self, now: Monotonic, used: Duration) -> Duration {
        let wanted = now.since(self.since).mul_f64(self.processors);
        wanted.saturating_sub(used.saturating_sub(self.used_before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burner_consumes_only_the_processor_time_left_in_its_budget() {
        let since = Monotonic::from_start(Duration::from_secs(3));
        let budget = Budget { server: None, processors: 1.5, since, used_before: Duration::from_secs(7) };
        let now = since + Duration::from_secs(10);
        assert_eq!(budget.missing(now, Duration::from_secs(7 + 5)), Duration::from_secs(10));
        assert_eq!(budget.missing(now, Duration::from_secs(7 + 16)), Duration::ZERO);
    }
}
