//! Client that requests operations from other members, over the port [`Peers`].

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use membership::Member;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::cluster::operations::{Operation, decode_response, encode_request};
use crate::cluster::peers::{PeerError, Peers};
use crate::requests::OwnerError;

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RequestLabels {
    ask: &'static str,
    outcome: &'static str,
}

pub(crate) struct PeerClient {
    peers: Arc<dyn Peers>,
    requests: Family<RequestLabels, Counter>,
}

impl PeerClient {
    pub(crate) fn new(peers: Arc<dyn Peers>, registry: &mut Registry) -> Self {
        let requests = Family::default();
        registry.register(
            "reveille_peer_asks",
            "Requests to other members, by operation and outcome",
            requests.clone(),
        );
        PeerClient { peers, requests }
    }

    /// Requests the operation from the member `to`.
    ///
    /// # Errors
    /// Returns an error if no valid response arrives. The member `to` may or may not have executed the operation.
    pub(crate) fn request<O: Operation>(
        &self,
        to: &Member,
        operation: &O,
    ) -> BoxFuture<'static, Result<Result<O::Answer, OwnerError>, PeerError>> {
        self.send::<O>(to, encode_request(operation))
    }

    /// Sends an encoded request and returns the response, as [`PeerClient::request`] does.
    pub(crate) fn send<O: Operation>(
        &self,
        to: &Member,
        request: Bytes,
    ) -> BoxFuture<'static, Result<Result<O::Answer, OwnerError>, PeerError>> {
        let requesting = self.peers.request(to, O::NAME, request);
        let (requests, member) = (self.requests.clone(), to.name.clone());
        Box::pin(async move {
            let response = requesting.await.and_then(|bytes| {
                decode_response::<O>(&bytes)
                    .map_err(|error| PeerError::Unreachable { member, reason: format!("invalid response: {error}") })
            });
            let outcome = match &response {
                Ok(Ok(_)) => "answered",
                Ok(Err(OwnerError::NotOwned)) => "not_owned",
                Ok(Err(OwnerError::Failed(_))) => "failed",
                Err(PeerError::Unreachable { .. }) => "unreachable",
                Err(PeerError::UnknownOperation { .. }) => "unknown_operation",
            };
            requests.get_or_create(&RequestLabels { ask: O::NAME, outcome }).inc();
            response
        })
    }
}
