//! What a tenant asked for.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::recurrence::Cron;
use crate::retry::RetryPolicy;
use crate::{Incarnation, PollerId, Revision, ScheduleId, TargetKey, TenantId, Timestamp};

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
    /// When `revision` was made; `every` counts from here.
    pub updated_at: Timestamp,
    /// The nominal instant of the occurrence that has a due row; `None` once the schedule has ended.
    pub next: Option<Timestamp>,
    pub spec: Spec,
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

#[derive(Clone, PartialEq, Debug)]
pub enum When {
    /// Once. A request with a fraction of a millisecond is rounded up, so that it is never early.
    At(Timestamp),
    Cron(Cron),
    /// At `updated_at + n * interval`, n from 1.
    Every(Duration),
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
    /// In the order given; names lower case; none that Reveille sets itself, none hop-by-hop.
    pub headers: Vec<(String, String)>,
    /// For one attempt, from connecting to the end of the answer.
    pub timeout: Duration,
}

impl Target {
    /// Where this target's limits are counted: scheme, host and port.
    #[must_use]
    pub fn key(&self) -> TargetKey {
        let Target::Http(http) = self;
        let scheme_end = http.url.find("://").map_or(0, |at| at + 3);
        let authority_end = http.url[scheme_end..].find(['/', '?', '#']).map_or(http.url.len(), |at| scheme_end + at);
        TargetKey(crate::id::fnv1a(http.url[..authority_end].to_ascii_lowercase().as_bytes()))
    }
}
