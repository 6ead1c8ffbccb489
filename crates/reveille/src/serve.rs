//! Command `reveille serve`, which runs the service until the process receives a signal to stop.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use cli_support::console;
use cli_support::receiver::{self, Receiver};
use runtime::Runtime;

use crate::cluster::MemberArguments;
use crate::engine::EngineArguments;
use crate::logs::LogArguments;
use crate::message_bus::BusArguments;
use crate::receiver::Printer;
use crate::service::{Options, Service};
use crate::stop::{self, Signals, StoppedWaiting};
use crate::store_key::StoreKeyArguments;
use crate::tls::TlsArguments;
use crate::tuning::TuningArguments;
use crate::{descriptors, identity, server_url};

/// Heading of the options about threads, metrics, logs and debuggers in the help text.
const OPERATION: &str = "Process, metrics and logs";

#[derive(Args, Debug)]
pub(crate) struct ServeArguments {
    /// Data folder, which the first start creates; with --store, it contains only the keys of this member
    #[arg(long, default_value = "./data", env = "REVEILLE_DATA")]
    data: PathBuf,
    /// Listen address of the HTTP API
    #[arg(long, default_value = "127.0.0.1:8080", env = "REVEILLE_LISTEN", value_parser = address)]
    listen: SocketAddr,
    /// TOML configuration file with lines `NAME = VALUE`, where NAME is the name of a flag without its dashes. An
    /// environment variable overrides the file, and a flag overrides both
    #[arg(long, env = "REVEILLE_CONFIG")]
    config: Option<PathBuf>,
    /// Print the effective configuration as TOML, with the source of each value and passwords redacted, then exit
    #[arg(long)]
    print_config: bool,
    /// Listen address of a built-in receiver that prints callbacks, for experiments; --no-receiver disables it. The
    /// receiver does not start with --store or if --listen is not loopback, because the first tenant then has no
    /// permission to call this machine
    #[arg(long, default_value = "127.0.0.1:9000", env = "REVEILLE_RECEIVER", value_parser = address)]
    receiver: SocketAddr,
    /// Do not start the built-in receiver
    #[arg(long, env = "REVEILLE_NO_RECEIVER")]
    no_receiver: bool,
    #[command(flatten, next_help_heading = "TLS of the HTTP API")]
    tls: TlsArguments,
    #[command(flatten, next_help_heading = "Store and cluster")]
    engine: EngineArguments,
    #[command(flatten, next_help_heading = "Store and cluster")]
    store_key: StoreKeyArguments,
    #[command(flatten, next_help_heading = "Store and cluster")]
    member: MemberArguments,
    #[command(flatten, next_help_heading = "Message bus")]
    bus: BusArguments,
    #[command(flatten, next_help_heading = "Limits and timeouts")]
    tuning: TuningArguments,
    /// Single process only: length of the history in seconds instead of days, for experiments
    #[arg(long, hide = true, value_parser = clap::value_parser!(u64).range(1..))]
    history_seconds: Option<u64>,
    /// Number of threads that send callbacks, and number of threads that run requests [1 to 256] [default: one per core]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256), env = "REVEILLE_THREADS")]
    #[arg(help_heading = OPERATION)]
    pub(crate) threads: Option<u16>,
    /// Listen address at which the server responds to /metrics only, without TLS and without a key; the server
    /// then returns 404 for /metrics at the address of --listen [default: /metrics at the address of --listen]
    #[arg(long, env = "REVEILLE_METRICS_LISTEN", value_parser = address, help_heading = OPERATION)]
    metrics_listen: Option<SocketAddr>,
    #[command(flatten, next_help_heading = OPERATION)]
    pub(crate) logs: LogArguments,
    /// Allow debuggers and profilers of the same user, and core files after a crash; a debugger and a core file show
    /// keys, secrets and payloads
    #[arg(long, env = "REVEILLE_DEBUGGABLE", help_heading = OPERATION)]
    pub(crate) debuggable: bool,
}

/// Attempts that may wait for each thread that sends callbacks, while several tenants have due keys
/// (docs/decisions/0246-queue-starts-before-the-processors.md).
const STARTS_READY_PER_THREAD: usize = 16;

