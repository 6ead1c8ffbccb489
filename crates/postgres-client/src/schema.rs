//! Database schema of a storage engine: the migrations, and the table that records the schema's version.

use tokio_postgres::error::SqlState;

use crate::failure::Failure;
use crate::session::Session;

/// A schema and its migrations.
///
/// The first migration creates the table `SCHEMA.meta`. The table has one row, with its key in the column `only_row`
/// and the schema's version in the column `version`. A released migration never changes.
pub struct Schema {
    /// Name of the schema in the database.
    pub name: &'static str,
    /// SQL of the migrations, in order. The first migration creates version 1.
    pub migrations: &'static [&'static str],
    /// Arguments of `pg_advisory_xact_lock`, which serializes migrations. All builds use the same arguments.
    pub lock: &'static str,
}

impl Schema {
    /// Returns the schema version that the last migration creates.
    #[must_use]
    pub const fn version(&self) -> i32 {
        #[expect(clippy::cast_possible_truncation, reason = "migrations are few")]
        let version = self.migrations.len() as i32;
        version
    }

    /// Returns the version of the schema in the database, or `None` if the schema does not exist.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached or rejects the statement.
    pub async fn found(&self, session: &Session) -> Result<Option<i32>, Failure> {
        let name = self.name;
        let exists = format!("select to_regclass('{name}.meta') is not null");
        if !session.within(session.client().query_one(&exists, &[])).await?.get::<_, bool>(0) {
            return Ok(None);
        }
        let select = format!("select version from {name}.meta");
        match session.within(session.client().query_opt(&select, &[])).await {
            // A migration is atomic. If the row of the table `meta` is missing, no migration of this schema has
            // finished.
            Ok(row) => Ok(Some(row.map_or(0, |row| row.get(0)))),
            // Another process dropped the schema after the first query and before the second query.
            Err(failure) if failure.code() == Some(SqlState::UNDEFINED_TABLE) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Migrates the schema to this build's version, in one transaction. `finish` is the last step of the transaction
    /// and receives the version before the migration.
    ///
    /// # Errors
    /// Returns the error of `newer` if a later build wrote the schema. Returns the error of `finish` if `finish` fails.
    /// Returns an error if the server cannot be reached or rejects a statement. After an error the schema is unchanged.
    pub async fn migrate<T, E: From<Failure>>(
        &self,
        session: &Session,
        newer: impl FnOnce(i32) -> E,
        finish: impl AsyncFnOnce(Option<i32>) -> Result<T, E>,
    ) -> Result<T, E> {
        session.run("begin").await?;
        session.run(&format!("select pg_advisory_xact_lock({})", self.lock)).await?;
        let found = self.found(session).await?;
        if let Some(found) = found.filter(|found| *found > self.version()) {
            return Err(newer(found));
        }
        let done = usize::try_from(found.unwrap_or(0)).unwrap_or(0);
        for migration in self.migrations.iter().skip(done) {
            session.run(migration).await?;
        }
        session
            .run(&format!(
                "insert into {}.meta (version) values ({}) on conflict (only_row) do update set version = excluded.version",
                self.name,
                self.version()
            ))
            .await?;
        let finished = finish(found).await?;
        session.run("commit").await?;
        Ok(finished)
    }
}
