//! Electors on a topic of Kafka, or of any other engine of the port `bus`. The replicas of a replica group are the members
//! of a group of consumers, and the leader is the owner of the only partition of a topic.
//!
//! [`elector`] opens the elector that a URL names, and also accepts the URLs of `coordination-connect`. It is a crate of its
//! own, because `coordination-connect` is published and has no dependency on librdkafka.
//! docs/decisions/0238-name-the-leader-in-the-commit.md gives the reasons for the design.

#![warn(missing_docs)]

mod candidacy;
mod elector;

use std::sync::Arc;
use std::time::Duration;

use bus::{Admin, BusError};
use bus_kafka::{KafkaBus, KafkaUrl, KafkaUrlError};
use coordination::Elector;
use coordination::recipes::Form;
use coordination::tree::NodePath;
use coordination_connect::Options;
use runtime::Runtime;

pub use elector::{LEASE_LONGEST, LEASE_SHORTEST, TopicElector, TopicElectorError};

/// Reason why [`elector`] cannot open an elector.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL names another engine, and this engine cannot be opened.
    #[error(transparent)]
    Other(#[from] coordination_connect::OpenError),
    /// The URL starts with `kafka://` or `kafka+tls://`, but it is not a valid Kafka URL.
    #[error(transparent)]
    Url(#[from] KafkaUrlError),
    /// The caller selected a form, but Kafka has no tree.
    #[error("Kafka has no tree of nodes, so its elector has no form; leave out the form")]
    Form,
    /// The lease or the name of the replica group is invalid, or the topic cannot be used.
    #[error(transparent)]
    Elector(#[from] TopicElectorError),
    /// The cluster does not respond, or it rejects the user.
    #[error("cannot open the Kafka cluster: {0}")]
    Kafka(BusError),
}

impl OpenError {
    /// Returns true if a later attempt may succeed without an operator's action.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            OpenError::Other(error) => error.is_retryable(),
            OpenError::Elector(error) => error.is_retryable(),
            OpenError::Kafka(error) => error.is_retryable(),
            OpenError::Url(_) | OpenError::Form => false,
        }
    }
}

/// Returns an elector of the replica group `group` for this process, with leases of at most `lease`, like
/// [`coordination_connect::elector`]. `kafka://…` and `kafka+tls://…` open a [`TopicElector`]. Other URLs open the electors
/// of `coordination-connect`.
///
/// # Errors
/// Returns an error if the URL is invalid, if the engine cannot be opened, and on Kafka if [`TopicElector::open`] rejects
/// the group or the lease.
pub async fn elector(
    runtime: &Runtime,
    url: &str,
    group: &NodePath,
    lease: Duration,
    form: Option<Form>,
    options: &Options,
) -> Result<Arc<dyn Elector>, OpenError> {
    if !url.starts_with(KafkaUrl::SCHEME) && !url.starts_with(KafkaUrl::TLS_SCHEME) {
        return Ok(coordination_connect::elector(runtime, url, group, lease, form, options).await?);
    }
    let url = KafkaUrl::parse(url)?.with_password(options.password.clone());
    if form.is_some() {
        return Err(OpenError::Form);
    }
    let bus = KafkaBus::open(runtime.clone(), url).await.map_err(OpenError::Kafka)?;
    let bus: Arc<dyn Admin> = Arc::new(bus);
    Ok(Arc::new(TopicElector::open(runtime, bus, group, lease).await?))
}
