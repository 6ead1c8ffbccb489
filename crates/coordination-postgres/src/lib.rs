//! Coordination on PostgreSQL's rows: no more than the database that the store is in.
//!
//! A session is a row with an end by the *database's* clock; claims are rows that go with it. What changes the view is
//! one function call on the server, one at a time (see `migrations/0001.sql`); a renewal is a call of its own that never
//! waits for those. Leases are rows, never session locks: a lock belongs to a connection, and those come and go.
//!
//! Two connections, so that a renewal does not queue behind a claim, and a third that listens for changes. Each is made
//! again by itself. No call waits longer than [`Options::statement_timeout`] and a little; one that is given up takes its
//! connection with it, as nothing more is known of it.
//!
//! Always true here: a claim is given away only after its holder's session was deleted in the same transaction. What is
//! answered is synced to disk. A database that is put back in time (a restore, a fail-over to a standby that lagged)
//! forgets renewals and claims: only the store's terms fence then. See docs/decisions/0101-sessions-on-postgresql.md.

mod database;
mod elector;
mod error;
mod listener;
mod schema;
mod tree;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use coordination::{
    Answer, ClaimName, LEASE_MAX, Member, MemberId, Ownership, OwnershipError, Seen, View, check_names,
};
use domain::Timestamp;
use futures_util::future::BoxFuture;
use postgres_client::tokio_postgres::Row;
use postgres_client::tokio_postgres::types::ToSql;
use postgres_client::{Link, Server};
use runtime::Runtime;

use database::{Database, Dropped};
pub use elector::PostgresElector;
pub use error::OpenError;
pub use schema::{VERSION, migrate};
pub use tree::PostgresTrees;

#[derive(Clone)]
pub struct Options {
    /// Instead of one in the URL.
    pub password: Option<String>,
    /// Default 5 s.
    pub connect_timeout: Duration,
    /// The longest call. Default 500 ms, below the margin of the default lease. Too small: a busy database loses
    /// members; too large: what is stuck holds up the retry that would have gone through.
    pub statement_timeout: Duration,
}

impl Options {
    /// A twelfth of the lease for a call: then several tries fit into it.
    #[must_use]
    pub fn with_lease(lease: Duration) -> Self {
        let statement_timeout = (lease / 12).clamp(Duration::from_millis(20), Duration::from_secs(2));
        Options { statement_timeout, ..Options::default() }
    }

    fn server(&self, url: &str) -> Result<Arc<Server>, OpenError> {
        let options = postgres_client::Options {
            password: self.password.clone(),
            application_name: "reveille coordination".to_owned(),
            connect_timeout: self.connect_timeout,
            statement_timeout: self.statement_timeout,
            // Whoever set another default for the database did not mean leases.
            settings: vec![
                ("synchronous_commit", "on".to_owned()),
                ("default_transaction_isolation", "read committed".to_owned()),
                // A client that stands still while it is answered, holding what others wait for, is given up.
                ("tcp_user_timeout", "10s".to_owned()),
            ],
        };
        Ok(Arc::new(Server::new(url, options)?))
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            password: None,
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_millis(500),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { password, connect_timeout, statement_timeout } = self;
        f.debug_struct("Options")
            .field("password", &password.as_ref().map(|_| "***"))
            .field("connect_timeout", connect_timeout)
            .field("statement_timeout", statement_timeout)
            .finish()
    }
}

/// One process's way to the database. Dropped, it closes its connections; sessions end by their leases.
pub struct PostgresCoordination {
    inner: Arc<Inner>,
}

struct Inner {
    database: Database,
    /// The sessions that this process has opened: those that have ended leave no row, and are not to come back.
    joined: Mutex<BTreeSet<MemberId>>,
    /// Numbers the claims and releases of this process.
    calls: AtomicI64,
}

impl PostgresCoordination {
    /// Connects, and checks the schema that [`migrate`] has made.
    ///
    /// # Errors
    /// If the URL cannot be used, the server cannot be reached, or its schema is not the one of this build.
    pub async fn open(runtime: &Runtime, url: &str, options: &Options) -> Result<Self, OpenError> {
        let database = Database::open(runtime, url, options, "reveille_coordination").await?;
        let inner = Inner { database, joined: Mutex::default(), calls: AtomicI64::new(1) };
        Ok(PostgresCoordination { inner: Arc::new(inner) })
    }

    /// Made with the schema, kept for ever: all who open this place are told the same.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.inner.database.id
    }

    /// This process's replica object of the group `group`.
    #[must_use]
    pub fn elector(&self, group: &ClaimName) -> PostgresElector {
        PostgresElector::new(self.inner.clone(), group)
    }
}

impl fmt::Debug for PostgresCoordination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresCoordination({})", self.inner.database.server)
    }
}

impl Inner {
    /// The rows that `statement` answers.
    async fn ask(
        &self,
        link: &Link,
        statement: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, OwnershipError> {
        self.database.ask(link, statement, parameters, Dropped::GivesUp).await.map_err(error::of_failure)
    }

    /// As [`Inner::ask`], for a statement that answers one row with one column.
    async fn ask_one<T>(
        &self,
        link: &Link,
        statement: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<T, OwnershipError>
    where
        T: for<'a> postgres_client::tokio_postgres::types::FromSql<'a>,
    {
        let rows = self.ask(link, statement, parameters).await?;
        let row = rows.first().ok_or_else(|| unexpected("no row"))?;
        row.try_get(0).map_err(|_| unexpected("another type"))
    }

    fn joined(&self) -> MutexGuard<'_, BTreeSet<MemberId>> {
        self.joined.lock().expect("no holder of this lock panics")
    }

    fn next_call(&self) -> i64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }
}

