//! What a tenant asked for.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::recurrence::When;
use crate::retry::RetryPolicy;
use crate::{Incarnation, PollerId, Revision, ScheduleId, Secret, TargetKey, TenantId, Timestamp};

/// A schedule as the store keeps it.
#[derive(Clone, PartialEq, Debug)]
pub struct Schedule {
    pub tenant: TenantId,
    pub id: ScheduleId,
    pub incarnation: Incarnation,
    /// Fixed for life; its shard is the schedule's home.
    pub poller: PollerId,
    pub revision: Revision,
    pub status: Status,
    pub created_at: Timestamp,
    /// When its timing was last set: when `revision` was made, or one before it if that left the timing alone. `every` counts
    /// from here.
    pub updated_at: Timestamp,
    /// The nominal instant of the occurrence that has a due row; `None` once the schedule has ended.
    pub next: Option<Timestamp>,
    pub spec: Spec,
}

impl Schedule {
    #[must_use]
    pub fn edition(&self) -> Edition {
        Edition { incarnation: self.incarnation, revision: self.revision }
    }

    #[must_use]
    pub fn seen(&self) -> Seen {
        Seen { edition: self.edition(), next: self.next }
    }
}

/// Which of a schedule's contents: another with each replacement and with the cancellation, and with nothing else. That a
/// recurring schedule goes on, or that one ends, is not another edition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Edition {
    pub incarnation: Incarnation,
    pub revision: Revision,
}

impl Edition {
    /// Its public name, opaque: 26 Crockford digits, a `-`, and the revision.
    #[must_use]
    pub fn name(&self) -> String {
        let mut text = String::with_capacity(32);
        crate::id::base32(self.incarnation.0, &mut text);
        text.push('-');
        text.push_str(&self.revision.0.to_string());
        text
    }

    /// The edition of this name, or `None` if it is not what [`Edition::name`] writes.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (incarnation, revision) = name.split_once('-')?;
        let incarnation = Incarnation(crate::id::parse_base32(incarnation)?);
        let edition = Edition { incarnation, revision: Revision(revision.parse().ok()?) };
        // One name for each: `+7` and `007` are none.
        (edition.name() == name).then_some(edition)
    }
}

/// What somebody who read a schedule knows of how it stands: while this is so, its contents, its state and its next
/// occurrence are as they were read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    pub edition: Edition,
    pub next: Option<Timestamp>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    Active,
    /// It has no further occurrence.
    Ended,
    Cancelled,
}

/// The part of a schedule that its user writes.
#[derive(Clone, PartialEq, Debug)]
pub struct Spec {
    pub when: When,
    pub target: Target,
    /// The callback's body, byte for byte as it was sent: the JSON text of `payload`. Empty if there was none.
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
    /// `http` or `https`, with a host; checked when the schedule is made.
    pub url: String,
    pub method: String,
    /// In the order given; names lower case; none that Reveille sets itself, none hop-by-hop. The values may be
    /// credentials.
    pub headers: Vec<(String, Secret)>,
    /// For one attempt, from connecting to the end of the answer.
    pub timeout: Duration,
}

impl Target {
    /// Where this target's limits are counted: scheme, host and port.
    #[must_use]
    pub fn key(&self) -> TargetKey {
        TargetKey(crate::id::fnv1a(self.origin().as_bytes()))
    }

    /// Scheme, host and port as they are written, in lower case.
    #[must_use]
    pub fn origin(&self) -> String {
        let Target::Http(http) = self;
        let scheme_end = http.url.find("://").map_or(0, |at| at + 3);
        let authority_end = http.url[scheme_end..].find(['/', '?', '#']).map_or(http.url.len(), |at| scheme_end + at);
        http.url[..authority_end].to_ascii_lowercase()
    }
}
