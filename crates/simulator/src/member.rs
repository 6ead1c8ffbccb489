//! World of one simulated member. It implements [`runtime::World`].

use std::sync::Arc;
use std::time::Duration;

use domain::Timestamp;
use futures_util::future::{BoxFuture, FutureExt, ready};
use runtime::{Disk, Monotonic, Place, TaskEnd, TaskHandle, World};

use crate::disk::SimulatedDisk;
use crate::executor::{DownReason, MemberIndex, Shared, Sleep};

/// World of a member, valid from a start of the member until the member goes down. After that, only the clocks and the
/// random numbers still work.
pub(crate) struct MemberWorld {
    pub(crate) shared: Arc<Shared>,
    pub(crate) member: MemberIndex,
    pub(crate) boot: u64,
}

pub(crate) fn wall_clock(epoch: Timestamp, now: Duration, ahead_millis: i64) -> Timestamp {
    let millis = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(epoch.as_millis().saturating_add(millis).saturating_add(ahead_millis))
}

impl World for MemberWorld {
    fn now(&self) -> Timestamp {
        let core = self.shared.lock();
        wall_clock(core.epoch, core.now, core.members[self.member].clock_ahead)
    }

    fn monotonic(&self) -> Monotonic {
        let core = self.shared.lock();
        Monotonic::from_start(core.members[self.member].monotonic_base + core.now)
    }

    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()> {
        let base = self.shared.lock().members[self.member].monotonic_base;
        let at = at.since_start().saturating_sub(base);
        Box::pin(Sleep::new(self.shared.clone(), self.member, self.boot, at))
    }

    fn random(&self) -> u64 {
        self.shared.lock().members[self.member].random.bits()
    }

    fn spawn(&self, name: &'static str, place: Place, future: BoxFuture<'static, ()>) -> TaskHandle {
        let Some((id, ended)) = self.shared.spawn(self.member, self.boot, name, place, future) else {
            return TaskHandle { end: Box::pin(ready(TaskEnd::Aborted)), abort: Box::new(|| {}) };
        };
        let shared = Arc::downgrade(&self.shared);
        let abort = move || {
            if let Some(shared) = shared.upgrade() {
                shared.abort(id);
            }
        };
        TaskHandle { end: Box::pin(ended.map(|end| end.unwrap_or(TaskEnd::Aborted))), abort: Box::new(abort) }
    }

    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(SimulatedDisk::new(self.shared.clone(), self.member, self.boot))
    }

    fn halt(&self, reason: &str) {
        {
            let mut core = self.shared.lock();
            if !core.is_current(self.member, self.boot) {
                return;
            }
            core.members[self.member].halts.push(reason.to_owned());
        }
        self.shared.take_down(self.member, DownReason::Halt);
    }
}
