//! The egress guard: a name is looked up once, every address that it stands for is held against the tenant's policy
//! ([`domain::egress`]), and the connection goes to one of exactly these addresses.
//!
//! It does not decide what is public, and it knows no names: whatever the resolver makes of `0x7f.1` or of a name that
//! changes its mind between two look-ups, what is judged is what is connected to.
//!
//! Always true here: if one address of a name is refused, none is called (a name that stands for an inside and an outside
//! address at once is how guards are walked around); a refusal tells no address.

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::vec;

use domain::{Egress, EgressRefusal};
use futures_util::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower::Service;

/// The system's resolver, for targets under one policy. A host that is an address is not asked about: that is for
/// [`Egress::check_url`].
#[derive(Clone)]
pub(crate) struct GuardedResolver {
    system: GaiResolver,
    egress: Arc<Egress>,
}

impl GuardedResolver {
    pub(crate) fn new(egress: Arc<Egress>) -> Self {
        GuardedResolver { system: GaiResolver::new(), egress }
    }
}

impl Service<Name> for GuardedResolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = LookupFailed;
    type Future = BoxFuture<'static, Result<Self::Response, LookupFailed>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), LookupFailed>> {
        self.system.poll_ready(context).map_err(LookupFailed::Unresolved)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let looked_up = self.system.call(name);
        let egress = self.egress.clone();
        Box::pin(async move {
            let addresses: Vec<SocketAddr> = looked_up.await.map_err(LookupFailed::Unresolved)?.collect();
            check_all(&egress, &addresses).map_err(LookupFailed::Refused)?;
            Ok(addresses.into_iter())
        })
    }
}

fn check_all(egress: &Egress, addresses: &[SocketAddr]) -> Result<(), EgressRefusal> {
    addresses.iter().try_for_each(|address| egress.check(address.ip()))
}

/// Errors that can be told from those of connecting.
#[derive(Debug)]
pub(crate) enum LookupFailed {
    Unresolved(std::io::Error),
    Refused(EgressRefusal),
}

impl fmt::Display for LookupFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LookupFailed::Unresolved(_) => "name resolution failed",
            LookupFailed::Refused(_) => "the address is refused",
        })
    }
}

impl Error for LookupFailed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            LookupFailed::Unresolved(error) => Some(error),
            LookupFailed::Refused(refusal) => Some(refusal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_one_address_that_is_refused_is_refused() {
        let addresses = |hosts: &[&str]| hosts.iter().map(|host| SocketAddr::new(host.parse().unwrap(), 80)).collect();
        let check = |hosts: &[&str]| {
            let addresses: Vec<SocketAddr> = addresses(hosts);
            check_all(&Egress::default(), &addresses)
        };
        assert_eq!(check(&["1.1.1.1", "2606:4700::1111"]), Ok(()));
        let refused = Err(EgressRefusal::Address("private"));
        assert_eq!(check(&["1.1.1.1", "10.0.0.1"]), refused);
        assert_eq!(check(&["10.0.0.1", "1.1.1.1"]), refused);
        assert_eq!(check(&["2606:4700::1111", "1.1.1.1", "fd00::1"]), refused);
    }
}
