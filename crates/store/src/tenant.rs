//! Who may use the service, as the store keeps it.

use domain::TenantId;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tenant {
    pub id: TenantId,
    /// As [`domain::ScheduleId`]'s form.
    pub name: String,
    /// How many pollers each generation has, the oldest first; new schedules go to the last. Never empty.
    pub generations: Vec<u16>,
    /// The key of its callbacks' signatures, 24 to 64 bytes.
    pub signing_secret: SecretBytes,
    pub keys: Vec<ApiKey>,
}

/// A key of the HTTP API. The secret itself is shown once, to who made it, and is not kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiKey {
    /// The part before the dot in `id.secret`.
    pub id: String,
    pub secret_sha256: [u8; 32],
    pub role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Admin,
}

/// Bytes that must not appear in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(pub Vec<u8>);

impl std::fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretBytes(…)")
    }
}
