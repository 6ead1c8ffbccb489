//! Database schema of the store. [`migrate`] creates and migrates the schema. Every open of a store checks the schema's
//! version.

use std::sync::Arc;
use std::time::Duration;

use postgres_client::{Failure, Schema, Server, Session};
use runtime::Runtime;

use crate::error::OpenError;
use crate::options::Options;
use crate::{epoch, inbox, listing, read, run_index};

const SCHEMA: Schema = Schema {
    name: "reveille",
    migrations: &[
        include_str!("../migrations/0001-first.sql"),
        include_str!("../migrations/0002-history.sql"),
        include_str!("../migrations/0003-tenants.sql"),
        include_str!("../migrations/0004-active.sql"),
        include_str!("../migrations/0005-listing.sql"),
        include_str!("../migrations/0006-usage.sql"),
        include_str!("../migrations/0007-reopened.sql"),
        include_str!("../migrations/0008-bound-headers.sql"),
        include_str!("../migrations/0009-inbox.sql"),
        include_str!("../migrations/0010-epochs.sql"),
        include_str!("../migrations/0011-authorities.sql"),
        include_str!("../migrations/0012-run-time.sql"),
        include_str!("../migrations/0013-past-timings.sql"),
        include_str!("../migrations/0014-run-counts.sql"),
    ],
    lock: "x'52657665696c6c65'::bigint",
};

/// Statements that grant rights to the role of applications. They run after every migration, because an operator may
/// create the role after the schema.
const ROLES: &str = include_str!("../migrations/roles.sql");

/// Version of the schema that this build reads and writes.
pub const SCHEMA_VERSION: i32 = SCHEMA.version();

/// First schema version whose schedules have a column with the hashes of their labels.
const LABELLED_FROM: i32 = 5;

/// First schema version whose inbox has the settings of the tenants, and entries with pollers.
const INBOX_CHECKS_FROM: i32 = 9;

/// First schema version whose terms have epochs.
const EPOCHS_FROM: i32 = 10;

/// Timeout of a migration. The timeout is long because a migration may build indexes of all rows.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(6 * 3_600);

/// Result of [`migrate`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Migrated {
    /// Version of the schema before the migration. `None` if there was no schema.
    pub from: Option<i32>,
    pub to: i32,
    /// Id of the cluster that the database belongs to. The first migration creates the id, and the id never changes.
    pub cluster: String,
    /// True if the server has the database role of applications. Applications with this role schedule inside their own
    /// transactions.
    pub has_client_role: bool,
}

/// Creates the schema, or migrates an older schema to this build's version, in one transaction. Changes nothing if the
/// schema already has this build's version. Afterwards members of this build can start. [`index_runs`] then completes the
/// index of the runs of an older schema.
///
/// # Errors
/// Returns an error if the server is unreachable or rejects a statement, or if the schema has the version of a later
/// build.
pub async fn migrate(runtime: &Runtime, url: &str, options: &Options) -> Result<Migrated, OpenError> {
    let options = Options { statement_timeout: MIGRATION_TIMEOUT, ..options.clone() };
    let server = Arc::new(Server::new(url, options.client())?);
    Session::once(runtime, &server, async |session| {
        let newer = |found| OpenError::Newer { server: server.to_string(), found, wanted: SCHEMA_VERSION };
        let finish = async |from: Option<i32>| {
            if from.is_some_and(|from| from < LABELLED_FROM) {
                listing::label_all(session).await?;
            }
            if from.is_none_or(|from| from < INBOX_CHECKS_FROM) {
                inbox::migrate_entries(session, &read::all_tenants(session).await?).await?;
            }
            if from.is_none_or(|from| from < EPOCHS_FROM) {
                epoch::start_above(session, 0).await?;
            } else {
                epoch::check_database(&server, session).await?;
            }
            session.run(ROLES).await?;
            let cluster = cluster(session).await?.id;
            let roles = "select exists (select from pg_roles where rolname = 'reveille_client')";
            let has_client_role = session.within(session.client().query_one(roles, &[])).await?.get(0);
            Ok(Migrated { from, to: SCHEMA_VERSION, cluster, has_client_role })
        };
        let migrated = SCHEMA.migrate(session, newer, finish).await?;
        if migrated.from.is_none() {
            // A new schema has no runs, so its index takes no time.
            run_index::index_partitions(runtime, session, |_, _| ()).await?;
        }
        Ok(migrated)
    })
    .await
}

