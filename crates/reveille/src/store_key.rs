//! The key file: what seals this store's secrets, and opens them.
//!
//! A line of it is a key, `rvsk_…`; the first seals, and all open, so that one can take over from another. Lines that
//! begin with # are for people.
//!
//! Always true here: a key file is never written over, is used only if nobody but its owner and its group can read it, and
//! none is made for a store whose secrets are sealed already. The store knows the ids of its keys, with the operators, and
//! a process that has not all of them does not start: it would fail to make callbacks, one by one, later.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use clap::Args;
use domain::{Audit, KeyId, Tenant};
use runtime::Runtime;
use store::seal::has_plain_secret;
use store::{Seal, SealKey, SealedStore, Store};

/// What a file's owner and group may do with it beside reading, and what others may.
const TOO_OPEN: u32 = 0o037;

/// How often a change is tried that others are ahead of.
const TRIES: usize = 10;

const FIRST_LINES: &str = "\
# What seals the secrets of this store: headers of targets, and what signs callbacks. Without it nobody can open them.
# Keep a copy, but not beside the backups; each member of a cluster needs the same.
";

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct StoreKeyArguments {
    /// The file with the key that seals secrets in the store [default: store.key in the data folder]
    #[arg(long, env = "REVEILLE_STORE_KEY")]
    store_key: Option<PathBuf>,
}

impl StoreKeyArguments {
    pub(crate) fn path(&self, data: &Path) -> PathBuf {
        self.store_key.clone().unwrap_or_else(|| data.join("store.key"))
    }
}

/// A store under its key.
pub(crate) struct Unlocked {
    pub(crate) store: Arc<SealedStore>,
    pub(crate) seal: Arc<Seal>,
    path: PathBuf,
}

/// `store` under its key, which is made if neither it nor anything under it is there, and `may_make`.
///
/// # Errors
/// If the file is not this store's, cannot be used, or is missing: with the next step for the operator.
pub(crate) async fn unlock(
    runtime: &Runtime,
    store: Arc<dyn Store>,
    path: &Path,
    may_make: bool,
) -> anyhow::Result<Unlocked> {
    let known = known(&store.tenants().await.context("cannot read the tenants")?);
    let seal = match read(path)? {
        Some(seal) => seal,
        None if known.is_empty() && may_make => make(runtime, path)?,
        None => bail!(
            "{} is not there, and it has the key that seals the secrets in this store: bring a copy of it, or say with \
             --store-key where it is; each member of a cluster has the same, and one restored from a backup the one of \
             before",
            path.display()
        ),
    };
    check(&known, &seal, path)?;
    let seal = Arc::new(seal);
    let store = Arc::new(SealedStore::new(runtime, store, seal.clone()));
    Ok(Unlocked { store, seal, path: path.to_owned() })
}

impl Unlocked {
    /// The store knows by which key secrets are sealed from now on, and those of its tenants that were stored before
    /// there was one are sealed, too.
    ///
    /// # Errors
    /// If the store fails, has no operator yet, or somebody else's key is ahead of this one.
    pub(crate) async fn know(&self, runtime: &Runtime) -> anyhow::Result<()> {
        let Unlocked { store, seal, path } = self;
        let id = seal.key_ids().next().context("a key file has a key")?;
        for _ in 0..TRIES {
            let tenants = store.tenants().await.context("cannot read the tenants")?;
            let known = known(&tenants);
            check(&known, seal, path)?;
            if known.contains(&id) {
                return seal_tenants(runtime, store, tenants).await;
            }
            let Some(operators) = tenants.into_iter().find(|tenant| tenant.id == Tenant::OPERATOR) else {
                bail!("the store has no operator yet: make one with `reveille store migrate --store …`");
            };
            let changed =
                Tenant { store_keys: [known, vec![id]].concat(), version: operators.version + 1, ..operators };
            let entry = Audit::of(&changed, runtime.now(), "reveille", "store_key.add", &id.to_string());
            // If another was faster, it is looked at again.
            let _outdated = store.put_tenant(changed, entry).await.context("cannot write which key seals")?;
        }
        bail!("others keep changing the operators: start again")
    }
}

/// The keys of a store that is copied; `None` if it has no key file, and needs none unless something is in plain.
///
/// # Errors
/// If the file is not this store's, or cannot be used.
pub(crate) fn of_source(tenants: &[Tenant], path: &Path) -> anyhow::Result<Option<Seal>> {
    let seal = read(path)?;
    if let Some(seal) = &seal {
        check(&known(tenants), seal, path)?;
    }
    Ok(seal)
}

/// Whoever writes a tenant seals its secrets.
async fn seal_tenants(runtime: &Runtime, store: &SealedStore, tenants: Vec<Tenant>) -> anyhow::Result<()> {
    for tenant in tenants.into_iter().filter(has_plain_secret) {
        let sealed = Tenant { version: tenant.version + 1, ..tenant };
        let entry = Audit::of(&sealed, runtime.now(), "reveille", "signing_secret.seal", "");
        // If somebody changes it now, this has done it as well.
        let _outdated = store.put_tenant(sealed, entry).await.context("cannot seal a tenant's secrets")?;
    }
    Ok(())
}

fn known(tenants: &[Tenant]) -> Vec<KeyId> {
    let operators = tenants.iter().find(|tenant| tenant.id == Tenant::OPERATOR);
    operators.map_or_else(Vec::new, |operators| operators.store_keys.clone())
}

