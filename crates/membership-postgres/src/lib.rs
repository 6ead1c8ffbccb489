//! Members and claims of a cluster as rows of PostgreSQL. This engine needs no server except the database that contains
//! the store.
//!
//! A session is a row that contains the end of the session by the *database's* clock. The claims of a session are rows
//! that the database deletes together with the session. Each change of the view is one function call on the server, and
//! the server runs these calls one at a time (see `migrations/0001.sql` of `coordination-postgres`). A renewal is a
//! separate call that never waits for these calls.
//!
//! The engine uses two connections, so that a renewal does not wait behind a claim, and a third connection that listens
//! for changes. Each connection reconnects by itself. No call waits much longer than [`Options::statement_timeout`]. If
//! a call times out, the engine closes its connection, because the state of that connection is unknown.
//!
//! Invariants: The database deletes an ended session before it grants a claim of that session to another member. The
//! database syncs each change to disk before it responds. A database that returns to an earlier state (after a restore,
//! or a fail-over to a standby that lagged) loses renewals and claims. In this case, only the store still protects its
//! rows from old owners: it rejects their writes, because their terms are old. See
//! docs/decisions/0101-tie-claims-to-sessions.md.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use coordination_postgres::{Database, OnDrop, is_unavailable, millis};
use futures_util::future::BoxFuture;
use instants::Timestamp;
use membership::{Answer, ClaimName, Member, MemberId, Ownership, OwnershipError, Renewed, View, check_names};
use postgres_client::tokio_postgres::Row;
use postgres_client::tokio_postgres::types::ToSql;
use postgres_client::{Failure, Link};
use runtime::Runtime;

pub use coordination_postgres::{OpenError, Options};

/// Connections of one process to the database. Dropping this value closes the connections. The process's sessions then
/// end with their leases.
pub struct PostgresOwnership {
    database: Database,
    /// Ids of the sessions that this process has opened. An ended session leaves no row, so this set prevents a second
    /// session with the same id.
    joined: Mutex<BTreeSet<MemberId>>,
    /// Sequence number of the next claim or release of this process.
    calls: AtomicI64,
}

impl PostgresOwnership {
    /// Connects to the database, and checks the schema that [`coordination_postgres::migrate`] created.
    ///
    /// # Errors
    /// Returns [`OpenError`] if the URL is invalid, the server is unreachable, or this build needs another schema.
    pub async fn open(runtime: &Runtime, url: &str, options: &Options) -> Result<Self, OpenError> {
        let database = Database::open(runtime, url, options, "reveille_coordination").await?;
        Ok(PostgresOwnership { database, joined: Mutex::default(), calls: AtomicI64::new(1) })
    }

    /// Id of the schema. The migration creates this id together with the schema, and the id never changes. All
    /// processes that open this database get the same id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.database.id
    }

    /// Returns the URL of the server without the password.
    #[must_use]
    pub fn server(&self) -> String {
        self.database.server.to_string()
    }

    /// Runs `statement` and returns its rows.
    async fn query(
        &self,
        link: &Link,
        statement: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, OwnershipError> {
        self.database.query(link, statement, parameters, OnDrop::Abandon).await.map_err(of_failure)
    }

    /// Works like [`PostgresOwnership::query`], for a statement that returns one row with one column.
    async fn query_one<T>(
        &self,
        link: &Link,
        statement: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<T, OwnershipError>
    where
        T: for<'a> postgres_client::tokio_postgres::types::FromSql<'a>,
    {
        let rows = self.query(link, statement, parameters).await?;
        let row = rows.first().ok_or_else(|| unexpected("no row"))?;
        row.try_get(0).map_err(|_| unexpected("wrong column type"))
    }

    fn joined(&self) -> MutexGuard<'_, BTreeSet<MemberId>> {
        self.joined.lock().expect("no holder of this lock panics")
    }

    fn next_call(&self) -> i64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }
}

impl fmt::Debug for PostgresOwnership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresOwnership({})", self.database.server)
    }
}

fn unexpected(what: &str) -> OwnershipError {
    OwnershipError::Rejected(format!(
        "unexpected response from the database ({what}); check whether its schema was changed manually"
    ))
}

