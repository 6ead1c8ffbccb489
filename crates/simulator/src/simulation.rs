//! The scenario's hands: members up and down, clocks, disks, and time.

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

use crate::executor::{Blow, Core, MemberIndex, OUTSIDE, Shared, Sleep};
use crate::faults::{Faults, Incidents};
use crate::member::{MemberWorld, wall_clock};
use crate::random::Random;
use crate::trace::{Event, Text};

/// One run of a world that follows from a seed. Dropped, it drops every task in it.
///
/// Everything that a scenario does goes through [`Handle`], which this dereferences to.
pub struct Simulation {
    handle: Handle,
}

impl Simulation {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let shared = Shared::new(seed);
        let random = shared.lock().random.fork();
        Simulation { handle: Handle { shared, seed, random: Arc::new(Mutex::new(random)) } }
    }

    /// Lets the world run until `scenario` is ready.
    ///
    /// # Panics
    /// If a task panics (unless [`Handle::tolerate_panics`] was called); if nothing can ever happen again, naming what
    /// waits; if tasks wake each other without end while time stands still; at the limits of time and polls.
    pub fn run_until<F: Future>(&self, scenario: F) -> F::Output {
        self.shared.run(scenario)
    }

    /// Lets the world run for this long.
    ///
    /// # Panics
    /// As [`Simulation::run_until`].
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

/// Controls a simulation; cheap to copy, also into tasks.
///
/// Members are named by the scenario and made by the first [`Handle::member`]. What is asked of a member that there
/// never was panics.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    seed: u64,
    random: Arc<Mutex<Random>>,
}

/// Members.
impl Handle {
    /// The world of a member that is up; the first call makes it and boots it.
    ///
    /// # Panics
    /// If it is down: [`Handle::restart`] it.
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
        assert!(self.shared.lock().members[index].is_up(), "{name} is down: restart it");
        self.runtime(index)
    }

    /// The world of clients, receivers and other bystanders: its clock shows true time, and it never goes down.
    #[must_use]
    pub fn outside(&self) -> Runtime {
        self.runtime(OUTSIDE)
    }

    /// Starts a member again that went down, on the disk that it left.
    ///
    /// # Panics
    /// If it is up.
    #[must_use]
    pub fn restart(&self, name: &str) -> Runtime {
        let index = self.with(name, |core, index| {
            core.boot(index);
            index
        });
        self.runtime(index)
    }

    /// Cuts the member's power: its tasks are dropped, and of what it had not synced any part may be lost. Without
    /// effect if it is down. In one of its own tasks, it takes effect at that task's next await.
    pub fn crash(&self, name: &str) {
        let index = self.with(name, |_, index| index);
        self.shared.strike(index, Blow::Crash);
    }

    /// Kills the member's process (`kill -9`): as a crash, but what it wrote stays, though still not durable.
    pub fn kill(&self, name: &str) {
        let index = self.with(name, |_, index| index);
        self.shared.strike(index, Blow::Kill);
    }

    /// For this long, none of the member's tasks runs. Its disk and clocks go on.
    pub fn pause(&self, name: &str, duration: Duration) {
        self.with(name, |core, index| core.pause(index, duration));
    }

    #[must_use]
    pub fn is_up(&self, name: &str) -> bool {
        self.with(name, |core, index| core.members[index].is_up())
    }

    /// Ready when the member is down: crashed, killed or halted.
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

    /// Why the member ended itself, each time that it did ([`Runtime::halt`]).
    #[must_use]
    pub fn halts(&self, name: &str) -> Vec<String> {
        self.with(name, |core, index| core.members[index].halts.clone())
    }

    /// When the member was paused or down, in true time; until [`Duration::MAX`] if it is down now.
    #[must_use]
    pub fn interruptions(&self, name: &str) -> Vec<RangeInclusive<Duration>> {
        self.with(name, |core, index| core.members[index].interruptions.clone())
    }

    /// Runs `request` as a task of the member, as if a client had sent it there; `None` if the member went down, or
    /// was down, before it was answered: then it is not known what became of it.
    pub async fn call<T: Send + 'static>(
        &self,
        name: &str,
        request: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (index, boot) = self.with(name, |core, index| (index, core.members[index].boot));
        let (answer, answered) = oneshot::channel();
        let task = async move {
            let _unheard = answer.send(request.await);
        };
        let _running = self.shared.spawn(index, boot, "request", Place::Shared, Box::pin(task))?;
        answered.await.ok()
    }

    /// Sets the member's wall clock forward, or back if `millis` is negative.
    pub fn jump_clock(&self, name: &str, millis: i64) {
        self.with(name, |core, index| {
            let ahead = &mut core.members[index].clock_ahead;
            *ahead = ahead.saturating_add(millis);
            core.incident(index, crate::Incident::ClockJump, &format!("by {millis} ms"));
        });
    }

    /// What the member's wall clock shows.
    #[must_use]
    pub fn clock(&self, name: &str) -> Timestamp {
        self.with(name, |core, index| wall_clock(core.now, core.members[index].clock_ahead))
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
        let Some(index) = core.member_index(name) else { panic!("there is no member {name}") };
        act(&mut core, index)
    }
}

