//! Rows of the in-memory engine, and the steps that change the rows. No simulated time passes within a step.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use domain::id::SHARDS;
use domain::occurrence::Run;
use domain::{
    Audit, Author, Counts, DueKey, Facet, Hour, Incarnation, LabelKey, Occurrence, PastTiming, PollerId, Revision,
    RunOrigin, RunOutline, RunSample, RunState, Schedule, ScheduleId, ShardId, Status, TargetKey, Tenant, TenantId,
    Term, Timestamp, TimingEnd,
};

use super::TermsAfterLoss;
use super::inbox::Rows;
use crate::{
    ChosenIdPage, ChosenIdRead, Closed, CountPage, CountRead, Cursor, DueBound, DuePage, DueRead, HandOver, HandedOver,
    Health, InsertLogEntry, ListBy, ListPage, ListRead, Order, Outdated, Positions, RunList, RunRead, Usage,
    WriteRejection,
};

/// Number of bytes that [`Usage::bytes`] counts for each schedule and each run in addition to the payload.
const ROW_BYTES: u64 = 256;

/// Caller that writes a due row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Writer {
    /// A creator. It does not know the poller's positions, and reads `closed` after the write.
    Creator,
    /// The owner of the shard. It knows the poller's positions.
    Owner,
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) health: Health,
    /// Epoch of the terms.
    pub(super) epoch: u64,
    /// True if the store has returned to an earlier state, so that it may lack schedules and terms that callers know.
    has_lost_writes: bool,
    pub(super) insert_log: Stream<InsertLogEntry>,
    pub(super) cancellations: Stream<Incarnation>,
    pub(super) inbox: Rows,
    schedules: BTreeMap<Incarnation, Arc<Schedule>>,
    names: BTreeMap<(TenantId, ScheduleId), Incarnation>,
    /// Incarnations that inserts and puts requested, including incarnations that a put did not use.
    used: BTreeSet<Incarnation>,
    due: BTreeMap<PollerId, BTreeSet<DueKey>>,
    positions: BTreeMap<PollerId, Positions>,
    /// Number of changes [`Change::Reopen`](crate::Change::Reopen) of each poller, and the latest `closed` from which such
    /// a change set the poller back.
    reopened: BTreeMap<PollerId, (u32, Timestamp)>,
    terms: BTreeMap<ShardId, Term>,
    handed_over: BTreeMap<ShardId, Vec<HandedOver>>,
    runs: BTreeMap<Occurrence, Run>,
    counts: BTreeMap<(TenantId, Facet, Hour), Counts>,
    past_timings: BTreeMap<(Incarnation, Revision), PastTiming>,
    /// Authors of the last cancellation records that the engine has not applied itself.
    pub(super) unapplied: BTreeMap<Incarnation, Option<Author>>,
    redriven: BTreeSet<Occurrence>,
    tenants: BTreeMap<TenantId, Tenant>,
    audit: BTreeMap<(TenantId, u64), Audit>,
}

impl Default for Model {
    fn default() -> Self {
        Model {
            health: Health::Ready,
            epoch: 0,
            has_lost_writes: false,
            insert_log: Stream::default(),
            cancellations: Stream::default(),
            inbox: Rows::default(),
            schedules: BTreeMap::new(),
            names: BTreeMap::new(),
            used: BTreeSet::new(),
            due: BTreeMap::new(),
            positions: BTreeMap::new(),
            reopened: BTreeMap::new(),
            terms: BTreeMap::new(),
            handed_over: BTreeMap::new(),
            runs: BTreeMap::new(),
            counts: BTreeMap::new(),
            past_timings: BTreeMap::new(),
            unapplied: BTreeMap::new(),
            redriven: BTreeSet::new(),
            tenants: BTreeMap::new(),
            audit: BTreeMap::new(),
        }
    }
}

