//! Logs of a chaos test. The requests, the callbacks, the faults, the pollers of the schedules, and the runs that the
//! service recorded are in separate files of JSON lines. The check uses only these files.
//!
//! Invariant: when `write` returns, the line has reached the kernel's file cache. The kernel writes it to the disk
//! later.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub(super) const REQUESTS: &str = "requests.jsonl";
pub(super) const CALLBACKS: &str = "callbacks.jsonl";
/// Records that the topic contains at the end of the test. They have the form of callbacks.
pub(super) const RECORDS: &str = "records.jsonl";
pub(super) const FAULTS: &str = "faults.jsonl";
pub(super) const PLACES: &str = "places.jsonl";
pub(super) const RUNS: &str = "runs.jsonl";

/// Returns the time of this machine's clock in milliseconds since 1970. All members read the same clock.
pub(super) fn now_millis() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(since.expect("this machine's clock shows a time after 1970").as_millis())
        .expect("this machine's clock shows a time before the year 500,000,000")
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Operation {
    Create,
    Put,
    Cancel,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// Response with status 201 to a create request, or with status 201 or 200 to a put request.
    Acknowledged,
    /// Status 409.
    Exists,
    Cancelled,
    TooLate,
    Pending,
    /// Status 404.
    NotFound,
    /// No response, or status 5xx. It is unknown whether the service applied the request.
    Unknown,
    /// Any other response, which shows a bug of the service or of this harness.
    Strange,
}

/// Request with its response.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Request {
    /// Name that the client gives the schedule. The callbacks contain this name.
    pub(super) token: String,
    pub(super) operation: Operation,
    /// Number of the request body. It increases with each body that the client sends for this schedule.
    pub(super) version: u32,
    /// Due instant of a one-shot schedule.
    pub(super) at_ms: Option<u64>,
    pub(super) every_ms: Option<u64>,
    /// Cron expression and time zone of a recurring schedule.
    #[serde(default)]
    pub(super) cron: Option<(String, String)>,
    pub(super) member: String,
    pub(super) asked_ms: u64,
    pub(super) answered_ms: u64,
    pub(super) answer: Answer,
    pub(super) status: u16,
    /// Id that the service gives the schedule.
    pub(super) id: Option<String>,
    /// First due instant of this version of the schedule, according to the response.
    pub(super) next_ms: Option<u64>,
    /// Instant by which the service decides about a cancellation, according to the `pending` response.
    pub(super) decided_by_ms: Option<u64>,
    /// True if the database has the effect of the request at the end of the test. False if that is unknown.
    #[serde(default)]
    pub(super) is_kept: bool,
    /// True if an attempt was in flight when a put request replaced the schedule.
    #[serde(default)]
    pub(super) too_late: bool,
    /// Text of an unusual response or failure.
    pub(super) said: Option<String>,
}

/// Callback that the receiver logs before it responds, or record of a callback in the topic.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Callback {
    pub(super) token: String,
    pub(super) version: u32,
    /// Time at which the receiver received the callback, or the broker stored the record.
    pub(super) arrived_ms: u64,
    /// Start of the attempt according to the callback's headers: nominal instant plus lateness.
    pub(super) started_ms: u64,
    pub(super) nominal_ms: u64,
    pub(super) run: String,
    pub(super) schedule: String,
    pub(super) attempt: u32,
    pub(super) term: u64,
    /// Address of the member that sent the callback. Each member has its own address. A record does not contain the
    /// address. The check derives it from other callbacks of the same shard and term; it is empty if there are none.
    pub(super) from: String,
    pub(super) answered_with: u16,
    pub(super) answered_after_ms: u64,
    /// True for a record in the topic.
    #[serde(default)]
    pub(super) is_record: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    KilledAndLeftDead,
    KilledAndRestarted,
    Paused,
    CutOff,
    CutFromDatabase,
    CutFromPeers,
    CutFromReceiver,
    Stopped,
    JoinedAndLeft,
    DatabaseRestarted,
    DatabaseKilled,
    DatabasePaused,
    /// The database fails over to an asynchronous standby that lacks the last commits.
    DatabaseFailedOver,
    CutFromEnsemble,
    EnsembleKilled,
    EnsemblePaused,
    CutFromBus,
    BusKilled,
    BusPaused,
}

