//! Options of a processor.

use std::time::Duration;

use crate::consumer::ConsumerOptions;
use crate::topic::TopicName;

/// Options of a processor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessorOptions {
    /// Options of the consumer.
    pub consumer: ConsumerOptions,
    /// Largest number of calls of the handler that run at the same time. The default is 1,000.
    pub concurrency: usize,
    /// Largest number of records in hand: running or waiting. The processor may exceed it by one batch. After a rebalance,
    /// records that wait in retry topics may exceed it by the same number again. The default is 10,000.
    pub records_max: usize,
    /// Number of finished records without an accepted commit at which the processor receives no further records. Records in
    /// hand still finish. If the processor loses its partitions, their next owner handles all these records again. At half of
    /// this number the processor commits before its time. The default is 100,000.
    pub uncommitted_max: usize,
    /// Largest size of the records in hand, in bytes. The processor may exceed it by one batch, so it also handles a record
    /// that is larger. Kafka's engine may keep about 16 KiB more memory for each record. The default is 64 MiB.
    pub bytes_max: usize,
    /// Time between two commits. The default is 1 s.
    pub commit_interval: Duration,
    /// Longest wait for running handlers when the group moves a partition or the processor stops. When the group moves a
    /// partition, the wait is also at most nine tenths of [`ConsumerOptions::revoke_timeout`], so that time is left for
    /// the commit. The default is 20 s.
    pub drain_timeout: Duration,
    /// Policy for records whose handler fails. The default is [`Retry::None`].
    pub retry: Retry,
    /// Waits of the retry topics, one for each topic. A record whose calls have failed as often as `retry` allows waits in
    /// the first retry topic for its next call. If this call fails, the record waits in the next retry topic. The later
    /// records of its key do not wait. A topic has the name `TOPIC-GROUP-retry-N`, from 0. The processor creates the
    /// topics, with as many partitions and replicas as the topic of the record. By default there are no retry topics.
    pub retry_waits: Vec<Duration>,
    /// Topic for copies of records whose calls have all failed, or whose failure is not retriable. The processor creates
    /// the topic if it does not exist. By default the processor only logs such records.
    pub dead_letters: Option<TopicName>,
    /// Topic for the commands of an [operator](super::Operator) and for the list of blocked records. The processor creates the topic if it
    /// does not exist. Every program that may write to the topic can skip records. By default there is no such topic.
    pub control: Option<TopicName>,
    /// If true, the processor joins its group but handles no records before [`super::Processor::resume`]. The default is
    /// false.
    pub starts_paused: bool,
}

impl ProcessorOptions {
    /// Returns options with defaults.
    #[must_use]
    pub fn new(consumer: ConsumerOptions) -> Self {
        ProcessorOptions {
            consumer,
            concurrency: 1_000,
            records_max: 10_000,
            uncommitted_max: 100_000,
            bytes_max: 64 << 20,
            commit_interval: Duration::from_secs(1),
            drain_timeout: Duration::from_secs(20),
            retry: Retry::None,
            retry_waits: Vec::new(),
            dead_letters: None,
            control: None,
            starts_paused: false,
        }
    }
}

/// Policy for records whose handler fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Retry {
    /// There is no further call in this topic.
    None,
    /// The handler is called again for the same record after a wait. The later records of the same key wait, and other
    /// keys do not.
    Blocking {
        /// Wait before the second call.
        first_wait: Duration,
        /// Longest wait. Each wait is twice the wait before, up to this time.
        wait_max: Duration,
        /// Largest number of calls; `None` for no limit.
        calls_max: Option<u32>,
    },
}

impl Retry {
    /// Returns the wait before the next call, after `calls` failed calls; `None` if the record is finished.
    pub(super) fn wait(&self, calls: u32) -> Option<Duration> {
        match self {
            Retry::None => None,
            Retry::Blocking { calls_max: Some(max), .. } if calls >= *max => None,
            Retry::Blocking { first_wait, wait_max, .. } => {
                let factor = 1_u32.checked_shl(calls.saturating_sub(1)).unwrap_or(u32::MAX);
                Some(first_wait.saturating_mul(factor).min(*wait_max))
            }
        }
    }
}
