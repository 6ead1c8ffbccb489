//! The certificate under which requests are answered; it can be replaced while the server runs.
//!
//! HTTP/2 and HTTP/1.1 are offered by ALPN, TLS 1.3 and 1.2 spoken. This reads no files: who owns them tells what is in
//! them, and when that is something else.
//!
//! Always true here: a certificate that cannot be used changes nothing; each handshake ends within
//! `Options::handshake_timeout`, its wait for a turn among
//! `Options::handshakes_max` included.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// A handle to what new connections are shown.
#[derive(Clone)]
pub struct Tls(Arc<RwLock<Arc<ServerConfig>>>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(…)")
    }
}

/// Why a certificate and its key cannot be used. Nothing of the key is in it.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the certificate's file has no certificate in PEM, which begins with -----BEGIN CERTIFICATE-----")]
    NoCertificate,
    #[error("the certificate's file is not in PEM")]
    Certificate(#[source] pem::Error),
    #[error("the key's file has no private key in PEM, which begins with -----BEGIN PRIVATE KEY-----")]
    Key,
    #[error("the certificate and the key cannot be used together")]
    Pair(#[source] rustls::Error),
}

impl Tls {
    /// `certificates` in PEM, the server's own first and then those that lead to its authority; `key`, too.
    ///
    /// # Errors
    /// [`TlsError`], if they cannot be used.
    pub fn new(certificates: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        Ok(Tls(Arc::new(RwLock::new(config(certificates, key)?))))
    }

    /// Connections that begin from now on are shown these; those that are there keep what they were shown.
    ///
    /// # Errors
    /// As [`Tls::new`]; then all stays as it was.
    pub fn replace(&self, certificates: &[u8], key: &[u8]) -> Result<(), TlsError> {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config(certificates, key)?;
        Ok(())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

fn config(certificates: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, TlsError> {
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(certificates).collect::<Result<_, _>>().map_err(TlsError::Certificate)?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate);
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsError::Key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.expect("ring speaks TLS 1.2 and 1.3").with_no_client_auth();
    let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
