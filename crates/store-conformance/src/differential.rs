//! Comparison of an engine with the in-memory model. For the same random calls, the engine and the model must return
//! the same results and store the same rows.
//!
//! An engine's test draws [`operations`] with proptest and passes them to [`compare`], with the engine's subject and a
//! [`store::memory::MemoryStore`]. The memory store is atomic if the engine is atomic. The calls run one after another
//! and follow the rules of the store port. The conformance cases and the simulator cover concurrent calls.

mod run_lists;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    AttemptResult, DueKey, Incarnation, Occurrence, PollerId, Precondition, Revision, RunState, Schedule, ScheduleId,
    ScheduleVersion, Secret, ShardId, Status, Target, TenantId, Term, Timestamp,
};
use proptest::prelude::*;

use crate::Subject;
use crate::fixture::{Numbers, OTHER_TENANT, TENANT, id, insert_of, minute, only, run_of};
use store::listing::{self, By, Listing, ListingOrder};
use store::{
    Cancellation, Change, Cursor, DueBound, DueRead, Insert, Inserted, Order, OwnerWrite, Placed, Positions, Store,
    Usage, Written,
};

const LABELS: [&str; 2] = ["team", "a label"];
const CHOSEN_IDS: [&str; 4] = ["a", "S-b", "z", "s00000000000000000000000001"];

/// One call of the store. A number in the call may be an index into a list, for example a list of ids. The comparison
/// takes the index modulo the length of the list.
#[derive(Clone, Debug)]
pub enum Operation {
    Insert(Vec<New>),
    Place(Vec<(u8, At)>),
    Cancellation(Vec<Name>),
    Take(u8),
    Write(Vec<OwnerOperation>),
    Reopen,
}

/// A new schedule.
#[derive(Clone, Debug)]
pub struct New {
    name: Name,
    at: At,
    payload_len: u16,
    /// One flag for each of two labels: true if the schedule has the label.
    labels: (bool, bool),
    /// True if the call repeats the last insert of this name. Without such an insert, the flag has no effect.
    again: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Name {
    /// Id that a caller chose: index of the tenant, and index of the id in `CHOSEN_IDS`.
    Chosen(u8, u8),
    /// Server-made id of a new incarnation. If the call needs an existing name, the number selects one of the existing
    /// names.
    Made(u8),
}

/// Nominal instant of a due row, and the time from that instant to the row's position, both in minutes.
type At = (u8, u8);

#[derive(Clone, Debug)]
pub struct OwnerOperation {
    /// True if the owner writes under the shard's second-last term instead of its last term.
    stale: bool,
    /// Number that selects the schedule to change.
    schedule: u8,
    at: At,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Put(New),
    PutIf(New, Knows),
    Cancel,
    CancelIf { old_revision: bool },
    Run { state: u8, attempt: u8, old_revision: bool, ends: bool },
    Advance { old_revision: bool },
    End { old_revision: bool },
    Defer,
    Redrive { replay: u8 },
    Reencrypt { value: u8, old_revision: bool },
    Positions { closed: u8, done: u8 },
    Reopen { closed: u8 },
}

/// Relation between the precondition of a [`Change::PutIf`] and the current state of the schedule that has the put's
/// id.
#[derive(Clone, Copy, Debug)]
enum Knows {
    Everything,
    OldRevision,
    OldNext,
    Nothing,
}

/// Returns a proptest strategy for sequences of at least one and fewer than `count_max` calls.
pub fn operations(count_max: usize) -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        4 => prop::collection::vec(new(), 1..6).prop_map(Operation::Insert),
        1 => prop::collection::vec((any::<u8>(), at()), 1..4).prop_map(Operation::Place),
        1 => prop::collection::vec(name(), 1..3).prop_map(Operation::Cancellation),
        1 => any::<u8>().prop_map(Operation::Take),
        8 => prop::collection::vec(owner_operation(), 1..8).prop_map(Operation::Write),
        1 => Just(Operation::Reopen),
    ];
    prop::collection::vec(operation, 1..count_max)
}

