//! Certificate authority of the cluster. The members authenticate each other with its certificates (crate `peers`).
//!
//! The database stores the key of the authority, encrypted with the first key of the key file. During a rotation, the
//! cluster has two authorities, and its members trust both. The members issue their certificates with the new authority
//! only after all of them trust it.
//!
//! docs/decisions/0228-encrypt-the-connections-between-members.md gives the reasons for the design.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use clap::Args;
use cli_support::console;
use domain::Secret;
use futures_util::future::join_all;
use membership::MemberId;
use peers::{Authority, HttpPeers, Identity, PeersOptions};
use runtime::Runtime;
use store::Keyring;
use store::encryption::{OpenError, Place};
use store_postgres::{PostgresStore, StoredAuthority};

use crate::cluster::with_store;
use crate::engine::{EngineArguments, PostgresEngine};
use crate::store_key::{self, StoreKeyArguments};

/// Time between two reads of the authorities.
const PERIOD: Duration = Duration::from_secs(5);
/// Minimum time between two reads of the authorities, for a member whose certificates do not match those of its peers.
const PERIOD_MIN: Duration = Duration::from_secs(1);
/// Time between two attempts of `cluster rotate` to connect to the members.
const PROBE_PERIOD: Duration = Duration::from_secs(2);
/// Number of the first authority of a cluster.
const FIRST: u32 = 1;

const CANNOT_READ: &str = "cannot read the certificate authorities";
const CANNOT_CHANGE: &str = "cannot change the certificate authorities";
const NO_AUTHORITY: &str = "the cluster has no certificate authority: run `reveille store migrate --store …`";

#[derive(Args, Debug)]
pub(crate) struct RotateArguments {
    #[command(flatten)]
    engine: EngineArguments,
    /// Folder with the key file, if --store-key is not set
    #[arg(long, default_value = "./data", env = "REVEILLE_DATA")]
    data: PathBuf,
    #[command(flatten)]
    store_key: StoreKeyArguments,
    /// Seconds to wait in each step until all members have followed it [20 to 3600]
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(20..=3_600))]
    timeout: u64,
}

/// Creates the first authority of the cluster if the cluster has none. Encrypts the keys of the authorities again if the
/// first key of the key file has changed.
///
/// # Errors
/// Returns an error if the database fails, or if the key file lacks the key that encrypted an authority.
pub(crate) async fn ensure(runtime: &Runtime, store: &PostgresStore, keyring: &Keyring) -> anyhow::Result<()> {
    let stored = store.authorities().await.context(CANNOT_READ)?;
    if stored.is_empty() {
        add(runtime, store, keyring, FIRST, true).await?;
    }
    for stored in stored {
        if !keyring.is_current(&Secret::Encrypted(stored.key.clone())) {
            let again = encrypt(runtime, keyring, stored.number, &open(keyring, &stored)?)?;
            // If another process has replaced the key first, its key file has the same keys.
            let replaced = store.reencrypt_authority(&stored, &again).await;
            replaced.context("cannot encrypt a certificate authority again")?;
        }
    }
    Ok(())
}

/// TLS identity of a member, whose authorities follow the database.
pub(crate) struct FollowingIdentity {
    pub(crate) identity: Identity,
    /// Authorities that the identity uses.
    used: Vec<StoredAuthority>,
    /// Authorities that the identity could not use.
    rejected: Vec<StoredAuthority>,
}

impl FollowingIdentity {
    /// Reads the authorities from the database.
    ///
    /// # Errors
    /// Returns an error if the database fails, or if the cluster has no authority that the key file can decrypt.
    pub(crate) async fn read(runtime: &Runtime, store: &PostgresStore, keyring: &Keyring) -> anyhow::Result<Self> {
        let used = store.authorities().await.context(CANNOT_READ)?;
        let Authorities { issuer, others } = decrypt(keyring, &used)?;
        let identity = Identity::new(runtime, issuer, &others)?;
        Ok(FollowingIdentity { identity, used, rejected: Vec::new() })
    }

