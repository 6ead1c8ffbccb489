//! Commands `reveille bus`, with which operators show and change a message bus.
//!
//! The commands use only the ports of the crate `bus`. This module opens the only engine, which is Kafka. With `--json`,
//! the commands print JSON objects, one on each line. Otherwise they print tables and lines for people, and escape the
//! control characters in text that other users wrote.
//!
//! Invariants: every error names the next step. A command commits an offset only after it has printed the records before
//! the offset, or after the bus has acknowledged their copies.

mod consume;
mod feed;
mod groups;
mod growth;
mod produce;
mod redrive;
mod retries;
mod text;
mod topics;

use std::io::{self, Write as _};
use std::sync::Arc;

use anyhow::{Context as _, anyhow, ensure};
use bus::{Admin, BusError, Partition};
use bus_kafka::{KafkaBus, KafkaUrl};
use clap::{Args, Subcommand};
use cli_support::Url;
use runtime::Runtime;

use crate::cli::show::escaped;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// List, show, create and grow topics
    #[command(subcommand)]
    Topics(topics::Command),
    /// Send a record for each line of standard input, or a single record
    Produce(produce::Arguments),
    /// Print the records of a topic
    Consume(consume::Arguments),
    /// List groups of consumers, and show their members, committed offsets and lag
    #[command(subcommand)]
    Groups(groups::Command),
    /// List and skip the records that block their keys, and send dead letters again
    #[command(subcommand)]
    Retries(retries::Command),
}

pub(crate) async fn execute(runtime: &Runtime, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Topics(command) => topics::execute(runtime, command).await,
        Command::Produce(arguments) => produce::execute(runtime, arguments).await,
        Command::Consume(arguments) => consume::execute(runtime, arguments).await,
        Command::Groups(command) => groups::execute(runtime, command).await,
        Command::Retries(command) => retries::execute(runtime, command).await,
    }
}

/// Options for the bus and for the format of the output.
#[derive(Args, Debug)]
pub(crate) struct Common {
    /// URL of the bus: kafka://HOST:PORT,HOST:PORT, or with TLS and a user
    /// kafka+tls://USER@HOST:PORT?sslrootcert=FILE&passwordfile=FILE
    #[arg(long, env = "REVEILLE_BUS", hide_env_values = true, value_name = "URL")]
    bus: Url,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Common {
    async fn open(&self, runtime: &Runtime) -> anyhow::Result<Arc<dyn Admin>> {
        let url = KafkaUrl::parse(self.bus.as_str()).context("--bus")?;
        Ok(Arc::new(KafkaBus::open(runtime.clone(), url).await.map_err(explain)?))
    }
}

/// Checks that a topic exists and has a partition. `missing` names the partition, or a record of it, in the error.
async fn check_partition(bus: &dyn Admin, partition: &Partition, missing: &str) -> anyhow::Result<()> {
    let Partition { topic, index } = partition;
    let partitions = bus.describe_topic(topic).await.map_err(explain)?.offsets.len();
    ensure!(
        usize::try_from(*index).is_ok_and(|index| index < partitions),
        "the topic {topic} has {partitions} partitions, so it has no {missing}; name a smaller number of the partition"
    );
    Ok(())
}

/// Adds the next step to an error of the bus.
fn explain(error: BusError) -> anyhow::Error {
    match error {
        BusError::UnknownTopic(topic) => anyhow!(
            "unknown topic {topic}: `reveille bus topics list` shows the topics, and `reveille bus topics create` \
             creates one"
        ),
        BusError::TopicExists(topic) => anyhow!(
            "the topic {topic} already exists: `reveille bus topics show` shows it, and `reveille bus topics grow` adds \
             partitions"
        ),
        BusError::Disconnected(reason) => anyhow!(
            "the bus did not respond: {}: check --bus or REVEILLE_BUS, and that the brokers are running",
            escaped(&reason)
        ),
        // The text of the broker can contain control characters.
        BusError::Unauthorized(reason) => BusError::Unauthorized(escaped(&reason)).into(),
        BusError::Invalid(reason) => BusError::Invalid(escaped(&reason)).into(),
        error => error.into(),
    }
}

/// Prints a line about an event that does not end the command on standard error.
fn note(text: &str) {
    // If standard error is closed, the text is lost.
    let _unwritten = writeln!(io::stderr(), "reveille: {}", escaped(text));
}
