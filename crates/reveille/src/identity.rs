//! Who may use a new Reveille: the first tenant, its admin key and the secret that signs its callbacks.
//!
//! Always true here: a secret is written to a file that only its owner can read, and never to a log or a terminal; the
//! store keeps of the key only its hash.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use domain::TenantId;
use runtime::Runtime;
use sha2::{Digest, Sha256};
use store::tenant::SecretBytes;
use store::{ApiKey, Role, Store, Tenant};

/// The admin key of the first tenant, as `id.secret`: what goes after `Bearer`.
pub(crate) fn admin_key_path(data: &Path) -> PathBuf {
    data.join("admin.key")
}

/// The secret that signs the first tenant's callbacks, as `whsec_` and base64 (Standard Webhooks 1.0.0).
pub(crate) fn signing_secret_path(data: &Path) -> PathBuf {
    data.join("signing.secret")
}

/// The cluster that this data folder is of, if it has been of one.
///
/// # Errors
/// If the file is there and cannot be read.
pub(crate) fn known_cluster(data: &Path) -> anyhow::Result<Option<String>> {
    let path = data.join("cluster.id");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// From now on the data folder is of this cluster.
///
/// # Errors
/// If the folder cannot be written.
pub(crate) fn know_cluster(data: &Path, cluster: &str) -> anyhow::Result<()> {
    if known_cluster(data)?.is_none() {
        write_secret(&data.join("cluster.id"), &format!("{cluster}\n"))?;
    }
    Ok(())
}

/// Holds the data folder for one member, until the file is dropped.
///
/// # Errors
/// If another process holds it, or it cannot be written.
pub(crate) fn lock_member(data: &Path) -> anyhow::Result<File> {
    let path = data.join("member.lock");
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    let file = file.with_context(|| format!("cannot write {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            anyhow::bail!("{} is the folder of another member that runs: give each its own with --data", data.display())
        }
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
    }
}

/// Makes the tenant `default` if the store has no tenant yet. Whether it did.
///
/// # Errors
/// If the store or the folder cannot be written.
pub(crate) async fn make_first_tenant(
    runtime: &Runtime,
    store: &dyn Store,
    data: &Path,
    pollers: u16,
) -> anyhow::Result<bool> {
    if !store.tenants().await.context("cannot read the tenants")?.is_empty() {
        return Ok(false);
    }
    let id = format!("k{}", URL_SAFE_NO_PAD.encode(random::<9>(runtime)).replace(['-', '_'], "0"));
    let secret = URL_SAFE_NO_PAD.encode(random::<32>(runtime));
    let signing = random::<32>(runtime);
    // The files come first: a tenant whose key was lost in a crash would be nobody's; a key without a tenant is
    // replaced by the next start.
    write_secret(&admin_key_path(data), &format!("{id}.{secret}\n"))?;
    write_secret(&signing_secret_path(data), &format!("whsec_{}\n", STANDARD.encode(signing)))?;
    let key = ApiKey { id, secret_sha256: Sha256::digest(secret.as_bytes()).into(), role: Role::Admin };
    let tenant = Tenant {
        id: TenantId(1),
        name: "default".to_owned(),
        generations: vec![pollers],
        signing_secret: SecretBytes(signing.to_vec()),
        keys: vec![key],
    };
    store.put_tenant(tenant).await.context("cannot make the tenant `default`")?;
    Ok(true)
}

fn random<const LENGTH: usize>(runtime: &Runtime) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&runtime.random().to_le_bytes()[..chunk.len()]);
    }
    bytes
}

fn write_secret(path: &Path, text: &str) -> anyhow::Result<()> {
    write_durably(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Replaces the file in one step; it is readable for its owner only, from its first byte.
fn write_durably(path: &Path, text: &str) -> io::Result<()> {
    let draft = path.with_extension("draft");
    if draft.exists() {
        fs::remove_file(&draft)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_first_start_makes_a_tenant_whose_key_is_in_a_file_for_its_owner_only() {
        let data = tempfile::tempdir().unwrap();
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(async {
            let runtime = Runtime::real();
            let store = store::memory::MemoryStore::new(runtime.clone(), store::memory::MemoryOptions::default());
            assert!(make_first_tenant(&runtime, &store, data.path(), 8).await.unwrap());
            let key_file = admin_key_path(data.path());
            assert_eq!(fs::metadata(&key_file).unwrap().permissions().mode() & 0o777, 0o600);
            let text = fs::read_to_string(&key_file).unwrap();
            let (id, secret) = text.trim().split_once('.').unwrap();
            let tenant = store.tenants().await.unwrap().remove(0);
            assert_eq!(tenant.keys[0].id, id);
            assert_eq!(tenant.keys[0].secret_sha256, <[u8; 32]>::from(Sha256::digest(secret)));
            assert!(!make_first_tenant(&runtime, &store, data.path(), 8).await.unwrap(), "only once");
            assert_eq!(fs::read_to_string(&key_file).unwrap(), text, "the key stays");
        });
    }
}
