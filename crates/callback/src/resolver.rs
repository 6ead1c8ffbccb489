//! Resolver of the host names of targets.
//!
//! The resolver needs no thread per lookup. It caches each DNS response for the time to live that the response states.
//! Each tenant has a bounded number of concurrent lookups, so slow lookups of one tenant do not delay lookups of
//! another tenant (docs/decisions/0196-resolve-host-names-without-threads.md).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::{ResolverBuilder, TokioResolver};
use hyper_util::client::legacy::connect::dns::Name;
use runtime::Runtime;

use crate::share::TenantShare;

/// Longest time for one lookup, including its retries.
const LOOKUP_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum number of DNS responses in the cache of the resolver.
const NAMES_CACHED: u64 = 8_192;

/// Resolver of host names. It caches the addresses of a name for the time that the DNS server states, and occupies no
/// thread while it waits for a response.
pub(crate) struct Resolver {
    runtime: Runtime,
    dns: TokioResolver,
}

impl Resolver {
    /// Creates a resolver that asks `name_servers`, or the servers of `/etc/resolv.conf` if the list is empty. The
    /// resolver also uses `/etc/hosts`. It reads both files only once, at its creation.
    pub(crate) fn new(runtime: &Runtime, name_servers: &[SocketAddr]) -> Self {
        let mut builder = if name_servers.is_empty() { system_resolver() } else { resolver(name_servers) };
        let options = builder.options_mut();
        options.timeout = LOOKUP_TIME_MAX / 3;
        options.attempts = 2;
        options.cache_size = NAMES_CACHED;
        options.use_hosts_file = ResolveHosts::Always;
        // The resolver returns IPv4 and IPv6 addresses, because the egress guard must check all addresses of a name.
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        let dns = builder.build().expect("the construction of a resolver without TLS never fails");
        Resolver { runtime: runtime.clone(), dns }
    }

    /// Returns all addresses of a host name, with the port 0.
    pub(crate) async fn lookup(&self, name: &Name, share: &TenantShare) -> Result<Vec<SocketAddr>, Unresolved> {
        let _permit = share.lookups.acquire().await.expect("the semaphore is never closed");
        let lookup = self.runtime.timeout(LOOKUP_TIME_MAX, self.dns.lookup_ip(name.as_str())).await;
        let addresses = lookup.ok_or(Unresolved::TimedOut)??;
        Ok(addresses.iter().map(|address| SocketAddr::new(address, 0)).collect())
    }
}

fn system_resolver() -> ResolverBuilder<TokioRuntimeProvider> {
    TokioResolver::builder_tokio().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot read /etc/resolv.conf; Reveille queries the DNS server 127.0.0.1:53 instead");
        resolver(&[SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 53)])
    })
}

fn resolver(name_servers: &[SocketAddr]) -> ResolverBuilder<TokioRuntimeProvider> {
    let connections = |port: u16| {
        [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
            connection.port = port;
            connection
        })
    };
    let server = |address: &SocketAddr| NameServerConfig::new(address.ip(), true, connections(address.port()).into());
    let config = ResolverConfig::from_parts(None, Vec::new(), name_servers.iter().map(server).collect());
    TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()).with_options(ResolverOpts::default())
}

/// Error of a host name lookup that found no address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unresolved {
    #[error("no DNS server responded within {LOOKUP_TIME_MAX:?}")]
    TimedOut,
    #[error("the lookup failed")]
    Failed(#[from] NetError),
}
