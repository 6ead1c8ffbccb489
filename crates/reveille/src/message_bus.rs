//! Message bus of the service, to which bus targets send their records.

use std::sync::Arc;

use anyhow::Context as _;
use bus::memory::{MemoryBus, MemoryOptions};
use bus::{Bus, Compression, TopicName, TopicOptions};
use clap::{Args, ValueEnum};
use cli_support::Url;
use runtime::Runtime;

/// Start of the URL of the bus in memory.
const MEMORY: &str = "memory:";
/// Number of partitions of each topic of the bus in memory.
const MEMORY_PARTITIONS: u32 = 8;

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct BusArguments {
    /// URL of the message bus for bus targets: kafka://HOST:PORT,HOST:PORT, or with TLS and a user
    /// kafka+tls://USER@HOST:PORT?sslrootcert=FILE&passwordfile=FILE; `memory:TOPIC,TOPIC` is a bus in the memory of this
    /// process, for experiments [default: no bus, and the server rejects bus targets]
    #[arg(long, env = "REVEILLE_BUS", hide_env_values = true, value_name = "URL")]
    bus: Option<Url>,
    /// Compression of the records that the server sends to the message bus
    #[arg(long, env = "REVEILLE_BUS_COMPRESSION", value_enum, default_value_t)]
    bus_compression: Codec,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
enum Codec {
    #[default]
    Zstd,
    Lz4,
    Gzip,
    Snappy,
    None,
}

impl BusArguments {
    /// Returns true if the service has a message bus.
    pub(crate) fn is_some(&self) -> bool {
        self.bus.is_some()
    }

    pub(crate) fn compression(&self) -> Compression {
        match self.bus_compression {
            Codec::Zstd => Compression::Zstd,
            Codec::Lz4 => Compression::Lz4,
            Codec::Gzip => Compression::Gzip,
            Codec::Snappy => Compression::Snappy,
            Codec::None => Compression::None,
        }
    }

    /// Opens the bus. Does not wait for a broker, so that HTTP callbacks start while the brokers are away.
    ///
    /// # Errors
    /// Returns an error if the URL is invalid.
    pub(crate) async fn open(&self, runtime: &Runtime) -> anyhow::Result<Option<Arc<dyn Bus>>> {
        let Some(url) = &self.bus else { return Ok(None) };
        let opened = match url.as_str().strip_prefix(MEMORY) {
            Some(topics) => open_memory(runtime, topics).await,
            None => open_kafka(runtime, url),
        };
        opened.context("--bus").map(Some)
    }
}

async fn open_memory(runtime: &Runtime, topics: &str) -> anyhow::Result<Arc<dyn Bus>> {
    let bus = MemoryBus::new(runtime.clone(), MemoryOptions::default());
    for topic in topics.split(',').filter(|topic| !topic.is_empty()) {
        let topic = TopicName::new(topic)?;
        bus.create_topic(&topic, TopicOptions::with_partitions(MEMORY_PARTITIONS)).await?;
    }
    tracing::warn!("the message bus is in the memory of this process; all records are lost at its end");
    Ok(Arc::new(bus))
}

#[cfg(feature = "kafka")]
fn open_kafka(runtime: &Runtime, url: &Url) -> anyhow::Result<Arc<dyn Bus>> {
    let url = bus_kafka::KafkaUrl::parse(url.as_str())?;
    Ok(Arc::new(bus_kafka::KafkaBus::new(runtime.clone(), url)?))
}

#[cfg(not(feature = "kafka"))]
fn open_kafka(_runtime: &Runtime, _url: &Url) -> anyhow::Result<Arc<dyn Bus>> {
    anyhow::bail!("this build has no Kafka; use memory:, or build the binary with the feature `kafka`")
}
