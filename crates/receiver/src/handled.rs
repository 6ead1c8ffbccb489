//! The table of handled callbacks, which the receiver owns. It has one row per callback.

use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, GenericClient, Transaction};

/// SQL that creates the table, for services with their own migrations. It consists of two statements that have no
/// effect if the table exists. PostgreSQL creates the table in the first schema of `search_path`.
pub const TABLE: &str = "\
create table if not exists reveille_callbacks (
    id text primary key,
    received_at timestamptz not null default now()
);
create index if not exists reveille_callbacks_received_at on reveille_callbacks (received_at);
";

/// Key of the advisory lock of [`create_table`]: `rvlcallb` in ASCII.
const LOCK: i64 = 0x7276_6c63_616c_6c62;
const INSERT: &str = "insert into reveille_callbacks (id) values ($1) on conflict do nothing";
const DELETE: &str = "\
delete from reveille_callbacks where id in (
    select id from reveille_callbacks where received_at < now() - make_interval(secs => $1) order by received_at limit $2
)";
/// Largest number of rows per `delete`, so that no statement holds many locks or takes long.
const DELETED_AT_ONCE: u16 = 10_000;

/// Creates the table if it does not exist. Several processes may call this concurrently.
///
/// # Errors
/// The database's error, for example if the role must not create tables.
pub async fn create_table(client: &Client) -> Result<(), Error> {
    // With `if not exists` alone, one of two concurrent callers fails. The statements of one message form one
    // transaction.
    client.batch_execute(&format!("select pg_advisory_xact_lock({LOCK}); {TABLE}")).await
}

/// Inserts the callback's id, and returns whether no committed transaction contains it. The id counts as handled
/// once this transaction is committed. If the result is `false`, respond with success and do nothing else.
///
/// If another open transaction has inserted the same id, this call waits for its end. After a commit the result is
/// `false`; after a rollback it is `true`. With an isolation level stricter than `read committed`, a commit leads
/// to a serialization error instead, and the callback's next attempt succeeds.
///
/// # Errors
/// The database's error.
pub async fn is_first(transaction: &Transaction<'_>, id: &str) -> Result<bool, Error> {
    insert(transaction, id).await
}

pub(crate) async fn insert(client: &impl GenericClient, id: &str) -> Result<bool, Error> {
    Ok(client.execute_typed(INSERT, &[(&id, Type::TEXT)]).await? == 1)
}

/// Deletes callbacks that were received more than `age` ago, and returns their number. Call it regularly, for
/// example once a day.
///
/// A duplicate that arrives after the deletion takes effect again. `age` must therefore exceed the duration of all
/// attempts of a callback (about 20 days with the largest `retry`) and the longest downtime of Reveille. 30 days
/// is a good value; a row has about 100 bytes.
///
/// # Errors
/// The database's error. Deletions before the error remain in effect.
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