// Steps of creators.
impl Model {
    /// Asserts the preconditions of an [`crate::Insert`].
    pub(super) fn check_new(schedule: &Schedule, due: &DueKey) {
        let Occurrence { incarnation, nominal, revision, replay } = due.occurrence;
        assert_eq!(schedule.status, Status::Active, "a new schedule is active");
        assert_eq!(
            schedule.poller.tenant, schedule.tenant,
            "the poller of a schedule belongs to the schedule's tenant"
        );
        assert_eq!(schedule.incarnation, incarnation, "a due row contains the incarnation of its schedule");
        assert_eq!(schedule.revision, revision, "a due row contains the revision of its schedule");
        assert_eq!(schedule.next, Some(nominal), "the `next` of a new schedule equals the instant of its due row");
        assert_eq!((replay, due.attempt), (0, 1), "the due row of a new schedule is for a first attempt");
        assert!(due.position >= nominal, "the position of a due row is at or after its nominal instant: {due:?}");
    }

    /// Panics if another schedule has the incarnation of `schedule`.
    pub(super) fn check_incarnation(&self, schedule: &Schedule) {
        if let Some(same) = self.schedules.get(&schedule.incarnation) {
            let named = (same.tenant, &same.id) == (schedule.tenant, &schedule.id);
            assert!(
                named,
                "the incarnation of a new schedule is unused, but {:?} belongs to the schedule {}",
                same.incarnation, same.id
            );
        }
    }

    /// Returns the incarnation of the existing schedule that has the same id and prevents the insert of `schedule`.
    pub(super) fn conflicting_incarnation(&self, schedule: &Schedule) -> Option<Incarnation> {
        self.check_incarnation(schedule);
        let known = self.find(schedule.tenant, &schedule.id)?;
        let again = self.is_used(schedule.incarnation);
        (again || known.status != Status::Cancelled).then_some(known.incarnation)
    }

    /// Asserts the preconditions of [`crate::Store::place`].
    pub(super) fn check_placed(&self, poller: PollerId, key: &DueKey) {
        let schedule = self.schedules.get(&key.occurrence.incarnation);
        if schedule.is_none() && self.has_lost_writes {
            return;
        }
        let schedule = schedule.unwrap_or_else(|| panic!("a placed due row belongs to an existing schedule: {key:?}"));
        assert_eq!(schedule.poller, poller, "a placed due row has the poller of its schedule");
        assert!(
            key.position >= key.occurrence.nominal,
            "the position of a due row is at or after its nominal instant: {key:?}"
        );
    }

    /// Returns the later of `position` and the first instant after the position `closed` of `poller`.
    pub(super) fn open_position(&self, poller: PollerId, position: Timestamp) -> Timestamp {
        position.max(self.positions(poller).closed + Duration::from_millis(1))
    }

    pub(super) fn write_due(&mut self, poller: PollerId, key: DueKey, writer: Writer) {
        if key.position <= self.positions(poller).done {
            assert_eq!(
                writer,
                Writer::Creator,
                "the position of a due row that an owner writes is after `done`: {key:?}"
            );
            return; // The port allows an engine to drop rows at or before `done`, so the model drops this row.
        }
        self.due.entry(poller).or_default().insert(key);
    }

    pub(super) fn is_used(&self, incarnation: Incarnation) -> bool {
        self.used.contains(&incarnation)
    }

    /// Writes a schedule. `requested` is the incarnation that the call supplied.
    pub(super) fn write_schedule(&mut self, requested: Incarnation, schedule: Arc<Schedule>, by: Option<String>) {
        self.used.insert(requested);
        self.names.insert((schedule.tenant, schedule.id.clone()), schedule.incarnation);
        let updated_at = schedule.updated_at;
        if let Some(replaced) = self.schedules.insert(schedule.incarnation, schedule) {
            self.write_past_timing(&replaced, Some(updated_at), TimingEnd::Replaced, by);
        }
    }

    pub(super) fn append_to_insert_log(&mut self, poller: PollerId, key: DueKey) {
        self.insert_log.append(poller.shard(), InsertLogEntry { poller, key });
    }

