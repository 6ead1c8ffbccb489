//! Conversion of values to and from columns of the database. A statement's parameters are arrays, one for each column,
//! because the statements use `unnest`.

use std::sync::Arc;

use bytes::Bytes;
use domain::occurrence::Run;
use domain::{
    DueKey, Incarnation, LabelKey, Occurrence, PollerId, Precondition, Revision, Schedule, ScheduleId, ScheduleVersion,
    Spec, Status, TargetKey, TenantId, Timestamp,
};
use postgres_client::tokio_postgres::Row;
use store::StoreError;
use stored::{run, schedule};
use uuid::Uuid;

pub(crate) fn uuid(incarnation: Incarnation) -> Uuid {
    Uuid::from_u128(incarnation.0)
}

/// Returns the poller as a number for a signed column. Statements compare the number only for equality, so the highest
/// bit may become the sign.
pub(crate) fn poller_number(poller: PollerId) -> i64 {
    let packed = u64::from(poller.tenant.0) << 32 | u64::from(poller.generation) << 16 | u64::from(poller.number);
    packed.cast_signed()
}

pub(crate) fn poller_of(number: i64) -> PollerId {
    let [t0, t1, t2, t3, g0, g1, n0, n1] = number.to_be_bytes();
    PollerId {
        tenant: TenantId(u32::from_be_bytes([t0, t1, t2, t3])),
        generation: u16::from_be_bytes([g0, g1]),
        number: u16::from_be_bytes([n0, n1]),
    }
}

pub(crate) fn shard_number(poller: PollerId) -> i16 {
    poller.shard().0.cast_signed()
}

fn version_number(occurrence: &Occurrence) -> i64 {
    i64::from(occurrence.revision.0) << 16 | i64::from(occurrence.replay)
}

fn try_number(key: &DueKey) -> i64 {
    i64::from(key.attempt) << 32 | i64::from(key.target.0)
}

fn occurrence_of(incarnation: Uuid, nominal: i64, version: i64) -> Occurrence {
    let [_, _, r0, r1, r2, r3, p0, p1] = version.to_be_bytes();
    Occurrence {
        incarnation: Incarnation(incarnation.as_u128()),
        nominal: Timestamp::from_millis(nominal),
        revision: Revision(u32::from_be_bytes([r0, r1, r2, r3])),
        replay: u16::from_be_bytes([p0, p1]),
    }
}

/// Returns the due key from five adjacent columns of a row: position, incarnation, nominal, version, try. The first of
/// these columns has the index `first`.
pub(crate) fn due_key_of(row: &Row, first: usize) -> DueKey {
    let [_, _, a0, a1, t0, t1, t2, t3] = row.get::<_, i64>(first + 4).to_be_bytes();
    DueKey {
        position: Timestamp::from_millis(row.get(first)),
        occurrence: occurrence_of(row.get(first + 1), row.get(first + 2), row.get(first + 3)),
        attempt: u16::from_be_bytes([a0, a1]),
        target: TargetKey(u32::from_be_bytes([t0, t1, t2, t3])),
    }
}

/// Keys of due rows, as one array for each column.
#[derive(Default)]
pub(crate) struct DueColumns {
    pub(crate) pollers: Vec<i64>,
    pub(crate) positions: Vec<i64>,
    pub(crate) incarnations: Vec<Uuid>,
    pub(crate) nominals: Vec<i64>,
    pub(crate) versions: Vec<i64>,
    pub(crate) tries: Vec<i64>,
    pub(crate) shards: Vec<i16>,
}

impl DueColumns {
    pub(crate) fn push(&mut self, poller: PollerId, key: &DueKey) {
        self.pollers.push(poller_number(poller));
        self.positions.push(key.position.as_millis());
        self.incarnations.push(uuid(key.occurrence.incarnation));
        self.nominals.push(key.occurrence.nominal.as_millis());
        self.versions.push(version_number(&key.occurrence));
        self.tries.push(try_number(key));
        self.shards.push(shard_number(poller));
    }
}

