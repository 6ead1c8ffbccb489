//! TLS for the listener: which files, and that they are read again when they change.
//!
//! Always true here: nothing but loopback is listened on without TLS, unless the operator says that this is meant; and a
//! renewal that cannot be used is told, and leaves the certificate that was there.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use runtime::Runtime;
use server::Tls;

/// How often the files are looked at; they are read whole, as a date says little of files that are links.
const PERIOD: Duration = Duration::from_secs(2);

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TlsArguments {
    /// Answer requests under TLS, with the certificate in this file, in PEM with those that lead to its authority; it is
    /// read again when it changes
    #[arg(long, env = "REVEILLE_TLS_CERTIFICATE")]
    tls_certificate: Option<PathBuf>,
    /// The file with the certificate's private key, in PEM
    #[arg(long, env = "REVEILLE_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// Listen on other than loopback without TLS: keys and payloads then cross the network for all to read
    #[arg(long, env = "REVEILLE_INSECURE")]
    insecure: bool,
}

impl TlsArguments {
    /// `None` without TLS.
    ///
    /// # Errors
    /// If that would be heard by others, or a file cannot be used; with the next step for the operator.
    pub(crate) fn open(&self, listen: SocketAddr) -> anyhow::Result<Option<Certificate>> {
        match (&self.tls_certificate, &self.tls_key) {
            (Some(certificate), Some(key)) => Certificate::open(certificate.clone(), key.clone()).map(Some),
            (Some(_), None) => bail!("--tls-certificate goes with --tls-key FILE"),
            (None, Some(_)) => bail!("--tls-key goes with --tls-certificate FILE"),
            (None, None) if listen.ip().is_loopback() || self.insecure => Ok(None),
            (None, None) => bail!(
                "{listen} is reached by other machines, and keys and payloads would cross the network for all to read: give \
                 --tls-certificate FILE and --tls-key FILE, or say --insecure if something else encrypts, as a proxy on \
                 this machine or a private network"
            ),
        }
    }
}

/// The files, what was last read of them, and who shows it.
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

    /// Never ends. It reads files, so it has a thread of its own.
    pub(crate) async fn follow(mut self, runtime: Runtime) {
        loop {
            runtime.sleep(PERIOD).await;
            self.look();
        }
    }

    fn look(&mut self) {
        let Certificate { certificate, key, .. } = &*self;
        // A file that is away for a moment is one that is being replaced.
        let Ok(found) = read(certificate, key) else { return };
        if found == self.read {
            return;
        }
        match self.tls.replace(&found.certificate, &found.key) {
            Ok(()) => {
                tracing::info!(certificate = %certificate.display(), "the certificate has changed; new connections are shown it")
            }
            Err(error) => {
                let error = anyhow::Error::new(error);
                tracing::warn!(
                    certificate = %certificate.display(),
                    "what the certificate's files hold now cannot be used, so the one before is shown on: {error:#}"
                );
            }
        }
        // Told once, whatever came of it.
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
    fn what_others_hear_is_encrypted_or_meant_to_be_heard() {
        let open =
            |insecure, listen: &str| TlsArguments { insecure, ..TlsArguments::default() }.open(listen.parse().unwrap());
        for loopback in ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80"] {
            assert!(open(false, loopback).unwrap().is_none(), "{loopback}");
        }
        for heard in ["0.0.0.0:80", "10.0.0.1:80", "[::]:80", "192.0.2.1:80"] {
            let said = open(false, heard).unwrap_err().to_string();
            assert!(said.contains("--tls-certificate") && said.contains("--insecure"), "{said}");
            assert!(open(true, heard).unwrap().is_none(), "{heard}");
        }
    }

    #[test]
    fn half_of_a_certificate_is_none() {
        let path = Some(PathBuf::from("a.pem"));
        let certificate = TlsArguments { tls_certificate: path.clone(), ..TlsArguments::default() };
        let key = TlsArguments { tls_key: path, insecure: true, ..TlsArguments::default() };
        for half in [certificate, key] {
            assert!(half.open("127.0.0.1:80".parse().unwrap()).unwrap_err().to_string().contains("goes with"));
        }
    }
}