    fn write_past_timing(&mut self, old: &Schedule, until: Option<Timestamp>, end: TimingEnd, by: Option<String>) {
        let (when, from) = (old.spec.when.clone(), old.updated_at);
        let timing = PastTiming { edition: old.edition(), when, from, until, end, by };
        self.past_timings.insert((old.incarnation, old.revision), timing);
    }

    pub(super) fn append_cancellation(&mut self, shard: ShardId, incarnation: Incarnation, author: Option<Author>) {
        self.unapplied.insert(incarnation, author);
        self.cancellations.append(shard, incarnation);
    }

    pub(super) fn put_tenant(&mut self, tenant: Tenant, entry: Audit) -> Result<(), Outdated> {
        crate::check_put_tenant(&tenant, &entry);
        if self.tenants.get(&tenant.id).is_some_and(|known| known.version + 1 != tenant.version) {
            return Err(Outdated);
        }
        self.audit.insert((tenant.id, entry.version), entry);
        self.tenants.insert(tenant.id, tenant);
        Ok(())
    }
}

// Loss of writes.
impl Model {
    /// Returns to the earlier state `copy`.
    pub(super) fn go_back(&mut self, copy: Model, terms: TermsAfterLoss) {
        let present = std::mem::replace(self, copy);
        self.has_lost_writes = true;
        // The engine does not assign numbers of lost entries again.
        self.insert_log.last = present.insert_log.last;
        self.cancellations.last = present.cancellations.last;
        match terms {
            TermsAfterLoss::NewEpoch => {
                self.epoch = present.epoch + 1;
                self.terms = (0..SHARDS).map(|shard| (ShardId(shard), Term::before_epoch(self.epoch))).collect();
            }
            TermsAfterLoss::Stored => {}
            TermsAfterLoss::Unchanged => self.terms = present.terms,
        }
    }
}

// Steps of owners.
impl Model {
    pub(super) fn take(&mut self, shard: ShardId) -> Term {
        let term = self.terms.entry(shard).or_insert(Term(0));
        term.0 += 1;
        *term
    }

    /// # Panics
    /// Panics if the store has never assigned `term`.
    pub(super) fn check_term(&self, shard: ShardId, term: Term) -> Result<(), WriteRejection> {
        let newest = self.terms.get(&shard).copied().unwrap_or(Term(0));
        assert!(
            term <= newest || self.has_lost_writes,
            "the store has never assigned {term:?} to an owner of {shard:?}: the newest term is {newest:?}"
        );
        if term == newest { Ok(()) } else { Err(WriteRejection::Superseded) }
    }

    pub(super) fn hand_over(&mut self, list: HandOver) -> Result<(), WriteRejection> {
        self.check_term(list.shard, list.term)?;
        let of_shard = list.attempts.iter().all(|attempt| attempt.poller.shard() == list.shard);
        assert!(of_shard, "a hand-over contains only attempts of its shard: {list:?}");
        self.handed_over.insert(list.shard, list.attempts);
        Ok(())
    }

    /// Changes a schedule. `change` must keep the schedule's id, incarnation and poller.
    pub(super) fn change_schedule(&mut self, incarnation: Incarnation, change: impl FnOnce(&mut Schedule)) {
        let row =
            self.schedules.get_mut(&incarnation).expect("the schedule exists, because the caller has just read it");
        let before = row.revision;
        change(Arc::make_mut(row));
        assert!(row.revision >= before, "a revision never decreases");
    }

    /// Cancels a schedule. Returns false if the schedule does not exist or is already cancelled.
    pub(super) fn cancel(&mut self, incarnation: Incarnation, author: Option<Author>) -> bool {
        let Some(old) = self.schedules.get(&incarnation).filter(|old| old.status != Status::Cancelled).cloned() else {
            return false;
        };
        let until = author.as_ref().map(|author| author.at);
        self.write_past_timing(&old, until, TimingEnd::Cancelled, author.and_then(|author| author.key));
        self.change_schedule(incarnation, |schedule| {
            schedule.status = Status::Cancelled;
            schedule.revision.0 += 1;
            schedule.next = None;
        });
        true
    }