fn check(known: &[KeyId], seal: &Seal, path: &Path) -> anyhow::Result<()> {
    let Some(missing) = known.iter().find(|known| seal.key_ids().all(|id| id != **known)) else { return Ok(()) };
    bail!(
        "secrets in this store are sealed under the key {missing}, which is not in {}: use the store.key that the store was \
         made with (each member of a cluster has the same), say with --store-key where it is, or add its line to this file",
        path.display()
    )
}

/// `None` if there is no file.
fn read(path: &Path) -> anyhow::Result<Option<Seal>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let mode = file.metadata().with_context(|| format!("cannot look at {}", path.display()))?.mode();
    ensure!(
        mode & TOO_OPEN == 0,
        "{0} has the mode {1:o}, so others can read or change it: `chmod 600 {0}`",
        path.display(),
        mode & 0o777
    );
    let text = io::read_to_string(file).with_context(|| format!("cannot read {}", path.display()))?;
    let mut keys = Vec::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if !line.is_empty() && !line.starts_with('#') {
            keys.push(SealKey::parse(line).with_context(|| format!("{}, line {number}", path.display()))?);
        }
    }
    ensure!(!keys.is_empty(), "{} has no key; bring a copy of the file back", path.display());
    Ok(Some(Seal::new(keys)))
}

fn make(runtime: &Runtime, path: &Path) -> anyhow::Result<Seal> {
    let (_, text) = SealKey::generate(runtime);
    write_new(path, &format!("{FIRST_LINES}{text}\n")).with_context(|| format!("cannot write {}", path.display()))?;
    tracing::info!(path = %path.display(), "made the key that seals the store's secrets: keep a copy of it");
    // What counts is what is there: another start may have been faster.
    read(path)?.with_context(|| format!("{} was removed", path.display()))
}

/// Leaves a file that is there as it is.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    // One that a start left behind, or somebody else's: it is not written into.
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

    async fn begin(runtime: &Runtime, store: &Arc<dyn Store>, data: &Path) -> anyhow::Result<Arc<SealedStore>> {
        let path = data.join("store.key");
        let unlocked = unlock(runtime, store.clone(), &path, true).await?;
        crate::identity::make_first(runtime, &unlocked, data, 8, &domain::Egress::default()).await?;
        Ok(unlocked.store)
    }

    fn refusal<T>(result: anyhow::Result<T>) -> String {
        format!("{:#}", result.err().expect("it is refused"))
    }

    #[test]
    fn a_first_start_makes_a_key_that_later_ones_use_and_none_writes_over() {
        block_on(async {
            let (runtime, data) = (Runtime::real(), tempfile::tempdir().unwrap());
            let store = empty(&runtime);
            begin(&runtime, &store, data.path()).await.unwrap();
            let path = data.path().join("store.key");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            let text = fs::read_to_string(&path).unwrap();
            begin(&runtime, &store, data.path()).await.unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            let secrets = store.tenants().await.unwrap().remove(1).signing_secrets;
            assert!(secrets.iter().all(|secret| secret.secret.is_sealed()));
        });
    }

    #[test]
    fn a_store_whose_key_is_gone_or_another_is_refused_with_the_next_step() {
        block_on(async {
            let (runtime, data) = (Runtime::real(), tempfile::tempdir().unwrap());
            let store = empty(&runtime);
            begin(&runtime, &store, data.path()).await.unwrap();
            let path = data.path().join("store.key");
            let (text, (_, other)) = (fs::read_to_string(&path).unwrap(), SealKey::generate(&runtime));
            fs::remove_file(&path).unwrap();
            let said = refusal(begin(&runtime, &store, data.path()).await);
            assert!(said.contains("bring a copy") && !path.exists(), "{said}");
            write_new(&path, &other).unwrap();
            let said = refusal(begin(&runtime, &store, data.path()).await);
            assert!(said.contains("is not in") && said.contains("--store-key"), "{said}");
            // The other takes over, and the old one still opens.
            fs::write(&path, format!("{other}\n{text}")).unwrap();
            begin(&runtime, &store, data.path()).await.unwrap();
            assert_eq!(known(&store.tenants().await.unwrap()).len(), 2);
            fs::write(&path, &other).unwrap();
            assert!(refusal(begin(&runtime, &store, data.path()).await).contains("is not in"));
        });
    }

    #[test]
    fn a_file_that_others_can_read_or_that_has_no_key_is_refused() {
        block_on(async {
            let (runtime, data) = (Runtime::real(), tempfile::tempdir().unwrap());
            let store = empty(&runtime);
            let path = data.path().join("store.key");
            write_new(&path, FIRST_LINES).unwrap();
            assert!(refusal(begin(&runtime, &store, data.path()).await).contains("has no key"));
            fs::write(&path, "# a comment\n\nrvsk_short\n").unwrap();
            assert!(refusal(begin(&runtime, &store, data.path()).await).contains("line 3"));
            for mode in [0o604, 0o660, 0o644] {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                assert!(refusal(begin(&runtime, &store, data.path()).await).contains("chmod 600"), "{mode:o}");
            }
        });
    }

    #[test]
    fn what_was_stored_before_there_was_a_key_is_sealed_by_the_next_start() {
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
            begin(&runtime, &store, data.path()).await.unwrap();
            let tenants = store.tenants().await.unwrap();
            assert!(tenants[1].signing_secrets[0].secret.is_sealed());
            assert_eq!(tenants[0].store_keys.len(), 1);
        });
    }
}
