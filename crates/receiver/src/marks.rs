//! Which callbacks have had their effect: a row for each, in a table that the receiver owns.

use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, GenericClient, Transaction};

/// What makes the table, for those who keep their schema in migrations of their own: two statements, harmless if it is there.
/// It is made in the first schema of `search_path`.
pub const TABLE: &str = "\
create table if not exists reveille_callbacks (
    id text primary key,
    received_at timestamptz not null default now()
);
create index if not exists reveille_callbacks_received_at on reveille_callbacks (received_at);
";

/// Of nobody else's: `rvlcallb` in ASCII.
const LOCK: i64 = 0x7276_6c63_616c_6c62;
const INSERT: &str = "insert into reveille_callbacks (id) values ($1) on conflict do nothing";
const DELETE: &str = "\
delete from reveille_callbacks where id in (
    select id from reveille_callbacks where received_at < now() - make_interval(secs => $1) order by received_at limit $2
)";
/// Of one statement, so that none holds many locks or takes long.
const DELETED_AT_ONCE: u16 = 10_000;

/// Makes the table if it is not there; any number of processes may do so at once.
///
/// # Errors
/// The database's, as when this role may not make tables.
pub async fn create_table(client: &Client) -> Result<(), Error> {
    // `if not exists` alone fails for one of two who do it at once. The statements of one message are one transaction.
    client.batch_execute(&format!("select pg_advisory_xact_lock({LOCK}); {TABLE}")).await
}

/// Whether no committed transaction had this callback's id before this one: then it is noted, and counts once this transaction
/// is committed. If it is `false`, answer that it was done, and do nothing.
///
/// While another transaction that has noted the same id is open, this waits for its end: a commit makes this the double, a
/// rollback makes it the first. (Where the isolation is stricter than `read committed`, a commit is an error here, of the kind
/// that the callback's next attempt does not meet.)
///
/// # Errors
/// The database's.
pub async fn is_first(transaction: &Transaction<'_>, id: &str) -> Result<bool, Error> {
    insert(transaction, id).await
}

pub(crate) async fn insert(client: &impl GenericClient, id: &str) -> Result<bool, Error> {
    Ok(client.execute_typed(INSERT, &[(&id, Type::TEXT)]).await? == 1)
}

/// Forgets callbacks that came longer ago than `age`, and tells how many. Call it now and then: once a day, say.
///
/// A double that comes later than this has its effect again, so `age` has to be longer than all attempts of a callback take
/// (with the greatest `retry`, some 20 days), and than Reveille may be down. 30 days is a good value; a row has about 100 bytes.
///
/// # Errors
/// The database's. What was forgotten before stays forgotten.
pub async fn forget(client: &Client, age: Duration) -> Result<u64, Error> {
    let mut forgotten = 0;
    loop {
        let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&age.as_secs_f64(), Type::FLOAT8), (&i64::from(DELETED_AT_ONCE), Type::INT8)];
        let deleted = client.execute_typed(DELETE, &parameters).await?;
        forgotten += deleted;
        if deleted < u64::from(DELETED_AT_ONCE) {
            return Ok(forgotten);
        }
    }
}