const JOIN: &str = "select reveille_coordination.join_as($1::text::uuid, $2, $3, $4, $5, $6)";
const JOIN_AGAIN: &str = "select reveille_coordination.join_again($1::text::uuid, $2, $3, $4, $5, $6)";
const RENEW: &str = "select reveille_coordination.renew($1::text::uuid, $2)";
const LEAVE: &str = "select 1 from reveille_coordination.leave($1::text::uuid)";
const CLAIM: &str = "select reveille_coordination.claim($1::text::uuid, $2, $3)";
const RELEASE: &str = "select 1 from reveille_coordination.release($1::text::uuid, $2, $3)";
/// The engine reads the view with one statement, so the view shows one state of the database. An expired session whose
/// renewal is not committed yet is missing from the view.
const VIEW: &str = "
    with clock as materialized (select clock_timestamp() as now)
    select member.id::text, member.name, member.address, member.owns, member.build,
        ceil(extract(epoch from member.lease_end - clock.now) * 1000000)::bigint,
        array(select claim.name from reveille_coordination.claim where claim.member = member.id)
    from reveille_coordination.member, clock
    where member.lease_end > clock.now
    order by member.id";

impl Ownership for PostgresOwnership {
    fn join(&self, member: Member, lease: Duration) -> Answer<'_, Renewed> {
        let lease = millis(lease);
        Box::pin(async move {
            member.check()?;
            let Member { id: member_id, name, address, owns, build } = member;
            let id = member_id.to_string();
            let is_repeated = self.joined().contains(&member_id);
            let statement = if is_repeated { JOIN_AGAIN } else { JOIN };
            let parameters: [&(dyn ToSql + Sync); 6] = [&id, &name, &address, &owns, &build, &lease];
            let renewed = renewed(self.query_one(&self.database.serial, statement, &parameters).await?)?;
            self.joined().insert(member_id);
            Ok(renewed)
        })
    }

    fn renew(&self, member: MemberId, lease: Duration) -> Answer<'_, Renewed> {
        let lease = millis(lease);
        Box::pin(
            async move { renewed(self.query_one(&self.database.urgent, RENEW, &[&member.to_string(), &lease]).await?) },
        )
    }

    fn leave(&self, member: MemberId) -> Answer<'_, ()> {
        Box::pin(async move {
            self.query(&self.database.serial, LEAVE, &[&member.to_string()]).await?;
            Ok(())
        })
    }

    fn claim(&self, member: MemberId, names: Vec<ClaimName>) -> Answer<'_, Vec<bool>> {
        check_names(&names);
        let call = self.next_call();
        Box::pin(async move {
            let names: Vec<&str> = names.iter().map(ClaimName::as_str).collect();
            let id = member.to_string();
            let held: Option<Vec<bool>> = self.query_one(&self.database.serial, CLAIM, &[&id, &names, &call]).await?;
            let held = held.ok_or(OwnershipError::Lost)?;
            if held.len() == names.len() {
                Ok(held)
            } else {
                Err(unexpected("the number of results differs from the number of names"))
            }
        })
    }

    fn release(&self, member: MemberId, names: Vec<ClaimName>) -> Answer<'_, ()> {
        check_names(&names);
        let call = self.next_call();
        Box::pin(async move {
            let names: Vec<&str> = names.iter().map(ClaimName::as_str).collect();
            self.query(&self.database.serial, RELEASE, &[&member.to_string(), &names, &call]).await?;
            Ok(())
        })
    }

    fn view(&self) -> Answer<'_, View> {
        Box::pin(async move {
            let mut view = View::default();
            for row in self.query(&self.database.urgent, VIEW, &[]).await? {
                add(&mut view, &row).ok_or_else(|| unexpected("malformed member row"))?;
            }
            Ok(view)
        })
    }

    fn changed(&self) -> BoxFuture<'static, ()> {
        let mut changes = self.database.changes.subscribe();
        Box::pin(async move {
            if changes.changed().await.is_err() {
                // The engine is closed, so it reports no more changes.
                std::future::pending::<()>().await;
            }
        })
    }
}

/// Adds one row of [`VIEW`] to the view. Returns `None` if the row is malformed.
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

fn renewed(engine_millis: Option<i64>) -> Result<Renewed, OwnershipError> {
    let millis = engine_millis.ok_or(OwnershipError::Lost)?;
    Ok(Renewed { engine_now: Timestamp::from_millis(millis) })
}

fn of_failure(failure: Failure) -> OwnershipError {
    if is_unavailable(&failure) {
        OwnershipError::Unavailable(failure.to_string())
    } else {
        OwnershipError::Rejected(failure.to_string())
    }
}
