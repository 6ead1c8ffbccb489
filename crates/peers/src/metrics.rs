//! Counter of the requests that other members send to this member.

use http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct StatusLabels {
    status: u16,
}

#[derive(Default)]
pub(crate) struct RequestCounter(Family<StatusLabels, Counter>);

impl RequestCounter {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Requests that this member received from other members, by HTTP status of the response";
        registry.register("reveille_peer_requests", help, self.0.clone());
    }

    pub(crate) fn count(&self, status: StatusCode) {
        self.0.get_or_create(&StatusLabels { status: status.as_u16() }).inc();
    }
}
