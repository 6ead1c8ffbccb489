//! What the examples share: a shop with a database, a connection to Reveille, and a place where callbacks arrive.
//!
//! Server and key are found as the commands find them (docs/cli.md); the database is one that `--database` names, or a PostgreSQL
//! of the example's own, if its programs are installed.

#![allow(dead_code, reason = "each example uses a part")]
#![expect(clippy::disallowed_methods, reason = "an example stands outside, as its readers' programs do")]

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use axum::{Router, middleware};
use clap::Parser;
use deadpool_postgres::{Manager, Pool};
use reveille_client::{Client, Options, Time};
use reveille_receiver::{Once, Verifier, once};
use test_servers::postgres::Postgres;
use tokio::net::TcpListener;
use tokio_postgres::NoTls;
use tokio_postgres::types::{FromSqlOwned, ToSql};

#[derive(Parser)]
struct Arguments {
    /// The server's address [default: that of the server that runs on --data]
    #[arg(long, env = "REVEILLE_URL")]
    server: Option<String>,
    /// A file with the key [default: one that `serve` left in --data]
    #[arg(long, env = "REVEILLE_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// A file with the secret that callbacks are signed with [default: the one that `serve` left in --data]
    #[arg(long, env = "REVEILLE_SECRET_FILE")]
    secret_file: Option<PathBuf>,
    /// The data folder of the server on this machine
    #[arg(long, env = "REVEILLE_DATA", default_value = "./data")]
    data: PathBuf,
    /// The shop's database, as postgresql://me@localhost/shop [default: one that is started for the example, and deleted]
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database: Option<String>,
}

impl Arguments {
    fn read(&self, named: Option<&PathBuf>, left: &str) -> anyhow::Result<String> {
        let path = named.cloned().unwrap_or_else(|| self.data.join(left));
        let text = fs::read_to_string(&path).with_context(|| {
            format!(
                "cannot read {}: start `reveille serve`, name its folder with --data, or see --help",
                path.display()
            )
        })?;
        Ok(text.trim().to_owned())
    }
}

pub(crate) struct Shop {
    pub(crate) reveille: Client,
    pub(crate) database: Pool,
    verifier: Verifier,
    /// Ends with the example.
    _postgres: Option<Postgres>,
}

impl Shop {
    /// With these tables.
    pub(crate) async fn open(tables: &str) -> anyhow::Result<Shop> {
        let arguments = Arguments::parse();
        let server = match &arguments.server {
            Some(url) => url.clone(),
            None => arguments.read(None, "server.url")?,
        };
        let key = arguments.read(arguments.key_file.as_ref(), "admin.key")?;
        let reveille = Client::new(&server, &key, Options::default())?;
        let secret = arguments.read(arguments.secret_file.as_ref(), "signing.secret")?.parse()?;
        let (url, postgres) = match arguments.database {
            Some(url) => (url, None),
            None => {
                let postgres = Postgres::start().context("name a PostgreSQL with --database, or install one")?;
                (postgres.create_database()?, Some(postgres))
            }
        };
        let database = Pool::builder(Manager::new(url.parse()?, NoTls)).build()?;
        let connection = database.get().await.context("the shop's database cannot be reached")?;
        connection.batch_execute(tables).await?;
        reveille_receiver::create_table(&connection).await?;
        drop(connection);
        let verifier = Verifier::new(secret, reveille_receiver::Options::default());
        Ok(Shop { reveille, database, verifier, _postgres: postgres })
    }

    /// Takes callbacks at these routes until the example ends, each once, in a transaction; tells where.
    pub(crate) async fn listen(&self, routes: Router) -> anyhow::Result<String> {
        let state = Once::new(self.verifier.clone(), self.database.clone());
        let routes = routes.route_layer(middleware::from_fn_with_state(state, once));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Ok(url)
    }

    /// What this query answers: one row with one value.
    pub(crate) async fn ask<T: FromSqlOwned>(
        &self,
        query: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> anyhow::Result<T> {
        Ok(self.database.get().await?.query_one(query, parameters).await?.try_get(0)?)
    }

    pub(crate) async fn tell(&self, statement: &str, parameters: &[&(dyn ToSql + Sync)]) -> anyhow::Result<()> {
        self.database.get().await?.execute(statement, parameters).await?;
        Ok(())
    }

    /// Waits until this query answers `true`.
    pub(crate) async fn until(&self, query: &str, parameters: &[&(dyn ToSql + Sync)]) -> anyhow::Result<()> {
        for _ in 0..3_000 {
            if self.ask(query, parameters).await? {
                return Ok(());
            }
            sleep(Duration::from_millis(10)).await;
        }
        bail!("for half a minute this did not come true: {query}")
    }
}

/// The instant that is this far from now.
pub(crate) fn after(duration: Duration) -> Time {
    Time::from(SystemTime::now()) + duration
}

pub(crate) async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// A number that no order, payment or product had before.
pub(crate) fn new_number() -> i64 {
    static COUNT: AtomicI64 = AtomicI64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    let micros = i64::try_from(since.as_micros()).expect("it is before the year 290,000");
    micros * 1_000 + COUNT.fetch_add(1, Ordering::Relaxed)
}