impl Kind {
    pub(super) const ALL: [Kind; 19] = [
        Kind::KilledAndLeftDead,
        Kind::KilledAndRestarted,
        Kind::Paused,
        Kind::CutOff,
        Kind::CutFromDatabase,
        Kind::CutFromPeers,
        Kind::CutFromReceiver,
        Kind::Stopped,
        Kind::JoinedAndLeft,
        Kind::DatabaseRestarted,
        Kind::DatabaseKilled,
        Kind::DatabasePaused,
        Kind::DatabaseFailedOver,
        Kind::CutFromEnsemble,
        Kind::EnsembleKilled,
        Kind::EnsemblePaused,
        Kind::CutFromBus,
        Kind::BusKilled,
        Kind::BusPaused,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::KilledAndLeftDead => "killed, left dead",
            Kind::KilledAndRestarted => "killed, restarted",
            Kind::Paused => "paused past lease",
            Kind::CutOff => "cut off",
            Kind::CutFromDatabase => "cut from database",
            Kind::CutFromPeers => "cut from peers",
            Kind::CutFromReceiver => "cut from receiver",
            Kind::Stopped => "stopped gracefully",
            Kind::JoinedAndLeft => "joined and left",
            Kind::DatabaseRestarted => "database restarted",
            Kind::DatabaseKilled => "database killed",
            Kind::DatabasePaused => "database paused",
            Kind::DatabaseFailedOver => "database failed over",
            Kind::CutFromEnsemble => "cut from ensemble",
            Kind::EnsembleKilled => "ensemble killed",
            Kind::EnsemblePaused => "ensemble paused",
            Kind::CutFromBus => "cut from bus",
            Kind::BusKilled => "bus killed",
            Kind::BusPaused => "bus paused",
        }
    }

    pub(super) fn is_of_ensemble(self) -> bool {
        matches!(self, Kind::EnsembleKilled | Kind::EnsemblePaused)
    }

    pub(super) fn is_of_bus(self) -> bool {
        matches!(self, Kind::BusKilled | Kind::BusPaused)
    }

    /// Returns true if only a cluster with an ensemble has this fault.
    pub(super) fn needs_ensemble(self) -> bool {
        self.is_of_ensemble() || self == Kind::CutFromEnsemble
    }

    /// Returns true if only a cluster with a message bus has this fault.
    pub(super) fn needs_bus(self) -> bool {
        self.is_of_bus() || self == Kind::CutFromBus
    }

    /// Returns true if the fault affects all members.
    pub(super) fn is_of_all(self) -> bool {
        self.is_of_database() || self.is_of_ensemble() || self.is_of_bus()
    }

    pub(super) fn is_of_database(self) -> bool {
        matches!(self, Kind::DatabaseRestarted | Kind::DatabaseKilled | Kind::DatabasePaused | Kind::DatabaseFailedOver)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Fault {
    pub(super) number: usize,
    pub(super) kind: Kind,
    /// Address of the affected member; empty for a fault of the database, of the ensemble or of the bus.
    pub(super) member: String,
    pub(super) start_ms: u64,
    /// End of the fault. At this instant the member's process has died or runs again, the member's links work again, or
    /// the database responds.
    pub(super) end_ms: u64,
    /// End of the recovery. At this instant a member that was dead is ready again.
    pub(super) healed_ms: u64,
    /// Commits that a fail-over of the database lost.
    #[serde(default)]
    pub(super) lost: Option<Loss>,
}

/// Interval of the commits that a database may have lost. The database has kept all earlier commits, and it has lost only
/// the last commits of the interval: if it has kept a commit, it has also kept all commits before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Loss {
    /// The standby has every commit that the primary acknowledged before this instant.
    pub(super) from_ms: u64,
    /// At this instant, no process of the primary runs any more, and the standby is not yet promoted.
    pub(super) until_ms: u64,
}

/// Poller of a schedule.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Placement {
    pub(super) token: String,
    pub(super) poller: i64,
}

/// Run of a schedule, as the service reports it to the check.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RunRecord {
    pub(super) token: String,
    pub(super) id: String,
    pub(super) state: String,
    pub(super) nominal_ms: u64,
    pub(super) missed_last_ms: Option<u64>,
    /// True if the record says that an attempt of a missed run may have started.
    #[serde(default)]
    pub(super) attempt_possible: bool,
    /// Number of attempts that the service has recorded.
    pub(super) attempts: usize,
}

pub(super) struct Log(Mutex<File>);

impl Log {
    pub(super) fn create(path: &Path) -> anyhow::Result<Self> {
        Ok(Log(Mutex::new(File::create(path).with_context(|| format!("cannot create {}", path.display()))?)))
    }

    pub(super) fn write(&self, record: &impl Serialize) {
        let mut line = serde_json::to_vec(record).expect("every log record can be serialized as JSON");
        line.push(b'\n');
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&line).expect("the disk has space for the logs of the chaos test");
    }
}

pub(super) fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Vec<T>> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let parse = |line: std::io::Result<String>| -> anyhow::Result<T> {
        serde_json::from_str(&line?).with_context(|| format!("a line of {} is not a valid JSON record", path.display()))
    };
    BufReader::new(file).lines().map(parse).collect()
}

/// Returns the folder for the logs of a run: `keep`, or a new temporary folder whose name begins with `prefix`.
///
/// # Errors
/// Returns an error if the folder cannot be created, or if it is not empty.
pub(super) fn log_folder(keep: Option<&Path>, prefix: &str) -> anyhow::Result<PathBuf> {
    let folder = match keep {
        Some(folder) => folder.to_owned(),
        None => tempfile::Builder::new().prefix(prefix).tempdir()?.keep(),
    };
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let folder = folder.canonicalize()?;
    ensure!(
        std::fs::read_dir(&folder)?.next().is_none(),
        "the folder {} is not empty; choose another folder for the logs",
        folder.display()
    );
    Ok(folder)
}
