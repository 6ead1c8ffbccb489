//! TLS of the listener. This module reads the certificate files, and reads them again when they change.
//!
//! Invariants: without TLS, the server listens only on loopback unless the operator sets --insecure. If a renewed
//! certificate is invalid, the server logs a warning and continues to use the previous certificate.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use runtime::Runtime;
use server::Tls;

/// Time between two checks for changes of the certificate files. Each check reads the whole files, because the
/// modification time of a link does not change when its target changes.
const PERIOD: Duration = Duration::from_secs(2);

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TlsArguments {
    /// PEM file with the certificate chain for TLS; the server reads it again when it changes
    #[arg(long, env = "REVEILLE_TLS_CERTIFICATE")]
    tls_certificate: Option<PathBuf>,
    /// PEM file with the private key of the certificate
    #[arg(long, env = "REVEILLE_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// Allow --listen on addresses other than loopback without TLS; keys and payloads are then readable on the network
    #[arg(long, env = "REVEILLE_INSECURE")]
    insecure: bool,
}

impl TlsArguments {
    /// Returns the certificate, or `None` without TLS.
    ///
    /// # Errors
    /// Returns an error if unencrypted traffic would cross the network, or if a file is invalid or cannot be read. The
    /// error names the next step for the operator.
    pub(crate) fn open(&self, listen: SocketAddr) -> anyhow::Result<Option<Certificate>> {
        match (&self.tls_certificate, &self.tls_key) {
            (Some(certificate), Some(key)) => Certificate::open(certificate.clone(), key.clone()).map(Some),
            (Some(_), None) => bail!("--tls-certificate requires --tls-key FILE"),
            (None, Some(_)) => bail!("--tls-key requires --tls-certificate FILE"),
            (None, None) if listen.ip().is_loopback() || self.insecure => Ok(None),
            (None, None) => bail!(
                "without TLS, other machines could read the keys and payloads that clients send to {listen}: give \
                 --tls-certificate FILE and --tls-key FILE, or --insecure if a proxy on this machine or a private \
                 network encrypts the traffic"
            ),
        }
    }
}

/// Certificate files, with the content that the last check read, and the TLS configuration of the listener.
#[derive(Clone, Debug)]
pub(crate) struct Certificate {
    certificate: PathBuf,
    key: PathBuf,
    read: Pem,
    pub(crate) tls: Tls,
}

#[derive(Clone, PartialEq, Eq)]
struct Pem {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pem(…)")
    }
}

impl Certificate {
    fn open(certificate: PathBuf, key: PathBuf) -> anyhow::Result<Self> {
        let read = read(&certificate, &key)?;
        let tls = Tls::new(&read.certificate, &read.key);
        let tls = tls.with_context(|| format!("cannot use {} with {}", certificate.display(), key.display()))?;
        Ok(Certificate { certificate, key, read, tls })
    }

    /// Checks the certificate files repeatedly and never returns. The caller must run this function on a separate
    /// thread, because the reads of the files block the thread.
    pub(crate) async fn follow(mut self, runtime: Runtime) {
        loop {
            runtime.sleep(PERIOD).await;
            self.check();
        }
    }

    fn check(&mut self) {
        let Certificate { certificate, key, .. } = &*self;
        // A file may be missing for a moment while another process replaces it.
        let Ok(found) = read(certificate, key) else { return };
        if found == self.read {
            return;
        }
        match self.tls.replace(&found.certificate, &found.key) {
            Ok(()) => {
                tracing::info!(certificate = %certificate.display(), "certificate replaced for new connections");
            }
            Err(error) => {
                let error = anyhow::Error::new(error);
                tracing::warn!(
                    certificate = %certificate.display(),
                    "cannot use the changed certificate; the server uses the previous certificate: {error:#}"
                );
            }
        }
        // The server also stores content that it cannot use, so that it logs the warning for this content only once.
        self.read = found;
    }
}

fn read(certificate: &PathBuf, key: &PathBuf) -> anyhow::Result<Pem> {
    let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    Ok(Pem { certificate: read(certificate)?, key: read(key)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_requires_tls_or_insecure_flag_for_non_loopback_address() {
        let open =
            |insecure, listen: &str| TlsArguments { insecure, ..TlsArguments::default() }.open(listen.parse().unwrap());
        for loopback in ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80"] {
            assert!(open(false, loopback).unwrap().is_none(), "{loopback}");
        }
        for public in ["0.0.0.0:80", "10.0.0.1:80", "[::]:80", "192.0.2.1:80"] {
            let error = open(false, public).unwrap_err().to_string();
            assert!(error.contains("--tls-certificate") && error.contains("--insecure"), "{error}");
            assert!(open(true, public).unwrap().is_none(), "{public}");
        }
    }

    #[test]
    fn certificate_option_requires_the_key_option_and_vice_versa() {
        let path = Some(PathBuf::from("a.pem"));
        let certificate = TlsArguments { tls_certificate: path.clone(), ..TlsArguments::default() };
        let key = TlsArguments { tls_key: path, insecure: true, ..TlsArguments::default() };
        for half in [certificate, key] {
            assert!(half.open("127.0.0.1:80".parse().unwrap()).unwrap_err().to_string().contains("requires"));
        }
    }
}
