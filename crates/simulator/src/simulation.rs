//! Simulation and its handle. A scenario uses the handle to control members, clocks, disks and time.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::ops::{Deref, RangeInclusive};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use domain::Timestamp;
use runtime::{Place, Runtime};
use tokio::sync::oneshot;

use crate::executor::{Core, DownReason, MemberIndex, OUTSIDE, Shared, Sleep};
use crate::faults::{Faults, Incidents};
use crate::member::{MemberWorld, wall_clock};
use crate::random::Random;
use crate::trace::{Event, Text};

/// One run of a world that a seed determines. A drop of this value drops all tasks of the world.
///
/// A scenario controls the simulation through [`Handle`], which is the `Deref` target of this type.
pub struct Simulation {
    handle: Handle,
}

impl Simulation {
    /// Creates a world without members.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let shared = Shared::new(seed);
        let random = shared.lock().random.fork();
        Simulation { handle: Handle { shared, seed, random: Arc::new(Mutex::new(random)) } }
    }

    /// Runs the world until the future `scenario` completes.
    ///
    /// # Panics
    /// Panics in these cases:
    ///
    /// - A task panics, and the scenario has not called [`Handle::tolerate_panics`].
    /// - No task can ever become runnable. The message contains the names of the waiting tasks.
    /// - Tasks wake each other endlessly at one instant.
    /// - The run exceeds the limit of time or the limit of polls.
    pub fn run_until<F: Future>(&self, scenario: F) -> F::Output {
        self.shared.run(scenario)
    }

    /// Runs the world for this duration of simulated time.
    ///
    /// # Panics
    /// Panics in the same cases as [`Simulation::run_until`].
    pub fn run_for(&self, duration: Duration) {
        self.run_until(self.sleep(duration));
    }
}

impl Deref for Simulation {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Handle that controls a simulation. A clone is cheap, so a task can have its own handle.
///
/// The scenario chooses the names of the members. The first call of [`Handle::member`] with a name creates the member.
/// All other functions panic if no member has the given name.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    seed: u64,
    random: Arc<Mutex<Random>>,
}

/// Members.
impl Handle {
    /// Returns the runtime of a member that is up. The first call creates and starts the member.
    ///
    /// # Panics
    /// Panics if the member is down. [`Handle::restart`] starts a member that is down.
    #[must_use]
    pub fn member(&self, name: &str) -> Runtime {
        let index = {
            let mut core = self.shared.lock();
            core.member_index(name).unwrap_or_else(|| {
                let index = core.add_member(name);
                core.boot(index);
                index
            })
        };
        assert!(self.shared.lock().members[index].is_up(), "the member {name} is down; call `restart` first");
        self.runtime(index)
    }

    /// Returns the runtime of clients, receivers and other processes outside the cluster. Its clock shows true time,
    /// and it never goes down.
    #[must_use]
    pub fn outside(&self) -> Runtime {
        self.runtime(OUTSIDE)
    }

    /// Starts a member that went down. The member keeps its disk.
    ///
    /// # Panics
    /// Panics if the member is up.
    #[must_use]
    pub fn restart(&self, name: &str) -> Runtime {
        let index = self.with(name, |core, index| {
            core.boot(index);
            index
        });
        self.runtime(index)
    }

    /// Cuts the member's power. The simulation drops the member's tasks, and may lose any part of the member's unsynced
    /// data. If the member is down, this function has no effect. If one of the member's own tasks calls this function,
    /// the crash takes effect at the task's next await.
    pub fn crash(&self, name: &str) {
        let index = self.with(name, |_, index| index);
        self.shared.take_down(index, DownReason::Crash);
    }

    /// Kills the member's process (`kill -9`). The data that the process has written stays, but the kill does not make
    /// it durable.
    pub fn kill(&self, name: &str) {
        let index = self.with(name, |_, index| index);
        self.shared.take_down(index, DownReason::Kill);
    }

    /// Pauses all tasks of the member for this duration. The member's disk and clocks continue.
    pub fn pause(&self, name: &str, duration: Duration) {
        self.with(name, |core, index| core.pause(index, duration));
    }

    #[must_use]
    pub fn is_up(&self, name: &str) -> bool {
        self.with(name, |core, index| core.members[index].is_up())
    }

    /// Waits until the member is down because of a crash, a kill or a halt.
    pub async fn down(&self, name: &str) {
        poll_fn(|context| {
            self.with(name, |core, index| {
                if !core.members[index].is_up() {
                    return Poll::Ready(());
                }
                core.watch(index, context.waker());
                Poll::Pending
            })
        })
        .await;
    }