fn unexpected(what: &str) -> OwnershipError {
    OwnershipError::Refused(format!("the database answered {what}; is its schema changed by hand?"))
}

const JOIN: &str = "select reveille_coordination.join_as($1::text::uuid, $2, $3, $4, $5, $6)";
const JOIN_AGAIN: &str = "select reveille_coordination.join_again($1::text::uuid, $2, $3, $4, $5, $6)";
const RENEW: &str = "select reveille_coordination.renew($1::text::uuid, $2)";
const LEAVE: &str = "select 1 from reveille_coordination.leave($1::text::uuid)";
const CLAIM: &str = "select reveille_coordination.claim($1::text::uuid, $2, $3)";
const RELEASE: &str = "select 1 from reveille_coordination.release($1::text::uuid, $2, $3)";
/// One statement sees one state. A session whose renewal is just being committed may be missing.
const VIEW: &str = "
    with clock as materialized (select clock_timestamp() as now)
    select member.id::text, member.name, member.address, member.owns, member.build,
        ceil(extract(epoch from member.lease_end - clock.now) * 1000000)::bigint,
        array(select claim.name from reveille_coordination.claim where claim.member = member.id)
    from reveille_coordination.member, clock
    where member.lease_end > clock.now
    order by member.id";

impl Ownership for PostgresCoordination {
    fn join(&self, member: Member, lease: Duration) -> Answer<'_, Seen> {
        let lease = millis(lease);
        Box::pin(async move {
            member.check()?;
            let Member { id: member_id, name, address, owns, build } = member;
            let id = member_id.to_string();
            let again = self.inner.joined().contains(&member_id);
            let statement = if again { JOIN_AGAIN } else { JOIN };
            let parameters: [&(dyn ToSql + Sync); 6] = [&id, &name, &address, &owns, &build, &lease];
            let seen = seen(self.inner.ask_one(&self.inner.database.work, statement, &parameters).await?)?;
            self.inner.joined().insert(member_id);
            Ok(seen)
        })
    }

    fn renew(&self, member: MemberId, lease: Duration) -> Answer<'_, Seen> {
        let lease = millis(lease);
        Box::pin(async move {
            seen(self.inner.ask_one(&self.inner.database.pulse, RENEW, &[&member.to_string(), &lease]).await?)
        })
    }

    fn leave(&self, member: MemberId) -> Answer<'_, ()> {
        Box::pin(async move {
            self.inner.ask(&self.inner.database.work, LEAVE, &[&member.to_string()]).await?;
            Ok(())
        })
    }

    fn claim(&self, member: MemberId, names: Vec<ClaimName>) -> Answer<'_, Vec<bool>> {
        check_names(&names);
        let call = self.inner.next_call();
        Box::pin(async move {
            let names: Vec<&str> = names.iter().map(ClaimName::as_str).collect();
            let id = member.to_string();
            let held: Option<Vec<bool>> =
                self.inner.ask_one(&self.inner.database.work, CLAIM, &[&id, &names, &call]).await?;
            let held = held.ok_or(OwnershipError::Lost)?;
            if held.len() == names.len() { Ok(held) } else { Err(unexpected("for other names")) }
        })
    }

    fn release(&self, member: MemberId, names: Vec<ClaimName>) -> Answer<'_, ()> {
        check_names(&names);
        let call = self.inner.next_call();
        Box::pin(async move {
            let names: Vec<&str> = names.iter().map(ClaimName::as_str).collect();
            self.inner.ask(&self.inner.database.work, RELEASE, &[&member.to_string(), &names, &call]).await?;
            Ok(())
        })
    }

    fn view(&self) -> Answer<'_, View> {
        Box::pin(async move {
            let mut view = View::default();
            for row in self.inner.ask(&self.inner.database.pulse, VIEW, &[]).await? {
                add(&mut view, &row).ok_or_else(|| unexpected("what no member wrote"))?;
            }
            Ok(view)
        })
    }

    fn changed(&self) -> BoxFuture<'static, ()> {
        let mut changes = self.inner.database.changes.subscribe();
        Box::pin(async move {
            if changes.changed().await.is_err() {
                // The engine is closed, and nothing will be heard.
                std::future::pending::<()>().await;
            }
        })
    }
}

/// One row of [`VIEW`]; `None` if it is not of its form.
fn add(view: &mut View, row: &Row) -> Option<()> {
    let id = id_of(row.try_get(0).ok()?)?;
    let text = |at: usize| row.try_get::<_, String>(at).ok();
    view.members.push(Member { id, name: text(1)?, address: text(2)?, owns: row.try_get(3).ok()?, build: text(4)? });
    let end = Duration::from_micros(u64::try_from(row.try_get::<_, i64>(5).ok()?).ok()?);
    view.first_end = Some(view.first_end.map_or(end, |first| first.min(end)));
    for name in row.try_get::<_, Vec<&str>>(6).ok()? {
        view.claims.insert(ClaimName::new(name).ok()?, id);
    }
    Some(())
}

fn id_of(text: &str) -> Option<MemberId> {
    u128::from_str_radix(&text.replace('-', ""), 16).ok().map(MemberId)
}

fn seen(engine_millis: Option<i64>) -> Result<Seen, OwnershipError> {
    let millis = engine_millis.ok_or(OwnershipError::Lost)?;
    Ok(Seen { engine_now: Timestamp::from_millis(millis) })
}

fn millis(lease: Duration) -> i64 {
    assert!(!lease.is_zero() && lease <= LEASE_MAX, "a lease is above zero and at most {LEASE_MAX:?}: {lease:?}");
    // Rounded up: an end that comes later gives nothing away too soon.
    i64::try_from(lease.as_micros().div_ceil(1000)).expect("an hour has few milliseconds")
}
