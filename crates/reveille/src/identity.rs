//! Who may use a new Reveille: the first operator's key, and the first tenant with its admin key and the secret that signs its
//! callbacks.
//!
//! Always true here: a secret is written to a file that only its owner can read, and never to a log or a terminal; the
//! store keeps of the key only its hash.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use domain::{Audit, Egress, Quotas, Role, Tenant, TenantId};
use runtime::Runtime;
use store::Store;

use crate::store_key::Unlocked;

/// The admin key of the first tenant, as `id.secret`: what goes after `Bearer`.
pub(crate) fn admin_key_path(data: &Path) -> PathBuf {
    data.join("admin.key")
}

/// The first operator's key, as [`admin_key_path`].
pub(crate) fn operator_key_path(data: &Path) -> PathBuf {
    data.join("operator.key")
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

/// What a start made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Made {
    /// The first operator's key.
    pub(crate) operator: bool,
    /// The tenant `default`.
    pub(crate) tenant: bool,
}

/// Makes the first operator's key, and the tenant `default`, which may call what `egress` allows, if the store has none
/// yet.
///
/// # Errors
/// If the store or the folder cannot be written.
pub(crate) async fn make_first(
    runtime: &Runtime,
    unlocked: &Unlocked,
    data: &Path,
    pollers: u16,
    egress: &Egress,
) -> anyhow::Result<Made> {
    let store = &*unlocked.store;
    let known = store.tenants().await.context("cannot read the tenants")?;
    let operators = known.iter().find(|tenant| tenant.id == Tenant::OPERATOR);
    let first = known.iter().find(|tenant| tenant.id != Tenant::OPERATOR);
    if let Some(operators) = operators {
        take_over(operators, &operator_key_path(data), &[])?;
    }
    if let Some(first) = first {
        take_over(first, &admin_key_path(data), &[signing_secret_path(data)])?;
    }
    let operator = operators.is_none() && make_operator(runtime, store, data).await?;
    // Before anything is sealed: of two who begin at once with two keys, one gives up here.
    unlocked.know(runtime).await?;
    Ok(Made { operator, tenant: first.is_none() && make_tenant(runtime, store, data, pollers, egress).await? })
}

async fn make_operator(runtime: &Runtime, store: &dyn Store, data: &Path) -> anyhow::Result<bool> {
    let (key, bearer) = server::new_key(runtime, Role::Operator, "first", None);
    let operators = Tenant {
        id: Tenant::OPERATOR,
        name: "operator".to_owned(),
        version: 1,
        generations: Vec::new(),
        signing_secrets: Vec::new(),
        keys: vec![key],
        quotas: Quotas::NONE,
        ceilings: Quotas::NONE,
        egress: Egress::default(),
        store_keys: Vec::new(),
    };
    make(runtime, store, operators, &[(operator_key_path(data), bearer)]).await
}

async fn make_tenant(
    runtime: &Runtime,
    store: &dyn Store,
    data: &Path,
    pollers: u16,
    egress: &Egress,
) -> anyhow::Result<bool> {
    let (key, bearer) = server::new_key(runtime, Role::Admin, "first", None);
    let (secret, text) = server::new_signing_secret(runtime);
    let egress = egress.clone();
    let tenant = Tenant { keys: vec![key], egress, ..Tenant::new(TenantId(1), "default", pollers, secret) };
    // The key last: as long as its draft is there, a start takes over what a crash left.
    make(runtime, store, tenant, &[(signing_secret_path(data), text), (admin_key_path(data), bearer)]).await
}

/// Whether nobody else has made this tenant meanwhile.
async fn make(
    runtime: &Runtime,
    store: &dyn Store,
    tenant: Tenant,
    files: &[(PathBuf, String)],
) -> anyhow::Result<bool> {
    for (path, _) in files {
        ensure!(
            !path.exists(),
            "{} is there already, and may be the key of another store: move it away, or choose another folder with --data",
            path.display()
        );
    }
    // The drafts come first: a tenant whose key was lost in a crash would be nobody's. One without a tenant is replaced by
    // the next start, and one whose tenant was made is taken over by it.
    for (path, text) in files {
        write_secret(&draft_of(path), &format!("{text}\n"))?;
    }
    let name = tenant.name.clone();
    let entry = Audit::of(&tenant, runtime.now(), "reveille", "tenant.create", &name);
    let put = store.put_tenant(tenant, entry).await.with_context(|| format!("cannot make the tenant `{name}`"))?;
    for (path, text) in files {
        let draft = draft_of(path);
        // Another start on this folder may have replaced it.
        let is_ours = fs::read_to_string(&draft).is_ok_and(|draft| draft.trim() == text);
        if put.is_ok() {
            write_secret(path, &format!("{text}\n"))?;
        }
        if is_ours {
            fs::remove_file(&draft).with_context(|| format!("cannot remove {}", draft.display()))?;
        }
    }
    Ok(put.is_ok())
}

