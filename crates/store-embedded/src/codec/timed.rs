//! Rows that list the runs of a tenant by time. Each run has one row. The key of the row contains the class of the run,
//! so that a listing of rare runs skips the others.

use std::time::Duration;

use domain::{Occurrence, RunFilter, RunOutline, RunStateKind, TenantId, Timestamp};
use stored::{Malformed, Put as _, Take};

use super::key::{instant, occurrence_by_time, parse_occurrence_by_time};

pub(crate) const TIMED: u8 = b'o';
const VERSION: u8 = 1;
/// Number that represents the lateness of a run without a lateness.
const NO_LATENESS: u32 = u32::MAX;
pub(crate) const LEN: usize = 36;

/// Class of a run. A run changes its class only if it is [`Class::Retrying`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Class {
    Retrying = 0,
    /// The run succeeded, and all HTTP statuses of its attempts are 2xx. Most runs are in this class.
    Plain = 1,
    /// The run succeeded after an attempt with another HTTP status.
    Repeated = 2,
    Failed = 3,
    Missed = 4,
    Cancelled = 5,
}

impl Class {
    /// All classes. A read scans them in this order. A run that changes its class during the read is therefore in its
    /// old class, in its new class, or in both.
    const ALL: [Class; 6] =
        [Class::Retrying, Class::Plain, Class::Repeated, Class::Failed, Class::Missed, Class::Cancelled];

    pub(crate) fn of(outline: &RunOutline) -> Self {
        match outline.state {
            RunStateKind::Retrying => Class::Retrying,
            RunStateKind::Succeeded if outline.statuses.iter().all(|status| is_2xx(*status)) => Class::Plain,
            RunStateKind::Succeeded => Class::Repeated,
            RunStateKind::Failed => Class::Failed,
            RunStateKind::Missed => Class::Missed,
            RunStateKind::Cancelled => Class::Cancelled,
        }
    }

    fn state(self) -> RunStateKind {
        match self {
            Class::Retrying => RunStateKind::Retrying,
            Class::Plain | Class::Repeated => RunStateKind::Succeeded,
            Class::Failed => RunStateKind::Failed,
            Class::Missed => RunStateKind::Missed,
            Class::Cancelled => RunStateKind::Cancelled,
        }
    }

    /// Returns the classes that can contain runs that match the filter.
    pub(crate) fn matching(filter: &RunFilter) -> impl Iterator<Item = Class> {
        let RunFilter { state, status, late_by: _ } = *filter;
        Class::ALL.into_iter().filter(move |class| {
            let has_status = *class != Class::Plain || status.is_none_or(is_2xx);
            state.is_none_or(|state| class.state() == state) && has_status
        })
    }

    /// Returns the key of the row of a run in this class.
    pub(crate) fn key(self, tenant: TenantId, of: &Occurrence) -> [u8; LEN] {
        let mut key = [0; LEN];
        key[..6].copy_from_slice(&self.start(tenant));
        key[6..].copy_from_slice(&occurrence_by_time(of));
        key
    }

    /// Returns a key that is at or below the key of each run of this class at or after `at`, and above the key of each
    /// earlier run.
    pub(crate) fn from(self, tenant: TenantId, at: Timestamp) -> Vec<u8> {
        [&self.start(tenant)[..], &instant(at)].concat()
    }

    fn start(self, tenant: TenantId) -> [u8; 6] {
        let mut start = [TIMED; 6];
        start[1..5].copy_from_slice(&tenant.0.to_be_bytes());
        start[5] = self as u8;
        start
    }

    fn parse(number: u8) -> Option<Self> {
        Class::ALL.into_iter().find(|class| *class as u8 == number)
    }
}

fn is_2xx(status: u16) -> bool {
    (200..=299).contains(&status)
}

/// Encodes the value of the row of a run.
pub(crate) fn encode(outline: &RunOutline) -> Vec<u8> {
    let millis = |lateness: Duration| u32::try_from(lateness.as_millis()).unwrap_or(NO_LATENESS).min(NO_LATENESS - 1);
    let mut value = Vec::with_capacity(5 + 2 * outline.statuses.len());
    value.u8(VERSION);
    value.u32(outline.lateness.map_or(NO_LATENESS, millis));
    outline.statuses.iter().for_each(|status| value.u16(*status));
    value
}

/// Decodes the row of a run. A lateness of more than 49 days becomes 49 days.
pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<(Occurrence, RunOutline), Malformed> {
    let mut take = Take::new("the key of a row that lists a run", key);
    take.version(TIMED)?;
    let _tenant = take.bytes(4)?;
    let malformed = take.malformed();
    let class = Class::parse(take.u8()?).ok_or(malformed)?;
    let of = parse_occurrence_by_time(&mut take)?;
    take.end()?;
    let mut take = Take::new("a row that lists a run", value);
    take.version(VERSION)?;
    let lateness = Some(take.u32()?).filter(|millis| *millis != NO_LATENESS);
    let lateness = lateness.map(|millis| Duration::from_millis(millis.into()));
    let mut outline = RunOutline { state: class.state(), lateness, statuses: Vec::new() };
    for _ in 0..value.len().saturating_sub(5) / 2 {
        outline.statuses.push(take.u16()?);
    }
    take.end()?;
    Ok((of, outline))
}

/// Progress of the build of these rows in a store of an earlier build. One row stores the progress.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// The runs up to this key have rows.
    UpTo(Vec<u8>),
    Complete,
}

impl Progress {
    pub(crate) const KEY: [u8; 1] = [b'x'];

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = vec![VERSION];
        match self {
            Progress::Complete => value.u8(0),
            Progress::UpTo(key) => {
                value.u8(1);
                value.blob(key);
            }
        }
        value
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self, Malformed> {
        let mut take = Take::new("the progress of the index of runs", value);
        take.version(VERSION)?;
        let progress = match take.u8()? {
            0 => Progress::Complete,
            1 => Progress::UpTo(take.blob()?.to_vec()),
            _ => return Err(take.malformed()),
        };
        take.end()?;
        Ok(progress)
    }
}
