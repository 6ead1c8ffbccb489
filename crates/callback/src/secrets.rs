//! Decryption of the secrets of an attempt. The transports decrypt secrets only in this module and in
//! [`crate::headers::Stamper::signers`].

use domain::{NOT_DECRYPTED, Secret};
use scheduler::Delivery;
use store::Keyring;
use store::encryption::{OpenError, Place};

/// Returns the headers of the target with decrypted values, or `None` if no value is encrypted.
///
/// # Errors
/// Returns the error text of the attempt if the keyring cannot decrypt a value.
pub(crate) fn decrypted_headers(
    keyring: &Keyring,
    delivery: &Delivery,
) -> Result<Option<Vec<(String, Secret)>>, String> {
    let schedule = &delivery.schedule;
    let target = &schedule.spec.target;
    if !target.headers().iter().any(|(_, value)| value.is_encrypted()) {
        return Ok(None);
    }
    let origin = target.origin();
    let decrypt = |(name, value): &(String, Secret)| {
        let place = Place::Header { tenant: schedule.tenant, schedule: &schedule.id, name, origin: &origin };
        Ok((name.clone(), Secret::Plain(keyring.open(place, value)?)))
    };
    let headers: Result<_, OpenError> = target.headers().iter().map(decrypt).collect();
    headers.map(Some).map_err(|error| not_decrypted(delivery, "a header of the target", error))
}

/// Logs that an attempt failed because a secret cannot be decrypted, and returns the error text of the attempt.
pub(crate) fn not_decrypted(delivery: &Delivery, what: &str, error: OpenError) -> String {
    let (schedule, tenant) = (delivery.schedule.id.as_str(), delivery.tenant.id.0);
    tracing::error!(schedule, tenant, %error, "callback not sent: cannot decrypt {what}");
    format!("{NOT_DECRYPTED}: cannot decrypt {what}: {error}")
}
