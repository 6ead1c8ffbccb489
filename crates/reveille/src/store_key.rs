//! Key file, which contains the keys that encrypt and decrypt the secrets of a store.
//!
//! Each line contains a key of the form `rvsk_…`. The first key encrypts, and all keys decrypt, so that an operator can
//! rotate the keys. Lines that begin with # are comments.
//!
//! Invariants: this module never overwrites a key file. It rejects a key file that users other than its owner and its
//! group can read. It creates no key file for a store that already has encrypted secrets. The tenant of the operators
//! contains the ids of the store's keys. A process that lacks one of these keys does not start, because some of its
//! callbacks would fail later.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use clap::Args;
use domain::{Audit, KeyId, Tenant};
use runtime::Runtime;
use store::encryption::has_plain_secret;
use store::{EncryptedStore, Keyring, Store, StoreKey};

/// Mode bits that a key file must not have: write and execute permission for the group, and any permission for others.
const TOO_OPEN: u32 = 0o037;

/// Maximum number of attempts to write the tenant of the operators while other processes change it.
const ATTEMPTS: usize = 10;

const FIRST_LINES: &str = "\
# Key that encrypts the secrets of this store: headers of targets, and signing secrets.
# Without this key, the secrets are lost.
# Keep a copy, but not beside the backups. Every member of a cluster needs the same key.
";

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct StoreKeyArguments {
    /// File with the key that encrypts the secrets in the store [default: store.key in the data folder]
    #[arg(long, env = "REVEILLE_STORE_KEY")]
    store_key: Option<PathBuf>,
}

impl StoreKeyArguments {
    pub(crate) fn path(&self, data: &Path) -> PathBuf {
        self.store_key.clone().unwrap_or_else(|| data.join("store.key"))
    }
}

/// Store that encrypts its secrets, with the keys of the key file.
pub(crate) struct Unlocked {
    pub(crate) store: Arc<EncryptedStore>,
    pub(crate) keyring: Arc<Keyring>,
    path: PathBuf,
}

/// Reads the key file, and returns a store that encrypts the secrets in `store`. The function creates a missing key
/// file if the store has no encrypted secrets and `may_create` is true.
///
/// # Errors
/// Returns an error if the key file belongs to another store, if it cannot be used, or if it is missing and the
/// function must not create it. The error names the next step for the operator.
pub(crate) async fn unlock(
    runtime: &Runtime,
    store: Arc<dyn Store>,
    path: &Path,
    may_create: bool,
) -> anyhow::Result<Unlocked> {
    let registered = registered_keys(&store.tenants().await.context("cannot read the tenants")?);
    let keyring = match read(path)? {
        Some(keyring) => keyring,
        None if registered.is_empty() && may_create => create(runtime, path)?,
        None => bail!(
            "missing key file {}, whose key encrypts the secrets in this store: copy the file to this path, or give \
             another path with --store-key; all members of a cluster have the same key file, and a restored store \
             needs the key file of the original store",
            path.display()
        ),
    };
    check(&registered, &keyring, path)?;
    let keyring = Arc::new(keyring);
    let store = Arc::new(EncryptedStore::new(runtime, store, keyring.clone()));
    Ok(Unlocked { store, keyring, path: path.to_owned() })
}

impl Unlocked {
    /// Registers in the store the key that encrypts new secrets. Also encrypts the tenants' secrets that an earlier
    /// build stored in plain text.
    ///
    /// # Errors
    /// Returns an error if the store fails or has no operator yet, or if another process has registered a key that this
    /// process lacks.
    pub(crate) async fn register_key(&self, runtime: &Runtime) -> anyhow::Result<()> {
        let Unlocked { store, keyring, path } = self;
        let id = keyring
            .key_ids()
            .next()
            .with_context(|| format!("{} has no key: restore a copy of the file", path.display()))?;
        for _ in 0..ATTEMPTS {
            let tenants = store.tenants().await.context("cannot read the tenants")?;
            let registered = registered_keys(&tenants);
            check(&registered, keyring, path)?;
            if registered.contains(&id) {
                return encrypt_tenants(runtime, store, tenants).await;
            }
            let Some(operators) = tenants.into_iter().find(|tenant| tenant.id == Tenant::OPERATOR) else {
                bail!("the store has no operator: create the operator with `reveille store migrate --store …`");
            };
            let changed =
                Tenant { store_keys: [registered, vec![id]].concat(), version: operators.version + 1, ..operators };
            let entry = Audit::of(&changed, runtime.now(), "reveille", "store_key.add", &id.to_string());
            // If another process changed the tenant of the operators first, the next attempt reads this tenant again.
            let _outdated = store.put_tenant(changed, entry).await.context("cannot register the key in the store")?;
        }
        bail!(
            "cannot register the key: other processes changed the operator's tenant during all {ATTEMPTS} attempts; \
             start again"
        )
    }
}

