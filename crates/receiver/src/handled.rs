//! Table of the callbacks that the receiver has handled, in the receiver's own database. It has one row per callback.

use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, GenericClient, Transaction};

/// SQL that creates the table of handled callbacks, for services with their own migrations. It consists of two
/// statements, which have no effect if the table exists. PostgreSQL creates the table in the first schema of
/// `search_path`.
pub const TABLE: &str = "\
create table if not exists reveille_callbacks (
    id text primary key,
    received_at timestamptz not null default now()
);
create index if not exists reveille_callbacks_received_at on reveille_callbacks (received_at);
";

/// Key of the PostgreSQL advisory lock that [`create_table`] takes: `rvlcallb` in ASCII.
const LOCK: i64 = 0x7276_6c63_616c_6c62;
const INSERT: &str = "insert into reveille_callbacks (id) values ($1) on conflict do nothing";
const DELETE: &str = "\
delete from reveille_callbacks where id in (
    select id from reveille_callbacks where received_at < now() - make_interval(secs => $1) order by received_at limit $2
)";
/// Maximum number of rows that one `delete` removes. The limit prevents statements that hold many locks or take a long
/// time.
const DELETED_AT_ONCE: u16 = 10_000;

/// Creates the table of handled callbacks if it does not exist. Several processes may call this function at the same
/// time.
///
/// # Errors
/// Returns the error of the database, for example if the role has no permission to create tables.
pub async fn create_table(client: &Client) -> Result<(), Error> {
    // With `if not exists` alone, one of two concurrent callers fails, so this function takes an advisory lock first.
    // PostgreSQL executes all statements of one message in one transaction, so the lock covers the creation.
    client.batch_execute(&format!("select pg_advisory_xact_lock({LOCK}); {TABLE}")).await
}

/// Inserts the callback's id. Returns `true` if no committed transaction has inserted this id before. The callback
/// counts as handled when the caller commits this transaction. If the result is `false`, the caller must respond with
/// success and must not handle the callback again.
///
/// If another open transaction has inserted the same id, this call waits until that transaction ends. It returns
/// `false` if that transaction commits, and `true` if that transaction rolls back. With an isolation level stricter
/// than `read committed`, the commit of that transaction makes this call return a serialization error instead of
/// `false`. The callback's next attempt then succeeds.
///
/// # Errors
/// Returns the error of the database.
pub async fn is_first(transaction: &Transaction<'_>, id: &str) -> Result<bool, Error> {
    insert(transaction, id).await
}

pub(crate) async fn insert(client: &impl GenericClient, id: &str) -> Result<bool, Error> {
    Ok(client.execute_typed(INSERT, &[(&id, Type::TEXT)]).await? == 1)
}

/// Deletes the rows of callbacks that the receiver received more than `age` ago. Returns the number of deleted rows.
/// Call this function regularly, for example once a day.
///
/// If a duplicate arrives after the deletion of its row, the callback takes effect again. `age` must therefore exceed
/// the duration of all attempts of a callback (about 20 days with the largest `retry`) and the longest downtime of
/// Reveille. 30 days is a good value. A row needs about 100 bytes.
///
/// # Errors
/// Returns the error of the database. Deletions before the error remain in effect.
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
