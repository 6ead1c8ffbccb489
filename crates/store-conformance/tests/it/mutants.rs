//! Tests that the conformance suite detects each of several deliberate bugs in an engine.

mod bugs;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use domain::occurrence::Run;
use domain::{
    Audit, Counts, DueKey, Hour, Incarnation, Occurrence, PastTiming, PollerId, Revision, RunFilter, RunOrigin,
    RunSample, Schedule, ScheduleId, ShardId, Tenant, TenantId, Term,
};
use futures_util::FutureExt as _;
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use runtime::Runtime;
use simulator::Simulation;
use store::memory::{MemoryOptions, MemoryStore};
use store::{
    Answer, Cancellation, CancellationResult, Change, ChosenIdPage, ChosenIdRead, Closed, CountPage, CountRead, Cursor,
    DueBound, DuePage, DueRead, HandOver, HandedOver, Health, Insert, InsertLogEntry, Inserted, ListBy, ListPage,
    ListRead, Order, Outdated, OwnerWrite, Placed, Positions, RunList, RunRead, Store, StoreError, Usage,
    WriteRejection, Written,
};
use store_conformance::differential::{self, Operation};

use self::bugs::{Bug, CAUGHT_BY, SEEN_BY_THE_MODEL};
use crate::support::{Memory, weak_and_slow};

#[test]
fn each_deliberate_bug_is_detected_by_its_conformance_case() {
    let missed: Vec<_> =
        CAUGHT_BY.iter().filter(|(bug, case)| !(0..20).any(|seed| detects(*bug, case, seed))).collect();
    assert!(missed.is_empty(), "no seed catches {missed:?}");
}

#[test]
fn comparison_with_memory_store_detects_bugs_in_sequential_calls() {
    let sequences = sequences(200);
    let missed: Vec<_> =
        SEEN_BY_THE_MODEL.iter().filter(|bug| !sequences.iter().any(|it| differs(**bug, it))).collect();
    assert!(missed.is_empty(), "{} sequences do not show {missed:?}", sequences.len());
}

/// Returns `count` sequences of operations, which are the same on every run.
fn sequences(count: usize) -> Vec<Vec<Operation>> {
    let mut runner = TestRunner::deterministic();
    let operations = differential::operations(30);
    let mut draw = || operations.new_tree(&mut runner).expect("nothing is rejected").current();
    (0..count).map(|_| draw()).collect()
}

/// Returns whether an engine with the bug `bug` returns other results than the model for these calls.
fn differs(bug: Bug, operations: &[Operation]) -> bool {
    let sim = Simulation::new(1);
    sim.run_until(async {
        let model = MemoryStore::new(sim.member("b"), MemoryOptions::weak());
        let subject = broken(bug, sim.member("a"));
        AssertUnwindSafe(differential::compare(&subject, &model, operations)).catch_unwind().await.is_err()
    })
}

/// Returns whether the case fails on an engine with the bug `bug`. Other tests show that the case passes on a correct
/// engine.
fn detects(bug: Bug, case: &str, seed: u64) -> bool {
    let sim = Simulation::new(seed);
    sim.run_until(async {
        let subject = broken(bug, sim.member("a"));
        AssertUnwindSafe(store_conformance::case(case).run(&subject)).catch_unwind().await.is_err()
    })
}

fn broken(bug: Bug, runtime: Runtime) -> Memory {
    Memory::new(runtime.clone(), weak_and_slow()).broken(move |store| {
        let nothing = MemoryStore::new(runtime.clone(), weak_and_slow());
        let store = if bug == Bug::NothingIsStored { nothing } else { store };
        Arc::new(Broken { bug, store, under_way: Mutex::default(), miscounted: Mutex::default() })
    })
}

/// Engine with one deliberate bug. It passes its calls on to a correct engine.
struct Broken {
    bug: Bug,
    store: MemoryStore,
    /// Due rows of the inserts that are under way.
    under_way: Mutex<BTreeSet<DueKey>>,
    /// Runs that the engine counts although it should not.
    miscounted: Mutex<Vec<(Run, Option<RunOrigin>)>>,
}

