//! New connections: names, addresses, TLS.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use http::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::dns::{GaiAddrs, GaiResolver, Name};
use hyper_util::client::legacy::connect::{Connection as _, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tower::Service;

use crate::Options;
use crate::failure::{Failure, describe};

pub(crate) type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// One of the certificates in [`Options::extra_roots`] is not one.
#[derive(Debug, thiserror::Error)]
#[error("extra certificate authority number {number} (from 0) cannot be read")]
pub struct RootError {
    pub number: usize,
    #[source]
    source: rustls::Error,
}

pub(crate) struct Connector(HttpsConnector<HttpConnector<Resolver>>);

impl Connector {
    pub(crate) fn new(options: &Options) -> Result<Self, RootError> {
        let mut http = HttpConnector::new_with_resolver(Resolver(GaiResolver::new()));
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(options.connect_timeout));
        let tls = Arc::new(tls_config(options)?);
        Ok(Connector(HttpsConnector::from((http, tls))))
    }

    /// The stream, and whether the target chose HTTP/2 on it.
    pub(crate) async fn connect(&self, to: Uri) -> Result<(Stream, bool), Failure> {
        let mut connector = self.0.clone();
        poll_fn(|context| connector.poll_ready(context)).await.map_err(|error| describe(&*error))?;
        let stream = connector.call(to).await.map_err(|error| describe(&*error))?;
        let is_http2 = stream.connected().is_negotiated_h2();
        Ok((stream, is_http2))
    }
}

fn tls_config(options: &Options) -> Result<ClientConfig, RootError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    for (number, root) in options.extra_roots.iter().enumerate() {
        roots.add(root.clone()).map_err(|source| RootError { number, source })?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring speaks TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// The system's resolver, with errors that can be told from those of connecting.
#[derive(Clone)]
struct Resolver(GaiResolver);

impl Service<Name> for Resolver {
    type Response = GaiAddrs;
    type Error = DnsFailed;
    type Future = BoxFuture<'static, Result<GaiAddrs, DnsFailed>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), DnsFailed>> {
        self.0.poll_ready(context).map_err(DnsFailed)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let looked_up = self.0.call(name);
        Box::pin(async move { looked_up.await.map_err(DnsFailed) })
    }
}

#[derive(Debug)]
pub(crate) struct DnsFailed(std::io::Error);

impl fmt::Display for DnsFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("name resolution failed")
    }
}

impl Error for DnsFailed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}
