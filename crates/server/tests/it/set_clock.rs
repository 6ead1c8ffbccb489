//! A server whose wall clock a test sets, and a target that reports every callback.

use std::sync::Arc;

use domain::{AttemptResult, Timestamp};
use futures_util::future::{BoxFuture, FutureExt, ready};
use runtime::{Disk, Monotonic, Place, Runtime, TaskHandle, World};
use scheduler::{Deliver, Delivered, Delivery};
use tokio::sync::mpsc;

/// Returns the real machine, except that `reading` computes the reading of the wall clock from the real time.
pub(crate) fn with_clock(reading: impl Fn(Timestamp) -> Timestamp + Send + Sync + 'static) -> Runtime {
    Runtime::new(Arc::new(SetClock { real: Runtime::real(), reading: Box::new(reading) }))
}

struct SetClock {
    real: Runtime,
    reading: Box<dyn Fn(Timestamp) -> Timestamp + Send + Sync>,
}

impl World for SetClock {
    fn now(&self) -> Timestamp {
        (self.reading)(self.real.now())
    }

    fn monotonic(&self) -> Monotonic {
        self.real.world().monotonic()
    }

    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()> {
        self.real.world().sleep_until(at)
    }

    fn random(&self) -> u64 {
        self.real.world().random()
    }

    fn spawn(&self, name: &'static str, place: Place, future: BoxFuture<'static, ()>) -> TaskHandle {
        self.real.world().spawn(name, place, future)
    }

    fn disk(&self) -> Arc<dyn Disk> {
        self.real.world().disk()
    }

    fn halt(&self, reason: &str) {
        self.real.world().halt(reason);
    }
}

/// Target that accepts every callback, and reports the schedule's id and the instant.
pub(crate) struct Report(pub(crate) mpsc::UnboundedSender<(String, Timestamp)>);

impl Deliver for Report {
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'static, Option<Delivered>> {
        let _test_has_ended = self.0.send((delivery.schedule.id.to_string(), delivery.occurrence.nominal));
        ready(Some(Delivered { result: AttemptResult::Answered(200), retry_after: None, excerpt: None })).boxed()
    }
}
