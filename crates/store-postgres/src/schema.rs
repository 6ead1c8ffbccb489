//! The schema: made and migrated by [`migrate`], looked at by every opening.

use std::sync::Arc;
use std::time::Duration;

use postgres_client::{Failure, Link, Server, Session};
use runtime::{Runtime, TaskSet};
use tokio_util::sync::CancellationToken;

use crate::error::OpenError;
use crate::listing;
use crate::options::Options;

/// In order; the first makes version 1. One that has been released never changes.
const MIGRATIONS: [&str; 5] = [
    include_str!("../migrations/0001-first.sql"),
    include_str!("../migrations/0002-history.sql"),
    include_str!("../migrations/0003-tenants.sql"),
    include_str!("../migrations/0004-active.sql"),
    include_str!("../migrations/0005-listing.sql"),
];

/// After every migration, as the role may come later than the schema.
const ROLES: &str = include_str!("../migrations/roles.sql");

/// The version of the schema that this build reads and writes.
pub const SCHEMA_VERSION: i32 = 5;
const _: () = assert!(MIGRATIONS.len() == 5, "SCHEMA_VERSION counts the migrations");

/// The first version whose schedules have the hashes of their labels beside their specs.
const LABELLED_FROM: i32 = 5;

/// Keeps two migrations apart; any number will do, as long as it stays.
const LOCK: i64 = 0x5265_7665_696c_6c65;

/// A migration may build indexes over all that is there.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(6 * 3_600);

/// What [`migrate`] found and did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Migrated {
    /// `None` if there was no schema.
    pub from: Option<i32>,
    pub to: i32,
    /// The cluster that lives in this database: made with the schema, kept for ever.
    pub cluster: String,
    /// There is the role for those who schedule inside their own transactions.
    pub has_client_role: bool,
}

/// Makes the schema, or brings an older one to this build's version, in one transaction; does nothing if it is there.
///
/// # Errors
/// If the server cannot be reached or refuses, or the schema is of a later build.
pub async fn migrate(runtime: &Runtime, url: &str, options: &Options) -> Result<Migrated, OpenError> {
    let options = Options { statement_timeout: MIGRATION_TIMEOUT, ..options.clone() };
    let server = Arc::new(Server::new(url, options.client())?);
    let (tasks, stop) = (TaskSet::new(runtime), CancellationToken::new());
    let link = Link::start(runtime, &tasks, &server, stop.clone());
    let migrated = migrate_on(&link, &server).await;
    stop.cancel();
    tasks.join().await;
    migrated
}

async fn migrate_on(link: &Link, server: &Server) -> Result<Migrated, OpenError> {
    let session = link.session().await?;
    let run = async |statements: &str| session.within(session.client().batch_execute(statements)).await;
    run("begin").await?;
    session.within(session.client().query("select pg_advisory_xact_lock($1)", &[&LOCK])).await?;
    let from = version(&session).await?;
    if let Some(found) = from.filter(|found| *found > SCHEMA_VERSION) {
        return Err(OpenError::Newer { server: server.to_string(), found, wanted: SCHEMA_VERSION });
    }
    let done = usize::try_from(from.unwrap_or(0)).unwrap_or(0);
    for migration in &MIGRATIONS[done..] {
        run(migration).await?;
    }
    if from.is_some_and(|from| from < LABELLED_FROM) {
        listing::label_all(&session).await?;
    }
    if from.is_none() {
        let insert = "insert into reveille.meta (version) values ($1)";
        session.within(session.client().execute(insert, &[&SCHEMA_VERSION])).await?;
    } else {
        let update = "update reveille.meta set version = $1 where version < $1";
        session.within(session.client().execute(update, &[&SCHEMA_VERSION])).await?;
    }
    run(ROLES).await?;
    let cluster = cluster(&session).await?;
    let roles = "select exists (select from pg_roles where rolname = 'reveille_client')";
    let has_client_role = session.within(session.client().query_one(roles, &[])).await?.get(0);
    run("commit").await?;
    Ok(Migrated { from, to: SCHEMA_VERSION, cluster: cluster.id, has_client_role })
}

/// What the database says of the cluster that lives in it.
#[derive(Clone)]
pub struct Cluster {
    /// Made with the schema, kept for ever.
    pub id: String,
    /// What members know each other by, 32 bytes.
    pub peer_secret: SecretBytes,
    /// The id of the place where its members meet, if one has joined before this was opened.
    pub meets_in: Option<String>,
}

/// Bytes that must not appear in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(pub Vec<u8>);

impl std::fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretBytes(…)")
    }
}

/// The cluster, if the schema is this build's and the cluster the one that is expected.
pub(crate) async fn check(session: &Session, server: &Server, expected: Option<&str>) -> Result<Cluster, OpenError> {
    let server = server.to_string();
    match version(session).await? {
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

async fn version(session: &Session) -> Result<Option<i32>, Failure> {
    let exists = "select to_regclass('reveille.meta') is not null";
    if !session.within(session.client().query_one(exists, &[])).await?.get::<_, bool>(0) {
        return Ok(None);
    }
    let version = session.within(session.client().query_opt("select version from reveille.meta", &[])).await?;
    // A schema without its row is one that nobody has finished: migrations are whole or not there.
    Ok(Some(version.map_or(0, |row| row.get(0))))
}

async fn cluster(session: &Session) -> Result<Cluster, Failure> {
    let select = "select cluster::text, peer_secret, coordination from reveille.meta";
    let row = session.within(session.client().query_one(select, &[])).await?;
    Ok(Cluster { id: row.get(0), peer_secret: SecretBytes(row.get(1)), meets_in: row.get(2) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They stay as it was: what is to change goes into another.
    #[test]
    fn a_migration_that_databases_were_made_by_never_changes() {
        let digests: Vec<u32> = MIGRATIONS.iter().map(|migration| domain::id::fnv1a(migration.as_bytes())).collect();
        assert_eq!(digests, [4_224_502_875, 4_031_461_419, 3_603_038_693, 1_248_121_497, 2_406_174_216]);
    }
}