impl Broken {
    fn has(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    /// Replaces conditional changes by unconditional changes. With the bug `ConditionIsCheckedBeforehand`, returns
    /// false if a condition does not hold.
    async fn check_conditions(&self, writes: &mut [OwnerWrite]) -> Result<bool, StoreError> {
        for write in writes {
            write.change = match write.change.clone() {
                Change::PutIf { insert, seen } => {
                    let name = (insert.schedule.tenant, insert.schedule.id.clone());
                    let now = self.store.get(vec![name]).await?.pop().flatten();
                    if self.has(Bug::ConditionIsCheckedBeforehand) && now.map(|now| now.seen()) != seen {
                        return Ok(false);
                    }
                    Change::Put(insert)
                }
                Change::CancelIf(edition, _) => {
                    let now = self.store.load(vec![edition.incarnation]).await?.pop().flatten();
                    if self.has(Bug::ConditionIsCheckedBeforehand) && now.map(|now| now.edition()) != Some(edition) {
                        return Ok(false);
                    }
                    Change::Cancel(edition.incarnation)
                }
                other => other,
            };
        }
        Ok(true)
    }

    async fn insert_without_check(&self, inserts: Vec<Insert>, closed: Option<Vec<Closed>>) -> Vec<Inserted> {
        let mut inserts = inserts;
        for (insert, closed) in inserts.iter_mut().zip(closed.into_iter().flatten()) {
            insert.due.position = insert.due.position.max(closed.at + std::time::Duration::from_millis(1));
        }
        let mut responses = self.store.insert(inserts).await.expect("the model does not fail");
        for response in &mut responses {
            if let Inserted::Placed(Placed { settled, .. }) = response {
                *settled = true;
            }
        }
        responses
    }
}

impl Store for Broken {
    fn insert(&self, mut inserts: Vec<Insert>) -> Answer<'_, Vec<Inserted>> {
        Box::pin(async move {
            match self.bug {
                Bug::ClosedIsNotChecked => return Ok(self.insert_without_check(inserts, None).await),
                Bug::ClosedIsReadBeforeTheRow => {
                    let pollers = inserts.iter().map(|insert| insert.schedule.poller).collect();
                    let closed = self.store.closed(pollers).await?;
                    return Ok(self.insert_without_check(inserts, Some(closed)).await);
                }
                Bug::PayloadIsConvertedToText => {
                    for insert in &mut inserts {
                        let schedule = Arc::make_mut(&mut insert.schedule);
                        let text = String::from_utf8_lossy(&schedule.spec.payload).into_owned();
                        schedule.spec.payload = text.into();
                    }
                }
                Bug::InsertsRunBackwards => {
                    inserts.reverse();
                    let mut responses = self.store.insert(inserts).await?;
                    responses.reverse();
                    return Ok(responses);
                }
                _ => {}
            }
            let rows: BTreeSet<DueKey> = inserts.iter().map(|insert| insert.due).collect();
            self.under_way.lock().expect("no holder of this lock panics").extend(&rows);
            let responses = self.store.insert(inserts).await;
            self.under_way.lock().expect("no holder of this lock panics").retain(|row| !rows.contains(row));
            responses
        })
    }

    fn closed(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Closed>> {
        Box::pin(async move {
            let mut closed = self.store.closed(pollers).await?;
            if self.has(Bug::ReopenedIsNotCounted) {
                closed.iter_mut().for_each(|closed| closed.reopened = 0);
            }
            Ok(closed)
        })
    }

    fn place(&self, rows: Vec<(PollerId, DueKey)>) -> Answer<'_, Vec<Placed>> {
        self.store.place(rows)
    }

