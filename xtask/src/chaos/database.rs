//! Database of a chaos test: a PostgreSQL server, which a fault replaces with a standby that lacks the last commits.
//!
//! The primary and its standby have two addresses, and each fail-over exchanges their roles. The URL of the members names
//! both addresses.

use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use test_servers::port::free_port;
use test_servers::postgres::{Options, Postgres};

use super::log::{Loss, now_millis};
use super::network::Network;

pub(super) struct Database {
    /// Server that is the primary now.
    primary: RwLock<Arc<Postgres>>,
    places: [Place; 2],
    /// Name of the database on the server.
    name: String,
}

/// Address and port of a server for the members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    address: Ipv4Addr,
    port: u16,
}

impl Database {
    pub(super) fn start(network: &Network) -> anyhow::Result<Database> {
        let [first, second] = network.databases();
        let places = [Place { address: first, port: free_port()? }, Place { address: second, port: free_port()? }];
        let postgres = Postgres::start_with(places[0].options())?;
        let rules = postgres.folder().join("data/pg_hba.conf");
        let mut rules = std::fs::File::options().append(true).open(rules)?;
        writeln!(rules, "host all all {} scram-sha-256", network.range())?;
        postgres.restart()?;
        let url = postgres.create_database()?;
        let name = url.rsplit('/').next().context("the database URL does not end with a database name")?;
        Ok(Database { name: name.to_owned(), primary: RwLock::new(Arc::new(postgres)), places })
    }

    pub(super) fn primary(&self) -> Arc<Postgres> {
        self.primary.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the URL for this process. It is valid until the next fail-over.
    pub(super) fn url(&self) -> String {
        self.primary().url(&self.name)
    }

    /// Returns the URL for the members, which names both places.
    pub(super) fn member_url(&self) -> String {
        let [first, second] = self.places.map(|place| format!("{}:{}", place.address, place.port));
        let primary = self.primary();
        self.url().replace(&format!("127.0.0.1:{}", primary.port()), &format!("{first},{second}"))
    }

    /// Runs statements in the database of the test.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached or rejects a statement.
    pub(super) fn sql(&self, statements: &str) -> anyhow::Result<String> {
        self.primary().sql(&self.name, statements)
    }

    /// Fails over to a new asynchronous standby that lacks the commits of the last `lag`. Returns the interval of the
    /// commits that may be lost.
    ///
    /// # Errors
    /// Returns an error if a server does not start, or if it rejects a statement.
    pub(super) fn fail_over(&self, lag: Duration) -> anyhow::Result<Loss> {
        let primary = self.primary();
        let is_free = |place: &&Place| place.port != primary.port();
        let place = self.places.iter().find(is_free).expect("the primary uses only one of the places");
        let standby = primary.start_standby_with(place.options())?;
        // The standby replays every commit that the primary acknowledged before this instant.
        let from_ms = now_millis();
        standby.wait_until_replayed(&primary)?;
        standby.disconnect_from_primary()?;
        thread::sleep(lag);
        primary.kill()?;
        let until_ms = now_millis();
        standby.promote()?;
        *self.primary.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(standby);
        Ok(Loss { from_ms, until_ms })
    }
}

impl Place {
    fn options(self) -> Options {
        let settings = vec![("listen_addresses".to_owned(), format!("127.0.0.1,{}", self.address))];
        Options { settings, port: Some(self.port), ..Options::default() }
    }
}
