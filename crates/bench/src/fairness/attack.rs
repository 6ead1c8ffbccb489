//! Attacks on the service. Each module below contains one attack.

mod bus;
mod busy;
mod bytes;
mod connections;
mod dns;
mod flood;
mod hosts;
mod lines;
mod listings;
mod schedules;
mod slots;
mod slow;
mod streams;
mod unread;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use cli_support::receiver::{Options, Receiver};
use domain::Timestamp;
use reveille_client::Quotas;
use runtime::{Runtime, TaskSet};

use self::dns::NameServer;
use self::schedules::AttackSchedules;
use self::streams::Identity;
use crate::arrivals::Arrivals;
use crate::server::Server;
use crate::tenant::Tenant;
use crate::topic::broker::{Broker, Order};

/// Load that the attacker causes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Kind {
    /// Ten times as many callbacks as the tenant's quota allows
    // The attack `all` starts this attack first, because the creation of its schedules takes longest.
    Busy,
    /// A hundred schedules, each due every second, for a target that takes three seconds to respond
    Slow,
    /// More callbacks than the service has slots, to targets that take 40 seconds to respond
    Slots,
    /// A thousand callbacks a second to different host names, whose DNS server never responds
    Dns,
    /// A thousand callbacks a second to HTTP/2 targets that permit 10 streams and take three seconds to respond
    Streams,
    /// Callbacks to 6,000 different hosts, whose connections exceed the limit of idle connections
    Hosts,
    /// Listings on 64 connections, each of which searches 20,000 schedules and finds none
    Listings,
    /// New schedules with the largest payloads on 64 connections, without a pause; they take up to 64 MB of disk a second
    Bytes,
    /// Batches on 64 connections with a field name of 250 KB
    Lines,
    /// Listings over HTTP/1.1 and HTTP/2 on many connections, whose client reads no response
    Unread,
    /// As many connections without a key as the server allows, each with a request every 20 seconds
    Connections,
    /// 50,000 callbacks to a topic that are due at one instant, while the broker of the message bus is dead
    Bus,
    /// All attacks except `bus` at the same time
    All,
}

impl Kind {
    /// Starts the attack, and returns its parts.
    ///
    /// # Errors
    /// Returns an error if a part does not start.
    pub(super) async fn start(self, stage: &Stage<'_>) -> anyhow::Result<Vec<Attack>> {
        let attack = match self {
            Kind::Busy => busy::start(stage).await,
            Kind::Slow => slow::start(stage).await,
            Kind::Slots => slots::start(stage).await,
            Kind::Dns => dns::start(stage).await,
            Kind::Streams => streams::start(stage).await,
            Kind::Hosts => hosts::start(stage).await,
            Kind::Listings => listings::start(stage).await,
            Kind::Bytes => bytes::start(stage).await,
            Kind::Lines => lines::start(stage).await,
            Kind::Unread => unread::start(stage).await,
            Kind::Connections => Ok(connections::start(stage)),
            Kind::Bus => bus::start(stage).await,
            Kind::All => {
                let mut attacks = Vec::new();
                for kind in Kind::value_variants().iter().filter(|kind| !matches!(kind, Kind::All | Kind::Bus)) {
                    attacks.extend(Box::pin(kind.start(stage)).await?);
                }
                return Ok(attacks);
            }
        };
        Ok(vec![attack.with_context(|| format!("cannot start the attack {self:?}"))?])
    }
}

/// Servers and files of the attacks that the server under test needs to know at its start.
pub(super) struct Equipment {
    name_server: NameServer,
    identity: Identity,
    /// Broker that the attack `bus` kills.
    pub(super) broker: Option<Broker>,
}

impl Equipment {
    /// Starts the DNS server, and writes the certificate of the HTTP/2 targets into `folder`.
    ///
    /// # Errors
    /// Returns an error if the DNS server has no socket, or if the folder is not writable.
    pub(super) async fn prepare(runtime: &Runtime, folder: &Path, broker: Option<Broker>) -> anyhow::Result<Self> {
        Ok(Equipment { name_server: NameServer::start(runtime).await?, identity: Identity::create(folder)?, broker })
    }

