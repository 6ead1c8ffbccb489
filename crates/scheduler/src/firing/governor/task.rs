//! Tasks of attempts whose waits for a processor the governor counts.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::future::poll_fn;
use futures_util::task::AtomicWaker;
use runtime::Runtime;

use super::{Governor, Ready};

/// States of a task: it waits for an event, it is ready to run, or it has ended.
const WAITS: u8 = 0;
const READY: u8 = 1;
const ENDED: u8 = 2;

/// Waker of a task. It counts the task as ready from the first wake until the end of the following poll.
struct CountingWaker {
    governor: Arc<Governor>,
    state: AtomicU8,
    task: AtomicWaker,
}

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The count begins before the task can run, because the following poll ends the count.
        self.governor.begin(1);
        if self.state.compare_exchange(WAITS, READY, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            self.governor.end(1);
        }
        self.task.wake();
    }
}

impl CountingWaker {
    /// Sets the state of the task. If the task was ready, returns its count, which now ends with the returned value.
    fn leave_ready(&self, state: u8) -> Option<Ready> {
        let was_ready = self.state.swap(state, Ordering::SeqCst) == READY;
        was_ready.then(|| Ready { governor: self.governor.clone(), count: 1 })
    }
}

/// Future of a task whose readiness the governor counts.
struct Governed<F> {
    future: Pin<Box<F>>,
    counting: Arc<CountingWaker>,
    waker: Waker,
    /// Count of the attempts that no thread has polled yet.
    started: Option<Ready>,
}

/// Returns the future of a task that makes attempts. `started` counts the attempts until the end of the task's first
/// poll.
pub(crate) fn governed(
    governor: Arc<Governor>,
    started: Ready,
    future: impl Future<Output = ()> + Send + 'static,
) -> impl Future<Output = ()> + Send + 'static {
    let counting = Arc::new(CountingWaker { governor, state: AtomicU8::new(WAITS), task: AtomicWaker::new() });
    Governed { future: Box::pin(future), waker: counting.clone().into(), counting, started: Some(started) }
}

impl<F: Future<Output = ()>> Future for Governed<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.counting.task.register(context.waker());
        // Both counts end after the poll, because the attempts use the processor until then.
        let _ready = self.counting.leave_ready(WAITS);
        let _started = self.started.take();
        let Governed { future, waker, .. } = &mut *self;
        future.as_mut().poll(&mut Context::from_waker(waker))
    }
}

impl<F> Drop for Governed<F> {
    fn drop(&mut self) {
        drop(self.counting.leave_ready(ENDED));
    }
}

/// Returns the output of an attempt, and the processor time of its polls.
pub(crate) async fn measured<T>(runtime: &Runtime, attempt: impl Future<Output = T>) -> (T, Duration) {
    let (mut attempt, mut used) = (pin!(attempt), Duration::ZERO);
    let output = poll_fn(|context| {
        let began = runtime.monotonic();
        let poll = attempt.as_mut().poll(context);
        used += runtime.monotonic().since(began);
        poll
    });
    let output = output.await;
    (output, used)
}