fn at() -> impl Strategy<Value = At> {
    (0..8_u8, prop_oneof![3 => Just(0), 1 => 0..8_u8])
}

fn name() -> impl Strategy<Value = Name> {
    prop_oneof![
        (0..2_u8, any::<u8>()).prop_map(|(tenant, id)| Name::Chosen(tenant, id)),
        any::<u8>().prop_map(Name::Made)
    ]
}

fn new() -> impl Strategy<Value = New> {
    (name(), at(), prop_oneof![0..40_u16, Just(2_000)], any::<(bool, bool)>(), prop::bool::weighted(0.2))
        .prop_map(|(name, at, payload_len, labels, again)| New { name, at, payload_len, labels, again })
}

fn knows() -> impl Strategy<Value = Knows> {
    prop_oneof![
        4 => Just(Knows::Everything),
        1 => Just(Knows::OldRevision),
        1 => Just(Knows::OldNext),
        2 => Just(Knows::Nothing),
    ]
}

fn owner_operation() -> impl Strategy<Value = OwnerOperation> {
    let old = || prop::bool::weighted(0.2);
    let kind = prop_oneof![
        2 => new().prop_map(Kind::Put),
        2 => (new(), knows()).prop_map(|(new, knows)| Kind::PutIf(new, knows)),
        1 => old().prop_map(|old_revision| Kind::CancelIf { old_revision }),
        1 => Just(Kind::Cancel),
        4 => (any::<u8>(), 1..6_u8, old(), any::<bool>())
            .prop_map(|(state, attempt, old_revision, ends)| Kind::Run { state, attempt, old_revision, ends }),
        2 => old().prop_map(|old_revision| Kind::Advance { old_revision }),
        1 => old().prop_map(|old_revision| Kind::End { old_revision }),
        1 => Just(Kind::Defer),
        2 => (0..2_u8).prop_map(|replay| Kind::Redrive { replay }),
        1 => (any::<u8>(), old()).prop_map(|(value, old_revision)| Kind::Reencrypt { value, old_revision }),
        1 => (0..12_u8, 0..12_u8).prop_map(|(closed, done)| Kind::Positions { closed, done }),
        1 => (0..12_u8).prop_map(|closed| Kind::Reopen { closed }),
    ];
    (prop::bool::weighted(0.1), any::<u8>(), at(), kind).prop_map(|(stale, schedule, at, kind)| OwnerOperation {
        stale,
        schedule,
        at,
        kind,
    })
}

/// Makes the calls on the engine and on the model, and compares every result. After each call, also compares all rows
/// of the engine with the rows of the model.
///
/// # Panics
/// Panics if a result or a row of the engine differs from the model.
pub async fn compare(subject: &dyn Subject, model: &dyn Store, operations: &[Operation]) {
    let mut engine = subject.open().await;
    let mut drive = Drive::default();
    for (number, operation) in operations.iter().enumerate() {
        let context = format!("call {number}, {operation:?}");
        match operation {
            Operation::Insert(news) => drive.insert(&*engine, model, news, &context).await,
            Operation::Place(rows) => drive.place(&*engine, model, rows, &context).await,
            Operation::Cancellation(names) => drive.append_cancellations(&*engine, model, names, &context).await,
            Operation::Take(choice) => drive.take_of(&*engine, model, *choice).await,
            Operation::Write(writes) => drive.write(&*engine, model, writes, &context).await,
            Operation::Reopen => {
                drive.compare_insert_log(&*engine).await;
                subject.close(engine).await;
                engine = subject.open().await;
            }
        }
        drive.compare_rows(&*engine, model, &context).await;
    }
    drive.compare_insert_log(&*engine).await;
    subject.close(engine).await;
}