/// Returns the keys of a store that is the source of a copy. Returns `None` if the key file does not exist. The copy
/// needs the keys only if the source contains a secret in plain text.
///
/// # Errors
/// Returns an error if the file belongs to another store, or cannot be used.
pub(crate) fn of_source(tenants: &[Tenant], path: &Path) -> anyhow::Result<Option<Keyring>> {
    let keyring = read(path)?;
    if let Some(keyring) = &keyring {
        check(&registered_keys(tenants), keyring, path)?;
    }
    Ok(keyring)
}

/// Writes each tenant again if it has secrets in plain text. The store encrypts the secrets of every tenant that it
/// writes.
async fn encrypt_tenants(runtime: &Runtime, store: &EncryptedStore, tenants: Vec<Tenant>) -> anyhow::Result<()> {
    for tenant in tenants.into_iter().filter(has_plain_secret) {
        let changed = Tenant { version: tenant.version + 1, ..tenant };
        let entry = Audit::of(&changed, runtime.now(), "reveille", "signing_secret.seal", "");
        // If another process wrote the tenant first, that write has already encrypted the secrets.
        let _outdated = store.put_tenant(changed, entry).await.context("cannot encrypt a tenant's secrets")?;
    }
    Ok(())
}

fn registered_keys(tenants: &[Tenant]) -> Vec<KeyId> {
    let operators = tenants.iter().find(|tenant| tenant.id == Tenant::OPERATOR);
    operators.map_or_else(Vec::new, |operators| operators.store_keys.clone())
}

fn check(registered: &[KeyId], keyring: &Keyring, path: &Path) -> anyhow::Result<()> {
    let missing = registered.iter().find(|registered| keyring.key_ids().all(|id| id != **registered));
    let Some(missing) = missing else { return Ok(()) };
    bail!(
        "secrets in this store are encrypted with the key {missing}, which is not in {}: give the path of this store's \
         store.key with --store-key, or add the line with the missing key to {0}; all members of a cluster have the \
         same key file",
        path.display()
    )
}

/// Reads a key file. Returns `None` if the file does not exist.
fn read(path: &Path) -> anyhow::Result<Option<Keyring>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let mode = file.metadata().with_context(|| format!("cannot read the file mode of {}", path.display()))?.mode();
    ensure!(
        mode & TOO_OPEN == 0,
        "{0} has the file mode {1:o}, so other users can read or change it: run `chmod 600 {0}`",
        path.display(),
        mode & 0o777
    );
    let text = io::read_to_string(file).with_context(|| format!("cannot read {}", path.display()))?;
    let mut keys = Vec::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if !line.is_empty() && !line.starts_with('#') {
            keys.push(StoreKey::parse(line).with_context(|| format!("{}, line {number}", path.display()))?);
        }
    }
    ensure!(!keys.is_empty(), "{} has no key: restore a copy of the file", path.display());
    Ok(Some(Keyring::new(keys)))
}

fn create(runtime: &Runtime, path: &Path) -> anyhow::Result<Keyring> {
    let (_, text) = StoreKey::generate(runtime);
    write_new(path, &format!("{FIRST_LINES}{text}\n")).with_context(|| format!("cannot write {}", path.display()))?;
    tracing::info!(path = %path.display(), "created the key that encrypts the store's secrets; keep a copy of it");
    // The function reads the file again, because another process may have created the file first.
    read(path)?.with_context(|| format!("{} was removed", path.display()))
}

