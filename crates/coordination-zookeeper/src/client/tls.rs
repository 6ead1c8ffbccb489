//! TLS of a connection: the files that the URL names, the handshake, and the explanations of its errors.
//!
//! docs/decisions/0224-encrypt-zookeeper-connections-by-the-url.md gives the reasons for the design.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, InconsistentKeys, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Mode bits that the file of a private key must not have: write and execute permission for the group, and any
/// permission for others.
const TOO_OPEN: u32 = 0o037;

/// Files for TLS. The client reads them for each connection, so renewed certificates need no restart.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tls {
    /// PEM file with the trusted root certificates. `None` for the root certificates that Mozilla publishes.
    pub(crate) roots: Option<PathBuf>,
    pub(crate) identity: Option<Identity>,
}

/// PEM files with the certificate of this client and its private key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// Error of a file for TLS.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot use {path}, which the parameter {parameter} of the ZooKeeper URL names: {reason}")]
pub(crate) struct FileError {
    pub(crate) parameter: &'static str,
    pub(crate) path: String,
    pub(crate) reason: String,
}

/// Reason why a handshake failed.
pub(super) enum TlsError {
    /// Another attempt may succeed.
    Io(io::Error),
    /// An operator must act.
    Lasting(String),
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or used.
    pub(crate) fn config(&self) -> Result<ClientConfig, FileError> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions();
        let config = config.expect("the library `ring` has a cipher suite for each TLS version");
        let config = config.with_root_certificates(self.roots()?);
        let Some(Identity { certificate, key }) = &self.identity else { return Ok(config.with_no_client_auth()) };
        let invalid = |reason| file_error("sslkey", key, reason);
        let pair = config.with_client_auth_cert(certificates("sslcert", certificate)?, private_key(key)?);
        pair.map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => invalid(format!(
                "the key does not belong to the certificate in {}; name the certificate and the key of one pair",
                certificate.display()
            )),
            error => invalid(error.to_string()),
        })
    }

    fn roots(&self) -> Result<RootCertStore, FileError> {
        let mut store = RootCertStore::empty();
        match &self.roots {
            None => store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Some(path) => {
                for certificate in certificates("sslrootcert", path)? {
                    let added = store.add(certificate);
                    added.map_err(|error| file_error("sslrootcert", path, error.to_string()))?;
                }
            }
        }
        Ok(store)
    }

    /// Encrypts a connection to the server `host`.
    pub(super) async fn handshake(&self, stream: TcpStream, host: &str) -> Result<TlsStream<TcpStream>, TlsError> {
        // The URL was accepted with valid files, so an operator may be replacing them at this moment.
        let config = self.config().map_err(|error| TlsError::Io(io::Error::other(error.to_string())))?;
        let name = ServerName::try_from(host.to_owned()).map_err(|error| TlsError::Lasting(error.to_string()))?;
        let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        connected.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                TlsError::Io(io::Error::other(
                    "the server ended the connection during the TLS handshake; if the port is not the server's \
                     secureClientPort, use the secure port, or a URL that starts with zookeeper://",
                ))
            }
            _ => self.explain(error),
        })
    }

    /// Explains an error of the handshake, or of the first response. A server reports an unsuitable client certificate
    /// only after the client's part of the handshake.
    pub(super) fn explain(&self, error: io::Error) -> TlsError {
        let Some(reason) = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>()) else {
            return TlsError::Io(error);
        };
        TlsError::Lasting(match reason {
            rustls::Error::InvalidCertificate(reason) => explain_certificate(reason),
            rustls::Error::AlertReceived(alert) if is_about_certificate(*alert) => match &self.identity {
                None => format!(
                    "the server requires a certificate of the client (TLS alert {alert:?}); add sslcert=FILE and \
                     sslkey=FILE to the URL"
                ),
                Some(Identity { certificate, .. }) => format!(
                    "the server rejected the client's certificate in {} (TLS alert {alert:?}); use a certificate that \
                     is valid and whose authority is in the server's ssl.trustStore",
                    certificate.display()
                ),
            },
            rustls::Error::InvalidMessage(_) => {
                "the server does not respond with TLS on this port; check the port, or use a URL that starts with \
                 zookeeper://"
                    .to_owned()
            }
            rustls::Error::PeerIncompatible(_)
            | rustls::Error::AlertReceived(AlertDescription::HandshakeFailure | AlertDescription::ProtocolVersion) => {
                format!("TLS failed: {reason}; compare the TLS settings of the server with TLS 1.2 and 1.3")
            }
            _ => return TlsError::Io(error),
        })
    }
}

fn explain_certificate(reason: &CertificateError) -> String {
    match reason {
        // If a trusted authority has the same name as the authority of the server, only the signature differs.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "no trusted authority has signed the server's certificate; name a PEM file with the certificate of its \
             authority as sslrootcert=FILE in the URL"
                .to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            // The library shows a name as `DnsName("localhost")`.
            let names: Vec<&str> = presented.iter().map(|name| name.split('"').nth(1).unwrap_or(name)).collect();
            let names = if names.is_empty() { "no host name".to_owned() } else { names.join(", ") };
            format!(
                "the server's certificate is not valid for the host name {}: its subjectAltName contains {names}; use \
                 a name from the certificate in the URL, or issue a certificate for this name",
                expected.to_str()
            )
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the server's certificate has expired; renew it, and check the clock of this machine".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet; check the clocks of this machine and of the authority"
                .to_owned()
        }
        reason => format!("the server's certificate is not valid ({reason}); replace it"),
    }
}

fn is_about_certificate(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::CertificateRequired
            | AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
    )
}

fn file_error(parameter: &'static str, path: &Path, reason: impl ToString) -> FileError {
    FileError { parameter, path: path.display().to_string(), reason: reason.to_string() }
}

fn certificates(parameter: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let invalid = |reason: String| file_error(parameter, path, reason);
    let text = std::fs::read(path).map_err(|error| invalid(error.to_string()))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| invalid(error.to_string()))?;
    if found.is_empty() { Err(invalid("the file contains no PEM certificate".to_owned())) } else { Ok(found) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    let invalid = |reason: String| file_error("sslkey", path, reason);
    let io_error = |error: io::Error| invalid(error.to_string());
    let file = std::fs::File::open(path).map_err(io_error)?;
    let mode = file.metadata().map_err(io_error)?.mode();
    if mode & TOO_OPEN != 0 {
        let (mode, path) = (mode & 0o777, path.display());
        return Err(invalid(format!(
            "the file mode is {mode:o}, so other users can read or change the key: run `chmod 600 {path}`"
        )));
    }
    let text = io::read_to_string(file).map_err(io_error)?;
    PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| {
        invalid(
            "the file contains no private key in PEM form without a passphrase; `openssl pkey -in FILE` converts a key"
                .to_owned(),
        )
    })
}

#[cfg(test)]
mod tests;
