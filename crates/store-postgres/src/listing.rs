//! Listings of schedules. The database maintains an index of all schedules of a tenant, and a row for each label
//! (migration 0005). This module reads the index and the rows. It also adds the labels of schedules that earlier builds
//! wrote.

use domain::{Incarnation, ScheduleId, TenantId};
use postgres_client::tokio_postgres::Row;
use postgres_client::{Failure, Session};
use store::{ChosenIdPage, ChosenIdRead, ListBy, ListPage, ListRead, Order, StoreError};
use stored::schedule;
use uuid::Uuid;

use crate::connections::query;
use crate::engine::Inner;
use crate::error::{OpenError, store_error};
use crate::rows::{label_number, labels_column, limit_number, status_number, uuid};

/// SQL statements that read one page of a listing, in one of the two orders of incarnations.
struct Statements {
    /// Reads one page for each of the three statuses, in the order of the index, and merges the pages.
    all: &'static str,
    by_status: &'static str,
    by_label: &'static str,
}

/// Creates the statements. `$after` is the operator that compares an incarnation with the start of the page. `$order`
/// is the `order by` clause.
macro_rules! statements {
    ($after:literal, $order:literal) => {
        Statements {
            all: concat!(
                "select incarnation from (",
                statements!("0", $after, $order),
                " union all ",
                statements!("1", $after, $order),
                " union all ",
                statements!("2", $after, $order),
                ") s ",
                $order,
                " limit $3"
            ),
            by_status: statements!("$4", $after, $order),
            by_label: concat!(
                "select incarnation from reveille.schedule_label where tenant = $1 and label = $4 and incarnation ",
                $after,
                " $2 ",
                $order,
                " limit $3"
            ),
        }
    };
    ($status:literal, $after:literal, $order:literal) => {
        concat!(
            "(select incarnation from reveille.schedule where tenant = $1 and status = ",
            $status,
            " and is_current and incarnation ",
            $after,
            " $2 ",
            $order,
            " limit $3)"
        )
    };
}

const OLDEST: Statements = statements!(">", "order by incarnation");
const NEWEST: Statements = statements!("<", "order by incarnation desc");

/// Reads one page of the chosen ids from the index `schedule_name`, whose order is the byte order of the ids.
const CHOSEN_IDS: &str = "select id, incarnation from reveille.schedule
    where tenant = $1 and is_current and id is not null and id > $2 order by id limit $3";
const UNLABELLED: &str = "select incarnation, spec from reveille.schedule
    where incarnation > $1 order by incarnation limit $2";
const LABEL: &str = "update reveille.schedule s set labels = i.labels::bigint[]
    from unnest($1::uuid[], $2::text[]) as i (incarnation, labels) where s.incarnation = i.incarnation";
const LABEL_BATCH: usize = 2_000;

impl Inner {
    pub(crate) async fn list(&self, read: &ListRead) -> Result<ListPage, StoreError> {
        let ListRead { tenant: TenantId(tenant), by, order, after, limit } = *read;
        let tenant = i64::from(tenant);
        // A listing can start after the least or before the greatest incarnation, because no schedule has one of these
        // two incarnations.
        let (statements, start) = match order {
            Order::Oldest => (OLDEST, Incarnation(0)),
            Order::Newest => (NEWEST, Incarnation(u128::MAX)),
        };
        let after = uuid(after.unwrap_or(start));
        // The query reads one extra row to find out whether more rows follow the page.
        let rows_max = limit_number(limit) + 1;
        let rows = match by {
            ListBy::All => self.readers.query(statements.all, &[&tenant, &after, &rows_max]).await,
            ListBy::Status(status) => {
                self.readers.query(statements.by_status, &[&tenant, &after, &rows_max, &status_number(status)]).await
            }
            ListBy::Label(label) => {
                self.readers.query(statements.by_label, &[&tenant, &after, &rows_max, &label_number(label)]).await
            }
        };
        let of_row = |row: &Row| Incarnation(row.get::<_, Uuid>(0).as_u128());
        let mut incarnations: Vec<Incarnation> = rows.map_err(store_error)?.iter().map(of_row).collect();
        let has_more = incarnations.len() > limit;
        incarnations.truncate(limit);
        let next = incarnations.last().copied().filter(|_| has_more);
        Ok(ListPage { incarnations, next })
    }

    pub(crate) async fn list_chosen_ids(&self, read: &ChosenIdRead) -> Result<ChosenIdPage, StoreError> {
        let tenant = i64::from(read.tenant.0);
        // Every id is after the empty text.
        let after = read.after.as_ref().map_or("", ScheduleId::as_str);
        let rows_max = limit_number(read.limit) + 1;
        let rows = self.readers.query(CHOSEN_IDS, &[&tenant, &after, &rows_max]).await.map_err(store_error)?;
        let of_row = |row: &Row| {
            let id = ScheduleId::new(row.get(0));
            let id = id.map_err(|error| StoreError::Damaged(format!("a schedule has a malformed id: {error}")))?;
            Ok((id, Incarnation(row.get::<_, Uuid>(1).as_u128())))
        };
        let ids = rows.iter().take(read.limit).map(of_row).collect::<Result<Vec<_>, StoreError>>()?;
        Ok(ChosenIdPage { has_more: rows.len() > ids.len(), ids })
    }
}

/// Fills the column `labels` of every schedule. Builds before schema version 5 did not write the column.
pub(crate) async fn label_all(session: &Session) -> Result<(), OpenError> {
    let mut last = Uuid::nil();
    loop {
        let rows = query(session, UNLABELLED, &[&last, &limit_number(LABEL_BATCH)]).await?;
        let Some(row) = rows.last() else { return Ok(()) };
        last = row.get(0);
        let (mut incarnations, mut labels): (Vec<Uuid>, Vec<String>) = (Vec::new(), Vec::new());
        for row in &rows {
            let incarnation: Uuid = row.get(0);
            let spec = schedule::decode_spec(&bytes::Bytes::copy_from_slice(row.get(1)));
            // A damaged schedule must not prevent the migration. A later read of the schedule reports the damage.
            let Ok(spec) = spec.inspect_err(
                |error| tracing::warn!(%incarnation, %error, "labels not migrated because the schedule is damaged"),
            ) else {
                continue;
            };
            if let Some(column) = labels_column(&spec) {
                incarnations.push(incarnation);
                labels.push(column);
            }
        }
        if !incarnations.is_empty() {
            let labelled: Result<_, Failure> = query(session, LABEL, &[&incarnations, &labels]).await;
            labelled?;
        }
    }
}
