//! Claims of a member to its partitions, for work that at most one member may do at a time.
//!
//! A member proves its membership by commits, because the bus rejects the commits of a member that has lost a partition.
//! The term of a claim is the offset of a record that the member sends before the work begins. The work begins only after
//! the bus has accepted a commit that the member sent after the acknowledgement of this record. So a later owner of the
//! partition has a greater term, as long as the topic exists.
//! docs/decisions/0234-prove-claims-of-partitions-by-commits.md gives the reasons.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use instants::Monotonic;
use runtime::Runtime;

use crate::BusError;
use crate::consumer::{Commit, Committed, Consumer};
use crate::producer::{NewRecord, Producer};
use crate::topic::{Offset, Partition};

/// Wait before the repetition of a request that failed.
pub(crate) const RETRY_WAIT: Duration = Duration::from_millis(100);
/// Key of the records whose offsets are terms. A compacted topic keeps only the last of them.
const KEY: &str = "term";

/// Terms of the claimed partitions.
pub(crate) type Terms = BTreeMap<Partition, Offset>;

/// Sends the records of the terms, and then commits. Returns the terms and the time before the commit. `name` is the value
/// of the records.
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
        match prove(runtime, consumer, &terms).await {
            Ok(sent) => return Ok((terms, sent)),
            Err(error) if error.is_retryable() => runtime.sleep(RETRY_WAIT).await,
            Err(error) => return Err(error),
        }
    }
}

/// Commits the terms. Returns the time before the commit. From then on, the session of the member lasts for its timeout.
pub(crate) async fn prove(runtime: &Runtime, consumer: &dyn Consumer, terms: &Terms) -> Result<Monotonic, BusError> {
    let commit = |(partition, term): (&Partition, &Offset)| Commit {
        partition: partition.clone(),
        committed: Committed { offset: term.next(), metadata: String::new() },
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
