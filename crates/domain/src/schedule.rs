//! Schedules, and their user-defined contents.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::recurrence::When;
use crate::retry::RetryPolicy;
use crate::{Incarnation, PollerId, Revision, ScheduleId, Target, TenantId, Timestamp};

/// Schedule in the form in which the store contains it.
#[derive(Clone, PartialEq, Debug)]
pub struct Schedule {
    pub tenant: TenantId,
    pub id: ScheduleId,
    pub incarnation: Incarnation,
    /// Poller of the schedule. A schedule never changes its poller. The poller's shard is the schedule's home shard.
    pub poller: PollerId,
    pub revision: Revision,
    pub status: Status,
    pub created_at: Timestamp,
    /// Instant at which a user last created, replaced or patched the schedule. The schedule's cancellation and its end
    /// do not change this instant.
    pub updated_at: Timestamp,
    /// Nominal instant of the occurrence that has a due row. `None` if the schedule is ended or cancelled.
    pub next: Option<Timestamp>,
    pub spec: Spec,
}

impl Schedule {
    #[must_use]
    pub fn edition(&self) -> ScheduleVersion {
        ScheduleVersion { incarnation: self.incarnation, revision: self.revision }
    }

    #[must_use]
    pub fn seen(&self) -> Precondition {
        Precondition { edition: self.edition(), next: self.next }
    }
}

/// Version of a schedule's contents. Each change by a user and each cancellation changes the version. An occurrence of
/// a recurring schedule and the end of a schedule do not change it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ScheduleVersion {
    pub incarnation: Incarnation,
    pub revision: Revision,
}

impl ScheduleVersion {
    /// Returns the public, opaque form of the version: 26 digits in Crockford's base 32, a `-`, and the revision.
    #[must_use]
    pub fn name(&self) -> String {
        let mut text = String::with_capacity(32);
        crate::id::base32(self.incarnation.0, &mut text);
        text.push('-');
        text.push_str(&self.revision.0.to_string());
        text
    }

    /// Parses the public form of a version. Returns `None` for any text that [`ScheduleVersion::name`] never returns.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (incarnation, revision) = name.split_once('-')?;
        let incarnation = Incarnation(crate::id::parse_base32(incarnation)?);
        let edition = ScheduleVersion { incarnation, revision: Revision(revision.parse().ok()?) };
        // Each version has only one public form, so the revisions `+7` and `007` are invalid.
        (edition.name() == name).then_some(edition)
    }
}

/// Precondition from an earlier read of a schedule. While the precondition holds, the schedule's contents, state and
/// next occurrence are the same as in that read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Precondition {
    pub edition: ScheduleVersion,
    pub next: Option<Timestamp>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    Active,
    /// The schedule has no further occurrence.
    Ended,
    Cancelled,
}

/// User-defined part of a schedule.
#[derive(Clone, PartialEq, Debug)]
pub struct Spec {
    pub when: When,
    pub target: Target,
    /// Body of the callback. It has exactly the bytes of `payload` in the user's request for the schedule. It is empty
    /// if this request had no payload.
    pub payload: Bytes,
    pub labels: BTreeMap<String, String>,
    pub retry: RetryPolicy,
}

impl Spec {
    /// Returns the number of bytes that the user supplied: payload, address of the target, headers and labels.
    #[must_use]
    pub fn content_bytes(&self) -> usize {
        let address = match &self.target {
            Target::Http(http) => http.url.len(),
            Target::Bus(bus) => {
                let event = bus.cloud_event.as_ref();
                let attributes =
                    event.map_or(0, |event| event.kind.len() + event.source.as_ref().map_or(0, String::len));
                bus.topic.len() + bus.key.as_ref().map_or(0, String::len) + attributes
            }
        };
        let headers: usize = self.target.headers().iter().map(|(name, value)| name.len() + value.plain_len()).sum();
        let labels: usize = self.labels.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.payload.len() + address + headers + labels
    }
}