    fn append_cancellations(&self, marks: Vec<Cancellation>) -> Answer<'_, Vec<CancellationResult>> {
        Box::pin(async move {
            let mut responses = self.store.append_cancellations(marks).await?;
            for response in &mut responses {
                response.applied |= self.has(Bug::CancellationIsReportedApplied);
            }
            Ok(responses)
        })
    }

    fn get(&self, mut names: Vec<(TenantId, ScheduleId)>) -> Answer<'_, Vec<Option<Arc<Schedule>>>> {
        if self.has(Bug::ServerMadeIdIsNotVerified)
            && let [(_, id)] = &*names
            && let Some(incarnation) = id.to_incarnation()
        {
            return self.store.load(vec![incarnation]);
        }
        if self.has(Bug::TenantIsIgnored) {
            names.iter_mut().for_each(|(tenant, _)| *tenant = TenantId(1));
        }
        self.store.get(names)
    }

    fn load(&self, mut incarnations: Vec<Incarnation>) -> Answer<'_, Vec<Option<Arc<Schedule>>>> {
        if self.has(Bug::LoadsAreOutOfOrder) {
            incarnations.sort();
        }
        self.store.load(incarnations)
    }

    fn list(&self, mut read: ListRead) -> Answer<'_, ListPage> {
        if self.has(Bug::ListOrderIsIgnored) {
            read.order = Order::Oldest;
        }
        Box::pin(async move {
            let mut page = self.store.list(read).await?;
            if self.has(Bug::ListedPageLosesItsLastItem) && read.by != ListBy::All {
                page.incarnations.pop();
            }
            page.next = page.next.filter(|_| !self.has(Bug::ListedPageIsAlwaysLast));
            Ok(page)
        })
    }

    fn list_chosen_ids(&self, read: ChosenIdRead) -> Answer<'_, ChosenIdPage> {
        Box::pin(async move {
            let mut page = self.store.list_chosen_ids(read).await?;
            if self.has(Bug::ChosenIdsAreOutOfOrder) {
                page.ids.reverse();
            }
            page.has_more &= !self.has(Bug::ChosenIdPageIsAlwaysLast);
            Ok(page)
        })
    }

    fn find_runs(&self, occurrences: Vec<Occurrence>) -> Answer<'_, Vec<Option<Run>>> {
        self.store.find_runs(occurrences)
    }

    fn runs(&self, incarnation: Incarnation, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>> {
        let from = |of: Occurrence| Occurrence { nominal: of.nominal - std::time::Duration::from_millis(1), ..of };
        let after = if self.has(Bug::RunsAfterIsIncluded) { after.map(from) } else { after };
        self.store.runs(incarnation, after, limit)
    }

    fn past_timings(&self, incarnation: Incarnation, from: Revision, limit: usize) -> Answer<'_, Vec<PastTiming>> {
        let from = if self.has(Bug::PastTimingsIgnoreTheirStart) { Revision(0) } else { from };
        let read = self.store.past_timings(incarnation, from, limit);
        Box::pin(async move {
            let mut past = read.await?;
            if self.has(Bug::PastTimingsLoseTheAuthor) {
                past.iter_mut().for_each(|past| past.by = None);
            }
            Ok(past)
        })
    }

    fn list_runs(&self, mut read: RunRead) -> Answer<'_, RunList> {
        if self.has(Bug::RunOrderIsIgnored) {
            read.order = Order::Oldest;
        }
        if self.has(Bug::RunFilterIsIgnored) {
            read.filter = RunFilter::default();
        }
        if self.has(Bug::RunLatenessIsIgnored) {
            read.filter.late_by = None;
        }
        if self.has(Bug::RunStatusIsIgnored) {
            read.filter.status = None;
        }
        if self.has(Bug::RunsOfAllSchedulesAreListed) {
            read.schedules = None;
        }
        if self.has(Bug::RunsUntilIsIncluded) {
            read.until = read.until + std::time::Duration::from_millis(1);
        }
        if self.has(Bug::TenantIsIgnored) {
            read.tenant = TenantId(1);
        }
        Box::pin(async move {
            let mut list = self.store.list_runs(read).await?;
            list.next = list.next.filter(|_| !self.has(Bug::RunListIsAlwaysLast));
            if self.has(Bug::DelaysAreLost) {
                list.runs.iter_mut().flat_map(|run| &mut run.attempts).for_each(|attempt| attempt.delay = None);
            }
            Ok(list)
        })
    }

    fn counts(&self, mut read: CountRead) -> Answer<'_, CountPage> {
        if self.has(Bug::CountsIgnoreTheRange) {
            read.from = Hour(i64::MIN);
        }
        Box::pin(async move {
            let mut page = self.store.counts(read).await?;
            let mut hours: BTreeMap<Hour, Counts> = std::mem::take(&mut page.hours).into_iter().collect();
            for (run, origin) in &*self.miscounted.lock().expect("no holder of this lock panics") {
                let hour = Hour::of(run.occurrence.nominal);
                if run.tenant == read.tenant
                    && (read.from..read.until).contains(&hour)
                    && let Some(sample) = RunSample::of(run)
                {
                    hours.entry(hour).or_default().record(read.facet, origin.as_ref(), &sample);
                }
            }
            Ok(CountPage { hours: hours.into_iter().collect(), ..page })
        })
    }

    fn dead_letters(&self, tenant: TenantId, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>> {
        Box::pin(async move {
            let mut dead = self.store.dead_letters(tenant, after, limit).await?;
            if self.has(Bug::DeadLettersIncludeOtherTenants) {
                dead.extend(self.store.dead_letters(TenantId(tenant.0 + 1), after, limit).await?);
            }
            Ok(dead)
        })
    }

    fn usage(&self, tenants: Vec<TenantId>) -> Answer<'_, Vec<Usage>> {
        self.store.usage(tenants)
    }

    fn tenants(&self) -> Answer<'_, Vec<Tenant>> {
        self.store.tenants()
    }

    fn put_tenant(&self, tenant: Tenant, entry: Audit) -> Answer<'_, Result<(), Outdated>> {
        self.store.put_tenant(tenant, entry)
    }

    fn audit(&self, tenant: TenantId, after: u64, limit: usize) -> Answer<'_, Vec<Audit>> {
        self.store.audit(tenant, after, limit)
    }

    fn health(&self) -> Health {
        self.store.health()
    }

    fn take(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Term>> {
        Box::pin(async move {
            let mut terms = self.store.take(shards).await?;
            if self.has(Bug::TermsDoNotRise) {
                terms.fill(Term(1));
            }
            Ok(terms)
        })
    }

    fn hand_over(&self, mut lists: Vec<HandOver>) -> Answer<'_, Vec<Result<(), WriteRejection>>> {
        if self.has(Bug::HandOverIsLost) {
            lists.iter_mut().for_each(|list| list.attempts.clear());
        }
        self.store.hand_over(lists)
    }

    fn handed_over(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Vec<HandedOver>>> {
        self.store.handed_over(shards)
    }

    fn positions(&self, mut pollers: Vec<PollerId>) -> Answer<'_, Vec<Positions>> {
        if self.has(Bug::PositionsAreOfAnotherPoller) {
            pollers.iter_mut().for_each(|poller| poller.number = 0);
        }
        self.store.positions(pollers)
    }

    fn insert_log(
        &self,
        shards: Arc<[ShardId]>,
        cursor: Cursor,
        limit: usize,
    ) -> Answer<'_, (Vec<InsertLogEntry>, Cursor)> {
        Box::pin(async move {
            let (mut entries, next) = self.store.insert_log(shards, cursor, limit).await?;
            if self.has(Bug::InsertLogCursorSkipsEntries) && entries.len() == limit {
                entries.pop();
            }
            if self.has(Bug::InsertLogCursorSkipsOpenInserts) {
                let under_way = self.under_way.lock().expect("no holder of this lock panics");
                entries.retain(|arrival| !under_way.contains(&arrival.key));
            }
            Ok((entries, next))
        })
    }

    fn cancellations(
        &self,
        shards: Arc<[ShardId]>,
        cursor: Cursor,
    ) -> Answer<'_, (Vec<(ShardId, Incarnation)>, Cursor)> {
        Box::pin(async move {
            let (records, next) = self.store.cancellations(shards.clone(), cursor).await?;
            if self.has(Bug::CursorLosesCancellations) {
                self.store.cancellations(shards, next).await?;
            }
            Ok((records, next))
        })
    }

    fn due(&self, mut reads: Vec<DueRead>) -> Answer<'_, Vec<DuePage>> {
        for read in &mut reads {
            if self.has(Bug::DueUntilIsExcluded) {
                read.until = read.until - std::time::Duration::from_millis(1);
            }
            if self.has(Bug::DueAfterKeySkipsItsInstant)
                && let DueBound::Key(key) = read.after
            {
                read.after = DueBound::Instant(key.position);
            }
        }
        Box::pin(async move {
            let mut pages = self.store.due(reads.clone()).await?;
            if self.has(Bug::DueNextIsLimitedByUntil) {
                for (page, read) in pages.iter_mut().zip(reads) {
                    page.next = page.next.filter(|next| *next <= read.until);
                }
            }
            Ok(pages)
        })
    }

    fn write(&self, mut writes: Vec<OwnerWrite>) -> Answer<'_, Vec<Result<Written, WriteRejection>>> {
        Box::pin(async move {
            if self.has(Bug::WritesRunBackwards) {
                writes.reverse();
            }
            if self.has(Bug::OldTermIsAccepted) {
                // This engine takes the shards again and writes under the new term. No other caller takes the shards,
                // so the effect is the same as without a check of the term.
                let shards = writes.iter().map(|write| write.poller.shard()).collect();
                let terms = self.store.take(shards).await?;
                let newest = terms.into_iter().max();
                writes.iter_mut().for_each(|write| write.term = newest.unwrap_or(write.term));
            }
            if self.has(Bug::CountsLoseTheOrigin) {
                for write in &mut writes {
                    if let Change::Run { origin, .. } = &mut write.change {
                        *origin = None;
                    }
                }
            }
            if self.has(Bug::ReopenKeepsPositions) {
                for write in &mut writes {
                    if let Change::Reopen(to) = write.change {
                        write.change = Change::Positions(to);
                    }
                }
            }
            let is_unconditional = self.has(Bug::ConditionIsIgnored) || self.has(Bug::ConditionIsCheckedBeforehand);
            if is_unconditional && !self.check_conditions(&mut writes).await? {
                return Ok(vec![Err(WriteRejection::Changed); writes.len()]);
            }
            let runs = writes.iter().map(|write| match &write.change {
                Change::Run { run, origin, .. } => Some((run.clone(), origin.clone())),
                _ => None,
            });
            let runs: Vec<_> = runs.collect();
            let mut responses = self.store.write(writes).await?;
            for (run, response) in runs.into_iter().zip(&responses) {
                let is_miscounted = match response {
                    Ok(_) => self.has(Bug::OutcomeIsCountedTwice),
                    Err(_) => self.has(Bug::RejectedOutcomeIsCounted),
                };
                let run = run.filter(|_| is_miscounted);
                self.miscounted.lock().expect("no holder of this lock panics").extend(run);
            }
            let rejected = responses.iter().find_map(|response| response.clone().err());
            match (self.bug, rejected) {
                (Bug::OneRejectionRejectsAll, Some(refusal)) => responses.fill(Err(refusal)),
                (Bug::FinalOutcomeReturnsDone, Some(WriteRejection::Resolved)) => responses.fill(Ok(Written::Done)),
                (Bug::WritesRunBackwards, _) => responses.reverse(),
                _ => {}
            }
            Ok(responses)
        })
    }
}
