//! Certificate authority of a cluster: [`Authority`].

use std::sync::Arc;
use std::time::Duration;

use domain::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};

/// Time for which a member's certificate is valid.
pub(crate) const VALIDITY: Duration = Duration::from_secs(7 * 86_400);
/// Time by which the validity of a certificate begins before its issue. If the clocks of two members differ by more than
/// this time, one of the members rejects new certificates of the other.
pub(crate) const CLOCK_OFFSET_MAX: Duration = Duration::from_secs(300);

/// Certificate authority of a cluster. Its key is the only secret: each process that has the key computes the same name
/// and trust anchor from it, and issues its own certificates.
pub struct Authority {
    key: KeyPair,
    /// Parameters of the authority's certificate. They depend only on the key.
    params: CertificateParams,
}

/// Reason why an authority cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The bytes are not the key of an authority.
    #[error("the key of the certificate authority is invalid")]
    InvalidKey,
    /// A key or a certificate cannot be created.
    #[error("cannot create a certificate: {0}")]
    CannotIssue(String),
}

impl From<rcgen::Error> for AuthorityError {
    fn from(error: rcgen::Error) -> Self {
        AuthorityError::CannotIssue(error.to_string())
    }
}

/// Use of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Purpose {
    Caller,
    Listener,
}

impl Authority {
    /// Creates an authority with a new key.
    ///
    /// # Errors
    /// Returns an error if the operating system supplies no random bytes.
    pub fn generate() -> Result<Self, AuthorityError> {
        Ok(Authority::of(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?))
    }

    /// Returns the authority with a key that [`Authority::key`] returned.
    ///
    /// # Errors
    /// Returns an error if the bytes are no such key.
    pub fn from_key(key: &[u8]) -> Result<Self, AuthorityError> {
        let key = PrivatePkcs8KeyDer::from(key);
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256);
        Ok(Authority::of(key.map_err(|_| AuthorityError::InvalidKey)?))
    }

    fn of(key: KeyPair) -> Self {
        let mut params = CertificateParams::default();
        let digest = Sha256::digest(key.public_key_raw());
        let id: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        params.distinguished_name.push(DnType::CommonName, format!("Reveille cluster {id}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Authority { key, params }
    }

    /// Returns the secret key in the format PKCS#8 (DER). The caller must store it only in encrypted form.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.key.serialized_der()
    }

    /// Returns a certificate of this authority, which members use as trust anchor.
    pub(crate) fn anchor(&self) -> Result<CertificateDer<'static>, AuthorityError> {
        Ok(self.params.self_signed(&self.key)?.into())
    }

    /// Issues a certificate with a new key.
    pub(crate) fn issue(
        &self,
        provider: &Arc<CryptoProvider>,
        name: &str,
        purpose: Purpose,
        now: Timestamp,
    ) -> Result<CertifiedKey, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::new([name.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match purpose {
            Purpose::Caller => ExtendedKeyUsagePurpose::ClientAuth,
            Purpose::Listener => ExtendedKeyUsagePurpose::ServerAuth,
        }];
        let at = |time: Timestamp| {
            rcgen::date_time_ymd(1970, 1, 1) + Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(0))
        };
        params.not_before = at(now - CLOCK_OFFSET_MAX);
        params.not_after = at(now + VALIDITY);
        let certificate = params.signed_by(&key, &Issuer::from_params(&self.params, &self.key))?;
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let certified = CertifiedKey::from_der(vec![certificate.into()], key, provider);
        certified.map_err(|error| AuthorityError::CannotIssue(error.to_string()))
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority(…)")
    }
}

#[cfg(test)]
mod tests {
    use rustls::RootCertStore;

    use super::*;

    #[test]
    fn authority_with_the_same_key_has_the_same_trust_anchor_name_and_key() {
        let one = Authority::generate().unwrap();
        let same = Authority::from_key(one.key()).unwrap();
        let anchor = |authority: &Authority| {
            let mut roots = RootCertStore::empty();
            roots.add(authority.anchor().unwrap()).unwrap();
            roots.roots.remove(0)
        };
        assert_eq!(anchor(&one), anchor(&same));
        assert_ne!(anchor(&one), anchor(&Authority::generate().unwrap()));
    }

    #[test]
    fn damaged_key_is_rejected_and_debug_output_contains_no_key() {
        let authority = Authority::generate().unwrap();
        let mut key = authority.key().to_vec();
        key[0] ^= 1;
        for invalid in [&key[..], b""] {
            assert_eq!(Authority::from_key(invalid).err(), Some(AuthorityError::InvalidKey));
        }
        assert_eq!(format!("{authority:?}"), "Authority(…)");
    }
}
