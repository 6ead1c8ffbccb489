//! Decoding of tenant rows that this build or an earlier build wrote.

use domain::{Tenant, TenantId};
use stored::tenant::{FIRST_VERSION, decode};
use stored::{Malformed, Take};

use super::key;

/// Returns the tenant of a row that this build wrote.
///
/// # Errors
/// Returns an error if `value` is not a tenant as this build writes it.
pub(crate) fn take(id: TenantId, value: &[u8]) -> Result<Tenant, Malformed> {
    decode(id, value).map_err(|_| Malformed { what: "a tenant", at: 0 })
}

/// Returns the tenant of a row that this build or an earlier build wrote.
pub(crate) fn take_row(key: &[u8], value: &[u8]) -> Result<Tenant, Malformed> {
    if value.first() == Some(&FIRST_VERSION) { take_first(value) } else { take(key::parse_tenant(key)?, value) }
}

/// Returns the tenant of a row that a build without tenant versions wrote. Such a row contains the tenant's id.
pub(crate) fn take_first(bytes: &[u8]) -> Result<Tenant, Malformed> {
    let mut take = Take::new("a tenant", bytes);
    take.version(FIRST_VERSION)?;
    stored::tenant::take_first(TenantId(take.u32()?), take)
}
