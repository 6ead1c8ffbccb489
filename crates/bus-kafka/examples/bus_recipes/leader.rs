//! Candidate for the leadership. The leader claims the leadership to the witness every 10 ms.

use std::sync::Arc;
use std::time::Duration;

use bus::leader::{LeaderCandidate, LeaderOptions, Leading};
use runtime::{Runtime, TaskSet};
use tokio::io::AsyncReadExt as _;
use tokio_util::sync::CancellationToken;

use crate::witness::{Witness, now};
use crate::{Failure, Process};

const PERIOD: Duration = Duration::from_millis(10);
/// Number of claims of a late leader after the end of its leadership.
const LATE_CLAIMS: u32 = 100;

/// Runs until the end of the input. If `is_late` is true, the leader continues to claim after it has handed over the leadership.
pub(crate) async fn run(process: Process, is_late: bool) -> Result<(), Failure> {
    let (margin, grace) = (process.margin(), process.grace());
    let Process { runtime, bus, topic, name, witness, session } = process;
    let (stop, tasks) = (CancellationToken::new(), TaskSet::new(&runtime));
    let stopped = stop.clone();
    tasks.spawn("stop", async move {
        // An error has the same effect as the end of the input.
        drop(tokio::io::stdin().read_to_end(&mut Vec::new()).await);
        stopped.cancel();
    });
    let options = LeaderOptions {
        session_timeout: session,
        margin,
        grace,
        ..LeaderOptions::new(topic.clone(), topic.as_str(), &name)
    };
    let candidate = LeaderCandidate::open(&runtime, bus, options).await?;
    let work = async |leading: Leading| {
        let claimant = Claimant {
            runtime: runtime.clone(),
            witness: witness.clone(),
            name: name.clone(),
            grace,
            leading: leading.clone(),
        };
        if is_late {
            tasks.spawn("late leader", async move { claimant.claim_late().await });
            leading.closing.cancelled().await;
        } else {
            claimant.claim().await;
        }
    };
    candidate.run(&stop, work).await?;
    tasks.join().await;
    Ok(())
}

/// Writer of the claims. A drop of this value reports the end of the leadership.
struct Claimant {
    runtime: Runtime,
    witness: Arc<Witness>,
    name: String,
    grace: Duration,
    leading: Leading,
}

impl Claimant {
    /// Claims until the leader must start no new action, and then during half of the grace, like a task that finishes its
    /// last action.
    async fn claim(&self) {
        while self.claim_once() {
            if self.runtime.timeout(PERIOD, self.leading.closing.cancelled()).await.is_some() {
                break;
            }
        }
        let end = self.runtime.monotonic() + self.grace / 2;
        while self.runtime.monotonic() < end && self.claim_once() {
            self.runtime.sleep(PERIOD).await;
        }
    }

    /// Claims the leadership if it is valid. Returns false if the leadership has ended.
    fn claim_once(&self) -> bool {
        // The leadership began before this time, so a leader that is still valid afterwards was valid at this time.
        let (at, monotonic) = (now(), self.runtime.monotonic());
        if !self.leading.is_valid() {
            return false;
        }
        self.write(at, self.leading.deadline().since(monotonic));
        true
    }

    async fn claim_late(&self) {
        self.claim().await;
        for _ in 0..LATE_CLAIMS {
            self.write(now(), PERIOD);
            self.runtime.sleep(PERIOD).await;
        }
    }

    fn write(&self, at: u64, left: Duration) {
        let until = at.saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        self.witness.write(&format!("claim leader {} {} {at} {until}\n", self.name, self.leading.term.0));
    }
}

impl Drop for Claimant {
    fn drop(&mut self) {
        self.witness.write(&format!("end leader {} {} {}\n", self.name, self.leading.term.0, now()));
    }
}
