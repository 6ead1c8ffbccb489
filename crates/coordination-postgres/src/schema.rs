//! Creation, migration and version check of the schema `reveille_coordination`.

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
    // The two keys of the advisory lock for migrations are "reve" and "coor" in ASCII.
    lock: "x'72657665'::integer, x'636f6f72'::integer",
};

/// Version of the schema that this build needs.
pub const VERSION: i32 = SCHEMA.version();

/// Time limit of a statement of a migration. Unlike other calls, a migration may wait for tables that other processes
/// are using.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(60);

/// Creates the schema, or migrates an older schema, in one transaction. Does nothing if the schema is current. The user
/// in the URL must have the permission to create schemas, and becomes the owner of the schema. Other users that run
/// Reveille need `usage` on the schema. They also need `select`, `insert`, `update` and `delete` on its tables.
///
/// # Errors
/// Returns [`OpenError`] if the URL is invalid, the server is unreachable or rejects a statement, or the schema belongs
/// to a newer build.
pub async fn migrate(runtime: &Runtime, url: &str, options: &Options) -> Result<(), OpenError> {
    let server = Options { statement_timeout: MIGRATION_TIMEOUT, ..options.clone() }.server(url)?;
    let newer = |found| newer(&server, found);
    Session::once(runtime, &server, async |session| SCHEMA.migrate(session, newer, async |_| Ok(())).await).await
}

/// Checks the version of the schema and returns the schema's id.
///
/// # Errors
/// Returns the errors of [`crate::Database::open`].
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

    /// A developer must not change a released migration. A change of the schema needs a new migration.
    #[test]
    fn text_of_a_released_migration_never_changes() {
        let digests: Vec<u32> =
            SCHEMA.migrations.iter().map(|migration| domain::id::fnv1a(migration.as_bytes())).collect();
        assert_eq!(digests, [2_183_567_014, 4_145_944_337, 4_253_368_414]);
    }
}