    /// Reads the authorities repeatedly, and replaces the authorities of the identity when they change. Never returns.
    pub(crate) async fn follow(mut self, runtime: Runtime, store: Arc<PostgresStore>, keyring: Arc<Keyring>) {
        loop {
            runtime.sleep(PERIOD_MIN).await;
            runtime.timeout(PERIOD - PERIOD_MIN, self.identity.mismatch()).await;
            match store.authorities().await {
                Ok(stored) if stored != self.used => self.replace(&keyring, stored),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "cannot read the certificate authorities"),
            }
        }
    }

    fn replace(&mut self, keyring: &Keyring, stored: Vec<StoredAuthority>) {
        let replaced = decrypt(keyring, &stored)
            .and_then(|Authorities { issuer, others }| Ok(self.identity.replace(issuer, &others)?));
        match replaced {
            Ok(()) => {
                let numbers: Vec<u32> = stored.iter().map(|stored| stored.number).collect();
                tracing::info!(?numbers, "the certificate authorities of the cluster changed");
                self.used = stored;
            }
            Err(error) if stored != self.rejected => {
                tracing::warn!(
                    "cannot use the certificate authorities of the cluster, so the member uses the previous ones: \
                     {error:#}"
                );
                self.rejected = stored;
            }
            Err(_already_logged) => {}
        }
    }
}

/// Replaces the authority of the cluster while the members run. If an earlier rotation is incomplete, completes it first.
///
/// # Errors
/// Returns an error if a live member does not follow a step in time. The cluster then trusts both authorities.
pub(crate) async fn rotate(runtime: &Runtime, arguments: &RotateArguments) -> anyhow::Result<()> {
    let engine = arguments.engine.postgres()?;
    with_store(runtime, &engine, async |store| {
        let path = arguments.store_key.path(&arguments.data);
        let unlocked = store_key::unlock(runtime, store.clone(), &path, false).await?;
        // Every member needs the key that encrypts the new authority.
        unlocked.register_key(runtime).await?;
        let timeout = Duration::from_secs(arguments.timeout);
        let rotation = Rotation { runtime, engine: &engine, store, keyring: &unlocked.keyring, timeout };
        let mut stored = store.authorities().await.context(CANNOT_READ)?;
        let newest = stored.pop().context(NO_AUTHORITY)?;
        if !stored.is_empty() {
            console::line("an earlier rotation is incomplete; completing it first")?;
            rotation.complete(newest.number).await?;
        }
        let number = newest.number.checked_add(1).context("the cluster has used all numbers of authorities")?;
        add(runtime, store, rotation.keyring, number, false).await?;
        console::line("created a new certificate authority")?;
        rotation.complete(number).await
    })
    .await
}

/// Rotation of the authority. Each step waits until all live members have followed it.
struct Rotation<'a> {
    runtime: &'a Runtime,
    engine: &'a PostgresEngine,
    store: &'a PostgresStore,
    keyring: &'a Keyring,
    /// Time limit of each step.
    timeout: Duration,
}

impl Rotation<'_> {
    /// Completes the rotation to the authority `number`, which is the newest one.
    async fn complete(&self, number: u32) -> anyhow::Result<()> {
        const CHANGED: &str =
            "another process changed the certificate authorities at the same time; run `reveille cluster rotate` again";
        let newest = self.store.authorities().await.context(CANNOT_READ)?.pop().context(NO_AUTHORITY)?;
        if !newest.issues {
            let trusting = self.wait_for_members(number, "trust", true).await?;
            ensure!(self.store.let_authority_issue(&trusting).await.context(CANNOT_CHANGE)?, CHANGED);
            console::line("all members trust the new certificate authority")?;
        }
        let using = self.wait_for_members(number, "use", false).await?;
        ensure!(self.store.drop_authorities_before(&using).await.context(CANNOT_CHANGE)?, CHANGED);
        console::line("all members use the new certificate authority, and no longer trust the old one")
            .context("cannot print the result")
    }

    /// Waits until every live member accepts a connection with a certificate of the authority `number`. This command
    /// trusts the old authority in this connection only if `trusts_old` is true. Returns the authority `number`.
    async fn wait_for_members(&self, number: u32, verb: &str, trusts_old: bool) -> anyhow::Result<StoredAuthority> {
        let end = self.runtime.monotonic() + self.timeout;
        let mut ready: BTreeSet<MemberId> = BTreeSet::new();
        // The members log a warning if they do not know the certificate yet, so the first attempt waits.
        self.runtime.sleep(PERIOD + PERIOD_MIN).await;
        loop {
            let mut stored = self.store.authorities().await.context(CANNOT_READ)?;
            let newest = stored.pop_if(|newest| newest.number == number);
            let newest = newest.context(
                "the new certificate authority is missing in the database; run `reveille cluster rotate` again",
            )?;
            let authority = |stored: &StoredAuthority| authority(self.keyring, stored);
            let others =
                if trusts_old { stored.iter().map(authority).collect::<anyhow::Result<Vec<_>>>()? } else { Vec::new() };
            let identity = Identity::probe(self.runtime, authority(&newest)?, &others)?;
            let peers = HttpPeers::new(self.runtime, identity, "cluster rotate", PeersOptions::default());
            let missing = match self.engine.view(self.runtime, self.store).await {
                Ok(view) => {
                    let waiting: Vec<_> =
                        view.members.into_iter().filter(|member| !ready.contains(&member.id)).collect();
                    let checks = join_all(waiting.iter().map(|member| peers.check(member))).await;
                    ready.extend(
                        waiting.iter().zip(&checks).filter(|(_, check)| check.is_ok()).map(|(member, _)| member.id),
                    );
                    checks.into_iter().filter_map(|check| Some(check.err()?.to_string())).collect()
                }
                Err(error) => vec![format!("{error:#}")],
            };
            if missing.is_empty() {
                return Ok(newest);
            }
            ensure!(
                self.runtime.monotonic() < end,
                "not all members {verb} the new certificate authority, so the cluster also trusts the old one: {}. \
                 Repair or stop these members, then run `reveille cluster rotate` again",
                missing.join("; ")
            );
            self.runtime.sleep(PROBE_PERIOD).await;
        }
    }
}

