//! Simulated behaviour of one call: its latency, its steps and its failure.

use futures_util::lock::MutexGuard;

use super::MemoryStore;
use crate::{Health, StoreError};

/// Approximate number of pauses in a call of the weak engine. It does not depend on the size of the batch.
const PAUSES: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    Read,
    /// Write for a user. The store rejects such a write when the disk is nearly full.
    User,
    Owner,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failure {
    Never,
    /// The call fails at the beginning of a step. The field is the number of steps that the call still begins,
    /// including the step that fails. If the number is 0 when the call begins, the call fails before its first step.
    AfterSteps(u64),
    AfterEffect,
}

pub(super) struct Call<'a> {
    store: &'a MemoryStore,
    pause_one_in: u64,
    failure: Failure,
    /// Lock of a call of the atomic engine. The call releases the lock before it waits for the latency of the response.
    whole: Option<MutexGuard<'a, ()>>,
}

impl MemoryStore {
    /// Begins a call that is expected to make about `steps` steps.
    pub(super) async fn begin(&self, access: Access, steps: usize) -> Result<Call<'_>, StoreError> {
        let failure = self.draw_failure(steps);
        self.travel().await;
        let health = self.model().health;
        match health {
            Health::Closed => return Err(unavailable("closed")),
            Health::Unreachable => return Err(unavailable("unreachable")),
            Health::Full if access == Access::User => {
                return Err(StoreError::Full("`set_health` simulates a full disk".to_owned()));
            }
            Health::Full | Health::Ready => {}
        }
        if failure == Failure::AfterSteps(0) {
            return Err(unavailable("simulated failure before any effect of the call"));
        }
        let whole = if self.options.atomic { Some(self.data.whole.lock().await) } else { None };
        let pause_one_in = u64::try_from(steps.div_ceil(PAUSES)).unwrap_or(u64::MAX).max(1);
        Ok(Call { store: self, pause_one_in, failure, whole })
    }

    fn draw_failure(&self, steps: usize) -> Failure {
        let Some(one_in) = self.options.fail_one_in else { return Failure::Never };
        if !self.runtime.random().is_multiple_of(u64::from(one_in)) {
            return Failure::Never;
        }
        match self.runtime.random() % 3 {
            0 => Failure::AfterSteps(0),
            1 if !self.options.atomic && steps > 0 => {
                let steps = u64::try_from(steps).unwrap_or(u64::MAX);
                Failure::AfterSteps(1 + self.runtime.random() % steps)
            }
            _ => Failure::AfterEffect,
        }
    }

    async fn travel(&self) {
        if let Some(latency) = &self.options.latency {
            let (least, most) = (latency.start().as_nanos(), latency.end().as_nanos());
            let spread = u64::try_from(most.saturating_sub(least)).unwrap_or(u64::MAX).saturating_add(1);
            let extra = std::time::Duration::from_nanos(self.runtime.random() % spread);
            self.runtime.sleep(*latency.start() + extra).await;
        }
    }
}

impl Call<'_> {
    /// Begins the next step. In the weak engine, other calls may run before the step.
    pub(super) async fn step(&mut self) -> Result<(), StoreError> {
        if self.store.options.atomic {
            return Ok(());
        }
        if let Failure::AfterSteps(left) = &mut self.failure {
            *left -= 1;
            if *left == 0 {
                return Err(unavailable("simulated failure between two steps of the call"));
            }
        }
        if self.store.runtime.random().is_multiple_of(self.pause_one_in) {
            yield_now().await;
            self.store.travel().await;
        }
        Ok(())
    }

    pub(super) async fn end<T>(self, response: T) -> Result<T, StoreError> {
        let Call { store, failure, whole, .. } = self;
        drop(whole);
        store.travel().await;
        match failure {
            Failure::Never => Ok(response),
            Failure::AfterSteps(_) | Failure::AfterEffect => {
                Err(unavailable("simulated failure after the effect of the call"))
            }
        }
    }
}

fn unavailable(reason: &str) -> StoreError {
    StoreError::Unavailable(format!("in-memory store: {reason}"))
}

/// Yields once, so that other tasks that are ready can run.
async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}
