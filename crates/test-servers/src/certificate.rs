//! TLS certificates of a test server: the certificate of an authority, and a certificate for localhost that the
//! authority has signed.

use std::path::Path;

use anyhow::Context;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// Writes `server.crt`, `server.key` and `root.crt` into `folder`.
pub(crate) fn write(folder: &Path) -> anyhow::Result<()> {
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, "test authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let server = CertificateParams::new(["localhost".to_owned()])?.signed_by(&key, &authority)?;
    let files = [("server.crt", server.pem()), ("server.key", key.serialize_pem()), ("root.crt", authority.pem())];
    for (name, text) in files {
        std::fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))?;
    }
    Ok(())
}
