//! What a run writes down: requests, callbacks and faults, each a file of JSON lines. The judge sees nothing else.
//!
//! Always true here: a line is in the file (of the kernel, not of the disk) when `write` returns.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub(super) const REQUESTS: &str = "requests.jsonl";
pub(super) const CALLBACKS: &str = "callbacks.jsonl";
pub(super) const FAULTS: &str = "faults.jsonl";
pub(super) const PLACES: &str = "places.jsonl";
pub(super) const RUNS: &str = "runs.jsonl";

/// Milliseconds since 1970 by this machine's clock, the same that all members read.
pub(super) fn now_millis() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(since.expect("it is after 1970").as_millis()).expect("it is long before the year 500,000,000")
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
    /// 201 or 200 of a create or a put.
    Acknowledged,
    /// 409.
    Exists,
    Cancelled,
    TooLate,
    Pending,
    /// 404.
    NotFound,
    /// No answer, or 5xx: it may have happened or not.
    Unknown,
    /// Any other: neither the service nor the harness should be there.
    Strange,
}

/// One request and what was answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Request {
    /// The client's own name of the schedule; the callbacks bring it back.
    pub(super) token: String,
    pub(super) operation: Operation,
    /// Which of the bodies that were sent for this schedule; rises.
    pub(super) version: u32,
    /// When a one-shot is due.
    pub(super) at_ms: Option<u64>,
    pub(super) every_ms: Option<u64>,
    pub(super) member: String,
    pub(super) asked_ms: u64,
    pub(super) answered_ms: u64,
    pub(super) answer: Answer,
    pub(super) status: u16,
    /// The service's id of the schedule.
    pub(super) id: Option<String>,
    /// The first instant, as the answer has it.
    pub(super) next_ms: Option<u64>,
    /// Of a `pending` answer.
    pub(super) decided_by_ms: Option<u64>,
    /// Of a put that replaced what was in flight.
    #[serde(default)]
    pub(super) too_late: bool,
    /// What the answer, or the failure, said if it is none of the usual.
    pub(super) said: Option<String>,
}

/// One callback, written before it is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Callback {
    pub(super) token: String,
    pub(super) version: u32,
    pub(super) arrived_ms: u64,
    /// When the sender began the attempt, by its own word: nominal instant and lateness.
    pub(super) started_ms: u64,
    pub(super) nominal_ms: u64,
    pub(super) run: String,
    pub(super) schedule: String,
    pub(super) attempt: u32,
    pub(super) term: u64,
    /// The sender's address: each member has its own.
    pub(super) from: String,
    pub(super) answered_with: u16,
    pub(super) answered_after_ms: u64,
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
}

impl Kind {
    pub(super) const ALL: [Kind; 12] = [
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
            Kind::Stopped => "stopped politely",
            Kind::JoinedAndLeft => "joined and left",
            Kind::DatabaseRestarted => "database restarted",
            Kind::DatabaseKilled => "database killed",
            Kind::DatabasePaused => "database paused",
        }
    }

    pub(super) fn is_of_database(self) -> bool {
        matches!(self, Kind::DatabaseRestarted | Kind::DatabaseKilled | Kind::DatabasePaused)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Fault {
    pub(super) number: usize,
    pub(super) kind: Kind,
    /// Its address; empty for the database's.
    pub(super) member: String,
    pub(super) start_ms: u64,
    /// When the disturbance was over: the process dead, running again, its links back, the database answering.
    pub(super) end_ms: u64,
    /// When all is as before: a member that was dead is ready again.
    pub(super) healed_ms: u64,
}

/// Where a schedule lives.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) token: String,
    pub(super) poller: i64,
}

/// What the service says of runs that the judge asked about.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) token: String,
    pub(super) id: String,
    pub(super) state: String,
    pub(super) nominal_ms: u64,
    pub(super) missed_last_ms: Option<u64>,
    /// How many attempts the service remembers.
    pub(super) attempts: usize,
}

pub(super) struct Log(Mutex<File>);

impl Log {
    pub(super) fn create(path: &Path) -> anyhow::Result<Self> {
        Ok(Log(Mutex::new(File::create(path).with_context(|| format!("cannot make {}", path.display()))?)))
    }

    pub(super) fn write(&self, record: &impl Serialize) {
        let mut line = serde_json::to_vec(record).expect("records are plain JSON");
        line.push(b'\n');
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&line).expect("the disk has room for the logs of a run");
    }
}

pub(super) fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Vec<T>> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let parse = |line: std::io::Result<String>| -> anyhow::Result<T> {
        serde_json::from_str(&line?).with_context(|| format!("a line of {} is broken", path.display()))
    };
    BufReader::new(file).lines().map(parse).collect()
}
