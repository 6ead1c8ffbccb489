//! Rows that list the runs of a tenant by time. Each run has one row. The key of the row contains the class of the run,
//! so that a listing of rare runs skips the others.

use std::time::Duration;

use domain::{Occurrence, RunFilter, RunOutline, RunStateKind, TenantId, Timestamp};
use stored::run::kind_number;
use stored::{Malformed, Put as _, Take};

use super::key::{instant, occurrence_by_time, parse_occurrence_by_time};

pub(crate) const TIMED: u8 = b'o';
const VERSION: u8 = 1;
/// Number that represents the lateness of a run without a lateness.
const NO_LATENESS: u32 = u32::MAX;
/// Number of bytes of a value without its statuses.
const HEAD_LEN: usize = 6;
pub(crate) const LEN: usize = 36;

/// Longest lateness that a row stores: about 49 days. A row stores this value for a longer lateness.
pub(crate) const LATENESS_MAX: Duration = Duration::from_millis(NO_LATENESS as u64 - 1);

/// Class of a run. The first record of a run determines the class, and the class never changes. No row is therefore
/// removed when a retry ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Class {
    /// The run succeeded at once, and all HTTP statuses of its attempts are 2xx. Most runs are in this class.
    Plain = 0,
    /// The run failed, was cancelled, or needed several attempts.
    Unusual = 1,
    Missed = 2,
}

impl Class {
    const ALL: [Class; 3] = [Class::Plain, Class::Unusual, Class::Missed];

    /// Returns the class of a run whose first record has this outline.
    pub(crate) fn of_first(outline: &RunOutline) -> Self {
        match outline.state {
            RunStateKind::Succeeded if outline.statuses.iter().all(|status| is_2xx(*status)) => Class::Plain,
            RunStateKind::Missed => Class::Missed,
            RunStateKind::Succeeded | RunStateKind::Retrying | RunStateKind::Failed | RunStateKind::Cancelled => {
                Class::Unusual
            }
        }
    }

    /// Returns the classes that can contain runs that match the filter.
    pub(crate) fn matching(filter: &RunFilter) -> impl Iterator<Item = Class> {
        let RunFilter { state, status, late_by: _ } = *filter;
        Class::ALL.into_iter().filter(move |class| {
            let has_state = |kind| state.is_none_or(|state| state == kind);
            match class {
                Class::Plain => has_state(RunStateKind::Succeeded) && status.is_none_or(is_2xx),
                Class::Unusual => true,
                Class::Missed => has_state(RunStateKind::Missed),
            }
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
}

fn is_2xx(status: u16) -> bool {
    (200..=299).contains(&status)
}

/// Encodes the value of the row of a run.
pub(crate) fn encode(outline: &RunOutline) -> Vec<u8> {
    let millis = |lateness: Duration| u32::try_from(lateness.min(LATENESS_MAX).as_millis()).unwrap_or(NO_LATENESS);
    let mut value = Vec::with_capacity(HEAD_LEN + 2 * outline.statuses.len());
    value.u8(VERSION);
    value.u8(kind_number(outline.state));
    value.u32(outline.lateness.map_or(NO_LATENESS, millis));
    outline.statuses.iter().for_each(|status| value.u16(*status));
    value
}

/// Returns the occurrence in the key of a row.
pub(crate) fn decode_key(key: &[u8]) -> Result<Occurrence, Malformed> {
    let mut take = Take::new("the key of a row that lists a run", key);
    take.version(TIMED)?;
    let (_tenant, _class) = (take.bytes(4)?, take.u8()?);
    let of = parse_occurrence_by_time(&mut take)?;
    take.end()?;
    Ok(of)
}

/// Decodes the value of the row of a run. A lateness of more than [`LATENESS_MAX`] becomes this value.
pub(crate) fn decode(value: &[u8]) -> Result<RunOutline, Malformed> {
    let mut take = Take::new("a row that lists a run", value);
    take.version(VERSION)?;
    let number = take.u8()?;
    let state = RunStateKind::ALL.into_iter().find(|kind| kind_number(*kind) == number);
    let state = state.ok_or_else(|| take.malformed())?;
    let lateness = Some(take.u32()?).filter(|millis| *millis != NO_LATENESS);
    let lateness = lateness.map(|millis| Duration::from_millis(millis.into()));
    let mut outline = RunOutline { state, lateness, statuses: Vec::new() };
    for _ in 0..value.len().saturating_sub(HEAD_LEN) / 2 {
        outline.statuses.push(take.u16()?);
    }
    take.end()?;
    Ok(outline)
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