    /// Returns the reasons of all halts of the member ([`Runtime::halt`]).
    #[must_use]
    pub fn halts(&self, name: &str) -> Vec<String> {
        self.with(name, |core, index| core.members[index].halts.clone())
    }

    /// Returns the times during which the member was paused or down, in true time. If the member is down now, the last
    /// of these times ends at [`Duration::MAX`].
    #[must_use]
    pub fn interruptions(&self, name: &str) -> Vec<RangeInclusive<Duration>> {
        self.with(name, |core, index| core.members[index].interruptions.clone())
    }

    /// Runs `request` as a task of the member, as if a client had sent it. Returns `None` if the member is down, or
    /// goes down before the response. In the second case, the request may have taken effect.
    pub async fn call<T: Send + 'static>(
        &self,
        name: &str,
        request: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (index, boot) = self.with(name, |core, index| (index, core.members[index].boot));
        let (sender, response) = oneshot::channel();
        let task = async move {
            let _receiver_is_gone = sender.send(request.await);
        };
        let _running = self.shared.spawn(index, boot, "request", Place::Shared, Box::pin(task))?;
        response.await.ok()
    }

    /// Moves the member's wall clock ahead by `millis`, or back if `millis` is negative.
    pub fn jump_clock(&self, name: &str, millis: i64) {
        self.with(name, |core, index| {
            let reading = wall_clock(core.epoch, core.now, core.members[index].clock_ahead);
            let member = &mut core.members[index];
            member.clock_latest = member.clock_latest.max(reading);
            member.clock_ahead = member.clock_ahead.saturating_add(millis);
            core.incident(index, crate::Incident::ClockJump, &format!("by {millis} ms"));
        });
    }

    /// Returns the reading of the member's wall clock.
    #[must_use]
    pub fn clock(&self, name: &str) -> Timestamp {
        self.with(name, |core, index| wall_clock(core.epoch, core.now, core.members[index].clock_ahead))
    }

    /// Returns the latest reading that the wall clock of a member has shown until now.
    #[must_use]
    pub fn latest_clock(&self) -> Timestamp {
        let core = self.shared.lock();
        let readings = core.members.iter().map(|member| {
            let reading = wall_clock(core.epoch, core.now, member.clock_ahead);
            reading.max(member.clock_latest)
        });
        readings.max().unwrap_or(core.epoch)
    }

    #[must_use]
    pub fn volume(&self, name: &str) -> VolumeHandle {
        VolumeHandle { shared: self.shared.clone(), member: self.with(name, |_, index| index) }
    }

    fn runtime(&self, member: MemberIndex) -> Runtime {
        let boot = self.shared.lock().members[member].boot;
        Runtime::new(Arc::new(MemberWorld { shared: self.shared.clone(), member, boot }))
    }

    fn with<T>(&self, name: &str, act: impl FnOnce(&mut Core, MemberIndex) -> T) -> T {
        let mut core = self.shared.lock();
        let Some(index) = core.member_index(name) else { panic!("unknown member {name}") };
        act(&mut core, index)
    }
}

/// Time and randomness.
impl Handle {
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Sets the reading of a correct wall clock at the start of the simulation. The default is [`crate::EPOCH`]. A
    /// scenario calls this function before it creates members.
    pub fn start_at(&self, epoch: Timestamp) {
        self.shared.lock().epoch = epoch;
    }

    /// Returns the reading of a correct wall clock at the start of the simulation.
    #[must_use]
    pub fn epoch(&self) -> Timestamp {
        self.shared.lock().epoch
    }

    /// Returns the true time since the start of the simulation. No member can read it.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.shared.lock().now
    }

    /// Sleeps for this duration of true time.
    pub async fn sleep(&self, duration: Duration) {
        let at = self.elapsed() + duration;
        Sleep::new(self.shared.clone(), OUTSIDE, 1, at).await;
    }

    /// Waits until `condition` returns true. Checks the condition every millisecond at first, and less often later.
    ///
    /// # Panics
    /// Panics if the condition does not hold within `limit`. The message contains `description`.
    pub async fn wait_until(&self, description: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
        let started = self.elapsed();
        let mut period = Duration::from_millis(1);
        while !condition() {
            let waited = self.elapsed() - started;
            assert!(waited < limit, "timed out after {waited:?} waiting for {description}");
            self.sleep(period.min(limit - waited)).await;
            period = (period * 3 / 2).min(Duration::from_secs(1));
        }
    }

    /// Draws random values from the scenario's own generator. These draws do not affect the draws of the world.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        draw(&mut self.random.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the random faults of every member. They apply from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.shared.lock().faults = faults;
    }

    /// Sets the limit of true time for the whole simulation. Default 24 hours.
    pub fn set_time_limit(&self, limit: Duration) {
        self.shared.lock().time_limit = limit;
    }

    /// Sets the limit of polls for the whole simulation. The default is 20,000,000 polls, for which a debug build needs
    /// about a minute. This limit also ends loops that the time limit does not end, for example retries without a wait.
    pub fn set_poll_limit(&self, polls: u64) {
        self.shared.lock().poll_limit = polls;
    }

    /// Lets the simulation continue after a panic of a task. Only the task's handle then reports the panic, as in the
    /// real world.
    pub fn tolerate_panics(&self) {
        self.shared.lock().panics_tolerated = true;
    }
}

