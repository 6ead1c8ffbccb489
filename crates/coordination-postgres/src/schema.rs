//! The schema `reveille_coordination`: made, moved on, checked.

use std::sync::Arc;
use std::time::Duration;

use postgres_client::{Schema, Server, Session};
use runtime::Runtime;

use crate::{OpenError, Options};

const SCHEMA: Schema = Schema {
    name: "reveille_coordination",
    migrations: &[
        include_str!("../migrations/0001.sql"),
        include_str!("../migrations/0002.sql"),
        include_str!("../migrations/0003.sql"),
    ],
    // "reveille" and "coord".
    lock: "x'72657665'::integer, x'636f6f72'::integer",
};

/// Of the schema that this build needs.
pub const VERSION: i32 = SCHEMA.version();

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
    let newer = |found| newer(&server, found);
    Session::once(runtime, &server, async |session| SCHEMA.migrate(session, newer, async |_| Ok(())).await).await
}

/// The place's id.
///
/// # Errors
/// As [`crate::Database::open`].
pub(crate) async fn check(runtime: &Runtime, server: &Arc<Server>) -> Result<String, OpenError> {
    Session::once(runtime, server, async |session| match SCHEMA.found(session).await? {
        None | Some(0) => Err(OpenError::SchemaMissing { server: server.to_string() }),
        Some(VERSION) => {
            let id = session.client().query_one("select id::text from reveille_coordination.meta", &[]);
            Ok(session.within(id).await?.get(0))
        }
        Some(found) if found > VERSION => Err(newer(server, found)),
        Some(found) => Err(OpenError::SchemaOlder { server: server.to_string(), found, wanted: VERSION }),
    })
    .await
}

fn newer(server: &Server, found: i32) -> OpenError {
    OpenError::SchemaNewer { server: server.to_string(), found, wanted: VERSION }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They stay as it was: what is to change goes into another.
    #[test]
    fn a_migration_that_databases_were_made_by_never_changes() {
        let digests: Vec<u32> =
            SCHEMA.migrations.iter().map(|migration| domain::id::fnv1a(migration.as_bytes())).collect();
        assert_eq!(digests, [2_183_567_014, 4_145_944_337, 4_253_368_414]);
    }
}
