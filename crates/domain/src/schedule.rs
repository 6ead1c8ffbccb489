//! Schedules and their contents.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::recurrence::When;
use crate::retry::RetryPolicy;
use crate::{Incarnation, PollerId, Revision, ScheduleId, Secret, TargetKey, TenantId, Timestamp};

/// Stored schedule.
#[derive(Clone, PartialEq, Debug)]
pub struct Schedule {
    pub tenant: TenantId,
    pub id: ScheduleId,
    pub incarnation: Incarnation,
    /// Poller, fixed for life. Its shard is the schedule's home shard.
    pub poller: PollerId,
    pub revision: Revision,
    pub status: Status,
    pub created_at: Timestamp,
    /// Instant at which the timing was last set. It belongs to `revision`, or to an earlier revision if later ones kept
    /// the timing. `every` counts from this instant.
    pub updated_at: Timestamp,
    /// Nominal instant of the occurrence that has a due row; `None` once the schedule has ended.
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

/// Version of a schedule's contents. It changes with each replacement and with a cancellation. It does not change when
/// a recurring schedule advances, or when a schedule ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ScheduleVersion {
    pub incarnation: Incarnation,
    pub revision: Revision,
}

impl ScheduleVersion {
    /// Returns the public, opaque form: 26 Crockford digits, a `-`, and the revision.
    #[must_use]
    pub fn name(&self) -> String {
        let mut text = String::with_capacity(32);
        crate::id::base32(self.incarnation.0, &mut text);
        text.push('-');
        text.push_str(&self.revision.0.to_string());
        text
    }

    /// Parses the public form, or returns `None` if `name` is not exactly what [`ScheduleVersion::name`] writes.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (incarnation, revision) = name.split_once('-')?;
        let incarnation = Incarnation(crate::id::parse_base32(incarnation)?);
        let edition = ScheduleVersion { incarnation, revision: Revision(revision.parse().ok()?) };
        // Each edition has one name only: `+7` and `007` are invalid.
        (edition.name() == name).then_some(edition)
    }
}

/// Precondition from an earlier read of a schedule. While it holds, the schedule's contents, state and next occurrence
/// are the same as in that read.
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
    /// Body of the callback, with exactly the bytes of `payload` in the request. Empty if the request had no payload.
    pub payload: Bytes,
    pub labels: BTreeMap<String, String>,
    pub retry: RetryPolicy,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    Http(HttpTarget),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpTarget {
    /// URL with the scheme `http` or `https` and a host. It is checked when the schedule is created.
    pub url: String,
    pub method: String,
    /// Headers in the order of the request, with lower-case names. They contain no header that Reveille sets itself and
    /// no hop-by-hop header. Values may be credentials.
    pub headers: Vec<(String, Secret)>,
    /// Time limit of one attempt, from connecting to the end of the response.
    pub timeout: Duration,
}

impl Target {
    /// Returns the key under which this target's limits are counted: a hash of scheme, host and port.
    #[must_use]
    pub fn key(&self) -> TargetKey {
        TargetKey(crate::id::fnv1a(self.origin().as_bytes()))
    }

    /// Returns scheme, host and port as in the URL, but in lower case.
    #[must_use]
    pub fn origin(&self) -> String {
        let Target::Http(http) = self;
        let scheme_end = http.url.find("://").map_or(0, |at| at + 3);
        let authority_end = http.url[scheme_end..].find(['/', '?', '#']).map_or(http.url.len(), |at| scheme_end + at);
        http.url[..authority_end].to_ascii_lowercase()
    }
}
