//! The product's schema in a database: migrations, and the table that records the schema's version.

use tokio_postgres::error::SqlState;

use crate::failure::Failure;
use crate::link::Session;

/// A schema and its migrations.
///
/// The table `SCHEMA.meta` has one row with the columns `only_row`, its key, and `version`; the first migration creates
/// it. A migration that has been released never changes.
pub struct Schema {
    pub name: &'static str,
    /// Migrations in order. The first one creates version 1.
    pub migrations: &'static [&'static str],
    /// Arguments of `pg_advisory_xact_lock`, which serializes migrations. They are the same in all builds.
    pub lock: &'static str,
}

impl Schema {
    /// Returns the version that the last migration creates.
    #[must_use]
    pub const fn version(&self) -> i32 {
        #[expect(clippy::cast_possible_truncation, reason = "migrations are few")]
        let version = self.migrations.len() as i32;
        version
    }

    /// Returns the version in the database, or `None` if the schema does not exist.
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
            // A migration is atomic, so a schema without its row is one that no migration finished.
            Ok(row) => Ok(Some(row.map_or(0, |row| row.get(0)))),
            // Another process dropped the schema in between.
            Err(failure) if failure.code() == Some(SqlState::UNDEFINED_TABLE) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Brings the schema to this build's version, in one transaction. `finish` runs last in it and receives the version
    /// that was found.
    ///
    /// # Errors
    /// The error that `newer` returns for a version of a later build, or that `finish` returns, or that of a server
    /// that cannot be reached or rejects a statement. Then nothing was changed.
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
