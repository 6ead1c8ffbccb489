//! First operator and first tenant of a new store. This module creates the operator's key, the tenant's admin key, and
//! the secret that signs the tenant's callbacks.
//!
//! Invariants: this module writes a secret only to a file that only its owner can read, and never to a log or a
//! terminal. The store contains only the hash of a key.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use domain::{Audit, Egress, Quotas, Role, Tenant, TenantId};
use runtime::{DiskLock, Runtime};
use store::Store;

use crate::store_key::Unlocked;

/// Returns the path of the first tenant's admin key. The file contains the bearer token in the form `id.secret`.
pub(crate) fn admin_key_path(data: &Path) -> PathBuf {
    data.join("admin.key")
}

/// Returns the path of the first operator's key. The file has the same form as the file of [`admin_key_path`].
pub(crate) fn operator_key_path(data: &Path) -> PathBuf {
    data.join("operator.key")
}

/// Returns the path of the secret that signs the first tenant's callbacks. The file contains `whsec_` and base64
/// (Standard Webhooks 1.0.0).
pub(crate) fn signing_secret_path(data: &Path) -> PathBuf {
    data.join("signing.secret")
}

/// Returns the path of the file that a member locks.
pub(crate) fn member_lock_path(data: &Path) -> PathBuf {
    data.join("member.lock")
}

fn cluster_path(data: &Path) -> PathBuf {
    data.join("cluster.id")
}

/// Returns the paths of the files that this module writes to a data folder.
pub(crate) fn files(data: &Path) -> [PathBuf; 5] {
    [
        admin_key_path(data),
        operator_key_path(data),
        signing_secret_path(data),
        member_lock_path(data),
        cluster_path(data),
    ]
}

/// Returns the id of the cluster to which this data folder belongs, or `None` if the folder belongs to no cluster.
///
/// # Errors
/// Returns an error if the file with the id of the cluster exists but cannot be read.
pub(crate) fn known_cluster(data: &Path) -> anyhow::Result<Option<String>> {
    let path = cluster_path(data);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Records that the data folder belongs to this cluster, unless the folder already records a cluster.
///
/// # Errors
/// Returns an error if the folder cannot be written.
pub(crate) fn record_cluster(data: &Path, cluster: &str) -> anyhow::Result<()> {
    if known_cluster(data)?.is_none() {
        write_secret(&cluster_path(data), &format!("{cluster}\n"))?;
    }
    Ok(())
}

/// Locks the data folder for one member until the caller drops the returned lock.
///
/// # Errors
/// Returns an error if another process has locked the folder, or if the folder cannot be written.
pub(crate) async fn lock_member(runtime: &Runtime, data: &Path) -> anyhow::Result<Box<dyn DiskLock>> {
    let path = member_lock_path(data);
    match runtime.disk().lock(&path).await {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            anyhow::bail!("{} is in use by another member: give each member its own folder with --data", data.display())
        }
        locked => locked.with_context(|| format!("cannot lock {}", path.display())),
    }
}

/// Objects that [`create_first`] created in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Created {
    /// True if [`create_first`] created the first operator's key.
    pub(crate) operator: bool,
    /// The tenant `default`.
    pub(crate) tenant: bool,
}

/// Creates the first operator's key if the store has no operator, and the tenant `default` if the store has no tenant.
/// The tenant may call the addresses that `egress` allows.
///
/// # Errors
/// Returns an error if the store or the folder cannot be written.
pub(crate) async fn create_first(
    runtime: &Runtime,
    unlocked: &Unlocked,
    data: &Path,
    pollers: u16,
    egress: &Egress,
) -> anyhow::Result<Created> {
    let store = &*unlocked.store;
    let known = store.tenants().await.context("cannot read the tenants")?;
    let operators = known.iter().find(|tenant| tenant.id == Tenant::OPERATOR);
    let first = known.iter().find(|tenant| tenant.id != Tenant::OPERATOR);
    if let Some(operators) = operators {
        recover_files(operators, &operator_key_path(data), &[])?;
    }
    if let Some(first) = first {
        recover_files(first, &admin_key_path(data), &[signing_secret_path(data)])?;
    }
    let operator = operators.is_none() && create_operator(runtime, store, data).await?;
    // This call registers the encryption key before the store encrypts any secret. If two processes start at the same
    // time with different keys, one of them fails here.
    unlocked.register_key(runtime).await?;
    Ok(Created { operator, tenant: first.is_none() && create_tenant(runtime, store, data, pollers, egress).await? })
}