    /// Writes a run. If the run is final, adds it to the counts of its hour.
    pub(super) fn write_run(&mut self, run: Run, origin: Option<&RunOrigin>) {
        if let Some(sample) = RunSample::of(&run) {
            let hour = Hour::of(run.occurrence.nominal);
            for facet in Facet::ALL {
                self.counts.entry((run.tenant, facet, hour)).or_default().record(facet, origin, &sample);
            }
        }
        let known = self.runs.insert(run.occurrence, run);
        let replaced_final = known.is_some_and(|known| known.state.is_final());
        assert!(!replaced_final, "an occurrence has at most one final outcome");
    }

    pub(super) fn write_redriven(&mut self, of: Occurrence) {
        self.redriven.insert(of);
    }

    /// Writes positions that may be earlier than the current ones.
    pub(super) fn reopen(&mut self, poller: PollerId, to: Positions) {
        let from = self.positions.insert(poller, to).unwrap_or_default().closed;
        let (reopened, reopened_from) = self.reopened.entry(poller).or_default();
        *reopened += 1;
        *reopened_from = from.max(*reopened_from);
    }

    pub(super) fn write_positions(&mut self, poller: PollerId, to: Positions) {
        let positions = self.positions.entry(poller).or_default();
        positions.closed = positions.closed.max(to.closed);
        positions.done = positions.done.max(to.done);
        assert!(positions.done <= positions.closed, "`done` of {poller:?} exceeds `closed`: {positions:?}");
        assert!(positions.closed < Timestamp::MAX, "`closed` is before the maximum timestamp: {positions:?}");
        if let Some(rows) = self.due.get_mut(&poller) {
            let done = positions.done;
            while rows.first().is_some_and(|first| first.position <= done) {
                rows.pop_first();
            }
        }
    }
}

// Reads.
impl Model {
    pub(super) fn find(&self, tenant: TenantId, id: &ScheduleId) -> Option<Arc<Schedule>> {
        self.schedule(*self.names.get(&(tenant, id.clone()))?)
    }

    pub(super) fn schedule(&self, incarnation: Incarnation) -> Option<Arc<Schedule>> {
        self.schedules.get(&incarnation).cloned()
    }

    /// Returns a page of a listing. The model behaves like an engine that reads `limit` rows of the tenant and then
    /// filters them.
    pub(super) fn list(&self, read: &ListRead) -> ListPage {
        let after = read.after.map_or(Bound::Unbounded, Bound::Excluded);
        let rows: Box<dyn Iterator<Item = (&Incarnation, &Arc<Schedule>)>> = match read.order {
            Order::Oldest => Box::new(self.schedules.range((after, Bound::Unbounded))),
            Order::Newest => Box::new(self.schedules.range((Bound::Unbounded, after)).rev()),
        };
        let mut of_tenant = rows.filter(|(_, schedule)| schedule.tenant == read.tenant).peekable();
        let mut page = ListPage::default();
        for (incarnation, schedule) in of_tenant.by_ref().take(read.limit) {
            page.next = Some(*incarnation);
            let mut keys = schedule.spec.labels.iter().map(|(name, value)| LabelKey::of(name, value));
            let is_listed = match read.by {
                ListBy::All => true,
                ListBy::Status(status) => schedule.status == status,
                ListBy::Label(key) => keys.any(|known| known == key),
            };
            page.incarnations.extend(is_listed.then_some(*incarnation));
        }
        page.next = page.next.filter(|_| of_tenant.peek().is_some());
        page
    }

    pub(super) fn chosen_ids(&self, read: &ChosenIdRead) -> ChosenIdPage {
        let is_chosen = |id: &ScheduleId, incarnation| *id != ScheduleId::from_incarnation(incarnation);
        let mut rows = self.names.iter().filter(|((tenant, id), incarnation)| {
            *tenant == read.tenant && Some(id) > read.after.as_ref() && is_chosen(id, **incarnation)
        });
        let ids = rows.by_ref().take(read.limit).map(|((_, id), incarnation)| (id.clone(), *incarnation)).collect();
        ChosenIdPage { ids, has_more: rows.next().is_some() }
    }