/// Time and chance.
impl Handle {
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// True time since the beginning, which no member sees.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.shared.lock().now
    }

    /// Sleeps in true time.
    pub async fn sleep(&self, duration: Duration) {
        let at = self.elapsed() + duration;
        Sleep::new(self.shared.clone(), OUTSIDE, 1, at).await;
    }

    /// Waits until `condition` holds, looking every millisecond at first and then ever more seldom.
    ///
    /// # Panics
    /// If it does not hold within `limit`; the message says `what`.
    pub async fn wait_until(&self, what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
        let begun = self.elapsed();
        let mut period = Duration::from_millis(1);
        while !condition() {
            let waited = self.elapsed() - begun;
            assert!(waited < limit, "waited {waited:?} in vain for {what}");
            self.sleep(period.min(limit - waited)).await;
            period = (period * 3 / 2).min(Duration::from_secs(1));
        }
    }

    /// A draw of the scenario's own, which does not shift those of the world.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        draw(&mut self.random.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on, for every member.
    pub fn set_faults(&self, faults: Faults) {
        self.shared.lock().faults = faults;
    }

    /// How much true time the whole simulation may take; 24 hours unless this is called.
    pub fn set_time_limit(&self, limit: Duration) {
        self.shared.lock().time_limit = limit;
    }

    /// How many polls the whole simulation may take; 20,000,000 unless this is called: a debug build takes about a minute for them.
    /// It ends loops that time alone does not: retries without a pause, for example.
    pub fn set_poll_limit(&self, polls: u64) {
        self.shared.lock().poll_limit = polls;
    }

    /// A task's panic is told to its owner, as in the real world, and no longer ends the simulation.
    pub fn tolerate_panics(&self) {
        self.shared.lock().panics_tolerated = true;
    }
}

/// What happened.
impl Handle {
    #[must_use]
    pub fn incidents(&self) -> Incidents {
        self.shared.lock().incidents
    }

    /// The panics of tasks so far, with the member and task that had them.
    #[must_use]
    pub fn panics(&self) -> Vec<String> {
        self.shared.lock().panics.clone()
    }

    /// How many polls of tasks and scenario there were.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.shared.lock().polls()
    }

    /// A hash of everything that happened so far: equal for equal seeds and code.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.shared.lock().trace.hash()
    }

    pub fn set_trace_text(&self, text: Text) {
        self.shared.lock().trace.set_text(text);
    }

    /// The last lines of the trace, with [`Text::Tail`].
    #[must_use]
    pub fn trace_tail(&self) -> Vec<String> {
        self.shared.lock().trace.tail()
    }

    /// Writes a line of the scenario's own into the trace.
    pub fn note(&self, text: &str) {
        self.shared.lock().record(&Event::Note(text));
    }
}

/// A member's disk, as no process sees it. Works while the member is down, too, and takes no time.
#[derive(Clone)]
pub struct VolumeHandle {
    shared: Arc<Shared>,
    member: MemberIndex,
}

impl VolumeHandle {
    /// Turns over one bit of what is stored and of what a read sees.
    ///
    /// # Panics
    /// If there is no such byte.
    pub fn flip_bit(&self, path: impl AsRef<Path>, offset: u64, bit: u32) {
        let path = path.as_ref();
        let mut core = self.shared.lock();
        let volume = &mut core.members[self.member].volume;
        let flipped = volume.find(path).is_ok_and(|inode| volume.flip_bit(inode, offset, bit));
        assert!(flipped, "there is no byte {offset} in {}", path.display());
        core.incident(self.member, crate::Incident::BitFlip, &format!("{} at {offset}", path.display()));
    }

    /// Bytes that all files may take up together; unlimited at first. May be set below what they do.
    pub fn set_capacity(&self, bytes: u64) {
        self.shared.lock().members[self.member].volume.capacity = bytes;
    }

    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.shared.lock().members[self.member].volume.used_bytes()
    }

    /// The power goes in the `number`th disk operation from now, counted from 1: it has its effect, is not answered,
    /// and leaves what a crash leaves. A sync counts twice, as it begins and as it ends.
    ///
    /// # Panics
    /// If `number` is zero.
    pub fn crash_at_operation(&self, number: u64) {
        assert!(number > 0, "operations are counted from 1");
        let mut core = self.shared.lock();
        let volume = &mut core.members[self.member].volume;
        volume.crash_at = Some(volume.operations + number);
    }

    /// Disk operations so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.shared.lock().members[self.member].volume.operations
    }

    /// The files in a folder.
    #[must_use]
    pub fn files(&self, folder: impl AsRef<Path>) -> BTreeSet<String> {
        let core = self.shared.lock();
        core.members[self.member].volume.list(folder.as_ref()).unwrap_or_default().into_iter().collect()
    }

    /// What a read of the whole file would see; `None` if there is none.
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