/// Functions for the trace, the incidents and the panics.
impl Handle {
    #[must_use]
    pub fn incidents(&self) -> Incidents {
        self.shared.lock().incidents
    }

    /// Returns the messages of all panics of tasks so far. Each message contains the member and the task.
    #[must_use]
    pub fn panics(&self) -> Vec<String> {
        self.shared.lock().panics.clone()
    }

    /// Returns how many times the executor has polled the tasks and the scenario so far.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.shared.lock().polls()
    }

    /// Returns a hash of all events so far. Two runs of the same code with the same seed have the same hash.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.shared.lock().trace.hash()
    }

    pub fn set_trace_text(&self, text: Text) {
        self.shared.lock().trace.set_text(text);
    }

    /// Returns the last lines of the trace if the simulation uses [`Text::Tail`].
    #[must_use]
    pub fn trace_tail(&self) -> Vec<String> {
        self.shared.lock().trace.tail()
    }

    /// Adds a line with the scenario's text to the trace.
    pub fn note(&self, text: &str) {
        self.shared.lock().record(&Event::Note(text));
    }
}

/// Handle through which the scenario controls a member's disk. The handle's operations work even if the member is down,
/// and take no simulated time.
#[derive(Clone)]
pub struct VolumeHandle {
    shared: Arc<Shared>,
    member: MemberIndex,
}

impl VolumeHandle {
    /// Flips one bit of a file, in the durable contents and in the cached contents.
    ///
    /// # Panics
    /// Panics if the file has no byte at this offset.
    pub fn flip_bit(&self, path: impl AsRef<Path>, offset: u64, bit: u32) {
        let path = path.as_ref();
        let mut core = self.shared.lock();
        let volume = &mut core.members[self.member].volume;
        let flipped = volume.find(path).is_ok_and(|inode| volume.flip_bit(inode, offset, bit));
        assert!(flipped, "the file {} has no byte at offset {offset}", path.display());
        core.incident(self.member, crate::Incident::BitFlip, &format!("{} at {offset}", path.display()));
    }

    /// Sets the largest total size of all files in bytes. Default unlimited. The limit may be below the current size.
    pub fn set_capacity(&self, bytes: u64) {
        self.shared.lock().members[self.member].volume.capacity = bytes;
    }

    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.shared.lock().members[self.member].volume.used_bytes()
    }

    /// Cuts the power during the `number`th disk operation from now, counted from 1. The operation takes effect, but
    /// does not return. Like every crash, this crash may discard unsynced data. A sync counts as two operations, its
    /// start and its end.
    ///
    /// # Panics
    /// Panics if `number` is zero.
    pub fn crash_at_operation(&self, number: u64) {
        assert!(number > 0, "the number of a disk operation is at least 1");
        let mut core = self.shared.lock();
        let volume = &mut core.members[self.member].volume;
        volume.crash_at = Some(volume.operations + number);
    }

    /// Returns the number of disk operations so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.shared.lock().members[self.member].volume.operations
    }

    /// Returns the names of all files in a folder.
    #[must_use]
    pub fn files(&self, folder: impl AsRef<Path>) -> BTreeSet<String> {
        let core = self.shared.lock();
        core.members[self.member].volume.list(folder.as_ref()).unwrap_or_default().into_iter().collect()
    }

    /// Returns the contents that a read of the whole file returns. Returns `None` if the file does not exist.
    #[must_use]
    pub fn read(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let core = self.shared.lock();
        let volume = &core.members[self.member].volume;
        let inode = volume.find(path.as_ref()).ok()?;
        let mut bytes = vec![0; usize::try_from(volume.len(inode)).ok()?];
        volume.read(inode, 0, &mut bytes).ok()?;
        Some(bytes)
    }
}
