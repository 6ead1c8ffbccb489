//! `reveille serve`: the service on this machine's disk, until it is told to stop.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use cli_support::console;
use cli_support::receiver::{self, Receiver};
use runtime::Runtime;

use crate::cluster::MemberArguments;
use crate::engine::EngineArguments;
use crate::logs::LogArguments;
use crate::receiver::Printer;
use crate::service::{Options, Service};
use crate::stop::{self, Signals};
use crate::store_key::StoreKeyArguments;
use crate::tls::TlsArguments;
use crate::tuning::TuningArguments;
use crate::{identity, server_url};

#[derive(Args, Debug)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    engine: EngineArguments,
    #[command(flatten)]
    store_key: StoreKeyArguments,
    #[command(flatten)]
    member: MemberArguments,
    /// The data folder, made at the first start; with --store, for this member's keys only
    #[arg(long, default_value = "./data", env = "REVEILLE_DATA")]
    data: PathBuf,
    /// Where requests are answered
    #[arg(long, default_value = "127.0.0.1:8080", env = "REVEILLE_LISTEN", value_parser = address)]
    listen: SocketAddr,
    /// A receiver that prints the callbacks it gets, to try things out with; see --no-receiver. None with --store, or with
    /// --listen on other than loopback: the first tenant may not call this machine then
    #[arg(long, default_value = "127.0.0.1:9000", env = "REVEILLE_RECEIVER", value_parser = address)]
    receiver: SocketAddr,
    /// Start no receiver
    #[arg(long, env = "REVEILLE_NO_RECEIVER")]
    no_receiver: bool,
    #[command(flatten)]
    tls: TlsArguments,
    #[command(flatten)]
    tuning: TuningArguments,
    /// One process: instead of days, for trials
    #[arg(long, hide = true, value_parser = clap::value_parser!(u64).range(1..))]
    history_seconds: Option<u64>,
    #[command(flatten)]
    pub(crate) logs: LogArguments,
    /// Let debuggers and profilers of the same user look into the process, and a crash write a core file: with keys, secrets
    /// and payloads in it
    #[arg(long, env = "REVEILLE_DEBUGGABLE")]
    pub(crate) debuggable: bool,
    /// A file with what else is not said here: a line `NAME = VALUE` in TOML for each flag, by its name without dashes.
    /// A variable of the environment wins over the file, and a flag over both
    #[arg(long, env = "REVEILLE_CONFIG")]
    config: Option<PathBuf>,
    /// Print what it would go by, as such a file, with where each value comes from and without passwords; and end
    #[arg(long)]
    print_config: bool,
}

impl ServeArguments {
    fn options(&self) -> anyhow::Result<Options> {
        let mut options = Options {
            data: self.data.clone(),
            engine: self.engine.engine()?,
            member: self.member.clone(),
            certificate: self.tls.open(self.listen)?,
            store_key: self.store_key.clone(),
            server: server::Options { listen: self.listen, ..server::Options::default() },
            ..Options::default()
        };
        let store = &mut options.store;
        store.history = self.history_seconds.map_or_else(|| self.member.history(), Duration::from_secs);
        store.history_period = store.history_period.min(store.history / 10);
        self.tuning.apply(&mut options)?;
        Ok(options)
    }
}

pub(crate) async fn serve(runtime: &Runtime, arguments: &ServeArguments) -> anyhow::Result<()> {
    let signals = Signals::listen()?;
    let service = Service::start(runtime, arguments.options()?).await?;
    let receiver = match service.is_member() || arguments.no_receiver || !arguments.listen.ip().is_loopback() {
        true => None,
        false => try_receiver(runtime, arguments.receiver).await,
    };
    let _found_until_stopped = server_url::Left::leave(&arguments.data, service.address, service.is_secured)
        .inspect_err(|error| tracing::warn!(%error, "commands on this machine will need --server"));
    tracing::info!(address = %service.address, data = %arguments.data.display(), "ready");
    if let Some(receiver) = receiver.as_ref().filter(|_| !service.is_secured) {
        welcome(&service, &arguments.data, receiver)?;
    }
    stop::tell_ready();
    let patience = arguments.tuning.patience();
    let stop = stop::is_due(runtime.clone(), signals, service.readiness(), patience);
    service.run_until(stop).await;
    tracing::info!("stopped");
    Ok(())
}

fn address(text: &str) -> anyhow::Result<SocketAddr> {
    text.parse().context("it is an address of this machine and a port: 127.0.0.1:8080, [::1]:8080 or 0.0.0.0:8080")
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
    let (address, receiver) = (service.address, receiver.address);
    let text = format!(
        r#"the key of the tenant `default` is in {key}
ask for a callback in three seconds (it is printed here):

curl -sS http://{address}/v1/schedules -H "Authorization: Bearer $(cat '{key}')" -H 'Content-Type: application/json' -d '{{"at":"'$(date -u -d '+3 seconds' +%FT%TZ)'","target":{{"http":{{"url":"http://{receiver}/"}}}},"payload":{{"hello":"world"}}}}'
"#
    );
    console::line(&text).context("cannot print how to begin")
}