/// State of a comparison: data of the requests that the comparison has sent to the engine and to the model.
#[derive(Default)]
struct Drive {
    numbers: Numbers,
    /// Incarnations, tenants, ids and pollers of all inserts and puts, in the order of the requests.
    known: Vec<(Incarnation, TenantId, ScheduleId, PollerId)>,
    /// Last insert or put with each name. A name consists of a tenant and an id.
    last: BTreeMap<(TenantId, ScheduleId), Insert>,
    /// Last two terms of each shard in the engine and in the model.
    terms: BTreeMap<ShardId, [Option<(Term, Term)>; 2]>,
    positions: BTreeMap<PollerId, Positions>,
    /// Rows that the engine's insert log must contain.
    insert_log: BTreeSet<(PollerId, DueKey)>,
}

impl Drive {
    async fn insert(&mut self, engine: &dyn Store, model: &dyn Store, news: &[New], context: &str) {
        let inserts: Vec<Insert> = news.iter().map(|new| self.resolve_new(new)).collect();
        let mut ours = engine.insert(inserts.clone()).await.expect("the engine accepts inserts");
        let models = model.insert(inserts.clone()).await.expect("the in-memory model accepts inserts");
        for ((insert, ours), models) in inserts.iter().zip(&mut ours).zip(&models) {
            if let (Inserted::Placed(ours), Inserted::Placed(models)) = (ours, models) {
                self.allow_confirmed(insert.schedule.poller, ours, models);
            }
        }
        same(&ours, &models, context);
        for (insert, response) in inserts.iter().zip(models) {
            if let Inserted::Placed(placed) = response {
                let row = DueKey { position: placed.position, ..insert.due };
                self.insert_log.insert((insert.schedule.poller, row));
            }
        }
    }

    async fn place(&mut self, engine: &dyn Store, model: &dyn Store, rows: &[(u8, At)], context: &str) {
        let mut placed = Vec::new();
        for (choice, at) in rows {
            let Some(schedule) = self.schedule(model, *choice).await else { continue };
            placed.push((schedule.poller, row_of(&schedule, schedule.revision, *at)));
        }
        let mut ours = engine.place(placed.clone()).await.expect("the engine accepts due rows");
        let models = model.place(placed.clone()).await.expect("the in-memory model accepts due rows");
        for (((poller, _), ours), models) in placed.iter().zip(&mut ours).zip(&models) {
            self.allow_confirmed(*poller, ours, models);
        }
        same(&ours, &models, context);
        for ((poller, key), placed) in placed.into_iter().zip(models) {
            self.insert_log.insert((poller, DueKey { position: placed.position, ..key }));
        }
    }

    /// Accepts a placement that the engine has confirmed, even if the model leaves the confirmation to the creator. The
    /// row must be after `closed`, at the same position as in the model.
    fn allow_confirmed(&self, poller: PollerId, ours: &mut Placed, models: &Placed) {
        let closed = self.positions.get(&poller).copied().unwrap_or_default().closed;
        if ours.settled && ours.position == models.position && ours.position > closed {
            ours.settled = models.settled;
        }
    }

    async fn append_cancellations(&mut self, engine: &dyn Store, model: &dyn Store, names: &[Name], context: &str) {
        let marks: Vec<Cancellation> = names
            .iter()
            .map(|name| {
                let (tenant, id) = self.resolve_existing(*name);
                Cancellation { tenant, id, author: None }
            })
            .collect();
        let engine = engine.append_cancellations(marks.clone()).await.expect("the engine accepts cancellation records");
        let model = model.append_cancellations(marks).await.expect("the in-memory model accepts cancellation records");
        let of = |responses: Vec<store::CancellationResult>| -> Vec<_> {
            responses.into_iter().map(|marked| (marked.before, marked.applied)).collect()
        };
        same(&of(engine), &of(model), context);
    }

    async fn take_of(&mut self, engine: &dyn Store, model: &dyn Store, choice: u8) {
        if let Some((_, _, _, poller)) = pick(&self.known, choice).cloned() {
            self.take(engine, model, poller.shard()).await;
        }
    }

