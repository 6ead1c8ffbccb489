//! One due instant of a schedule, and what became of it.

use std::fmt;
use std::time::Duration;

use crate::id::{base32, parse_base32};
use crate::{Incarnation, Revision, TargetKey, TenantId, Timestamp};

/// One due instant of one schedule. It names the same thing on every attempt, hand-over and crash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Occurrence {
    pub incarnation: Incarnation,
    /// The instant that the schedule names, whatever became of it.
    pub nominal: Timestamp,
    /// The schedule's revision when this occurrence was planned.
    pub revision: Revision,
    /// 0, or how often a person had this occurrence run again.
    pub replay: u16,
}

/// An occurrence's public name, opaque: 52 Crockford digits, without dots (Standard Webhooks forbids them in ids).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RunId(String);

impl Occurrence {
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

    /// The occurrence that `text` names, or `None` if it is not what [`Occurrence::run_id`] writes.
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

/// What the window holds of a due row: enough to fire it, nothing of its payload.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DueKey {
    /// When it is to start: its nominal instant, or later (a retry, a deferral, a creator that came late).
    pub position: Timestamp,
    pub occurrence: Occurrence,
    /// The number of the attempt that this row asks for, from 1.
    pub attempt: u16,
    pub target: TargetKey,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunState {
    /// An attempt failed; another is due.
    Retrying,
    Succeeded,
    /// No attempts are left: a dead letter, until it is redriven.
    Failed,
    /// A recurring schedule's occurrence that was overdue when a later one was, too. One record stands for all from
    /// the occurrence's nominal instant to `last`, both included.
    Missed {
        last: Timestamp,
        count: u64,
    },
    /// The schedule was cancelled or changed while an attempt was in flight or a retry was due.
    Cancelled,
}

impl RunState {
    /// Nothing more will happen to this occurrence.
    #[must_use]
    pub fn is_final(self) -> bool {
        self != RunState::Retrying
    }
}

/// One try of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attempt {
    pub number: u16,
    pub started_at: Timestamp,
    pub duration: Duration,
    pub result: AttemptResult,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AttemptResult {
    /// The target answered, with this status.
    Answered(u16),
    /// The target could not be reached, or broke off; a short reason for people.
    Unreachable(String),
    TimedOut,
    /// The executor failed before it could tell; counted as a failed attempt.
    Panicked,
}

impl AttemptResult {
    /// 2xx, and nothing else (Standard Webhooks).
    #[must_use]
    pub fn is_success(&self) -> bool {
        matches!(self, AttemptResult::Answered(200..=299))
    }
}

/// A run as the store keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    pub tenant: TenantId,
    pub occurrence: Occurrence,
    pub state: RunState,
    /// In order; only the last [`crate::limits::ATTEMPTS_KEPT`] are kept.
    pub attempts: Vec<Attempt>,
}
