//! What may go wrong by itself, and the count of what did.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// How the world misbehaves without being told to. Probabilities run from 0 to 1, and all are 0 by default.
///
/// Crashes, pauses, clock jumps, full disks and flipped bits come from the scenario instead, which knows when they
/// are interesting: see [`crate::Handle`] and [`crate::VolumeHandle`].
#[derive(Clone, Debug)]
pub struct Faults {
    /// How long a read, write or name operation takes. Default 0 to 20 microseconds.
    pub operation_time: RangeInclusive<Duration>,
    /// How long a sync takes. Default 50 microseconds to 1 millisecond.
    pub sync_time: RangeInclusive<Duration>,
    /// That a sync is slow, and how slow then. Defaults 0, and 1 to 5 seconds.
    pub sync_slow: f64,
    pub sync_slow_time: RangeInclusive<Duration>,
    /// That `sync_data` fails. What became of each byte since the last good one is then anyone's guess, now and after
    /// a crash, and a further sync does not bring it back (as on Linux).
    pub sync_fail: f64,
    /// That `write_at` or `allocate` fails, having written some of it.
    pub write_fail: f64,
    /// That `read_at` fails.
    pub read_fail: f64,
    /// The most that a timer is late. Default zero.
    pub timer_late_max: Duration,
    /// The most that one poll of a task takes. Default zero: only waiting takes time.
    pub poll_time_max: Duration,
}

impl Default for Faults {
    fn default() -> Self {
        Faults {
            operation_time: Duration::ZERO..=Duration::from_micros(20),
            sync_time: Duration::from_micros(50)..=Duration::from_millis(1),
            sync_slow: 0.0,
            sync_slow_time: Duration::from_secs(1)..=Duration::from_secs(5),
            sync_fail: 0.0,
            write_fail: 0.0,
            read_fail: 0.0,
            timer_late_max: Duration::ZERO,
            poll_time_max: Duration::ZERO,
        }
    }
}

/// Something that went wrong in a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Incident {
    /// A member lost power.
    Crash,
    /// A member's process was killed; what it had written stayed.
    Kill,
    /// A member ended itself.
    Halt,
    Pause,
    ClockJump,
    /// A crash left some sectors of an unsynced write and not others.
    TornWrite,
    /// A crash left nothing of an unsynced write.
    LostWrite,
    /// A crash undid the making, renaming or removing of a name.
    LostName,
    FailedSync,
    SlowSync,
    FailedWrite,
    FailedRead,
    DiskFull,
    BitFlip,
    TaskPanic,
}

impl Incident {
    pub const ALL: [Incident; 15] = [
        Incident::Crash,
        Incident::Kill,
        Incident::Halt,
        Incident::Pause,
        Incident::ClockJump,
        Incident::TornWrite,
        Incident::LostWrite,
        Incident::LostName,
        Incident::FailedSync,
        Incident::SlowSync,
        Incident::FailedWrite,
        Incident::FailedRead,
        Incident::DiskFull,
        Incident::BitFlip,
        Incident::TaskPanic,
    ];
}

/// How often each [`Incident`] happened in one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Incidents([u64; Incident::ALL.len()]);

impl Incidents {
    #[must_use]
    pub fn count(&self, incident: Incident) -> u64 {
        self.0[incident as usize]
    }

    pub(crate) fn add(&mut self, incident: Incident) {
        self.0[incident as usize] += 1;
    }
}

/// Over many runs: in how many each [`Incident`] happened. What never happened was not tested.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    pub seeds: u64,
    seeds_with: [u64; Incident::ALL.len()],
}

impl Coverage {
    #[must_use]
    pub fn seeds_with(&self, incident: Incident) -> u64 {
        self.seeds_with[incident as usize]
    }

    /// # Panics
    /// If one of these never happened in any run.
    pub fn assert_happened(&self, incidents: &[Incident]) {
        for incident in incidents {
            assert!(self.seeds_with(*incident) > 0, "no run had a {incident:?}, so nothing was tested of it: {self}");
        }
    }

    pub(crate) fn add(&mut self, run: &Incidents) {
        self.seeds += 1;
        for (seeds, count) in self.seeds_with.iter_mut().zip(run.0) {
            *seeds += u64::from(count > 0);
        }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} seeds, of which with", self.seeds)?;
        for incident in Incident::ALL {
            write!(f, " {incident:?} {}", self.seeds_with(incident))?;
        }
        Ok(())
    }
}
