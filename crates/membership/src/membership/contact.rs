//! Contact of this process with its engine.
//!
//! docs/decisions/0226-report-an-outage-of-the-coordination-engine.md gives the reasons for the design.

use std::fmt;
use std::time::Duration;

use instants::Monotonic;

use crate::OwnershipError;

/// Outage of the engine, as this process sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outage {
    /// Address of the engine ([`super::Options::engine`]).
    pub engine: String,
    /// Time since the engine's last response.
    pub lasted: Duration,
}

/// Writes the outage as a clause without the next step.
impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outage { engine, lasted } = self;
        write!(f, "the coordination engine at {engine} has not responded for {} s", lasted.as_secs())
    }
}

/// Record of the engine's responses. It logs one line when the engine has not responded for some time, and one line
/// when the engine responds again.
pub(super) struct Contact {
    last_response: Monotonic,
    is_lost: bool,
}

impl Contact {
    pub(super) fn new(now: Monotonic) -> Self {
        Contact { last_response: now, is_lost: false }
    }

    /// Returns the time since the last response if the engine does not respond.
    pub(super) fn lost_for(&self, now: Monotonic) -> Option<Duration> {
        self.is_lost.then(|| now.since(self.last_response))
    }

    pub(super) fn responded(&mut self, now: Monotonic, engine: &str) {
        if let Some(lasted) = self.lost_for(now) {
            tracing::info!(engine, ?lasted, "the coordination engine responds again");
        }
        *self = Contact::new(now);
    }

    /// Records a call that the engine did not carry out, because it did not respond or because it rejected this member.
    /// The engine counts as lost if it has carried out no call for `limit`.
    pub(super) fn failed(&mut self, now: Monotonic, limit: Duration, engine: &str, error: &OwnershipError) {
        if !self.is_lost && now.since(self.last_response) >= limit {
            self.is_lost = true;
            tracing::warn!(
                engine,
                %error,
                "the coordination engine does not respond to this member; at the end of its lease, this member releases its shards, \
                 and it takes them again when the engine responds; check the engine and the network"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outage_begins_after_the_limit_and_ends_with_a_response() {
        let at = |secs| Monotonic::from_start(Duration::from_secs(secs));
        let (limit, error) = (Duration::from_secs(3), OwnershipError::Unavailable("no response".to_owned()));
        let mut contact = Contact::new(at(10));
        contact.failed(at(12), limit, "e", &error);
        assert_eq!(contact.lost_for(at(12)), None, "a single slow call is no outage");
        contact.failed(at(13), limit, "e", &error);
        assert_eq!(contact.lost_for(at(15)), Some(Duration::from_secs(5)));
        contact.responded(at(16), "e");
        assert_eq!(contact.lost_for(at(30)), None);
        let outage = Outage { engine: "a:2181".to_owned(), lasted: Duration::from_millis(7_900) };
        assert_eq!(outage.to_string(), "the coordination engine at a:2181 has not responded for 7 s");
    }
}