    pub(super) fn run(&self, occurrence: &Occurrence) -> Option<&Run> {
        self.runs.get(occurrence)
    }

    pub(super) fn runs(&self, incarnation: Incarnation, after: Option<Occurrence>, limit: usize) -> Vec<Run> {
        let of = self.runs_after(after.into_iter().chain([before_every_run(incarnation)]).max());
        of.take_while(|run| run.occurrence.incarnation == incarnation).take(limit).cloned().collect()
    }

    pub(super) fn past_timings(&self, incarnation: Incarnation, from: Revision, limit: usize) -> Vec<PastTiming> {
        let range = (incarnation, from)..=(incarnation, Revision(u32::MAX));
        self.past_timings.range(range).take(limit).map(|(_, timing)| timing.clone()).collect()
    }

    /// Returns a page of runs. The model behaves like an engine that examines `limit` runs and then filters them.
    pub(super) fn list_runs(&self, read: &RunRead) -> RunList {
        let is_wanted = |run: &&Run| run.tenant == read.tenant && read.contains(&run.occurrence);
        let of_schedule = |incarnation| {
            let runs = self.runs_after(Some(before_every_run(incarnation)));
            runs.take_while(move |run| run.occurrence.incarnation == incarnation)
        };
        let mut in_range: Vec<&Run> = match &read.schedules {
            Some(schedules) => schedules.iter().copied().flat_map(of_schedule).filter(is_wanted).collect(),
            None => self.runs.values().filter(is_wanted).collect(),
        };
        in_range.sort_by_key(|run| run.occurrence.by_time());
        if read.order == Order::Newest {
            in_range.reverse();
        }
        let has_more = in_range.len() > read.limit;
        in_range.truncate(read.limit);
        let next = in_range.last().map(|run| run.occurrence).filter(|_| has_more);
        let examined = in_range.len();
        in_range.retain(|run| read.filter.matches(&RunOutline::of(run)));
        RunList { runs: in_range.into_iter().cloned().collect(), next, examined, unreadable: 0 }
    }

    pub(super) fn counts(&self, read: &CountRead) -> CountPage {
        let key = |hour| (read.tenant, read.facet, hour);
        let range = self.counts.range(key(read.from)..key(read.until));
        let hours = range.map(|((_, _, hour), counts)| (*hour, counts.clone())).collect();
        CountPage { hours, counted_from: Hour::of(Timestamp::MIN) }
    }

    pub(super) fn dead_letters(&self, tenant: TenantId, after: Option<Occurrence>, limit: usize) -> Vec<Run> {
        let dead = self.runs_after(after).filter(|run| run.tenant == tenant && self.is_dead_letter(run));
        dead.take(limit).cloned().collect()
    }

    pub(super) fn is_dead_letter(&self, run: &Run) -> bool {
        run.state == RunState::Failed && !self.redriven.contains(&run.occurrence)
    }

    pub(super) fn usage(&self, tenant: TenantId) -> Usage {
        let mut usage = Usage::default();
        for schedule in self.schedules.values().filter(|schedule| schedule.tenant == tenant) {
            *usage.count_mut(schedule.status) += 1;
            usage.bytes += schedule.spec.payload.len() as u64 + ROW_BYTES;
        }
        let timings = self.past_timings.keys().filter(|(incarnation, _)| {
            self.schedules.get(incarnation).is_some_and(|schedule| schedule.tenant == tenant)
        });
        usage.bytes += timings.count() as u64 * ROW_BYTES;
        for run in self.runs.values().filter(|run| run.tenant == tenant) {
            usage.bytes += run.excerpt_bytes() as u64 + ROW_BYTES;
        }
        usage
    }

