//! Trials of callbacks to a topic of a message bus: their rate, their lateness, and their fate while a broker or the server
//! fails.
//!
//! Invariants: on Kafka, the trial reads the whole topic and counts the callbacks by its records, never by a report of the
//! server. Only the bus in the server's memory has no other reader, so its trial counts by the server's metrics. A rate
//! includes the time until the outcomes of all callbacks are durable. The bench starts no broker: the caller passes its
//! address, and a socket that controls it if a trial needs faults (`cargo xtask bench-bus` supplies both).

pub(crate) mod broker;
#[cfg(feature = "kafka")]
mod judge;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "kafka")]
mod outage;
#[cfg(feature = "kafka")]
mod peer;
mod progress;
mod trial;

use std::str::FromStr;

use clap::{Args, ValueEnum};
use runtime::Runtime;

use self::broker::BrokerArguments;
use crate::server::ServerArguments;
use crate::{Common, FireArguments};

/// Arguments of `bench fire` for callbacks to a topic.
#[derive(Args, Clone, Debug)]
pub(crate) struct BusArguments {
    /// Message bus that receives the callbacks as records with 10,000 different keys: `memory`, or the address of running
    /// brokers, kafka://HOST:PORT. On Kafka, each run creates a topic, reads all its records afterwards, and fails if a
    /// callback is lost, duplicated or early; the lateness of a callback is the time from its due instant to the time at
    /// which the broker appended its record, rounded up to a millisecond. On `memory`, the server's metrics supply the
    /// counts. `cargo xtask bench-bus fire` starts a broker and adds this option
    #[arg(long, value_name = "URL", conflicts_with_all = ["url", "kill", "overdue", "slow_target", "receiver_url"])]
    pub(crate) bus: Option<BusUrl>,
    /// Number of partitions of each topic, with `--bus kafka://…`
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) partitions: u32,
    /// Largest number of callbacks in flight to the topic, with `--bus` [default: the server's]
    #[arg(long, requires = "bus", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) in_flight: Option<u32>,
}

#[derive(Args, Debug)]
#[cfg_attr(not(feature = "kafka"), expect(dead_code, reason = "only the engine for Kafka reads the arguments"))]
pub struct OutageArguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    broker: BrokerArguments,
    /// Number of callbacks, which are all due at one instant
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    count: u64,
    /// Seconds of the outage in the trials `paused`, `away` and `all`
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=600))]
    outage: u64,
    /// Number of partitions of each topic
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    partitions: u32,
    /// Faults to test [default: each of them]
    #[arg(long, value_enum)]
    only: Vec<Fault>,
}

/// Fault that begins when a quarter of the callbacks have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Fault {
    /// The broker stops like a process that receives SIGSTOP, and continues after the outage
    Paused,
    /// The broker is killed, and starts again after the outage
    Away,
    /// The broker is killed, and starts again at once
    Killed,
    /// The broker ends gracefully, and starts again at once
    Restarted,
    /// The server is killed with `kill -9`, and starts again at once
    Server,
    /// The broker pauses for the outage; in the middle of it, the server is killed and starts again; after it, the broker
    /// is killed and starts again
    All,
}

/// Message bus of a trial.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum BusUrl {
    /// Bus in the memory of the server.
    Memory,
    /// Kafka brokers without users and TLS.
    Kafka {
        /// `HOST:PORT` of some brokers, separated by commas.
        servers: String,
    },
}

impl FromStr for BusUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.strip_prefix("kafka://")) {
            ("memory", _) => Ok(BusUrl::Memory),
            (_, Some(servers)) if !servers.is_empty() && !servers.contains(['@', '?', '/']) => {
                Ok(BusUrl::Kafka { servers: servers.to_owned() })
            }
            _ => Err("use `memory` or kafka://HOST:PORT,HOST:PORT without a user"),
        }
    }
}

/// Beginning of the names of the topics that trials use.
const TOPIC_START: &str = "bench-reveille-";
/// Topic of the bus in the server's memory.
const MEMORY_TOPIC: &str = "bench-reveille-memory";

/// Topic of the attack `bus` of `bench fairness`.
pub(crate) const ATTACK_TOPIC: &str = "bench-reveille-attack";

/// Pattern with which the trial's tenant may write to the topics.
pub(crate) const TOPICS: &str = "bench-reveille-*";

impl BusUrl {
    /// Returns the value of the option `--bus` of `serve`.
    pub(crate) fn for_server(&self) -> String {
        match self {
            BusUrl::Memory => format!("memory:{MEMORY_TOPIC}"),
            BusUrl::Kafka { servers } => format!("kafka://{servers}"),
        }
    }
}

/// Measures the rate or the lateness of callbacks to a topic.
///
/// # Errors
/// Returns an error if a trial fails, or if a callback is lost, duplicated or early.
pub(crate) async fn fire(runtime: &Runtime, arguments: &FireArguments, url: &BusUrl) -> anyhow::Result<()> {
    trial::run(runtime, arguments, url).await
}

/// Creates the topic of the attack `bus` if it does not exist.
///
/// # Errors
/// Returns an error if the broker rejects the topic.
pub(crate) async fn create_attack_topic(runtime: &Runtime, broker: &broker::Broker) -> anyhow::Result<()> {
    #[cfg(feature = "kafka")]
    {
        kafka::create_attack_topic(runtime, &broker.url).await
    }
    #[cfg(not(feature = "kafka"))]
    {
        let _ = (runtime, broker);
        anyhow::bail!(WITHOUT_ENGINE)
    }
}

/// Lets a broker or the server fail in the midst of callbacks to a topic.
///
/// # Errors
/// Returns an error if a trial fails, if a callback is lost or early, or if a callback is duplicated although it was not in
/// flight during a fault.
pub(crate) async fn outage(runtime: &Runtime, arguments: &OutageArguments) -> anyhow::Result<()> {
    #[cfg(feature = "kafka")]
    {
        outage::run(runtime, arguments).await
    }
    #[cfg(not(feature = "kafka"))]
    {
        let _ = (runtime, arguments);
        anyhow::bail!(WITHOUT_ENGINE)
    }
}

#[cfg(not(feature = "kafka"))]
const WITHOUT_ENGINE: &str =
    "this binary has no client for Kafka; build it with the feature `kafka`, which is on by default";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_url_is_memory_or_brokers_without_a_user() {
        assert_eq!("memory".parse::<BusUrl>().unwrap().for_server(), "memory:bench-reveille-memory");
        assert_eq!("kafka://a:1,b:2".parse::<BusUrl>().unwrap().for_server(), "kafka://a:1,b:2");
        for wrong in ["", "memory:x", "kafka://", "a:1", "kafka://ann:secret@a:1", "kafka://a:1?x=y"] {
            assert!(wrong.parse::<BusUrl>().is_err(), "{wrong}");
        }
    }
}
