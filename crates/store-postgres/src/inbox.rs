//! Inbox of the store. Applications call `reveille.schedule` and `reveille.cancel` inside their own transactions to
//! request schedules and cancellations.
//!
//! A read deletes no entries. An entry stays until the reader calls [`PostgresStore::inbox_done`], after the effect of
//! the entry is durable. A member may therefore read an entry that another member has already processed. A second
//! create of the schedule is harmless, because both creates use the incarnation in the entry. A read returns the
//! entries of one transaction in the order in which the transaction wrote them. The entries of two overlapping
//! transactions have no defined order. The inbox does not validate specs.
//!
//! docs/decisions/0095-accept-schedules-through-an-inbox.md gives the reasons for the design.

use domain::Incarnation;
use postgres_client::tokio_postgres::Row;
use store::StoreError;
use uuid::Uuid;

use crate::engine::PostgresStore;
use crate::error::store_error;
use crate::rows::limit_number;

/// Request that an application has written to the inbox.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InboxEntry {
    /// Number of the entry, which the reader passes to [`PostgresStore::inbox_done`].
    pub number: i64,
    /// Name of a tenant. `tenant` and `id` have the form of a [`domain::ScheduleId`]. The tenant and the schedule need
    /// not exist.
    pub tenant: String,
    pub id: String,
    /// Incarnation of the schedule to create.
    pub incarnation: Incarnation,
    /// Spec as the text of a JSON object of at most 128 KiB. If `None`, the request cancels the schedule.
    pub spec: Option<String>,
}

const READ: &str = "select number, tenant, id, incarnation, spec::text from reveille.inbox order by number limit $1";
const DONE: &str = "delete from reveille.inbox where number = any($1::bigint[])";

impl PostgresStore {
    /// Returns the oldest entries of committed transactions, at most `limit` entries.
    ///
    /// # Errors
    /// Returns an error if the server is unreachable or rejects the statement.
    pub async fn inbox(&self, limit: usize) -> Result<Vec<InboxEntry>, StoreError> {
        let rows = self.inner().readers.query(READ, &[&limit_number(limit)]).await.map_err(store_error)?;
        Ok(rows.iter().map(entry_of).collect())
    }

    /// Deletes entries that the caller has processed or finally rejected.
    ///
    /// # Errors
    /// Returns an error if the server is unreachable or rejects the statement.
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
