//! The schema `reveille_coordination`: made, moved on, checked.

use std::time::Duration;

use futures_util::StreamExt as _;
use postgres_client::tokio_postgres::error::SqlState;
use postgres_client::tokio_postgres::{Client, Error, Row};
use postgres_client::{Failure, Server};
use runtime::Runtime;

use crate::database::SILENCE;
use crate::{OpenError, Options};

/// Of the schema that this build needs.
pub const VERSION: i32 = 3;

/// What makes version 1, 2, and so on of the one before.
const MIGRATIONS: &[&str] = &[
    include_str!("../migrations/0001.sql"),
    include_str!("../migrations/0002.sql"),
    include_str!("../migrations/0003.sql"),
];

const _: () = assert!(MIGRATIONS.len() == 3 && VERSION == 3, "each version has its migration");

/// A name for the lock that migrations hold: "reveille" and "coord".
const LOCK: &str = "select pg_advisory_xact_lock(x'72657665'::integer, x'636f6f72'::integer)";

/// A migration may wait for tables in use, which no other call does.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(60);

/// Makes the schema, or moves an older one on, in one transaction; harmless if it is there. The URL's user must be
/// allowed to create schemas, and owns this one: whoever else runs Reveille needs `usage` on it, and `select`, `insert`,
/// `update` and `delete` on its tables.
///
/// # Errors
/// If the URL cannot be used, the server cannot be reached or refuses, or the schema is of a newer build.
pub async fn migrate(runtime: &Runtime, url: &str, options: &Options) -> Result<(), OpenError> {
    let server = Options { statement_timeout: MIGRATION_TIMEOUT, ..options.clone() }.server(url)?;
    with_client(runtime, &server, async |client| {
        let found = async {
            client.batch_execute("begin").await?;
            client.batch_execute(LOCK).await?;
            version(client).await
        };
        let found = found.await.map_err(|error| server.failure(&error))?;
        judge_newer(&server, found)?;
        let done = async {
            let from = usize::try_from(found).unwrap_or(0);
            for migration in MIGRATIONS.iter().skip(from) {
                client.batch_execute(migration).await?;
            }
            let set = "insert into reveille_coordination.meta (version) values ($1) \
                       on conflict (only_row) do update set version = excluded.version";
            client.execute(set, &[&VERSION]).await?;
            client.batch_execute("commit").await
        };
        done.await.map_err(|error| server.failure(&error))?;
        Ok(())
    })
    .await
}

/// The place's id.
///
/// # Errors
/// As [`crate::Database::open`].
pub(crate) async fn check(runtime: &Runtime, server: &Server) -> Result<String, OpenError> {
    with_client(runtime, server, async |client| {
        let found = version(client).await.map_err(|error| server.failure(&error))?;
        judge_newer(server, found)?;
        let shown = server.to_string();
        match found {
            0 => Err(OpenError::SchemaMissing { server: shown }),
            VERSION => {
                let id = client.query_one("select id::text from reveille_coordination.meta", &[]).await;
                Ok(id.and_then(|row| row.try_get(0)).map_err(|error| server.failure(&error))?)
            }
            found => Err(OpenError::SchemaOlder { server: shown, found }),
        }
    })
    .await
}

fn judge_newer(server: &Server, found: i32) -> Result<(), OpenError> {
    if found > VERSION {
        return Err(OpenError::SchemaNewer { server: server.to_string(), found });
    }
    Ok(())
}

/// 0 if there is no schema.
async fn version(client: &Client) -> Result<i32, Error> {
    let is_there = client.query_one("select to_regclass('reveille_coordination.meta') is not null", &[]).await?;
    if !is_there.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    match client.query_opt("select version from reveille_coordination.meta", &[]).await {
        Ok(row) => row.as_ref().map_or(Ok(0), |row: &Row| row.try_get(0)),
        // Dropped in between.
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => Ok(0),
        Err(error) => Err(error),
    }
}

/// A connection for `body`, given up after the statement timeout.
async fn with_client<T>(
    runtime: &Runtime,
    server: &Server,
    body: impl AsyncFnOnce(&Client) -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    let (client, mut messages) = server.connect(runtime).await?;
    let working = async {
        let moving = async { while let Some(Ok(_)) = messages.next().await {} };
        tokio::select! {
            biased;
            done = body(&client) => done,
            () = moving => {
                let reason = "the connection has ended".to_owned();
                Err(Failure::Unreachable { server: server.to_string(), reason }.into())
            }
        }
    };
    let waited = server.statement_timeout() + SILENCE;
    let done = runtime.timeout(waited, working).await;
    done.unwrap_or_else(|| Err(Failure::Silent { server: server.to_string(), waited }.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They stay as it was: what is to change goes into another.
    #[test]
    fn a_migration_that_databases_were_made_by_never_changes() {
        let digests: Vec<u32> = MIGRATIONS.iter().map(|migration| domain::id::fnv1a(migration.as_bytes())).collect();
        assert_eq!(digests, [2_183_567_014, 4_145_944_337, 4_253_368_414]);
    }
}
