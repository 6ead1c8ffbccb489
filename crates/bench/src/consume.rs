//! Trial of consumers of a Kafka topic. It compares Reveille's processor with three peers: rdkafka's `StreamConsumer`, a
//! loop over Kafka's Java consumer, and Confluent's Parallel Consumer.
//!
//! Each contestant runs in a process of its own and in a new group, and no other contestant runs at the same time. In
//! each round, every contestant reads the same topic from its first record. The contestant itself measures its rate and
//! its latencies, and the bench reads its processor time and its memory from `/proc`.
//!
//! Invariants: a measurement excludes the start of a process, the joining of the group, and the first fifth of the
//! records. The bench starts no broker and has no Java code: the caller passes the addresses of the brokers and the
//! command of the Java contestants (`cargo xtask consume` supplies both).
//!
//! The binary needs the feature `kafka` for this trial. Without it, the command only prints an error.

#[cfg(feature = "kafka")]
mod clock;
#[cfg(feature = "kafka")]
mod contestant;
#[cfg(feature = "kafka")]
mod process;
#[cfg(feature = "kafka")]
mod topics;
#[cfg(feature = "kafka")]
mod trial;

use clap::{Args, ValueEnum};
use runtime::Runtime;

#[derive(Args, Debug)]
#[cfg_attr(not(feature = "kafka"), expect(dead_code, reason = "only the engine for Kafka reads the arguments"))]
pub struct ConsumeArguments {
    /// Addresses of the Kafka brokers, HOST:PORT,HOST:PORT; the benchmark creates topics there and does not delete them
    #[arg(long)]
    brokers: String,
    /// Number of rounds; each contestant runs once in each round. With at least 3 rounds, the command fails if Reveille
    /// is slower than its targets
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Number of records for the empty handler
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(10..=100_000_000))]
    records: u64,
    /// Number of records for the handler of 1 ms
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(10..=100_000_000))]
    slow_records: u64,
    /// Number of records for the handler of 1 ms and the contestants that handle one record at a time
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(10..=100_000_000))]
    sequential_records: u64,
    /// Records per second of the latency part
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(10..=1_000_000))]
    rate: u64,
    /// Measured seconds of the latency part
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    duration: u64,
    /// Number of partitions of each topic
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    partitions: u32,
    /// Number of different keys of the records
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    keys: u64,
    /// Size of the value of each record, in bytes
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(0..=900_000))]
    bytes: u32,
    /// Largest number of records in flight of the contestants that handle several records at a time
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    concurrency: u32,
    /// Parts to run [default: all]
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Command that starts the Java contestants, `tools/kafka-java/KafkaBench.java`; the benchmark appends the arguments.
    /// Without it, the benchmark measures only `rdkafka` and `reveille`
    #[arg(last = true)]
    java: Vec<String>,
}

/// Arguments of a contestant's process. The Java contestants receive the same words.
#[derive(Args, Clone, Debug)]
#[cfg_attr(not(feature = "kafka"), expect(dead_code, reason = "only the engine for Kafka reads the arguments"))]
pub struct ContestantArguments {
    name: Name,
    brokers: String,
    topic: String,
    group: String,
    part: Part,
    /// Number of records after which the contestant reports its results
    records: u64,
    /// Number of records that the contestant handles before the measurement
    warm_up: u64,
    concurrency: usize,
}

/// Contestant of the trial.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Name {
    Rdkafka,
    Java,
    Parallel,
    Reveille,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Part {
    /// Rate with a handler that does nothing
    Empty,
    /// Rate with a handler that takes 1 ms
    Slow,
    /// Time from the sending of a record until its handler ends, at a fixed rate
    Latency,
}

/// # Errors
/// Returns an error if the trial fails, if Reveille is slower than its targets, or if the binary has no engine for Kafka.
pub(crate) async fn run(runtime: &Runtime, arguments: &ConsumeArguments) -> anyhow::Result<()> {
    #[cfg(feature = "kafka")]
    {
        trial::run(runtime, arguments).await
    }
    #[cfg(not(feature = "kafka"))]
    {
        without_engine(runtime, arguments)
    }
}

/// Runs the process of a contestant in Rust.
///
/// # Errors
/// Returns an error if the contestant fails, or if the binary has no engine for Kafka.
pub(crate) async fn run_contestant(runtime: &Runtime, arguments: &ContestantArguments) -> anyhow::Result<()> {
    #[cfg(feature = "kafka")]
    {
        contestant::run(runtime, arguments).await
    }
    #[cfg(not(feature = "kafka"))]
    {
        without_engine(runtime, arguments)
    }
}

#[cfg(not(feature = "kafka"))]
fn without_engine<T>(_: &Runtime, _: &T) -> anyhow::Result<()> {
    anyhow::bail!("this binary has no client for Kafka; build it with the feature `kafka`, which is on by default")
}
