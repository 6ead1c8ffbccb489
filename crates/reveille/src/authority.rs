//! Certificate authority of the cluster. The members authenticate each other with its certificates (crate `peers`).
//!
//! The database stores the key of the authority, encrypted with the first key of the key file. During a rotation, the
//! cluster has two authorities, and its members trust both. A member issues its certificates with the new authority only
//! after all other members have had time to learn of it.
//!
//! docs/decisions/0228-encrypt-the-connections-between-members.md gives the reasons for the design.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use cli_support::console;
use domain::Secret;
use membership::MemberId;
use peers::{Authority, HttpPeers, Identity, PeersOptions};
use runtime::Runtime;
use store::Keyring;
use store::encryption::Place;
use store_postgres::{PostgresStore, StoredAuthority};

use crate::cluster::with_store;
use crate::engine::{EngineArguments, PostgresEngine};
use crate::store_key::{self, StoreKeyArguments};

/// Time between two reads of the authorities.
const PERIOD: Duration = Duration::from_secs(5);
/// Minimum time between two reads of the authorities, for a member that sees certificates of an unknown authority.
const PERIOD_MIN: Duration = Duration::from_secs(1);
/// Age from which an authority issues certificates, if the cluster has an older one. It must be much longer than
/// [`PERIOD`], so that every member trusts the authority by then.
const ISSUES_FROM: Duration = Duration::from_secs(15);
/// Number of the first authority of a cluster.
const FIRST: u64 = 1;
/// Time between two attempts of `cluster rotate` to connect to the members.
const PROBE_PERIOD: Duration = Duration::from_secs(2);

#[derive(Args, Debug)]
pub(crate) struct RotateArguments {
    #[command(flatten)]
    engine: EngineArguments,
    /// Folder with the key file, if --store-key is not set
    #[arg(long, default_value = "./data", env = "REVEILLE_DATA")]
    data: PathBuf,
    #[command(flatten)]
    store_key: StoreKeyArguments,
    /// Seconds to wait until all members use the new authority [20 to 3600]
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(20..=3_600))]
    timeout: u64,
}

/// Authorities of the cluster, with decrypted keys.
struct Authorities {
    /// Authority that issues the certificates of this member.
    issuer: Authority,
    others: Vec<Authority>,
}

/// Creates the first authority of the cluster if the cluster has none. Encrypts the keys of the authorities again if the
/// first key of the key file has changed.
///
/// # Errors
/// Returns an error if the database fails, or if the key file lacks the key that encrypted an authority.
pub(crate) async fn ensure(runtime: &Runtime, store: &PostgresStore, keyring: &Keyring) -> anyhow::Result<()> {
    let stored = store.authorities().await.context("cannot read the certificate authorities")?;
    if stored.is_empty() {
        add(runtime, store, keyring, FIRST).await?;
    }
    for StoredAuthority { number, key, .. } in stored {
        if !keyring.is_current(&Secret::Encrypted(key.clone())) {
            let again = encrypt(runtime, keyring, number, &open(keyring, number, &key)?)?;
            // If another process has replaced the key first, it has done so with the same key file.
            let replaced = store.replace_authority_key(number, &key, &again).await;
            replaced.context("cannot encrypt a certificate authority again")?;
        }
    }
    Ok(())
}

/// TLS identity of a member, whose authorities follow the database.
pub(crate) struct FollowingIdentity {
    pub(crate) identity: Identity,
    /// Authorities that the identity uses.
    used: Used,
}

/// Numbers of the trusted authorities, and the index of the one that issues certificates.
type Used = (Vec<u64>, usize);

impl FollowingIdentity {
    /// Reads the authorities from the database.
    ///
    /// # Errors
    /// Returns an error if the database fails, or if the cluster has no authority that the key file can decrypt.
    pub(crate) async fn read(runtime: &Runtime, store: &PostgresStore, keyring: &Keyring) -> anyhow::Result<Self> {
        let stored = store.authorities().await.context("cannot read the certificate authorities")?;
        let Authorities { issuer, others } = decrypt(keyring, &stored)?;
        Ok(FollowingIdentity { identity: Identity::new(runtime, issuer, &others)?, used: used(&stored) })
    }

    /// Reads the authorities repeatedly, and replaces the authorities of the identity when they change. Never returns.
    pub(crate) async fn follow(mut self, runtime: Runtime, store: Arc<PostgresStore>, keyring: Arc<Keyring>) {
        loop {
            runtime.sleep(PERIOD_MIN).await;
            runtime.timeout(PERIOD - PERIOD_MIN, self.identity.unknown_authority()).await;
            match store.authorities().await {
                Ok(stored) if used(&stored) != self.used => self.replace(&keyring, &stored),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "cannot read the certificate authorities"),
            }
        }
    }

    fn replace(&mut self, keyring: &Keyring, stored: &[StoredAuthority]) {
        let replaced = decrypt(keyring, stored)
            .and_then(|Authorities { issuer, others }| Ok(self.identity.replace(issuer, &others)?));
        // After an error, too, so that the member logs the warning only once.
        self.used = used(stored);
        let (trusted, at) = &self.used;
        match replaced {
            Ok(()) => {
                tracing::info!(?trusted, issuer = trusted[*at], "the certificate authorities of the cluster changed")
            }
            Err(error) => tracing::warn!(
                "cannot use the certificate authorities of the cluster, so the member uses the previous ones: {error:#}"
            ),
        }
    }
}

