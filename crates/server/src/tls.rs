//! TLS certificate of the server. The caller can replace it while the server runs.
//!
//! The server offers HTTP/2 and HTTP/1.1 through ALPN, and supports TLS 1.3 and 1.2. This module reads no files. The
//! caller passes their contents, and passes the new contents after each change.
//!
//! Invariants: An invalid certificate does not replace the current certificate. Each handshake ends within
//! `Options::handshake_timeout`, including its wait for one of the `Options::handshakes_max` permits.
//!
//! docs/decisions/0066-use-rustls-for-the-listener.md gives the reasons for the design.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Handle to the certificate that new connections use.
#[derive(Clone)]
pub struct Tls(Arc<RwLock<Arc<ServerConfig>>>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(…)")
    }
}

/// Fault of a certificate or of its key. The error contains no part of the key.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the certificate file contains no PEM certificate, which starts with -----BEGIN CERTIFICATE-----")]
    NoCertificate,
    #[error("the certificate file is not valid PEM")]
    Certificate(#[source] pem::Error),
    #[error("the key file contains no PEM private key, which starts with -----BEGIN PRIVATE KEY-----")]
    Key,
    #[error("the private key does not match the certificate, or one of them is not supported")]
    Pair(#[source] rustls::Error),
}

impl Tls {
    /// Parses `certificates` and `key`, both in PEM. The server's own certificate comes first, and the certificates of
    /// its issuers follow.
    ///
    /// # Errors
    /// Returns [`TlsError`] if the certificates or the key are invalid.
    pub fn new(certificates: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        Ok(Tls(Arc::new(RwLock::new(config(certificates, key)?))))
    }

    /// Replaces the certificate for new connections. Open connections keep the old certificate.
    ///
    /// # Errors
    /// Returns the errors of [`Tls::new`]. After an error, the old certificate stays in use.
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
    let builder = builder.expect("the cryptography provider ring supports TLS 1.2 and 1.3").with_no_client_auth();
    let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
