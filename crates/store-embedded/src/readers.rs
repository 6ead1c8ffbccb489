//! Threads that look up rows, so that the threads of callers do not wait for the disk.
//!
//! docs/decisions/0223-move-look-ups-away-from-a-busy-disk.md gives the reasons for the design.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

use store::StoreError;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

type Job = Box<dyn FnOnce() + Send>;

/// Reader threads, which look up rows so that the threads of callers do not wait for the disk. The threads take the
/// look-ups from one queue, so no look-up waits behind a slow one while another thread is idle.
#[derive(Clone)]
pub(crate) struct Readers(Arc<Jobs>);

struct Jobs {
    queue: Mutex<VecDeque<Job>>,
    /// One permit for each look-up in the queue.
    waiting: Semaphore,
    /// One permit for each free place in the queue.
    free: Semaphore,
}

/// Maximum number of look-ups that wait for a reader thread.
const JOBS_MAX: usize = 2_048;

impl Readers {
    pub(crate) fn new() -> Self {
        let (waiting, free) = (Semaphore::new(0), Semaphore::new(JOBS_MAX));
        Readers(Arc::new(Jobs { queue: Mutex::default(), waiting, free }))
    }

    /// Runs look-ups on this thread until the store closes. Then runs the look-ups that still wait, and accepts no
    /// more.
    pub(crate) async fn run(self, closed: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = closed.cancelled() => break,
                waiting = self.0.waiting.acquire() => match waiting {
                    Ok(permit) => permit.forget(),
                    Err(_closed) => break,
                },
            }
            self.run_next();
        }
        self.0.free.close();
        while self.run_next() {}
    }

    /// Runs the first look-up in the queue. Returns false if the queue is empty.
    fn run_next(&self) -> bool {
        let Some(job) = self.queue().pop_front() else { return false };
        self.0.free.add_permits(1);
        // After a panic, the caller gets an error, and the thread continues with the next look-up.
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!("a look-up panicked; please report this as a bug");
        }
        true
    }

    pub(crate) async fn read<T: Send + 'static>(
        &self,
        look_up: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (response, receiver) = oneshot::channel();
        let job = Box::new(move || {
            // The send of the response fails if the caller has dropped the receiver. This failure is harmless.
            let _ignored = response.send(look_up());
        });
        let closed = || StoreError::Unavailable("the store is closed".to_owned());
        self.0.free.acquire().await.map_err(|_| closed())?.forget();
        self.push(job);
        receiver.await.map_err(|_| closed())?
    }

    /// Starts a look-up that loads rows into memory, and does not wait for it. Does nothing if the queue is full or the
    /// store is closed.
    pub(crate) fn load_ahead(&self, look_up: impl FnOnce() + Send + 'static) {
        if let Ok(permit) = self.0.free.try_acquire() {
            permit.forget();
            self.push(Box::new(look_up));
        }
    }

    fn push(&self, job: Job) {
        self.queue().push_back(job);
        self.0.waiting.add_permits(1);
        if self.0.free.is_closed() {
            // The reader threads may have ended before they saw this look-up.
            self.queue().clear();
        }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Job>> {
        self.0.queue.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::future::join_all;
    use runtime::{Runtime, TaskSet};

    use super::*;

    fn start(readers: &Readers, closed: &CancellationToken, threads: usize) -> TaskSet {
        let tasks = TaskSet::new(&Runtime::real());
        for _ in 0..threads {
            tasks.spawn_thread("reader", readers.clone().run(closed.clone()));
        }
        tasks
    }

    #[tokio::test]
    async fn look_up_does_not_wait_behind_a_slow_one_while_a_thread_is_idle() {
        let (readers, closed) = (Readers::new(), CancellationToken::new());
        let tasks = start(&readers, &closed, 2);
        let (finish, slow) = mpsc::channel::<()>();
        let others = async {
            for number in 0..100 {
                assert_eq!(readers.read(move || Ok(number)).await.unwrap(), number);
            }
            finish.send(()).unwrap();
        };
        let (is_finished, ()) = tokio::join!(readers.read(move || Ok(slow.recv().is_ok())), others);
        assert!(is_finished.unwrap());
        closed.cancel();
        tasks.join().await;
    }

    #[tokio::test]
    async fn thread_continues_after_a_look_up_that_panics() {
        let (readers, closed) = (Readers::new(), CancellationToken::new());
        let tasks = start(&readers, &closed, 1);
        let panicked: Result<(), StoreError> = readers.read(|| panic!("the test panics deliberately")).await;
        assert!(panicked.is_err());
        assert_eq!(readers.read(|| Ok(7)).await.unwrap(), 7);
        closed.cancel();
        tasks.join().await;
    }

    #[tokio::test]
    async fn load_ahead_runs_only_if_the_queue_has_space() {
        let (readers, closed) = (Readers::new(), CancellationToken::new());
        let (count, counted) = mpsc::channel();
        for _ in 0..=JOBS_MAX {
            let count = count.clone();
            readers.load_ahead(move || count.send(()).unwrap());
        }
        drop(count);
        closed.cancel();
        start(&readers, &closed, 1).join().await;
        assert_eq!(counted.iter().count(), JOBS_MAX);
        readers.load_ahead(|| panic!("the readers have ended"));
    }

    #[tokio::test]
    async fn close_runs_the_look_ups_that_wait_and_rejects_later_ones() {
        let (readers, closed) = (Readers::new(), CancellationToken::new());
        let early = join_all((0..10).map(|number| readers.read(move || Ok(number))));
        let close = async {
            assert_eq!(readers.queue().len(), 10, "`join_all` has polled all look-ups");
            closed.cancel();
            start(&readers, &closed, 2).join().await;
        };
        let (early, ()) = tokio::join!(early, close);
        for (number, found) in early.into_iter().enumerate() {
            assert_eq!(found.unwrap(), number);
        }
        assert!(readers.read(|| Ok(())).await.is_err());
    }
}