impl ServeArguments {
    fn options(&self) -> anyhow::Result<Options> {
        let mut options = Options {
            data: self.data.clone(),
            engine: self.engine.engine()?,
            member: self.member.clone(),
            certificate: self.tls.open(self.listen)?,
            store_key: self.store_key.clone(),
            bus: self.bus.clone(),
            request_threads: self.threads.map(usize::from),
            server: server::Options {
                listen: self.listen,
                metrics_listen: self.metrics_listen,
                history: self.member.history(),
                ..server::Options::default()
            },
            ..Options::default()
        };
        let store = &mut options.store;
        store.history = self.history_seconds.map_or_else(|| self.member.history(), Duration::from_secs);
        store.history_period = store.history_period.min(store.history / 10);
        options.scheduler.history = options.store.history;
        let threads = self.threads.map(usize::from).or_else(|| Some(available_parallelism().ok()?.get())).unwrap_or(1);
        let ready_max = &mut options.scheduler.starts_ready_max;
        *ready_max = (*ready_max).max(STARTS_READY_PER_THREAD * threads);
        self.tuning.apply(&mut options)?;
        Ok(options)
    }
}

pub(crate) async fn serve(runtime: &Runtime, arguments: &ServeArguments) -> anyhow::Result<()> {
    let signals = Signals::listen()?;
    let mut options = arguments.options()?;
    descriptors::fit(&mut options, descriptors::raise_limit());
    let service = match Service::start(runtime, options).await {
        Err(error) if error.is::<StoppedWaiting>() => {
            tracing::info!("{error}");
            return Ok(());
        }
        started => started?,
    };
    let receiver = match service.is_member() || arguments.no_receiver || !arguments.listen.ip().is_loopback() {
        true => None,
        false => try_receiver(runtime, arguments.receiver).await,
    };
    let _url_file =
        server_url::UrlFile::write(&arguments.data, service.address, service.is_secured).inspect_err(|error| {
            tracing::warn!(
                %error,
                "cannot write server.url, from which commands read the server's address; give them the address with \
                 --server"
            );
        });
    if let Some(address) = service.metrics_address() {
        tracing::info!(%address, "serving the metrics at a separate address");
    }
    tracing::info!(address = %service.address, data = %arguments.data.display(), "ready");
    if let Some(receiver) = receiver.as_ref().filter(|_| !service.is_secured) {
        welcome(&service, &arguments.data, receiver)?;
    }
    stop::notify_ready();
    let timeouts = arguments.tuning.stop_timeouts();
    let folder_lost = service.folder_lost();
    let stop = stop::is_due(runtime.clone(), signals, folder_lost.clone(), service.readiness(), timeouts);
    service.run_until(stop).await;
    ensure!(
        !folder_lost.is_cancelled(),
        "the data folder {} or its lock file was removed, moved or replaced while this member used it: check that each \
         member has its own folder, then start the member again",
        arguments.data.display()
    );
    tracing::info!("stopped");
    Ok(())
}

fn address(text: &str) -> anyhow::Result<SocketAddr> {
    text.parse().context(
        "the value is not an IP address with a port; write an address such as 127.0.0.1:8080, [::1]:8080 or \
         0.0.0.0:8080",
    )
}

/// Starts the built-in receiver. If its port is in use, the receiver listens on another port. Returns `None` if the
/// receiver cannot start.
async fn try_receiver(runtime: &Runtime, listen: SocketAddr) -> Option<Receiver> {
    let options = receiver::Options::default();
    match Receiver::start(runtime, listen, options, Arc::new(Printer::default())).await {
        Ok(receiver) => Some(receiver),
        Err(error) => {
            let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let receiver = Receiver::start(runtime, anywhere, options, Arc::new(Printer::default())).await.ok()?;
            tracing::info!("{error:#}; the receiver listens on {} instead", receiver.address);
            Some(receiver)
        }
    }
}

fn welcome(service: &Service, data: &Path, receiver: &Receiver) -> anyhow::Result<()> {
    let key = identity::admin_key_path(data);
    if !key.exists() {
        // The key file of the tenant may be missing, for example because `restore` or `import` created the data folder.
        return Ok(());
    }
    let key = key.display();
    let (address, receiver) = (service.address, receiver.address);
    let text = format!(
        r#"the key of the tenant `default` is in {key}
to schedule a callback in three seconds, which is printed here, run:

curl -sS http://{address}/v1/schedules -H "Authorization: Bearer $(cat '{key}')" -H 'Content-Type: application/json' -d '{{"at":"'$(date -u -d '+3 seconds' +%FT%TZ)'","target":{{"http":{{"url":"http://{receiver}/"}}}},"payload":{{"hello":"world"}}}}'
"#
    );
    console::line(&text).context("cannot print the instructions for the first steps")
}
