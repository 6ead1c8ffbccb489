//! Random faults of the simulated world, and the numbers of incidents.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Random faults of the simulated world. Each probability is between 0 and 1, and is 0 by default.
///
/// The scenario itself causes crashes, pauses, clock jumps, full disks and flipped bits, so that it can choose useful
/// instants for them. See [`crate::Handle`] and [`crate::VolumeHandle`].
#[derive(Clone, Debug)]
pub struct Faults {
    /// Duration of a read, a write or an operation on file names. Default 0 to 20 microseconds.
    pub operation_time: RangeInclusive<Duration>,
    /// Duration of a sync. Default 50 microseconds to 1 millisecond.
    pub sync_time: RangeInclusive<Duration>,
    /// Probability of a slow sync.
    pub sync_slow: f64,
    /// Duration of a slow sync. Default 1 to 5 seconds.
    pub sync_slow_time: RangeInclusive<Duration>,
    /// Probability that `sync_data` fails. The failed sync may lose any byte written since the last successful sync,
    /// immediately or after a crash. As on Linux, a further sync does not restore a lost byte.
    pub sync_fail: f64,
    /// Probability that `write_at` fails after a partial write. Also the probability that `allocate` fails.
    pub write_fail: f64,
    /// Probability that `read_at` fails.
    pub read_fail: f64,
    /// Largest delay of a timer. Default zero.
    pub timer_late_max: Duration,
    /// Largest duration of one poll of a task. Default zero: time advances only while all tasks wait.
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

/// Kind of fault that happened in a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Incident {
    /// A member lost power.
    Crash,
    /// The scenario killed a member's process. The data that the process wrote stayed.
    Kill,
    /// A member halted its own process.
    Halt,
    Pause,
    ClockJump,
    /// A crash or a failed sync kept some sectors of an unsynced write and discarded other sectors.
    TornWrite,
    /// A crash or a failed sync discarded an unsynced write.
    LostWrite,
    /// A crash undid the creation, renaming or removal of a file.
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

/// Number of times that each [`Incident`] happened in one run.
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

/// Number of runs in which each [`Incident`] happened. If an incident never happened, the runs did not test it.
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

    /// Asserts that each of these incidents happened in at least one run.
    ///
    /// # Panics
    /// Panics if one of these incidents happened in no run.
    pub fn assert_happened(&self, incidents: &[Incident]) {
        for incident in incidents {
            assert!(self.seeds_with(*incident) > 0, "no run contained the incident {incident:?}: {self}");
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
        write!(f, "{} seeds; seeds with", self.seeds)?;
        for incident in Incident::ALL {
            write!(f, " {incident:?} {}", self.seeds_with(incident))?;
        }
        Ok(())
    }
}