/// Occurrences, in columns.
#[derive(Default)]
pub(crate) struct OccurrenceColumns {
    pub(crate) incarnations: Vec<Uuid>,
    pub(crate) nominals: Vec<i64>,
    pub(crate) versions: Vec<i64>,
}

impl OccurrenceColumns {
    pub(crate) fn push(&mut self, occurrence: &Occurrence) {
        self.incarnations.push(uuid(occurrence.incarnation));
        self.nominals.push(occurrence.nominal.as_millis());
        self.versions.push(version_number(occurrence));
    }
}

impl<'a> FromIterator<&'a Occurrence> for OccurrenceColumns {
    fn from_iter<I: IntoIterator<Item = &'a Occurrence>>(occurrences: I) -> Self {
        let mut columns = OccurrenceColumns::default();
        occurrences.into_iter().for_each(|occurrence| columns.push(occurrence));
        columns
    }
}

/// Schedules, in columns.
#[derive(Default)]
pub(crate) struct ScheduleColumns {
    pub(crate) incarnations: Vec<Uuid>,
    pub(crate) tenants: Vec<i64>,
    pub(crate) pollers: Vec<i64>,
    pub(crate) ids: Vec<Option<String>>,
    pub(crate) are_current: Vec<bool>,
    pub(crate) revisions: Vec<i64>,
    pub(crate) statuses: Vec<i16>,
    pub(crate) created: Vec<i64>,
    pub(crate) updated: Vec<i64>,
    pub(crate) nexts: Vec<Option<i64>>,
    pub(crate) specs: Vec<Vec<u8>>,
    pub(crate) labels: Vec<Option<String>>,
}

impl ScheduleColumns {
    pub(crate) fn push(&mut self, head: &Head, schedule: &Schedule) {
        self.incarnations.push(uuid(head.incarnation));
        self.tenants.push(i64::from(head.tenant.0));
        self.pollers.push(poller_number(head.poller));
        self.ids.push((!has_server_made_id(schedule)).then(|| schedule.id.as_str().to_owned()));
        self.are_current.push(head.is_current);
        self.revisions.push(i64::from(head.revision.0));
        self.statuses.push(status_number(head.status));
        self.created.push(head.created_at.as_millis());
        self.updated.push(schedule.updated_at.as_millis());
        self.nexts.push(head.next.map(Timestamp::as_millis));
        self.specs.push(schedule::encode_spec(&schedule.spec));
        self.labels.push(labels_column(&schedule.spec));
    }
}

/// Returns whether the server derived the id of `schedule` from the schedule's incarnation.
pub(crate) fn has_server_made_id(schedule: &Schedule) -> bool {
    schedule.id.to_incarnation() == Some(schedule.incarnation)
}

pub(crate) fn status_number(status: Status) -> i16 {
    match status {
        Status::Active => 0,
        Status::Ended => 1,
        Status::Cancelled => 2,
    }
}

fn status_of(number: i16) -> Result<Status, StoreError> {
    match number {
        0 => Ok(Status::Active),
        1 => Ok(Status::Ended),
        2 => Ok(Status::Cancelled),
        other => Err(StoreError::Damaged(format!("a schedule row contains the unknown status number {other}"))),
    }
}

/// Head of a schedule: the fields on which the decisions of a transaction depend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) incarnation: Incarnation,
    pub(crate) tenant: TenantId,
    pub(crate) poller: PollerId,
    pub(crate) id: ScheduleId,
    pub(crate) is_current: bool,
    pub(crate) revision: Revision,
    pub(crate) status: Status,
    pub(crate) created_at: Timestamp,
    pub(crate) next: Option<Timestamp>,
}

/// Columns that [`head_of`] reads, in this order.
pub(crate) const HEAD_COLUMNS: &str = "incarnation, tenant, poller, id, is_current, revision, status, created_at, next";

