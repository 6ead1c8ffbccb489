//! Opens the TLS connections to other members.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::Uri;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use membership::MemberId;
use runtime::Runtime;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tower::Service;

use crate::causes;
use crate::identity::{Identity, server_name};

/// Session to which a connection belongs, with the reasons for which the client opens a new connection to it. Its text
/// is the user part of a URI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Session {
    pub(crate) id: MemberId,
    /// [`Identity::generation`]. After a change of the authorities, the certificates must be checked again.
    pub(crate) generation: u64,
    /// Number of the period in which the connection opens. A period takes
    /// [`connection_age_max`](crate::PeersOptions::connection_age_max).
    pub(crate) period: u128,
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Session { id, generation, period } = self;
        write!(f, "{id}.{generation}.{period}")
    }
}

type BoxError = Box<dyn Error + Send + Sync>;

/// Opens a connection to the session that the user part of the URI names. The TLS handshake fails if the process at the
/// address does not prove that it is this session.
#[derive(Clone)]
pub(crate) struct Connector {
    runtime: Runtime,
    tcp: HttpConnector,
    identity: Identity,
    timeout: Duration,
}

impl Connector {
    pub(crate) fn new(runtime: &Runtime, identity: Identity, timeout: Duration) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        Connector { runtime: runtime.clone(), tcp, identity, timeout }
    }
}

impl Service<Uri> for Connector {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Connector { runtime, tcp, identity, timeout } = self.clone();
        Box::pin(async move {
            let authority = uri.authority().map_or("", |authority| authority.as_str());
            let (session, address) = authority.split_once('@').ok_or("the URI contains no session")?;
            let (id, _) = session.split_once('.').ok_or("the session has no generation")?;
            let id = u128::from_str_radix(id, 16).map_err(|_| "the id of the session is invalid")?;
            let name = ServerName::try_from(server_name(MemberId(id)))?;
            let name = Arc::new(FixedServerNameResolver::new(name));
            let mut tls = HttpsConnector::new(tcp, identity.client_config()?, true, name);
            let connecting = tls.call(format!("https://{address}").parse()?);
            let connected = runtime.timeout(timeout, connecting).await;
            let connected = connected.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::TimedOut).into()));
            connected.inspect_err(|error| {
                if let Some(error) = causes(&**error).find_map(|cause| cause.downcast_ref()) {
                    identity.report(address, error);
                }
            })
        })
    }
}
