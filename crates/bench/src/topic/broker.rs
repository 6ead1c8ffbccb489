//! Control of a broker that another process has started, through a Unix socket.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use runtime::Runtime;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::BusUrl;

/// Broker of a trial with faults.
#[derive(Args, Clone, Debug)]
pub(crate) struct BrokerArguments {
    /// Address of a running Kafka broker for the callbacks to topics, kafka://HOST:PORT
    #[arg(long, value_name = "URL", requires = "broker_control", conflicts_with = "url")]
    pub(crate) bus: Option<BusUrl>,
    /// Unix socket of a process that controls the broker: it reads one of the lines `pause`, `resume`, `kill`, `stop` and
    /// `start` from each connection, and writes `done` after the fault, or an error text. `cargo xtask bench-bus` starts a
    /// broker and such a process, and adds both options
    #[arg(long, value_name = "SOCKET", requires = "bus")]
    pub(crate) broker_control: Option<PathBuf>,
}

/// Broker that a trial can control.
#[derive(Clone, Debug)]
pub(crate) struct Broker {
    runtime: Runtime,
    pub(crate) url: BusUrl,
    socket: PathBuf,
}

/// Command to the process that controls the broker.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// Stop the broker like a process that receives SIGSTOP.
    #[cfg_attr(not(feature = "kafka"), expect(dead_code, reason = "only trials on Kafka pause a broker"))]
    Pause,
    /// Let a paused broker continue.
    #[cfg_attr(not(feature = "kafka"), expect(dead_code, reason = "only trials on Kafka pause a broker"))]
    Resume,
    Kill,
    /// End the broker gracefully.
    #[cfg_attr(not(feature = "kafka"), expect(dead_code, reason = "only trials on Kafka stop a broker"))]
    Stop,
    /// Start a broker that has ended. The answer comes when the broker serves requests.
    Start,
}

/// Longest time until the process has carried out a command. The start of a broker takes some seconds.
const TIMEOUT: Duration = Duration::from_secs(120);

impl Broker {
    /// Returns `None` if the arguments name no broker.
    pub(crate) fn of(runtime: &Runtime, arguments: &BrokerArguments) -> Option<Self> {
        let (url, socket) = arguments.bus.clone().zip(arguments.broker_control.clone())?;
        Some(Broker { runtime: runtime.clone(), url, socket })
    }

    /// Waits until the process has carried out the command.
    ///
    /// # Errors
    /// Returns an error if the process does not answer in time, or if it cannot carry out the command.
    pub(crate) async fn order(&self, order: Order) -> anyhow::Result<()> {
        let word = match order {
            Order::Pause => "pause",
            Order::Resume => "resume",
            Order::Kill => "kill",
            Order::Stop => "stop",
            Order::Start => "start",
        };
        let answer = self.runtime.timeout(TIMEOUT, self.exchange(word)).await;
        let answer = answer.with_context(|| format!("the command `{word}` to the broker took longer than {TIMEOUT:?}"));
        let socket = self.socket.display();
        let answer = answer?.with_context(|| format!("cannot control the broker through {socket}"))?;
        ensure!(answer.trim() == "done", "the command `{word}` to the broker failed: {}", answer.trim());
        tracing::info!(order = word, "the broker has received a command");
        Ok(())
    }

    async fn exchange(&self, word: &str) -> std::io::Result<String> {
        let mut stream = UnixStream::connect(&self.socket).await?;
        stream.write_all(format!("{word}\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}
