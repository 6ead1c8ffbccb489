//! Modes of the URL parameter `sslmode`, as libpq's documentation defines them (PostgreSQL 15, 34.19 "SSL Support").

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::config::SslMode;

use crate::url_error::UrlError;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Disable,
    /// The client encrypts the connection if the server supports TLS. It does not check the server's certificate.
    Prefer,
    /// The client encrypts the connection. It checks the server's certificate only if the URL names a root certificate.
    Require,
    /// The client encrypts the connection. It requires a server certificate whose chain ends at a trusted root
    /// certificate.
    VerifyCa,
    /// The client makes the same checks as with `VerifyCa`. The server's certificate must also name the host of the
    /// URL.
    VerifyFull,
}

impl Mode {
    pub(crate) fn parse(text: &str) -> Result<Self, UrlError> {
        Ok(match text {
            "disable" => Mode::Disable,
            "prefer" => Mode::Prefer,
            "require" => Mode::Require,
            "verify-ca" => Mode::VerifyCa,
            "verify-full" => Mode::VerifyFull,
            _ => return Err(UrlError::SslMode),
        })
    }

    /// Returns the `sslmode` to set in the library `tokio_postgres` for this mode.
    pub(crate) fn protocol_mode(self) -> SslMode {
        match self {
            Mode::Disable => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
        }
    }
}

/// Returns the TLS configuration of a mode. `roots` is the path of a PEM file with root certificates. If `roots` is
/// `None`, the client uses the root certificates that Mozilla publishes.
pub(crate) fn client(mode: Mode, roots: Option<&str>) -> Result<ClientConfig, UrlError> {
    let provider = Arc::new(ring::default_provider());
    let check = match (mode, roots) {
        // If the URL names a root certificate, the client also checks the server's certificate in the mode `require`.
        // libpq does the same, for compatibility with its earlier versions.
        (Mode::Require, Some(_)) => Check::Signed(verifier(&provider, roots)?),
        (Mode::Disable | Mode::Prefer | Mode::Require, _) => Check::Nothing,
        (Mode::VerifyCa, _) => Check::Signed(verifier(&provider, roots)?),
        (Mode::VerifyFull, _) => Check::SignedForHost(verifier(&provider, roots)?),
    };
    let verifier = Verifier { check, provider: provider.clone() };
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("the library `ring` has a cipher suite for each TLS version").dangerous();
    Ok(config.with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
}

fn verifier(provider: &Arc<CryptoProvider>, roots: Option<&str>) -> Result<Arc<WebPkiServerVerifier>, UrlError> {
    let mut store = RootCertStore::empty();
    match roots {
        None => store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => {
            let invalid = |error: String| UrlError::RootCertificate { path: path.to_owned(), reason: error };
            let certificates = CertificateDer::pem_file_iter(path).map_err(|error| invalid(error.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
                store.add(certificate).map_err(|error| invalid(error.to_string()))?;
            }
            if store.is_empty() {
                return Err(invalid("the file contains no PEM certificate".to_owned()));
            }
        }
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider.clone()).build();
    Ok(verifier.expect("a verifier with root certificates and without revocation lists is valid"))
}

#[derive(Debug)]
enum Check {
    Nothing,
    Signed(Arc<WebPkiServerVerifier>),
    SignedForHost(Arc<WebPkiServerVerifier>),
}

#[derive(Debug)]
struct Verifier {
    check: Check,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match &self.check {
            Check::Nothing => Ok(ServerCertVerified::assertion()),
            Check::SignedForHost(verifier) => {
                verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            }
            // The verifier checks the host name last, so an error about the host name means that all other checks
            // passed.
            Check::Signed(verifier) => {
                match verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
                    Err(rustls::Error::InvalidCertificate(
                        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
                    )) => Ok(ServerCertVerified::assertion()),
                    checked => checked,
                }
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