/// Replaces the authority of the cluster while the members run. A call after an incomplete rotation completes it.
///
/// # Errors
/// Returns an error if a live member does not use the new authority in time. The cluster then trusts both authorities.
pub(crate) async fn rotate(runtime: &Runtime, arguments: &RotateArguments) -> anyhow::Result<()> {
    let engine = arguments.engine.postgres()?;
    with_store(runtime, &engine, async |store| {
        let path = arguments.store_key.path(&arguments.data);
        let keyring = store_key::unlock(runtime, store.clone(), &path, false).await?.keyring;
        let stored = store.authorities().await.context("cannot read the certificate authorities")?;
        let number = match &stored[..] {
            [] => bail!("the cluster has no certificate authority: run `reveille store migrate --store …` first"),
            [only] => {
                add(runtime, store, &keyring, only.number + 1).await?;
                console::line("created a new certificate authority; waiting until all members use it")?;
                only.number + 1
            }
            [.., newest] => {
                console::line("an earlier rotation is incomplete; waiting until all members use its new authority")?;
                newest.number
            }
        };
        wait_for_members(runtime, &engine, store, &keyring, number, Duration::from_secs(arguments.timeout)).await?;
        store.drop_authorities_before(number).await.context("cannot drop the old certificate authority")?;
        console::line("dropped the old certificate authority: members no longer trust its certificates")
            .context("cannot print the result")
    })
    .await
}

/// Waits until every live member uses the authority `number`, and trusts it.
async fn wait_for_members(
    runtime: &Runtime,
    engine: &PostgresEngine,
    store: &PostgresStore,
    keyring: &Keyring,
    number: u64,
    limit: Duration,
) -> anyhow::Result<()> {
    let end = runtime.monotonic() + limit;
    let mut ready: BTreeSet<MemberId> = BTreeSet::new();
    loop {
        let stored = store.authorities().await.context("cannot read the certificate authorities")?;
        let newest = stored.iter().find(|stored| stored.number == number);
        let newest = newest.context("another process has dropped the new certificate authority; start again")?;
        // This identity trusts only the new authority, so it can connect only to members that use it.
        let identity = Identity::probe(runtime, Authority::from_key(&open(keyring, number, &newest.key)?)?)?;
        let peers = HttpPeers::new(runtime, identity, "cluster rotate", PeersOptions::default());
        let mut missing = Vec::new();
        match engine.view(runtime, store).await {
            Ok(view) => {
                for member in view.members {
                    if ready.contains(&member.id) {
                        continue;
                    }
                    match peers.check(&member).await {
                        Ok(()) => {
                            ready.insert(member.id);
                        }
                        Err(error) => missing.push(error.to_string()),
                    }
                }
            }
            Err(error) => missing.push(format!("{error:#}")),
        }
        if missing.is_empty() {
            return Ok(());
        }
        if runtime.monotonic() > end {
            bail!(
                "not all members use the new certificate authority, so the cluster trusts the old one, too: {}. Repair \
                 or stop these members, then run `reveille cluster rotate` again",
                missing.join("; ")
            );
        }
        runtime.sleep(PROBE_PERIOD).await;
    }
}

async fn add(runtime: &Runtime, store: &PostgresStore, keyring: &Keyring, number: u64) -> anyhow::Result<()> {
    let key = encrypt(runtime, keyring, number, Authority::generate()?.key())?;
    // If another process has added the authority first, this process uses that one.
    store.add_authority(number, &key).await.context("cannot create a certificate authority")?;
    Ok(())
}

fn encrypt(runtime: &Runtime, keyring: &Keyring, number: u64, key: &[u8]) -> anyhow::Result<Bytes> {
    let plain = Secret::Plain(Bytes::copy_from_slice(key));
    match keyring.encrypt(runtime, Place::AuthorityKey { number }, &plain) {
        Secret::Encrypted(key) => Ok(key),
        Secret::Plain(_) => bail!("the key file has no key that could encrypt a certificate authority"),
    }
}

fn open(keyring: &Keyring, number: u64, key: &Bytes) -> anyhow::Result<Bytes> {
    let opened = keyring.open(Place::AuthorityKey { number }, &Secret::Encrypted(key.clone()));
    opened.with_context(|| format!("cannot decrypt the certificate authority {number} of the cluster"))
}

fn used(stored: &[StoredAuthority]) -> Used {
    (stored.iter().map(|stored| stored.number).collect(), issuer_at(stored))
}

/// Returns the index of the authority that issues certificates: the newest one that all members know.
fn issuer_at(stored: &[StoredAuthority]) -> usize {
    stored.iter().rposition(|stored| stored.age >= ISSUES_FROM).unwrap_or(0)
}

fn decrypt(keyring: &Keyring, stored: &[StoredAuthority]) -> anyhow::Result<Authorities> {
    let authority = |stored: &StoredAuthority| -> anyhow::Result<Authority> {
        Ok(Authority::from_key(&open(keyring, stored.number, &stored.key)?)?)
    };
    let mut others = stored.iter().map(authority).collect::<anyhow::Result<Vec<_>>>()?;
    if others.is_empty() {
        bail!("the cluster has no certificate authority: run `reveille store migrate --store …`");
    }
    Ok(Authorities { issuer: others.remove(issuer_at(stored)), others })
}