    async fn take(&mut self, engine: &dyn Store, model: &dyn Store, shard: ShardId) {
        let ours = only(engine.take(vec![shard]).await.expect("the engine assigns a new term"));
        let models = only(model.take(vec![shard]).await.expect("the in-memory model assigns a new term"));
        let [_, last] = self.terms.get(&shard).copied().unwrap_or_default();
        assert!(last.is_none_or(|(before, _)| ours > before), "the new term {ours:?} is higher than all earlier terms");
        self.terms.insert(shard, [last, Some((ours, models))]);
    }

    async fn write(&mut self, engine: &dyn Store, model: &dyn Store, operations: &[OwnerOperation], context: &str) {
        let (mut ours, mut models) = (Vec::new(), Vec::new());
        for operation in operations {
            let Some((poller, change)) = self.resolve_change(model, operation).await else { continue };
            if !self.terms.contains_key(&poller.shard()) {
                self.take(engine, model, poller.shard()).await;
            }
            let [before, last] = self.terms[&poller.shard()];
            let stale = before.filter(|_| operation.stale);
            let positions = self.positions.entry(poller).or_default();
            match (&change, stale) {
                (Change::Positions(to), None) => {
                    positions.closed = positions.closed.max(to.closed);
                    positions.done = positions.done.max(to.done);
                }
                (Change::Reopen(to), None) => *positions = *to,
                _ => {}
            }
            let (term, models_term) = stale.or(last).expect("the shard has a term in both stores before a write");
            ours.push(OwnerWrite { term, poller, change: change.clone() });
            models.push(OwnerWrite { term: models_term, poller, change });
        }
        let responses: (Result<Vec<Result<Written, _>>, _>, _) = (engine.write(ours).await, model.write(models).await);
        same(&responses.0, &responses.1, context);
    }

    async fn resolve_change(&mut self, model: &dyn Store, operation: &OwnerOperation) -> Option<(PollerId, Change)> {
        if let Kind::Put(new) = &operation.kind {
            let mut insert = self.resolve_new(new);
            insert.due.position = self.owned(insert.schedule.poller, insert.due.position);
            return Some((insert.schedule.poller, Change::Put(insert)));
        }
        if let Kind::PutIf(new, knows) = &operation.kind {
            let mut insert = self.resolve_new(new);
            insert.due.position = self.owned(insert.schedule.poller, insert.due.position);
            let seen = self.seen(model, &insert.schedule, *knows).await;
            return Some((insert.schedule.poller, Change::PutIf { insert, seen }));
        }
        let schedule = self.schedule(model, operation.schedule).await?;
        let Schedule { tenant, incarnation, poller, .. } = *schedule;
        let revision = |old: bool| Revision(schedule.revision.0.saturating_sub(u32::from(old)));
        let row = |old: bool| {
            let row = row_of(&schedule, revision(old), operation.at);
            DueKey { position: self.owned(poller, row.position), ..row }
        };
        let change = match operation.kind {
            Kind::Put(_) | Kind::PutIf(..) => unreachable!("handled above"),
            Kind::Cancel => Change::Cancel(incarnation),
            Kind::CancelIf { old_revision } => {
                Change::CancelIf(ScheduleVersion { incarnation, revision: revision(old_revision) }, None)
            }
            Kind::Run { state, attempt, old_revision, ends } => {
                let row = row(old_revision);
                let (run, then) = run_and_retry(tenant, row, state, attempt);
                Change::Run { run, then, ends, origin: None }
            }
            Kind::Advance { old_revision } => {
                Change::Advance { incarnation, revision: revision(old_revision), due: row(old_revision) }
            }
            Kind::End { old_revision } => Change::End { incarnation, revision: revision(old_revision) },
            Kind::Defer => Change::Defer(row(false)),
            Kind::Redrive { replay } => {
                let row = row(false);
                let of = Occurrence { replay: u16::from(replay), ..row.occurrence };
                let again = Occurrence { replay: of.replay + 1, ..of };
                Change::Redrive { of, due: DueKey { occurrence: again, ..row } }
            }
            Kind::Reopen { closed } => {
                // `done` stays. If it went back, engines that have not yet dropped its rows would return them again.
                let done = self.positions.get(&poller).copied().unwrap_or_default().done;
                Change::Reopen(Positions { closed: minute(i64::from(closed)).max(done), done })
            }
            Kind::Reencrypt { value, old_revision } => {
                let mut changed = Schedule { revision: revision(old_revision), ..Schedule::clone(&schedule) };
                let Target::Http(http) = &mut changed.spec.target else { panic!("the target is an HTTP target") };
                http.headers = vec![("x-a".to_owned(), Secret::Encrypted(vec![value; usize::from(value)].into()))];
                Change::Reencrypt(Arc::new(changed))
            }
            Kind::Positions { closed, done } => {
                let (closed, done) = (minute(i64::from(closed.max(done))), minute(i64::from(done)));
                Change::Positions(Positions { closed, done })
            }
        };
        Some((poller, change))
    }

