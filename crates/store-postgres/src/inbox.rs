//! Schedules that applications ask for inside their own transactions, by `reveille.schedule` and `reveille.cancel`.
//!
//! Reading takes nothing away: an entry stays until [`PostgresStore::inbox_done`], after what it asks for is durable. So
//! an entry may be read twice, by a member that came after one that died; making its schedule again is harmless, because it
//! has the entry's incarnation. Entries of one transaction come in the order of its calls; of two transactions that
//! overlapped, in any. Whether a spec is valid is not looked at here.

use domain::Incarnation;
use postgres_client::tokio_postgres::Row;
use store::StoreError;
use uuid::Uuid;

use crate::engine::PostgresStore;
use crate::error::store_error;
use crate::rows::limit_number;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InboxEntry {
    /// For [`PostgresStore::inbox_done`].
    pub number: i64,
    /// A tenant's name, and an id: both have the form of [`domain::ScheduleId`], and need not exist.
    pub tenant: String,
    pub id: String,
    /// The one to make the schedule with.
    pub incarnation: Incarnation,
    /// The JSON text of an object, at most 128 KiB; `None`: the schedule is to be cancelled.
    pub spec: Option<String>,
}

const READ: &str = "select number, tenant, id, incarnation, spec::text from reveille.inbox order by number limit $1";
const DONE: &str = "delete from reveille.inbox where number = any($1::bigint[])";

impl PostgresStore {
    /// The oldest entries whose transactions have committed.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    pub async fn inbox(&self, limit: usize) -> Result<Vec<InboxEntry>, StoreError> {
        let rows = self.inner().readers.query(READ, &[&limit_number(limit)]).await.map_err(store_error)?;
        Ok(rows.iter().map(entry_of).collect())
    }

    /// Forgets entries that have been obeyed, or refused for good.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    pub async fn inbox_done(&self, numbers: Vec<i64>) -> Result<(), StoreError> {
        self.inner().readers.query(DONE, &[&numbers]).await.map(drop).map_err(store_error)
    }
}

fn entry_of(row: &Row) -> InboxEntry {
    InboxEntry {
        number: row.get(0),
        tenant: row.get(1),
        id: row.get(2),
        incarnation: Incarnation(row.get::<_, Uuid>(3).as_u128()),
        spec: row.get(4),
    }
}
