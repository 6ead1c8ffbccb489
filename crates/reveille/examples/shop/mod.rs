//! Common code of the examples: a shop with a database, a client of Reveille, and a server for callbacks.
//!
//! The examples find the server and the key in the same way as the commands of `reveille` do (docs/cli.md).
//! `--database` names the shop's database. Without this option, an example starts its own PostgreSQL server if the
//! programs of PostgreSQL are installed.

#![allow(dead_code, reason = "each example uses only a part of this module")]
#![expect(
    clippy::disallowed_methods,
    reason = "readers of the examples write programs that do not use the crate `runtime`"
)]

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
    /// URL of the server [default: the URL of the server that runs on --data]
    #[arg(long, env = "REVEILLE_URL")]
    server: Option<String>,
    /// File with the key [default: the key file that `serve` wrote to --data]
    #[arg(long, env = "REVEILLE_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// File with the secret that signs callbacks [default: the file that `serve` wrote to --data]
    #[arg(long, env = "REVEILLE_SECRET_FILE")]
    secret_file: Option<PathBuf>,
    /// Data folder of the server on this machine
    #[arg(long, env = "REVEILLE_DATA", default_value = "./data")]
    data: PathBuf,
    /// Database of the shop, such as postgresql://me@localhost/shop [default: a temporary database]
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database: Option<String>,
}

impl Arguments {
    fn read(&self, path: Option<&PathBuf>, default_name: &str) -> anyhow::Result<String> {
        let path = path.cloned().unwrap_or_else(|| self.data.join(default_name));
        let text = fs::read_to_string(&path).with_context(|| {
            format!(
                "cannot read {}: start `reveille serve`, name its data folder with --data, or name the file \
                 with an option (see --help)",
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
    /// Database server of the example, which stops at the end of the example.
    _postgres: Option<Postgres>,
}

impl Shop {
    /// Connects to the server and the database, and executes the statements `tables`, which create tables in the
    /// database.
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
                let postgres = Postgres::start()
                    .context("cannot start PostgreSQL: install it, or name a database with --database")?;
                (postgres.create_database()?, Some(postgres))
            }
        };
        let database = Pool::builder(Manager::new(url.parse()?, NoTls)).build()?;
        let connection =
            database.get().await.context("cannot connect to the shop's database; check the URL in --database")?;
        connection.batch_execute(tables).await?;
        reveille_receiver::create_table(&connection).await?;
        drop(connection);
        let verifier = Verifier::new(secret, reveille_receiver::Options::default());
        Ok(Shop { reveille, database, verifier, _postgres: postgres })
    }

    /// Starts a server that handles callbacks with `routes` until the example ends. The server handles each callback
    /// once and in a transaction. Returns the base URL of the server.
    pub(crate) async fn listen(&self, routes: Router) -> anyhow::Result<String> {
        let state = Once::new(self.verifier.clone(), self.database.clone());
        let routes = routes.route_layer(middleware::from_fn_with_state(state, once));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Ok(url)
    }

    /// Returns the value of a query whose result is one row with one column.
    pub(crate) async fn query<T: FromSqlOwned>(
        &self,
        query: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> anyhow::Result<T> {
        Ok(self.database.get().await?.query_one(query, parameters).await?.try_get(0)?)
    }

    /// Executes a statement.
    pub(crate) async fn execute(&self, statement: &str, parameters: &[&(dyn ToSql + Sync)]) -> anyhow::Result<()> {
        self.database.get().await?.execute(statement, parameters).await?;
        Ok(())
    }

    /// Waits until this query returns `true`.
    pub(crate) async fn until(&self, query: &str, parameters: &[&(dyn ToSql + Sync)]) -> anyhow::Result<()> {
        for _ in 0..3_000 {
            if self.query(query, parameters).await? {
                return Ok(());
            }
            sleep(Duration::from_millis(10)).await;
        }
        bail!("this query did not return `true` within 30 seconds: {query}")
    }
}

/// Returns the instant that is `duration` after the present time.
pub(crate) fn after(duration: Duration) -> Time {
    Time::from(SystemTime::now()) + duration
}

pub(crate) async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Returns a number that no earlier order, payment or product used.
pub(crate) fn new_number() -> i64 {
    static COUNT: AtomicI64 = AtomicI64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock of the machine shows a time after 1970");
    let micros =
        i64::try_from(since.as_micros()).expect("the clock of the machine shows a time before the year 290,000");
    micros * 1_000 + COUNT.fetch_add(1, Ordering::Relaxed)
}