    async fn seen(&self, model: &dyn Store, requested: &Schedule, knows: Knows) -> Option<Precondition> {
        let found =
            model.get(vec![(requested.tenant, requested.id.clone())]).await.expect("the in-memory model accepts reads");
        let mut seen = only(found)?.seen();
        match knows {
            Knows::Everything => {}
            Knows::OldRevision => seen.edition.revision.0 = seen.edition.revision.0.saturating_sub(1),
            Knows::OldNext => seen.next = Some(minute(-1)),
            Knows::Nothing => return None,
        }
        Some(seen)
    }

    /// Returns the later of `position` and the first instant at which the owner of `poller` may write a row.
    fn owned(&self, poller: PollerId, position: Timestamp) -> Timestamp {
        let done = self.positions.get(&poller).copied().unwrap_or_default().done;
        position.max(done + Duration::from_millis(1))
    }

    fn resolve_new(&mut self, new: &New) -> Insert {
        let incarnation = self.numbers.incarnation();
        let (tenant, id) = match new.name {
            Name::Made(choice) if new.again => self.resolve_existing(Name::Made(choice)),
            Name::Made(_) => (TENANT, ScheduleId::from_incarnation(incarnation)),
            Name::Chosen(..) => self.resolve_existing(new.name),
        };
        let name = (tenant, id.clone());
        if let Some(last) = self.last.get(&name).filter(|_| new.again) {
            return last.clone();
        }
        let (nominal, delay) = new.at;
        let mut insert = insert_of(tenant, incarnation, id, minute(i64::from(nominal)));
        insert.due.position = minute(i64::from(nominal) + i64::from(delay));
        let schedule = Arc::make_mut(&mut insert.schedule);
        schedule.spec.payload = (0..new.payload_len).map(|at| at.to_le_bytes()[0] ^ 0xa5).collect();
        for (name, is_there) in LABELS.into_iter().zip([new.labels.0, new.labels.1]) {
            schedule.spec.labels.extend(is_there.then(|| (name.to_owned(), "yes".to_owned())));
        }
        self.known.push((incarnation, tenant, schedule.id.clone(), schedule.poller));
        self.last.insert(name, insert.clone());
        insert
    }

    fn resolve_existing(&self, name: Name) -> (TenantId, ScheduleId) {
        match name {
            Name::Chosen(tenant, choice) => {
                let tenant = if tenant == 0 { TENANT } else { OTHER_TENANT };
                (tenant, id(CHOSEN_IDS[usize::from(choice) % CHOSEN_IDS.len()]))
            }
            Name::Made(choice) => match pick(&self.known, choice) {
                Some((_, tenant, id, _)) => (*tenant, id.clone()),
                None => (TENANT, id("nothing-is-known-yet")),
            },
        }
    }

    async fn schedule(&self, model: &dyn Store, choice: u8) -> Option<Arc<Schedule>> {
        let (incarnation, ..) = *pick(&self.known, choice)?;
        only(model.load(vec![incarnation]).await.expect("the in-memory model accepts reads"))
    }