/// Writes a new file. If the file already exists, the function does not change it.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    // The function removes a draft file that an earlier start or another user has created, because a write to that file
    // would not be safe.
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    let linked = fs::hard_link(&draft, path);
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use store::memory::{MemoryOptions, MemoryStore};

    use super::*;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    fn empty(runtime: &Runtime) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new(runtime.clone(), MemoryOptions::default()))
    }

    async fn start(runtime: &Runtime, store: &Arc<dyn Store>, data: &Path) -> anyhow::Result<Arc<EncryptedStore>> {
        let path = data.join("store.key");
        let unlocked = unlock(runtime, store.clone(), &path, true).await?;
        crate::identity::create_first(runtime, &unlocked, data, 8, &domain::Egress::default()).await?;
        Ok(unlocked.store)
    }

    fn error_text<T>(result: anyhow::Result<T>) -> String {
        format!("{:#}", result.err().expect("the result is an error"))
    }

    #[test]
    fn first_start_creates_a_store_key_that_later_starts_do_not_change() {
        block_on(async {
            let (runtime, data) = (Runtime::real(), tempfile::tempdir().unwrap());
            let store = empty(&runtime);
            start(&runtime, &store, data.path()).await.unwrap();
            let path = data.path().join("store.key");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            let text = fs::read_to_string(&path).unwrap();
            start(&runtime, &store, data.path()).await.unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            let secrets = store.tenants().await.unwrap().remove(1).signing_secrets;
            assert!(secrets.iter().all(|secret| secret.secret.is_encrypted()));
        });
    }

    #[test]
    fn server_without_the_key_of_its_store_fails_to_start() {
        block_on(async {
            let (runtime, data) = (Runtime::real(), tempfile::tempdir().unwrap());
            let store = empty(&runtime);
            start(&runtime, &store, data.path()).await.unwrap();
            let path = data.path().join("store.key");
            let (text, (_, other)) = (fs::read_to_string(&path).unwrap(), StoreKey::generate(&runtime));
            fs::remove_file(&path).unwrap();
            let error = error_text(start(&runtime, &store, data.path()).await);
            assert!(error.contains("missing key file") && !path.exists(), "{error}");
            write_new(&path, &other).unwrap();
            let error = error_text(start(&runtime, &store, data.path()).await);
            assert!(error.contains("is not in") && error.contains("--store-key"), "{error}");
            // The test rotates the keys: a new key encrypts, and the old key still decrypts.
            fs::write(&path, format!("{other}\n{text}")).unwrap();
            start(&runtime, &store, data.path()).await.unwrap();
            assert_eq!(registered_keys(&store.tenants().await.unwrap()).len(), 2);
            fs::write(&path, &other).unwrap();
            assert!(error_text(start(&runtime, &store, data.path()).await).contains("is not in"));
        });
    }

    #[test]
    fn server_rejects_an_invalid_or_unprotected_key_file() {
        block_on(async {
            let (runtime, data) = (Runtime::real(), tempfile::tempdir().unwrap());
            let store = empty(&runtime);
            let path = data.path().join("store.key");
            write_new(&path, FIRST_LINES).unwrap();
            assert!(error_text(start(&runtime, &store, data.path()).await).contains("has no key"));
            fs::write(&path, "# a comment\n\nrvsk_short\n").unwrap();
            assert!(error_text(start(&runtime, &store, data.path()).await).contains("line 3"));
            for mode in [0o604, 0o660, 0o644] {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                assert!(error_text(start(&runtime, &store, data.path()).await).contains("chmod 600"), "{mode:o}");
            }
        });
    }

    #[test]
    fn server_encrypts_plain_text_secrets_when_it_starts() {
        block_on(async {
            let (runtime, data) = (Runtime::real(), tempfile::tempdir().unwrap());
            let store = empty(&runtime);
            for (id, name) in [(0, "operator"), (1, "default")] {
                let secret = domain::SigningSecret::first(vec![7; 32], runtime.now());
                let mut tenant = Tenant::new(domain::TenantId(id), name, 4, secret);
                if id == 0 {
                    (tenant.generations, tenant.signing_secrets) = (Vec::new(), Vec::new());
                }
                let entry = Audit::of(&tenant, runtime.now(), "test", "tenant.create", name);
                store.put_tenant(tenant, entry).await.unwrap().unwrap();
            }
            start(&runtime, &store, data.path()).await.unwrap();
            let tenants = store.tenants().await.unwrap();
            assert!(tenants[1].signing_secrets[0].secret.is_encrypted());
            assert_eq!(tenants[0].store_keys.len(), 1);
        });
    }
}
