//! `reveille serve`: the service on this machine's disk, until it is told to stop.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::cluster::MemberArguments;
use crate::engine::EngineArguments;
use crate::receiver::{self, Printer, Receiver};
use crate::service::{Options, Service};
use crate::{console, identity};

#[derive(Args, Debug)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    engine: EngineArguments,
    #[command(flatten)]
    member: MemberArguments,
    /// The data folder, made at the first start; with --store, for this member's keys only
    #[arg(long, default_value = "./data", env = "REVEILLE_DATA")]
    data: PathBuf,
    /// Where requests are answered
    #[arg(long, default_value = "127.0.0.1:8080", env = "REVEILLE_LISTEN")]
    listen: SocketAddr,
    /// A receiver that prints the callbacks it gets, to try things out with; see --no-receiver. None with --store
    #[arg(long, default_value = "127.0.0.1:9000", env = "REVEILLE_RECEIVER")]
    receiver: SocketAddr,
    /// Start no receiver
    #[arg(long, env = "REVEILLE_NO_RECEIVER")]
    no_receiver: bool,
    /// Callbacks in flight to one target; too few slow down a target with long answers, too many may overrun it
    #[arg(long, value_parser = at_least_one(), default_value_t = scheduler::Options::default().in_flight_per_target, env = "REVEILLE_IN_FLIGHT_PER_TARGET")]
    in_flight_per_target: usize,
    /// Callbacks in flight in all; a kill can double so many
    #[arg(long, value_parser = at_least_one(), default_value_t = scheduler::Options::default().in_flight_max, env = "REVEILLE_IN_FLIGHT_MAX")]
    in_flight_max: usize,
    /// Due callbacks kept in memory, ahead of time and waiting; about 100 bytes each
    #[arg(long, value_parser = at_least_one(), default_value_t = scheduler::Options::default().window_keys_max, env = "REVEILLE_WINDOW_KEYS_MAX")]
    window_keys_max: usize,
}

fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

impl ServeArguments {
    fn options(&self) -> anyhow::Result<Options> {
        Ok(Options {
            data: self.data.clone(),
            engine: self.engine.engine()?,
            member: self.member.clone(),
            server: server::Options { listen: self.listen, ..server::Options::default() },
            scheduler: scheduler::Options {
                in_flight_per_target: self.in_flight_per_target,
                in_flight_max: self.in_flight_max,
                window_keys_max: self.window_keys_max,
                ..scheduler::Options::default()
            },
            ..Options::default()
        })
    }
}

pub(crate) async fn serve(runtime: &Runtime, arguments: &ServeArguments) -> anyhow::Result<()> {
    let stop = stop_signal()?;
    let service = Service::start(runtime, arguments.options()?).await?;
    let receiver = match service.is_member() || arguments.no_receiver {
        true => None,
        false => try_receiver(runtime, arguments.receiver).await,
    };
    tracing::info!(address = %service.address, data = %arguments.data.display(), "ready");
    if let Some(receiver) = &receiver {
        welcome(&service, &arguments.data, receiver)?;
    }
    service.run_until(stop).await;
    tracing::info!("stopped");
    Ok(())
}

/// A receiver to try things out with; the service does without if there is no port for it.
async fn try_receiver(runtime: &Runtime, listen: SocketAddr) -> Option<Receiver> {
    let options = receiver::Options::default();
    match Receiver::start(runtime, listen, options, Arc::new(Printer::default())).await {
        Ok(receiver) => Some(receiver),
        Err(error) => {
            let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let receiver = Receiver::start(runtime, anywhere, options, Arc::new(Printer::default())).await.ok()?;
            tracing::info!("{error:#}; it listens on {} instead", receiver.address);
            Some(receiver)
        }
    }
}

fn welcome(service: &Service, data: &Path, receiver: &Receiver) -> anyhow::Result<()> {
    let key = identity::admin_key_path(data);
    if !key.exists() {
        // A member of a cluster: the key lies where its schema was made.
        return Ok(());
    }
    let key = key.display();
    let made = if service.is_new { format!("a key for the tenant `default` is in {key}\n") } else { String::new() };
    let (address, receiver) = (service.address, receiver.address);
    let text = format!(
        r#"{made}ask for a callback in three seconds (it is printed here):

curl -sS http://{address}/v1/schedules -H "Authorization: Bearer $(cat '{key}')" -H 'Content-Type: application/json' -d '{{"at":"'$(date -u -d '+3 seconds' +%FT%TZ)'","target":{{"http":{{"url":"http://{receiver}/"}}}},"payload":{{"hello":"world"}}}}'
"#
    );
    console::line(&text).context("cannot print how to begin")
}

/// Resolves at SIGTERM or SIGINT; a second one ends the process at once.
pub(crate) fn stop_signal() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    Ok(async move {
        let terminated = std::pin::pin!(terminate.recv());
        let interrupted = std::pin::pin!(interrupt.recv());
        futures_util::future::select(terminated, interrupted).await;
    })
}