    async fn compare_rows(&self, engine: &dyn Store, model: &dyn Store, context: &str) {
        let names: Vec<_> = self.known.iter().map(|(_, tenant, id, _)| (*tenant, id.clone())).collect();
        same(&engine.get(names.clone()).await, &model.get(names).await, context);
        let incarnations: Vec<_> = self.known.iter().map(|(incarnation, ..)| *incarnation).collect();
        same(&engine.load(incarnations.clone()).await, &model.load(incarnations.clone()).await, context);
        let mut all_runs: BTreeMap<TenantId, Vec<Run>> = BTreeMap::new();
        for incarnation in incarnations.iter().copied() {
            let past = model.past_timings(incarnation, Revision(0), usize::MAX).await;
            same(&engine.past_timings(incarnation, Revision(0), usize::MAX).await, &past, context);
            let all = model.runs(incarnation, None, usize::MAX).await;
            same(&engine.runs(incarnation, None, usize::MAX).await, &all, context);
            let all = all.expect("the in-memory model accepts reads");
            let second = all.first().map(|run| run.occurrence);
            all.into_iter().for_each(|run| all_runs.entry(run.tenant).or_default().push(run));
            same(&engine.runs(incarnation, second, 2).await, &model.runs(incarnation, second, 2).await, context);
        }
        let tenants = vec![TENANT, OTHER_TENANT];
        // The model has no encoded rows, so the comparison covers the numbers of schedules but not the numbers of
        // bytes.
        let counts = async |store: &dyn Store| {
            let usages = store.usage(tenants.clone()).await.expect("the store accepts reads");
            usages.into_iter().map(|usage| Usage { bytes: 0, ..usage }).collect::<Vec<_>>()
        };
        same(&counts(engine).await, &counts(model).await, context);
        for tenant in tenants {
            let all = model.dead_letters(tenant, None, usize::MAX).await;
            same(&engine.dead_letters(tenant, None, usize::MAX).await, &all, context);
        }
        for tenant in [TENANT, OTHER_TENANT] {
            let by_status = [Status::Active, Status::Ended, Status::Cancelled].map(By::Status);
            let by_label = LABELS.map(|name| By::Label { name, value: "yes" });
            for (by, limit) in [By::All].into_iter().chain(by_status).chain(by_label).zip([3, 2, 100, 1, 2, 100]) {
                let by_id = (!matches!(by, By::Label { .. })).then_some(ListingOrder::Id);
                for order in [Order::Oldest, Order::Newest].map(ListingOrder::Created).into_iter().chain(by_id) {
                    let of_engine = listed(engine, tenant, &by, order, limit).await;
                    same(&of_engine, &listed(model, tenant, &by, order, limit).await, context);
                }
            }
        }
        for (tenant, limit) in [(TENANT, 2), (OTHER_TENANT, 100)] {
            let runs = all_runs.remove(&tenant).unwrap_or_default();
            run_lists::compare(engine, tenant, runs, &incarnations, limit, context).await;
        }
        let pollers: BTreeSet<PollerId> = self.known.iter().map(|(.., poller)| *poller).collect();
        for poller in pollers {
            let positions = model.positions(vec![poller]).await;
            same(&engine.positions(vec![poller]).await, &positions, context);
            let done = only(positions.expect("the in-memory model accepts reads")).done;
            for (until, limit) in [(Timestamp::MAX, usize::MAX), (minute(6), 3), (minute(3), 100)] {
                let mut read = DueRead { poller, after: DueBound::Instant(done), until, limit };
                let page = model.due(vec![read]).await;
                same(&engine.due(vec![read]).await, &page, context);
                if let Some(last) = only(page.expect("the in-memory model accepts reads")).keys.last() {
                    read.after = DueBound::Key(*last);
                    same(&engine.due(vec![read]).await, &model.due(vec![read]).await, context);
                }
            }
            let shard: Arc<[ShardId]> = Arc::new([poller.shard()]);
            let marks = (
                engine.cancellations(shard.clone(), Cursor::default()).await,
                model.cancellations(shard, Cursor::default()).await,
            );
            let records = |marks: Result<(Vec<_>, Cursor), _>| marks.map(|(marks, _)| marks);
            same(&records(marks.0), &records(marks.1), context);
        }
    }

