//! The egress guard. It resolves a host name once, checks every resulting address against the tenant's policy
//! ([`domain::egress`]), and connects to one of exactly these addresses.
//!
//! The guard does not decide which addresses are public. It connects only to addresses that it has checked, even if a
//! later lookup of the same name returns other addresses.
//!
//! Invariants: If the policy rejects one address of a name, the guard connects to no address of this name. Attackers
//! use names with an internal and an external address to bypass egress checks. The text of a rejection contains no
//! address.

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::vec;

use domain::{Egress, EgressRejection};
use futures_util::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::Name;
use tower::Service;

use crate::resolver::{Resolver, Unresolved};
use crate::share::TenantShare;

/// Resolver that applies one egress policy and one tenant's limit on concurrent lookups. A URL whose host is an IP
/// address needs no lookup; [`Egress::check_url`] checks this address.
#[derive(Clone)]
pub(crate) struct GuardedResolver {
    resolver: Arc<Resolver>,
    egress: Arc<Egress>,
    share: Arc<TenantShare>,
}

impl GuardedResolver {
    pub(crate) fn new(resolver: Arc<Resolver>, egress: Arc<Egress>, share: Arc<TenantShare>) -> Self {
        GuardedResolver { resolver, egress, share }
    }
}

impl Service<Name> for GuardedResolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = LookupFailed;
    type Future = BoxFuture<'static, Result<Self::Response, LookupFailed>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), LookupFailed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let GuardedResolver { resolver, egress, share } = self.clone();
        Box::pin(async move {
            let addresses = resolver.lookup(&name, &share).await.map_err(LookupFailed::Unresolved)?;
            check_all(&egress, &addresses).map_err(LookupFailed::Forbidden)?;
            Ok(addresses.into_iter())
        })
    }
}

fn check_all(egress: &Egress, addresses: &[SocketAddr]) -> Result<(), EgressRejection> {
    addresses.iter().try_for_each(|address| egress.check(address.ip()))
}

/// Error of name resolution or of the egress check. Its type distinguishes it from errors of the connection.
#[derive(Debug)]
pub(crate) enum LookupFailed {
    Unresolved(Unresolved),
    Forbidden(EgressRejection),
}

impl fmt::Display for LookupFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LookupFailed::Unresolved(_) => "name resolution failed",
            LookupFailed::Forbidden(_) => "the tenant's egress policy rejects an address of the target's host",
        })
    }
}

impl Error for LookupFailed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            LookupFailed::Unresolved(error) => Some(error),
            LookupFailed::Forbidden(refusal) => Some(refusal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn egress_policy_rejects_host_name_with_one_forbidden_address() {
        let addresses = |hosts: &[&str]| hosts.iter().map(|host| SocketAddr::new(host.parse().unwrap(), 80)).collect();
        let check = |hosts: &[&str]| {
            let addresses: Vec<SocketAddr> = addresses(hosts);
            check_all(&Egress::default(), &addresses)
        };
        assert_eq!(check(&["1.1.1.1", "2606:4700::1111"]), Ok(()));
        let forbidden = Err(EgressRejection::Address("private"));
        assert_eq!(check(&["1.1.1.1", "10.0.0.1"]), forbidden);
        assert_eq!(check(&["10.0.0.1", "1.1.1.1"]), forbidden);
        assert_eq!(check(&["2606:4700::1111", "1.1.1.1", "fd00::1"]), forbidden);
    }
}
