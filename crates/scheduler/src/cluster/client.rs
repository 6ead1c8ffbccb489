//! Operations that this member requests of others, over the port [`Peers`].

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
use crate::requests::Undone;

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct AskLabels {
    ask: &'static str,
    outcome: &'static str,
}

pub(crate) struct PeerClient {
    peers: Arc<dyn Peers>,
    asks: Family<AskLabels, Counter>,
}

impl PeerClient {
    pub(crate) fn new(peers: Arc<dyn Peers>, registry: &mut Registry) -> Self {
        let asks = Family::default();
        registry.register("reveille_peer_asks", "Asks of other members, by what became of them", asks.clone());
        PeerClient { peers, asks }
    }

    /// Has `to` do the operation.
    ///
    /// # Errors
    /// If no response came that can be read; then it is not known whether `to` did the operation.
    pub(crate) fn request<O: Operation>(
        &self,
        to: &Member,
        operation: &O,
    ) -> BoxFuture<'static, Result<Result<O::Answer, Undone>, PeerError>> {
        self.send::<O>(to, encode_request(operation))
    }

    /// As [`PeerClient::request`], of a request that is encoded.
    pub(crate) fn send<O: Operation>(
        &self,
        to: &Member,
        request: Bytes,
    ) -> BoxFuture<'static, Result<Result<O::Answer, Undone>, PeerError>> {
        let requesting = self.peers.request(to, O::NAME, request);
        let (asks, member) = (self.asks.clone(), to.name.clone());
        Box::pin(async move {
            let response = requesting.await.and_then(|bytes| {
                decode_response::<O>(&bytes).map_err(|error| PeerError::Unreachable {
                    member,
                    reason: format!("its answer cannot be read: {error}"),
                })
            });
            let outcome = match &response {
                Ok(Ok(_)) => "answered",
                Ok(Err(Undone::NotOwned)) => "not_owned",
                Ok(Err(Undone::Failed(_))) => "failed",
                Err(PeerError::Unreachable { .. }) => "unreachable",
            };
            asks.get_or_create(&AskLabels { ask: O::NAME, outcome }).inc();
            response
        })
    }
}
