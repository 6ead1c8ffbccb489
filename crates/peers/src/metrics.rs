//! What is counted: asks that were made, and requests that were refused.

use http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use scheduler::Reply;

use crate::kind::Kind;

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct AskLabels {
    ask: &'static str,
    outcome: &'static str,
}

#[derive(Default)]
pub(crate) struct Asked(Family<AskLabels, Counter>);

impl Asked {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("reveille_peer_asks", "Asks of other members, by what became of them", self.0.clone());
    }

    /// `None`: there was no answer.
    pub(crate) fn count(&self, kind: Kind, reply: Option<&Reply>) {
        let outcome = match reply {
            None => "unreachable",
            Some(Reply::NotOwned) => "not_owned",
            Some(Reply::Failed(_)) => "failed",
            Some(_) => "answered",
        };
        self.0.get_or_create(&AskLabels { ask: kind.name(), outcome }).inc();
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct StatusLabels {
    status: u16,
}

#[derive(Default)]
pub(crate) struct Answered(Family<StatusLabels, Counter>);

impl Answered {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Requests of other members, by the status they were answered with";
        registry.register("reveille_peer_requests", help, self.0.clone());
    }

    pub(crate) fn count(&self, status: StatusCode) {
        self.0.get_or_create(&StatusLabels { status: status.as_u16() }).inc();
    }
}