    /// Reads the engine's insert log to its end, and asserts that the log contained every required entry. The engine
    /// may return further entries, and deletes entries after the caller has read them.
    async fn compare_insert_log(&mut self, engine: &dyn Store) {
        let shards: BTreeSet<ShardId> = self.known.iter().map(|(.., poller)| poller.shard()).collect();
        let shards: Arc<[ShardId]> = shards.into_iter().collect();
        let mut cursor = Cursor::default();
        loop {
            let read = engine.insert_log(shards.clone(), cursor, 5).await;
            let (entries, next) = read.expect("the engine accepts reads");
            for arrival in entries {
                self.insert_log.remove(&(arrival.poller, arrival.key));
            }
            if next == cursor {
                break;
            }
            cursor = next;
        }
        assert!(self.insert_log.is_empty(), "the engine's insert log lacks these rows: {:?}", self.insert_log);
    }
}

/// Returns the schedules of all pages of a listing.
async fn listed(
    store: &dyn Store,
    tenant: TenantId,
    by: &By<'_>,
    order: ListingOrder,
    limit: usize,
) -> Vec<Arc<Schedule>> {
    let (mut entries, mut after) = (Vec::new(), None);
    loop {
        let listing = Listing { tenant, by: by.clone(), order, after, limit };
        let page = listing::page(store, &listing, || async {}).await.expect("the store accepts reads");
        entries.extend(page.schedules);
        after = page.next;
        if after.is_none() {
            return entries;
        }
    }
}

fn row_of(schedule: &Schedule, revision: Revision, (nominal, delay): At) -> DueKey {
    let nominal = i64::from(nominal);
    let occurrence = Occurrence { incarnation: schedule.incarnation, nominal: minute(nominal), revision, replay: 0 };
    let position = minute(nominal + i64::from(delay));
    DueKey { position, occurrence, attempt: 1, target: schedule.spec.target.key() }
}

fn run_and_retry(tenant: TenantId, row: DueKey, state: u8, attempt: u8) -> (Run, Option<DueKey>) {
    let states = [
        RunState::Succeeded,
        RunState::Failed,
        RunState::Failed,
        RunState::Retrying,
        RunState::Cancelled,
        RunState::Missed { last: row.position, count: 3, attempt_possible: true },
    ];
    let (detail, state) = (state / 6, states[usize::from(state) % states.len()]);
    let occurrence = Occurrence { replay: u16::from(attempt == 5), ..row.occurrence };
    let mut run = run_of(tenant, occurrence, state);
    let results = [
        AttemptResult::Answered(503),
        AttemptResult::Answered(204),
        AttemptResult::Answered(404),
        AttemptResult::TimedOut,
        AttemptResult::Stored { partition: 1, offset: 2 },
    ];
    run.attempts[0].number = u16::from(attempt);
    run.attempts[0].started_at = occurrence.nominal + Duration::from_secs([0, 1, 90][usize::from(detail) % 3]);
    run.attempts[0].result = results[usize::from(detail) % results.len()].clone();
    let retry = DueKey { occurrence, attempt: u16::from(attempt) + 1, ..row };
    (run, (state == RunState::Retrying).then_some(retry))
}

fn pick<T>(from: &[T], choice: u8) -> Option<&T> {
    // `choice` counts from the newest element. When proptest shrinks a failed test to small numbers, these numbers
    // therefore select recent elements.
    from.iter().rev().nth(usize::from(choice) % from.len().max(1))
}

fn same<T: PartialEq + Debug>(engine: &T, model: &T, context: &str) {
    assert_eq!(engine, model, "the engine (left) and the model differ after {context}");
}