fn draft_of(path: &Path) -> PathBuf {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    PathBuf::from(draft)
}

/// After a crash between the making of a tenant and of its files: those that its drafts say, if the key is the tenant's.
fn take_over(tenant: &Tenant, key: &Path, others: &[PathBuf]) -> anyhow::Result<()> {
    let draft = draft_of(key);
    let Ok(text) = fs::read_to_string(&draft) else { return Ok(()) };
    if key.exists() || !tenant.keys.iter().any(|key| text.split_once('.').is_some_and(|(id, _)| id == key.id)) {
        return Ok(());
    }
    // The key last, as above.
    for path in others.iter().map(PathBuf::as_path).chain([key]) {
        let draft = draft_of(path);
        if draft.exists() {
            fs::rename(&draft, path).with_context(|| format!("cannot rename {}", draft.display()))?;
        }
    }
    Ok(())
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
    use std::sync::Arc;

    use sha2::{Digest, Sha256};

    use super::*;
    use crate::store_key;

    /// An empty store under the folder's key.
    async fn unlocked(runtime: &Runtime, data: &Path) -> Unlocked {
        let store = store::memory::MemoryStore::new(runtime.clone(), store::memory::MemoryOptions::default());
        store_key::unlock(runtime, Arc::new(store), &data.join("store.key"), true).await.unwrap()
    }

    #[test]
    fn the_first_start_makes_keys_that_only_their_owner_can_read() {
        let data = tempfile::tempdir().unwrap();
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(async {
            let runtime = Runtime::real();
            let store = unlocked(&runtime, data.path()).await;
            let made = make_first(&runtime, &store, data.path(), 8, &Egress::default()).await.unwrap();
            assert_eq!(made, Made { operator: true, tenant: true });
            let tenants = store.store.tenants().await.unwrap();
            let mut texts = Vec::new();
            for (tenant, path) in tenants.iter().zip([operator_key_path(data.path()), admin_key_path(data.path())]) {
                assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
                let text = fs::read_to_string(&path).unwrap();
                let (id, secret) = text.trim().split_once('.').unwrap();
                assert_eq!(tenant.keys[0].id, id);
                assert_eq!(tenant.keys[0].secret_sha256, <[u8; 32]>::from(Sha256::digest(secret)));
                texts.push((path, text));
            }
            // As a crash leaves it, once the tenants are there and before their files are.
            for path in [operator_key_path(data.path()), admin_key_path(data.path()), signing_secret_path(data.path())]
            {
                assert!(!draft_of(&path).exists());
                fs::rename(&path, draft_of(&path)).unwrap();
            }
            let made = make_first(&runtime, &store, data.path(), 8, &Egress::default()).await.unwrap();
            assert_eq!(made, Made { operator: false, tenant: false }, "only once");
            for (path, text) in texts {
                assert_eq!(fs::read_to_string(path).unwrap(), text, "the key stays");
            }
        });
    }
    #[test]
    fn a_key_of_another_store_is_not_overwritten() {
        let data = tempfile::tempdir().unwrap();
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(async {
            let runtime = Runtime::real();
            let store = unlocked(&runtime, data.path()).await;
            make_first(&runtime, &store, data.path(), 8, &Egress::default()).await.unwrap();
            let key = fs::read_to_string(operator_key_path(data.path())).unwrap();
            let another = unlocked(&runtime, data.path()).await;
            let refused =
                make_first(&runtime, &another, data.path(), 8, &Egress::default()).await.unwrap_err().to_string();
            assert!(refused.contains("operator.key is there already"), "{refused}");
            assert_eq!(fs::read_to_string(operator_key_path(data.path())).unwrap(), key);
            assert_eq!(another.store.tenants().await.unwrap(), []);
        });
    }
}
