//! New connections: name resolution, egress check and TLS.
//!
//! docs/decisions/0071-trust-mozillas-root-certificates.md gives the reasons for the design.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use domain::Egress;
use http::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::{Connection as _, HttpConnector};
use hyper_util::rt::TokioIo;
use runtime::Runtime;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tower::Service;

use crate::Options;
use crate::failure::{Failure, describe, egress_rejected};
use crate::guard::GuardedResolver;
use crate::resolver::Resolver;
use crate::share::TenantShare;

pub(crate) type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// Error for a certificate in [`Options::extra_roots`] that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("cannot parse extra certificate authority {number} (counted from 0)")]
pub struct RootError {
    /// Index of the certificate, counted from 0.
    pub number: usize,
    #[source]
    source: rustls::Error,
}

pub(crate) struct Connector {
    resolver: Arc<Resolver>,
    tls: Arc<ClientConfig>,
    connect_timeout: Duration,
}

impl Connector {
    pub(crate) fn new(runtime: &Runtime, options: &Options) -> Result<Self, RootError> {
        Ok(Connector {
            resolver: Arc::new(Resolver::new(runtime, &options.name_servers)),
            tls: Arc::new(tls_config(options)?),
            connect_timeout: options.connect_timeout,
        })
    }

    /// Connects to the target `to` at an address that `egress` allows. The lookup of the target's host name takes a
    /// permit of the tenant's `share`. Returns the stream, and true if the target selected HTTP/2.
    pub(crate) async fn connect(
        &self,
        to: Uri,
        egress: &Arc<Egress>,
        share: &Arc<TenantShare>,
    ) -> Result<(Stream, bool), Failure> {
        egress.check_url(&to).map_err(egress_rejected)?;
        let resolver = GuardedResolver::new(self.resolver.clone(), egress.clone(), share.clone());
        let mut http = HttpConnector::new_with_resolver(resolver);
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(self.connect_timeout));
        let mut connector = HttpsConnector::from((http, self.tls.clone()));
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
        .expect("the crate `ring` supports TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