    /// Returns the arguments of `serve` that make the server use the DNS server and the broker, and trust the certificate.
    pub(super) fn server_arguments(&self) -> Vec<String> {
        let [name_server, roots] = ["--callback-name-server", "--callback-roots"].map(str::to_owned);
        let bus = self.broker.iter().flat_map(|broker| ["--bus".to_owned(), broker.url.for_server()]);
        [name_server, self.name_server.address.to_string(), roots, self.identity.path.display().to_string()]
            .into_iter()
            .chain(bus)
            .collect()
    }
}

/// Everything that the start of an attack needs.
pub(super) struct Stage<'a> {
    pub(super) runtime: &'a Runtime,
    pub(super) server: &'a Server,
    pub(super) equipment: &'a Equipment,
    /// Longest time from the start of the attack to the last callback of the observed tenant.
    pub(super) lasts: Duration,
    /// Time that the observed tenant needs to create its schedules.
    pub(super) lead: Duration,
}

impl Stage<'_> {
    async fn tenant(&self, name: &str, quotas: Quotas) -> anyhow::Result<Tenant> {
        self.tenant_with_topics(name, quotas, &[]).await
    }

    async fn tenant_with_topics(&self, name: &str, quotas: Quotas, topics: &[&str]) -> anyhow::Result<Tenant> {
        Tenant::create_with_topics(self.runtime, self.server, name, quotas, topics).await
    }

    /// Starts a receiver on all loopback addresses. It responds after `answer_after`, and counts the callbacks.
    async fn receive(&self, answer_after: Duration) -> anyhow::Result<(Receiver, Arc<Arrivals>)> {
        let received = Arc::new(Arrivals::counting());
        let any_address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let receiver = Receiver::start(self.runtime, any_address, Options { answer_after }, received.clone()).await?;
        Ok((receiver, received))
    }
}

/// Attack in progress. Dropping this value ends the attack's requests and targets, but does not cancel its schedules.
pub(super) struct Attack {
    _tasks: TaskSet,
    _receivers: Vec<Receiver>,
    schedules: Option<AttackSchedules>,
    /// Instant at which the attack reaches its full effect; `None` if it has reached this effect already.
    pub(super) ready_at: Option<Timestamp>,
    /// Broker that the attack has killed. It starts again at the end of the attack.
    killed: Option<Broker>,
    effect: Box<dyn Fn() -> anyhow::Result<String>>,
}

impl Attack {
    /// Returns an attack without schedules and targets. `effect` describes the effect so far, or returns an error if
    /// the attack has too little effect.
    fn new(tasks: TaskSet, effect: impl Fn() -> anyhow::Result<String> + 'static) -> Self {
        Attack {
            _tasks: tasks,
            _receivers: Vec::new(),
            schedules: None,
            ready_at: None,
            killed: None,
            effect: Box::new(effect),
        }
    }

    /// Describes the effect of the attack so far.
    ///
    /// # Errors
    /// Returns an error if the effect is so small that the trial is invalid.
    pub(super) fn effect(&self) -> anyhow::Result<String> {
        (self.effect)()
    }

    /// Ends the attack, and waits until its callbacks in flight have ended.
    ///
    /// # Errors
    /// Returns an error if the server does not cancel the schedules of the attack, or if a killed broker does not start.
    pub(super) async fn end(self, runtime: &Runtime) -> anyhow::Result<()> {
        if let Some(schedules) = self.schedules {
            schedules.end(runtime).await?;
        }
        match self.killed {
            Some(broker) => broker.order(Order::Start).await,
            None => Ok(()),
        }
    }
}

/// Returns the URL of a target on this machine.
fn url(address: Ipv4Addr, port: u16) -> String {
    format!("http://{address}:{port}/callback")
}

/// Returns one of 65,536 different loopback addresses.
fn loopback(number: u64) -> Ipv4Addr {
    let [.., high, low] = number.to_be_bytes();
    Ipv4Addr::new(127, 1, high, low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attack_maps_different_numbers_to_different_loopback_addresses() {
        let addresses = [0, 1, 255, 256, 65_535].map(|number| loopback(number).to_string());
        assert_eq!(addresses, ["127.1.0.0", "127.1.0.1", "127.1.0.255", "127.1.1.0", "127.1.255.255"]);
    }
}