/// Creates the missing indexes of the partitions of runs, while members use the database. Before each partition, calls
/// `progress` with the name of the partition and the number of partitions that still lack their index. A repeated call
/// continues after a failure.
///
/// # Errors
/// Returns an error if the server is unreachable or rejects a statement, or if the schema does not have this build's
/// version.
pub async fn index_runs(
    runtime: &Runtime,
    url: &str,
    options: &Options,
    progress: impl FnMut(&str, usize),
) -> Result<(), OpenError> {
    let options = Options { statement_timeout: MIGRATION_TIMEOUT, ..options.clone() };
    let server = Arc::new(Server::new(url, options.client())?);
    Session::once(runtime, &server, async |session| {
        check(session, &server, options.cluster.as_deref()).await?;
        Ok(run_index::index_partitions(runtime, session, progress).await?)
    })
    .await
}

/// Records the database as the one that the cluster uses from now on, and starts an epoch above `earlier`. All members
/// take their shards again. Returns the new epoch.
///
/// # Errors
/// Returns an error if the server is unreachable or rejects a statement, or if the schema does not have this build's
/// version.
pub async fn start_epoch(runtime: &Runtime, url: &str, options: &Options, earlier: u64) -> Result<u64, OpenError> {
    let server = Arc::new(Server::new(url, options.client())?);
    Session::once(runtime, &server, async |session| {
        check(session, &server, options.cluster.as_deref()).await?;
        Ok(epoch::start_above(session, earlier).await?)
    })
    .await
}

/// Cluster that a database belongs to.
#[derive(Clone)]
pub struct Cluster {
    /// Id of the cluster. The first migration creates the id, and the id never changes.
    pub id: String,
    /// Secret of 32 bytes. Members derive from it the password of their nodes in the coordination engine.
    pub peer_secret: SecretBytes,
    /// Id of the coordination service that the members use. `None` if no member had joined before this store was
    /// opened.
    pub coordination_id: Option<String>,
}

/// Secret bytes. Their `Debug` text does not contain them, so that they do not appear in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(pub Vec<u8>);

impl std::fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretBytes(…)")
    }
}

/// Checks that the schema has this build's version and that the cluster has the expected id. Returns the cluster.
pub(crate) async fn check(session: &Session, server: &Server, expected: Option<&str>) -> Result<Cluster, OpenError> {
    let server = server.to_string();
    match SCHEMA.found(session).await? {
        None => return Err(OpenError::NoSchema { server }),
        Some(found) if found < SCHEMA_VERSION => {
            return Err(OpenError::Older { server, found, wanted: SCHEMA_VERSION });
        }
        Some(found) if found > SCHEMA_VERSION => {
            return Err(OpenError::Newer { server, found, wanted: SCHEMA_VERSION });
        }
        Some(_) => {}
    }
    let found = cluster(session).await?;
    match expected.filter(|expected| *expected != found.id) {
        Some(expected) => Err(OpenError::OtherCluster { server, found: found.id, expected: expected.to_owned() }),
        None => Ok(found),
    }
}

async fn cluster(session: &Session) -> Result<Cluster, Failure> {
    let select = "select cluster::text, peer_secret, coordination from reveille.meta";
    let row = session.within(session.client().query_one(select, &[])).await?;
    Ok(Cluster { id: row.get(0), peer_secret: SecretBytes(row.get(1)), coordination_id: row.get(2) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of the schema requires a new migration, because a released migration must stay unchanged.
    #[test]
    fn released_migrations_have_unchanged_text() {
        let digests: Vec<u32> =
            SCHEMA.migrations.iter().map(|migration| domain::id::fnv1a(migration.as_bytes())).collect();
        let first = [4_224_502_875, 4_031_461_419, 3_603_038_693, 1_248_121_497, 2_406_174_216, 3_091_802_326];
        assert_eq!(digests[..6], first);
        let later = [709_879_593, 3_904_843_749, 545_978_333, 1_324_711_996, 3_447_424_399, 31_849_554, 3_882_378_593];
        assert_eq!(digests[6..13], later);
        assert_eq!(digests[13..], [3_371_346_261]);
    }
}
