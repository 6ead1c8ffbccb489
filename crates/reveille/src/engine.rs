//! Where the data is and where members find each other: what the operator says, and what that means.
//!
//! Without a word it is the embedded store, in the data folder, for one process. A URL moves it. A URL may hold a
//! password, so none is ever printed or logged as it was given.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, bail};
use clap::Args;

/// A URL as it was given; its `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Url(String);

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Url(…)")
    }
}

/// Takes any text: a refusal here would be printed with the text, which may hold a password.
impl FromStr for Url {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Url(text.to_owned()))
    }
}

impl Url {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct EngineArguments {
    /// Where the data is, postgres://USER:PASSWORD@HOST:PORT/DATABASE; without it, in the data folder
    #[arg(long, env = "REVEILLE_STORE", hide_env_values = true)]
    store: Option<Url>,
    /// Where members find each other [default: the store's database]
    #[arg(long, env = "REVEILLE_COORDINATION", hide_env_values = true)]
    coordination: Option<Url>,
    /// A file with the password for these, instead of one in the URL
    #[arg(long, env = "REVEILLE_PASSWORD_FILE")]
    password_file: Option<PathBuf>,
}

/// What the arguments come to.
#[derive(Clone, Debug, Default)]
pub(crate) enum Engine {
    /// In the data folder, for one process.
    #[default]
    Embedded,
    Postgres(PostgresEngine),
}

/// One database for the data, and one for coordination, mostly the same.
#[derive(Clone)]
pub(crate) struct PostgresEngine {
    pub(crate) store: Url,
    pub(crate) coordination: Url,
    pub(crate) password: Option<String>,
}

impl fmt::Debug for PostgresEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PostgresEngine(…)")
    }
}

impl EngineArguments {
    /// # Errors
    /// If the two do not go together, or the file cannot be read.
    pub(crate) fn engine(&self) -> anyhow::Result<Engine> {
        match (&self.store, &self.coordination) {
            (None, None) => Ok(Engine::Embedded),
            (None, Some(_)) => bail!(
                "an embedded store belongs to one process, so there is nothing to coordinate: leave out --coordination, \
                 or share the data, too, with --store postgres://…"
            ),
            (Some(store), coordination) => Ok(Engine::Postgres(PostgresEngine {
                store: store.clone(),
                coordination: coordination.as_ref().unwrap_or(store).clone(),
                password: self.password()?,
            })),
        }
    }

    /// # Errors
    /// As [`EngineArguments::engine`]; and if no database is named.
    pub(crate) fn postgres(&self) -> anyhow::Result<PostgresEngine> {
        match self.engine()? {
            Engine::Postgres(engine) => Ok(engine),
            Engine::Embedded => bail!(
                "a process on a folder of its own is no cluster; for one, name the database with --store postgres://USER:PASSWORD@HOST:PORT/DATABASE"
            ),
        }
    }

    fn password(&self) -> anyhow::Result<Option<String>> {
        let Some(path) = &self.password_file else { return Ok(None) };
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
    }
}

impl PostgresEngine {
    pub(crate) fn store_options(&self) -> store_postgres::Options {
        store_postgres::Options { password: self.password.clone(), ..store_postgres::Options::default() }
    }

    pub(crate) fn coordination_options(&self, lease: std::time::Duration) -> coordination_postgres::Options {
        coordination_postgres::Options {
            password: self.password.clone(),
            ..coordination_postgres::Options::with_lease(lease)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "postgres://someone:hunter2@db/reveille";

    fn arguments(store: Option<&str>, coordination: Option<&str>) -> EngineArguments {
        let url = |text: Option<&str>| text.map(|text| text.parse().unwrap());
        EngineArguments { store: url(store), coordination: url(coordination), password_file: None }
    }

    #[test]
    fn the_stores_database_coordinates_unless_another_is_named() {
        assert!(matches!(arguments(None, None).engine().unwrap(), Engine::Embedded));
        let other = "postgresql://db2/coordination";
        for (coordination, expected) in [(None, URL), (Some(other), other)] {
            let engine = arguments(Some(URL), coordination).postgres().unwrap();
            assert_eq!((engine.store.as_str(), engine.coordination.as_str()), (URL, expected));
        }
        assert!(arguments(None, None).postgres().is_err());
    }

    #[test]
    fn an_embedded_store_with_a_shared_coordination_is_refused_with_the_way_out() {
        let said = arguments(None, Some(URL)).engine().unwrap_err().to_string();
        assert!(said.contains("--store postgres://") && said.contains("leave out --coordination"), "{said}");
    }

    #[test]
    fn no_password_is_ever_shown() {
        let arguments = arguments(Some(URL), None);
        let shown = format!("{arguments:?} {:?} {:?}", arguments.engine(), arguments.postgres());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
