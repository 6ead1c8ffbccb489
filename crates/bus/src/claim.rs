//! Claims of a member to its partitions, for work that at most one member may do at a time.
//!
//! A member proves its membership by commits, because the bus rejects the commits of a member that has lost a partition.
//! The term of a claim is the offset of a record that the member sends before the work begins. The work begins only after
//! the bus has accepted a commit that the member sent after the acknowledgement of this record. So a later owner of the
//! partition has a greater term, as long as the topic exists. The metadata of the commit is the name of the member, so the
//! description of the group names the member of the last claim.
//! docs/decisions/0234-prove-claims-of-partitions-by-commits.md gives the reasons.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use instants::Monotonic;
use runtime::Runtime;

use crate::consumer::{Commit, Committed, Consumer, ConsumerOptions};
use crate::producer::{NewRecord, Producer, ProducerOptions};
use crate::topic::{Offset, Partition, TopicName};
use crate::{Bus, BusError};

/// Wait before the repetition of a request that failed.
pub(crate) const RETRY_WAIT: Duration = Duration::from_millis(100);
/// Key of the records whose offsets are terms. A compacted topic keeps only the last of them.
const KEY: &str = "term";

/// Number of proofs of the membership in a session timeout.
const PROOFS: u32 = 6;

/// Times of a member that claims partitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Times {
    pub(crate) session_timeout: Duration,
    /// Time between the end of a claim without contact and the end of its session.
    pub(crate) margin: Duration,
    /// Longest time for which the work may continue after the group has selected another member.
    pub(crate) grace: Duration,
}

impl Times {
    /// # Errors
    /// Returns [`BusError::Invalid`] if the grace and the margin together are not shorter than the session timeout.
    pub(crate) fn check(self) -> Result<(), BusError> {
        if self.grace + self.margin >= self.session_timeout {
            let reason = "the grace and the margin together must be shorter than the session timeout";
            return Err(BusError::Invalid(reason.to_owned()));
        }
        Ok(())
    }

    /// Returns the time for which a proof of the membership is valid.
    pub(crate) fn validity(self) -> Duration {
        self.session_timeout - self.margin
    }

    /// Returns the time between two proofs of the membership.
    pub(crate) fn period(self) -> Duration {
        self.session_timeout / PROOFS
    }

    /// # Errors
    /// Returns [`BusError::Invalid`] if the name of a member is empty or contains a NUL, or if the bus cannot store it in the
    /// metadata of a commit.
    pub(crate) fn check_name(bus: &dyn Bus, name: &str) -> Result<(), BusError> {
        if name.is_empty() || name.contains('\0') {
            let reason = format!("the name {name:?} of the member is empty or contains a NUL; choose another name");
            return Err(BusError::Invalid(reason));
        }
        let (bytes, limit) = (name.len(), bus.capabilities().metadata_bytes_max);
        if bytes > limit {
            return Err(BusError::Invalid(format!(
                "the name of the member has {bytes} bytes, and the bus accepts at most {limit} bytes; use a shorter name"
            )));
        }
        Ok(())
    }

    /// Opens a producer for the records of terms. A record that is older than a session is no longer a term.
    pub(crate) async fn producer(self, bus: &dyn Bus) -> Result<Arc<dyn Producer>, BusError> {
        bus.producer(ProducerOptions { delivery_timeout: self.session_timeout, ..ProducerOptions::default() }).await
    }

    /// Joins a group as a member with the name `name`. Waits while the bus is away.
    pub(crate) async fn join(
        self,
        runtime: &Runtime,
        bus: &dyn Bus,
        group: &str,
        topic: &TopicName,
        name: &str,
    ) -> Result<Arc<dyn Consumer>, BusError> {
        let options = ConsumerOptions {
            name: name.to_owned(),
            session_timeout: self.session_timeout,
            revoke_timeout: self.session_timeout,
            ..ConsumerOptions::new(group, vec![topic.clone()])
        };
        loop {
            match bus.consumer(options.clone()).await {
                Err(error) if error.is_retryable() => runtime.sleep(RETRY_WAIT).await,
                joined => return joined,
            }
        }
    }
}

/// Terms of the claimed partitions.
pub(crate) type Terms = BTreeMap<Partition, Offset>;

/// Sends the records of the terms, and then commits. Returns the terms and the time before the commit. `name` is the value
/// of the records and the metadata of the commit.
pub(crate) async fn claim(
    runtime: &Runtime,
    producer: &dyn Producer,
    consumer: &dyn Consumer,
    partitions: &[Partition],
    name: &str,
) -> Result<(Terms, Monotonic), BusError> {
    let value = Bytes::copy_from_slice(name.as_bytes());
    let record = |partition: &Partition| NewRecord {
        partition: Some(partition.index),
        ..NewRecord::new(&partition.topic, KEY, value.clone())
    };
    let terms: Terms = loop {
        let outcomes = producer.send(partitions.iter().map(record).collect()).await;
        match outcomes.into_iter().collect::<Result<Vec<_>, _>>() {
            Ok(positions) => break positions.into_iter().map(|one| (one.partition, one.offset)).collect(),
            Err(error) if error.is_retryable() => runtime.sleep(RETRY_WAIT).await,
            Err(error) => return Err(error),
        }
    };
    loop {
        match prove(runtime, consumer, &terms, name).await {
            Ok(sent) => return Ok((terms, sent)),
            Err(error) if error.is_retryable() => runtime.sleep(RETRY_WAIT).await,
            Err(error) => return Err(error),
        }
    }
}

/// Commits the terms. Returns the time before the commit. From then on, the session of the member lasts for its timeout.
pub(crate) async fn prove(
    runtime: &Runtime,
    consumer: &dyn Consumer,
    terms: &Terms,
    name: &str,
) -> Result<Monotonic, BusError> {
    let commit = |(partition, term): (&Partition, &Offset)| Commit {
        partition: partition.clone(),
        committed: Committed { offset: term.next(), metadata: name.to_owned() },
    };
    let sent = runtime.monotonic();
    consumer.commit(terms.iter().map(commit).collect()).await?;
    Ok(sent)
}

/// Time at which a claim ends if the bus accepts no further commit.
#[derive(Debug)]
pub(crate) struct Validity {
    runtime: Runtime,
    ends: Mutex<Monotonic>,
}

impl Validity {
    pub(crate) fn new(runtime: &Runtime, ends: Monotonic) -> Arc<Self> {
        Arc::new(Validity { runtime: runtime.clone(), ends: Mutex::new(ends) })
    }

    pub(crate) fn ends(&self) -> Monotonic {
        *self.ends.lock().expect("no code panics while it holds this mutex")
    }

    pub(crate) fn extend(&self, ends: Monotonic) {
        *self.ends.lock().expect("no code panics while it holds this mutex") = ends;
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.runtime.monotonic() < self.ends()
    }
}