async fn create_operator(runtime: &Runtime, store: &dyn Store, data: &Path) -> anyhow::Result<bool> {
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
        excerpts: false,
        store_keys: Vec::new(),
        header_binding: None,
    };
    create(runtime, store, operators, &[(operator_key_path(data), bearer)]).await
}

async fn create_tenant(
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
    // The admin key is the last file of the list, so `create` removes the draft of the admin key last. If a crash
    // leaves this draft, the next start creates the missing files.
    create(runtime, store, tenant, &[(signing_secret_path(data), text), (admin_key_path(data), bearer)]).await
}

/// Creates the tenant and its files. Returns `false` if another process created the tenant first.
async fn create(
    runtime: &Runtime,
    store: &dyn Store,
    tenant: Tenant,
    files: &[(PathBuf, String)],
) -> anyhow::Result<bool> {
    for (path, _) in files {
        ensure!(
            !path.exists(),
            "{} already exists and may be the key of another store: move the file to another folder, or choose another \
             folder with --data",
            path.display()
        );
    }
    // This function writes drafts of the files before it creates the tenant. If a crash lost the key of an existing
    // tenant, no client could use the tenant. The next start replaces a draft whose tenant does not exist. If the
    // tenant exists, the next start renames the draft to the final name.
    for (path, text) in files {
        write_secret(&draft_of(path), &format!("{text}\n"))?;
    }
    let name = tenant.name.clone();
    let entry = Audit::of(&tenant, runtime.now(), "reveille", "tenant.create", &name);
    let put = store.put_tenant(tenant, entry).await.with_context(|| format!("cannot create the tenant `{name}`"))?;
    for (path, text) in files {
        let draft = draft_of(path);
        // Another process that starts on this folder may have replaced the draft. The function removes the draft only
        // if this process wrote the draft.
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

/// Renames the drafts to their final names if the draft of the key belongs to the tenant. Drafts exist if a process
/// crashed after it created the tenant and before it created the files.
fn recover_files(tenant: &Tenant, key: &Path, others: &[PathBuf]) -> anyhow::Result<()> {
    let draft = draft_of(key);
    let Ok(text) = fs::read_to_string(&draft) else { return Ok(()) };
    if key.exists() || !tenant.keys.iter().any(|key| text.split_once('.').is_some_and(|(id, _)| id == key.id)) {
        return Ok(());
    }
    // The function renames the draft of the key last, because the next start renames no draft if this draft is missing.
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

/// Replaces the file in one atomic step. At all times, only the owner can read the file.
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

    /// Returns an empty store that encrypts secrets with the key in this folder.
    async fn unlocked(runtime: &Runtime, data: &Path) -> Unlocked {
        let store = store::memory::MemoryStore::new(runtime.clone(), store::memory::MemoryOptions::default());
        store_key::unlock(runtime, Arc::new(store), &data.join("store.key"), true).await.unwrap()
    }

    #[test]
    fn first_start_creates_key_files_that_other_users_cannot_read() {
        let data = tempfile::tempdir().unwrap();
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(async {
            let runtime = Runtime::real();
            let store = unlocked(&runtime, data.path()).await;
            let created = create_first(&runtime, &store, data.path(), 8, &Egress::default()).await.unwrap();
            assert_eq!(created, Created { operator: true, tenant: true });
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
            // The test creates the state after a crash: the tenants exist, but their files do not exist.
            for path in [operator_key_path(data.path()), admin_key_path(data.path()), signing_secret_path(data.path())]
            {
                assert!(!draft_of(&path).exists());
                fs::rename(&path, draft_of(&path)).unwrap();
            }
            let created = create_first(&runtime, &store, data.path(), 8, &Egress::default()).await.unwrap();
            assert_eq!(created, Created { operator: false, tenant: false }, "the second start creates nothing");
            for (path, text) in texts {
                assert_eq!(fs::read_to_string(path).unwrap(), text, "the key does not change");
            }
        });
    }
    #[test]
    fn start_does_not_overwrite_the_key_of_another_store() {
        let data = tempfile::tempdir().unwrap();
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(async {
            let runtime = Runtime::real();
            let store = unlocked(&runtime, data.path()).await;
            create_first(&runtime, &store, data.path(), 8, &Egress::default()).await.unwrap();
            let key = fs::read_to_string(operator_key_path(data.path())).unwrap();
            let another = unlocked(&runtime, data.path()).await;
            let error =
                create_first(&runtime, &another, data.path(), 8, &Egress::default()).await.unwrap_err().to_string();
            assert!(error.contains("operator.key already exists"), "{error}");
            assert_eq!(fs::read_to_string(operator_key_path(data.path())).unwrap(), key);
            assert_eq!(another.store.tenants().await.unwrap(), []);
        });
    }
}
