//! Tenants.

use domain::TenantId;
use store::tenant::SecretBytes;
use store::{ApiKey, Role, Tenant};

use super::{Malformed, Put, Take};

const VERSION: u8 = 1;
const KEY_LEN_MIN: usize = 4 + 32 + 1;

pub(crate) fn put(out: &mut Vec<u8>, tenant: &Tenant) {
    out.u8(VERSION);
    out.u32(tenant.id.0);
    out.text(&tenant.name);
    out.count(tenant.generations.len());
    for pollers in &tenant.generations {
        out.u16(*pollers);
    }
    out.blob(&tenant.signing_secret.0);
    out.count(tenant.keys.len());
    for key in &tenant.keys {
        out.text(&key.id);
        out.bytes(&key.secret_sha256);
        out.u8(match key.role {
            Role::Admin => 0,
        });
    }
}

pub(crate) fn take(bytes: &[u8]) -> Result<Tenant, Malformed> {
    let mut take = Take::new("a tenant", bytes);
    take.version(VERSION)?;
    let id = TenantId(take.u32()?);
    let name = take.text()?.to_owned();
    let count = take.count(2)?;
    let mut generations = Vec::with_capacity(count);
    for _ in 0..count {
        generations.push(take.u16()?);
    }
    let signing_secret = SecretBytes(take.blob()?.to_vec());
    let count = take.count(KEY_LEN_MIN)?;
    let mut keys = Vec::with_capacity(count);
    for _ in 0..count {
        keys.push(take_key(&mut take)?);
    }
    take.end()?;
    Ok(Tenant { id, name, generations, signing_secret, keys })
}

fn take_key(take: &mut Take<'_>) -> Result<ApiKey, Malformed> {
    let id = take.text()?.to_owned();
    let secret_sha256 = take.array()?;
    match take.u8()? {
        0 => Ok(ApiKey { id, secret_sha256, role: Role::Admin }),
        _ => Err(take.malformed()),
    }
}
