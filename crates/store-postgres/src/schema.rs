//! The schema. [`migrate`] creates and migrates it, and every opening checks its version.

use std::sync::Arc;
use std::time::Duration;

use postgres_client::{Failure, Schema, Server, Session};
use runtime::Runtime;

use crate::error::OpenError;
use crate::listing;
use crate::options::Options;

const SCHEMA: Schema = Schema {
    name: "reveille",
    migrations: &[
        include_str!("../migrations/0001-first.sql"),
        include_str!("../migrations/0002-history.sql"),
        include_str!("../migrations/0003-tenants.sql"),
        include_str!("../migrations/0004-active.sql"),
        include_str!("../migrations/0005-listing.sql"),
    ],
    lock: "x'52657665696c6c65'::bigint",
};

/// Statements that run after every migration, because the role may be created after the schema.
const ROLES: &str = include_str!("../migrations/roles.sql");

/// Version of the schema that this build reads and writes.
pub const SCHEMA_VERSION: i32 = SCHEMA.version();

/// First version whose schedules have a column with the hashes of their labels.
const LABELLED_FROM: i32 = 5;

/// Timeout of a migration, which may build indexes over all rows.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(6 * 3_600);

/// Result of [`migrate`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Migrated {
    /// Version before the migration; `None` if there was no schema.
    pub from: Option<i32>,
    pub to: i32,
    /// Id of the cluster in this database. It is created with the schema and never changes.
    pub cluster: String,
    /// True if the role for applications that schedule inside their own transactions exists.
    pub has_client_role: bool,
}

/// Creates the schema, or migrates an older one to this build's version, in one transaction. Does nothing if the schema
/// is current.
///
/// # Errors
/// Returns an error if the server is unreachable or rejects a statement, or the schema has the version of a later
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
            session.run(ROLES).await?;
            let cluster = cluster(session).await?.id;
            let roles = "select exists (select from pg_roles where rolname = 'reveille_client')";
            let has_client_role = session.within(session.client().query_one(roles, &[])).await?.get(0);
            Ok(Migrated { from, to: SCHEMA_VERSION, cluster, has_client_role })
        };
        SCHEMA.migrate(session, newer, finish).await
    })
    .await
}

/// Cluster of a database.
#[derive(Clone)]
pub struct Cluster {
    /// Id of the cluster. It is created with the schema and never changes.
    pub id: String,
    /// Secret that members use to authenticate each other, 32 bytes.
    pub peer_secret: SecretBytes,
    /// Id of the place where the members coordinate, if a member joined before this store was opened.
    pub coordination_id: Option<String>,
}

/// Bytes that must not appear in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(pub Vec<u8>);

impl std::fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretBytes(…)")
    }
}

/// Checks that the schema has this build's version and the cluster is the expected one. Returns the cluster.
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

    /// A released migration stays unchanged. A change goes into a new migration.
    #[test]
    fn released_migration_never_changes() {
        let digests: Vec<u32> =
            SCHEMA.migrations.iter().map(|migration| domain::id::fnv1a(migration.as_bytes())).collect();
        assert_eq!(digests, [4_224_502_875, 4_031_461_419, 3_603_038_693, 1_248_121_497, 2_406_174_216]);
    }
}
