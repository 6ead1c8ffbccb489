//! Tenants: the rows that builds wrote before changes were counted. Later ones are [`stored::tenant::encode`]'s.

use domain::{ApiKey, SigningSecret, Tenant, TenantId, Timestamp};

use super::{Malformed, Take, key};

const VERSION: u8 = 1;
const KEY_LEN_MIN: usize = 4 + 32 + 1;

/// # Errors
/// If the row is not one.
pub(crate) fn take(id: TenantId, value: &[u8]) -> Result<Tenant, Malformed> {
    stored::tenant::decode(id, value).map_err(|_| Malformed { what: "a tenant", at: 0 })
}

/// A row under its key, of whatever build.
pub(crate) fn take_row(key: &[u8], value: &[u8]) -> Result<Tenant, Malformed> {
    if value.first() == Some(&VERSION) { take_first(value) } else { take(key::parse_tenant(key)?, value) }
}

pub(crate) fn take_first(bytes: &[u8]) -> Result<Tenant, Malformed> {
    let mut take = Take::new("a tenant", bytes);
    take.version(VERSION)?;
    let id = TenantId(take.u32()?);
    let name = take.text()?.to_owned();
    let count = take.count(2)?;
    let mut generations = Vec::with_capacity(count);
    for _ in 0..count {
        generations.push(take.u16()?);
    }
    let secret = SigningSecret::first(take.blob()?.to_vec(), Timestamp::MIN);
    let count = take.count(KEY_LEN_MIN)?;
    let mut keys = Vec::with_capacity(count);
    for _ in 0..count {
        keys.push(take_key(&mut take)?);
    }
    take.end()?;
    Ok(Tenant { version: 0, generations, keys, ..Tenant::new(id, &name, 0, secret) })
}

fn take_key(take: &mut Take<'_>) -> Result<ApiKey, Malformed> {
    let id = take.text()?.to_owned();
    let secret_sha256 = take.array()?;
    match take.u8()? {
        0 => Ok(ApiKey::admin(&id, secret_sha256, Timestamp::MIN)),
        _ => Err(take.malformed()),
    }
}
