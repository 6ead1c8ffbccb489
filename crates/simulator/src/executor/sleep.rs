//! Future that waits until an instant of simulated time.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::state::{MemberIndex, TimerKey};
use super::{POLLS_PER_INSTANT_MAX, Shared};
use crate::random::nanos;

/// Future that becomes ready at the instant `at`. If the member goes down first, the future stays pending forever.
pub(crate) struct Sleep {
    shared: Arc<Shared>,
    member: MemberIndex,
    boot: u64,
    at: Duration,
    timer: Option<TimerKey>,
}

impl Sleep {
    pub(crate) fn new(shared: Arc<Shared>, member: MemberIndex, boot: u64, at: Duration) -> Self {
        // The cap of 584 years exceeds the length of every simulation, and prevents an overflow in later additions.
        let at = at.min(Duration::from_nanos(nanos(Duration::MAX)));
        Sleep { shared, member, boot, at, timer: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let shared = self.shared.clone();
        let mut core = shared.lock();
        if !core.is_current(self.member, self.boot) {
            return Poll::Pending;
        }
        if core.now >= self.at {
            // A task that only waits for instants in the past never returns to the executor. Therefore each such wait
            // counts toward the limit of polls.
            core.polls_now += u64::from(self.timer.is_none());
            let is_endless = core.polls_now > POLLS_PER_INSTANT_MAX;
            let unused = self.timer.take().and_then(|key| core.clear_timer(key));
            drop(core);
            drop(unused);
            assert!(!is_endless, "a task waits endlessly for instants in the past, so time does not advance");
            return Poll::Ready(());
        }
        let unused = match self.timer {
            Some(key) => core.change_timer(key, context.waker()),
            None => {
                self.timer = Some(core.set_timer(self.at, context.waker().clone()));
                None
            }
        };
        drop(core);
        drop(unused);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.timer.take() {
            let unused = self.shared.lock().clear_timer(key);
            drop(unused);
        }
    }
}