impl Head {
    /// Returns the head of a schedule that a transaction is going to write.
    pub(crate) fn new(schedule: &Schedule) -> Self {
        Head {
            incarnation: schedule.incarnation,
            tenant: schedule.tenant,
            poller: schedule.poller,
            id: schedule.id.clone(),
            is_current: true,
            revision: schedule.revision,
            status: schedule.status,
            created_at: schedule.created_at,
            next: schedule.next,
        }
    }

    pub(crate) fn seen(&self) -> Precondition {
        Precondition {
            edition: ScheduleVersion { incarnation: self.incarnation, revision: self.revision },
            next: self.next,
        }
    }

    pub(crate) fn is_live_at(&self, revision: Revision) -> bool {
        self.status == Status::Active && self.revision == revision
    }
}

pub(crate) fn head_of(row: &Row) -> Result<Head, StoreError> {
    let damaged = |what: &str| StoreError::Damaged(format!("a schedule has a malformed {what}"));
    let incarnation = Incarnation(row.get::<_, Uuid>(0).as_u128());
    let id = match row.get::<_, Option<&str>>(3) {
        None => ScheduleId::from_incarnation(incarnation),
        Some(chosen) => ScheduleId::new(chosen).map_err(|_| damaged("id"))?,
    };
    Ok(Head {
        incarnation,
        tenant: TenantId(u32::try_from(row.get::<_, i64>(1)).map_err(|_| damaged("tenant"))?),
        poller: poller_of(row.get(2)),
        id,
        is_current: row.get(4),
        revision: Revision(u32::try_from(row.get::<_, i64>(5)).map_err(|_| damaged("revision"))?),
        status: status_of(row.get(6))?,
        created_at: Timestamp::from_millis(row.get(7)),
        next: row.get::<_, Option<i64>>(8).map(Timestamp::from_millis),
    })
}

/// Returns a schedule from a row with the columns of a head, followed by `updated_at` and `spec`.
pub(crate) fn schedule_of(row: &Row) -> Result<Arc<Schedule>, StoreError> {
    let head = head_of(row)?;
    let spec = schedule::decode_spec(&Bytes::copy_from_slice(row.get(10)))?;
    Ok(Arc::new(Schedule {
        tenant: head.tenant,
        id: head.id,
        incarnation: head.incarnation,
        poller: head.poller,
        revision: head.revision,
        status: head.status,
        created_at: head.created_at,
        updated_at: Timestamp::from_millis(row.get(9)),
        next: head.next,
        spec,
    }))
}

/// Returns a run from a row with the columns tenant, incarnation, nominal, version, state, value.
pub(crate) fn run_of(row: &Row) -> Result<Run, StoreError> {
    let tenant = u32::try_from(row.get::<_, i64>(0));
    let tenant = TenantId(
        tenant.map_err(|_| StoreError::Damaged("the tenant id of a run does not fit into 32 bits".to_owned()))?,
    );
    // A number that does not fit into a byte becomes 255, which is an unknown state.
    let state = u8::try_from(row.get::<_, i16>(4)).unwrap_or(u8::MAX);
    Ok(run::decode_rest(tenant, run_key_of(row), state, row.get(5))?)
}

/// Returns an occurrence from the columns 1 to 3 of a row: incarnation, nominal, version.
pub(crate) fn run_key_of(row: &Row) -> Occurrence {
    occurrence_of(row.get(1), row.get(2), row.get(3))
}

/// Returns the limit as a parameter of a statement. The statement can add 1 to the parameter without an overflow.
pub(crate) fn limit_number(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX).min(i64::MAX - 1)
}

/// Returns the label key as a number for a signed column. Statements compare the number only for equality, so the
/// highest bit may become the sign.
pub(crate) fn label_number(label: LabelKey) -> i64 {
    label.0.cast_signed()
}

/// Returns the value of the column `labels` as text, because `unnest` would flatten an array of arrays.
pub(crate) fn labels_column(spec: &Spec) -> Option<String> {
    let numbers: Vec<String> =
        spec.labels.iter().map(|(name, value)| label_number(LabelKey::of(name, value)).to_string()).collect();
    (!numbers.is_empty()).then(|| format!("{{{}}}", numbers.join(",")))
}