async fn add(
    runtime: &Runtime,
    store: &PostgresStore,
    keyring: &Keyring,
    number: u32,
    issues: bool,
) -> anyhow::Result<()> {
    let key = encrypt(runtime, keyring, number, Authority::generate()?.key())?;
    // If another process has added the authority first, this process uses that one.
    store.add_authority(&StoredAuthority { number, key, issues }).await.context(CANNOT_CHANGE)?;
    Ok(())
}

fn encrypt(runtime: &Runtime, keyring: &Keyring, number: u32, key: &[u8]) -> anyhow::Result<Bytes> {
    let plain = Secret::Plain(Bytes::copy_from_slice(key));
    match keyring.encrypt(runtime, Place::AuthorityKey { number }, &plain) {
        Secret::Encrypted(key) => Ok(key),
        Secret::Plain(_) => bail!("the key file has no key: restore a copy of the file"),
    }
}

fn open(keyring: &Keyring, stored: &StoredAuthority) -> anyhow::Result<Bytes> {
    let number = stored.number;
    let opened = keyring.open(Place::AuthorityKey { number }, &Secret::Encrypted(stored.key.clone()));
    opened.map_err(|error| match error {
        OpenError::UnknownKey(_) => {
            anyhow::Error::new(error).context(format!("cannot decrypt the certificate authority {number}"))
        }
        OpenError::Forged | OpenError::NotBound => anyhow::anyhow!(
            "the row {number} of the table reveille.authority is damaged: delete it, run `reveille store migrate`, and \
             restart the members"
        ),
    })
}

fn authority(keyring: &Keyring, stored: &StoredAuthority) -> anyhow::Result<Authority> {
    Ok(Authority::from_key(&open(keyring, stored)?)?)
}

/// Authorities of the cluster, with decrypted keys.
struct Authorities {
    /// Authority that issues the certificates of this member.
    issuer: Authority,
    others: Vec<Authority>,
}

/// Decrypts the authorities. Leaves out an authority that the keyring cannot decrypt if it can decrypt another one.
fn decrypt(keyring: &Keyring, stored: &[StoredAuthority]) -> anyhow::Result<Authorities> {
    let (mut opened, mut issuer_at, mut first_error) = (Vec::new(), 0, None);
    for stored in stored {
        match authority(keyring, stored) {
            Ok(authority) => {
                if stored.issues {
                    issuer_at = opened.len();
                }
                opened.push(authority);
            }
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    match first_error {
        Some(error) if opened.is_empty() => return Err(error),
        Some(error) => tracing::warn!("the member does not trust a certificate authority of the cluster: {error:#}"),
        None => ensure!(!opened.is_empty(), NO_AUTHORITY),
    }
    Ok(Authorities { issuer: opened.remove(issuer_at), others: opened })
}