    pub(super) fn tenants(&self) -> Vec<Tenant> {
        self.tenants.values().cloned().collect()
    }

    pub(super) fn audit(&self, tenant: TenantId, after: u64, limit: usize) -> Vec<Audit> {
        let of_tenant = (Bound::Excluded((tenant, after)), Bound::Included((tenant, u64::MAX)));
        self.audit.range(of_tenant).take(limit).map(|(_, entry)| entry.clone()).collect()
    }

    pub(super) fn positions(&self, poller: PollerId) -> Positions {
        self.positions.get(&poller).copied().unwrap_or_default()
    }

    pub(super) fn closed(&self, poller: PollerId) -> Closed {
        let (reopened, reopened_from) = self.reopened.get(&poller).copied().unwrap_or_default();
        Closed { at: self.positions(poller).closed, reopened, reopened_from }
    }

    pub(super) fn handed_over(&self, shard: ShardId) -> Vec<HandedOver> {
        self.handed_over.get(&shard).cloned().unwrap_or_default()
    }

    pub(super) fn due(&self, read: &DueRead) -> DuePage {
        let Some(rows) = self.due.get(&read.poller) else { return DuePage::default() };
        let after = match read.after {
            DueBound::Instant(instant) => last_key_at(instant),
            DueBound::Key(key) => key,
        };
        let mut rows = rows.range((Bound::Excluded(after), Bound::Unbounded)).copied().peekable();
        let mut keys = Vec::new();
        while keys.len() < read.limit {
            let Some(key) = rows.next_if(|key| key.position <= read.until) else { break };
            keys.push(key);
        }
        DuePage { keys, next: rows.peek().map(|key| key.position) }
    }

    fn runs_after(&self, after: Option<Occurrence>) -> impl Iterator<Item = &Run> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.runs.range((start, Bound::Unbounded)).map(|(_, run)| run)
    }
}

/// Returns an occurrence that sorts before all runs of the incarnation.
fn before_every_run(incarnation: Incarnation) -> Occurrence {
    Occurrence { incarnation, nominal: Timestamp::from_millis(i64::MIN), revision: Default::default(), replay: 0 }
}

/// Returns the last possible due key at `instant`.
fn last_key_at(instant: Timestamp) -> DueKey {
    let occurrence = Occurrence {
        incarnation: Incarnation(u128::MAX),
        nominal: Timestamp::from_millis(i64::MAX),
        revision: Revision(u32::MAX),
        replay: u16::MAX,
    };
    DueKey { position: instant, occurrence, attempt: u16::MAX, target: TargetKey(u32::MAX) }
}

/// Log of the entries of all shards, in the order in which callers appended them.
#[derive(Clone, Debug)]
pub(super) struct Stream<T> {
    last: u64,
    entries: BTreeMap<u64, (ShardId, T)>,
}

impl<T> Default for Stream<T> {
    fn default() -> Self {
        Stream { last: 0, entries: BTreeMap::new() }
    }
}

impl<T: Copy> Stream<T> {
    fn append(&mut self, shard: ShardId, entry: T) {
        self.last += 1;
        self.entries.insert(self.last, (shard, entry));
    }

    /// Reads entries after `cursor`, and deletes the entries of `shards` at or before `cursor`.
    pub(super) fn read(&mut self, shards: &[ShardId], cursor: Cursor, limit: usize) -> (Vec<(ShardId, T)>, Cursor) {
        assert!(cursor.0 <= self.last, "a caller passes only a cursor that an earlier call returned: {cursor:?}");
        self.entries.retain(|at, (shard, _)| *at > cursor.0 || !shards.contains(shard));
        let of_shards = self.entries.range(cursor.0 + 1..).filter(|(_, (shard, _))| shards.contains(shard));
        let mut entries = Vec::new();
        for (at, entry) in of_shards {
            if entries.len() >= limit {
                let before_this = Cursor(at - 1);
                return (entries, before_this);
            }
            entries.push(*entry);
        }
        (entries, Cursor(self.last))
    }
}
