//! Occurrences of a schedule, and their runs.
//!
//! docs/decisions/0002-name-occurrences-by-revision.md gives the reasons for the design.

use std::fmt;
use std::time::Duration;

use crate::id::{base32, parse_base32};
use crate::{Delay, EGRESS_REJECTED, Incarnation, NOT_DECRYPTED, Revision, Secret, TargetKey, TenantId, Timestamp};

/// One due instant of one schedule. Attempts, hand-overs and crashes do not change it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Occurrence {
    pub incarnation: Incarnation,
    /// Instant at which the schedule is due, regardless of when the occurrence starts.
    pub nominal: Timestamp,
    /// Revision of the schedule to which this occurrence belongs.
    pub revision: Revision,
    /// Number of times that users redrove this occurrence; 0 for the first run.
    pub replay: u16,
}

/// Public id of a run of an occurrence. The id is opaque and consists of 52 Crockford base-32 digits. It contains no
/// dots, because Standard Webhooks forbids dots in ids.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RunId(String);

impl Occurrence {
    /// Returns a key for the order of occurrences by their instants, across schedules.
    #[must_use]
    pub fn by_time(&self) -> (Timestamp, Incarnation, Revision, u16) {
        (self.nominal, self.incarnation, self.revision, self.replay)
    }

    #[must_use]
    pub fn run_id(&self) -> RunId {
        let nominal = u128::try_from(self.nominal.as_millis()).unwrap_or(0);
        let rest = nominal << 48 | u128::from(self.revision.0) << 16 | u128::from(self.replay);
        let mut text = String::with_capacity(52);
        base32(self.incarnation.0, &mut text);
        base32(rest, &mut text);
        RunId(text)
    }
}

impl RunId {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the occurrence whose run has the id `text`, or `None` if `text` does not have the form of a run's id.
    #[must_use]
    pub fn parse(text: &str) -> Option<Occurrence> {
        if text.len() != 52 || !text.is_ascii() {
            return None;
        }
        let incarnation = Incarnation(parse_base32(&text[..26])?);
        let rest = parse_base32(&text[26..])?;
        let nominal = i64::try_from(rest >> 48).ok().map(Timestamp::from_millis)?;
        let revision = Revision(u32::try_from(rest >> 16 & 0xffff_ffff).ok()?);
        let replay = u16::try_from(rest & 0xffff).ok()?;
        Some(Occurrence { incarnation, nominal, revision, replay })
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Key of a due row. It identifies the attempt and its target. The scheduler reads the schedule's contents, for example
/// the payload, only when it starts the attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DueKey {
    /// Instant at which the attempt becomes due. It is the nominal instant or later. For example, it is later if the
    /// attempt is a retry, or if a user created the schedule after the nominal instant.
    pub position: Timestamp,
    pub occurrence: Occurrence,
    /// Number of the attempt that this row requests, from 1.
    pub attempt: u16,
    pub target: TargetKey,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunState {
    /// An attempt failed, and the run has a due row for a retry.
    Retrying,
    Succeeded,
    /// The last allowed attempt failed. The run is a dead letter until a user redrives it.
    Failed,
    /// The occurrence of a recurring schedule has no outcome of an attempt, because a later occurrence was already due
    /// too. One record covers all occurrences from the nominal instant to `last`, including the occurrence at `last`.
    Missed {
        last: Timestamp,
        count: u64,
        /// True if an earlier owner may have started an attempt of the run's own occurrence, so that the target may
        /// have received the callback. No attempt of the later occurrences of the record started.
        attempt_possible: bool,
    },
    /// A user cancelled or changed the schedule while an attempt was in flight or a retry was due.
    Cancelled,
}

impl RunState {
    /// Returns true if this state of a run is final.
    #[must_use]
    pub fn is_final(self) -> bool {
        self != RunState::Retrying
    }
}

/// One attempt of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attempt {
    pub number: u16,
    pub started_at: Timestamp,
    pub duration: Duration,
    pub result: AttemptResult,
    /// Reason why a first attempt started late. `None` if the attempt was on time, if it is a later attempt, or if no
    /// reason is known.
    pub delay: Option<Delay>,
    /// First bytes of the body of the target's response, at most [`crate::limits::EXCERPT_BYTES_MAX`]. `None` if the
    /// tenant had not switched excerpts on, or if no byte of a body arrived. The store encrypts the excerpt, because a
    /// target may send secrets.
    pub excerpt: Option<Secret>,
}

/// Text of an attempt's error if the resolver cannot resolve the host name of the target.
pub const NOT_RESOLVED: &str = "the resolver cannot resolve the host name";

/// Prefix of an attempt's error if the TLS handshake with the target fails.
pub const TLS_FAILED: &str = "TLS: ";

/// Prefix of an attempt's error if the member has no message bus.
pub const BUS_NOT_CONFIGURED: &str = "bus_not_configured";

/// Prefix of an attempt's error if the message bus rejects the record itself, for example because the record is too large.
pub const BUS_REJECTED: &str = "bus_rejected";

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AttemptResult {
    /// The target responded with this HTTP status.
    Answered(u16),
    /// The bus stored the record at this offset of this partition, on all in-sync replicas.
    Stored {
        partition: u32,
        offset: u64,
    },
    /// The executor could not reach the target, or the connection failed. The text is a short reason in plain words.
    Unreachable(String),
    TimedOut,
    /// The executor panicked before it had a result. The panic counts as a failed attempt.
    Panicked,
}

impl AttemptResult {
    /// Returns the class of the result: `success`, a class of HTTP statuses such as `status_5xx`, or the kind of the
    /// failure.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            AttemptResult::Answered(200..=299) | AttemptResult::Stored { .. } => "success",
            AttemptResult::Answered(300..=399) => "status_3xx",
            AttemptResult::Answered(400..=499) => "status_4xx",
            AttemptResult::Answered(500..=599) => "status_5xx",
            AttemptResult::Answered(_) => "status_other",
            AttemptResult::Unreachable(reason) => unreachable_class(reason),
            AttemptResult::TimedOut => "timeout",
            AttemptResult::Panicked => "panic",
        }
    }

    /// Returns true only if the target responded with a 2xx status, as Standard Webhooks requires, or if the bus stored the
    /// record.
    #[must_use]
    pub fn is_success(&self) -> bool {
        matches!(self, AttemptResult::Answered(200..=299) | AttemptResult::Stored { .. })
    }
}

/// Returns the class of an attempt whose error has the text `reason`.
fn unreachable_class(reason: &str) -> &'static str {
    const CLASSES: [(&str, &str); 6] = [
        (EGRESS_REJECTED, EGRESS_REJECTED),
        (NOT_DECRYPTED, NOT_DECRYPTED),
        (NOT_RESOLVED, "dns"),
        (TLS_FAILED, "tls"),
        (BUS_NOT_CONFIGURED, BUS_NOT_CONFIGURED),
        (BUS_REJECTED, BUS_REJECTED),
    ];
    CLASSES.iter().find(|(prefix, _)| reason.starts_with(prefix)).map_or("unreachable", |(_, class)| class)
}

/// Stored run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    pub tenant: TenantId,
    pub occurrence: Occurrence,
    pub state: RunState,
    /// Attempts in the order of their numbers. The store retains only the last [`crate::limits::ATTEMPTS_KEPT`]
    /// attempts.
    pub attempts: Vec<Attempt>,
}

impl Run {
    /// Returns the number of bytes of the stored excerpts.
    #[must_use]
    pub fn excerpt_bytes(&self) -> usize {
        self.attempts.iter().filter_map(|attempt| attempt.excerpt.as_ref()).map(Secret::stored_len).sum()
    }
}
