//! TLS certificates for tests: the certificate of an authority, and certificates that the authority has signed.

use std::path::Path;

use anyhow::Context;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};

/// Authority that signs the certificates of one test server and of its clients.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority(…)")
    }
}

impl Authority {
    /// Creates an authority, and writes its certificate to `root.crt` in `folder`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn create(folder: &Path) -> anyhow::Result<Authority> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        write(folder, "root.crt", &authority.pem())?;
        Ok(Authority(authority))
    }

    /// Signs a certificate for the host name `localhost`. Writes the certificate to `NAME.crt` and its private key to
    /// `NAME.key` in `folder`. Only the owner of the files can read them.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written.
    pub fn issue(&self, folder: &Path, name: &str) -> anyhow::Result<()> {
        self.sign(folder, name, CertificateParams::new(["localhost".to_owned()])?)
    }

    /// Does the same as [`Authority::issue`], but the certificate expired in the year 2001.
    ///
    /// # Errors
    /// Returns the same errors as [`Authority::issue`].
    pub fn issue_expired(&self, folder: &Path, name: &str) -> anyhow::Result<()> {
        let mut params = CertificateParams::new(["localhost".to_owned()])?;
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2001, 1, 1);
        self.sign(folder, name, params)
    }

    fn sign(&self, folder: &Path, name: &str, params: CertificateParams) -> anyhow::Result<()> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.0)?;
        write(folder, &format!("{name}.crt"), &certificate.pem())?;
        write(folder, &format!("{name}.key"), &key.serialize_pem())
    }
}

fn write(folder: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(folder.join(name));
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {name}"))
}
