//! Tests that the conformance suite detects each of several deliberate bugs in an engine.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Hour, Incarnation, Occurrence, PastTiming, PollerId, Revision, RunFilter, Schedule, ScheduleId,
    ShardId, Tenant, TenantId, Term,
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

use crate::support::{Memory, weak_and_slow};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    /// The cursor of the insert log skips the entries of inserts that are still under way. An engine has this bug if it
    /// numbers the entries before it commits them, and commits an entry with a higher number first.
    InsertLogCursorSkipsOpenInserts,
    InsertLogCursorSkipsEntries,
    ClosedIsReadBeforeTheRow,
    ClosedIsNotChecked,
    CountsIgnoreTheRange,
    /// The engine counts each run without its origin.
    CountsLoseTheOrigin,
    /// The engine applies a conditional change even if the condition does not hold.
    ConditionIsIgnored,
    ConditionIsCheckedBeforehand,
    CursorLosesCancellations,
    DeadLettersIncludeOtherTenants,
    DelaysAreLost,
    DueAfterKeySkipsItsInstant,
    DueNextIsLimitedByUntil,
    DueUntilIsExcluded,
    FinalOutcomeReturnsDone,
    HandOverIsLost,
    InsertsRunBackwards,
    ListedPageIsAlwaysLast,
    ListedPageLosesItsLastItem,
    ListOrderIsIgnored,
    LoadsAreOutOfOrder,
    ServerMadeIdIsNotVerified,
    CancellationIsReportedApplied,
    ChosenIdPageIsAlwaysLast,
    ChosenIdsAreOutOfOrder,
    NothingIsStored,
    OldTermIsAccepted,
    OneRejectionRejectsAll,
    PastTimingsIgnoreTheirStart,
    PastTimingsLoseTheAuthor,
    PayloadIsConvertedToText,
    PositionsAreOfAnotherPoller,
    ReopenKeepsPositions,
    ReopenedIsNotCounted,
    RunFilterIsIgnored,
    RunLatenessIsIgnored,
    RunListIsAlwaysLast,
    RunOrderIsIgnored,
    RunStatusIsIgnored,
    RunsAfterIsIncluded,
    RunsOfAllSchedulesAreListed,
    RunsUntilIsIncluded,
    TenantIsIgnored,
    TermsDoNotRise,
    WritesRunBackwards,
}

const CAUGHT_BY: &[(Bug, &str)] = &[
    (Bug::InsertLogCursorSkipsOpenInserts, "moving_cursor_loses_no_insert_log_entry"),
    (Bug::InsertLogCursorSkipsEntries, "moving_cursor_loses_no_insert_log_entry"),
    (Bug::ClosedIsReadBeforeTheRow, "creator_or_owner_observes_the_other"),
    (Bug::ClosedIsNotChecked, "row_behind_closed_is_moved_or_reported"),
    (Bug::CountsIgnoreTheRange, "report_adds_up_the_hours_of_its_range"),
    (Bug::CountsLoseTheOrigin, "counts_equal_a_scan_of_the_runs"),
    (Bug::ConditionIsIgnored, "conditional_cancel_spares_other_versions"),
    (Bug::ConditionIsIgnored, "put_if_unchanged_replaces_the_expected_version"),
    (Bug::ConditionIsIgnored, "put_if_absent_creates_an_id_only_once"),
    (Bug::ConditionIsCheckedBeforehand, "concurrent_put_and_cancel_agree_on_the_result"),
    (Bug::ConditionIsCheckedBeforehand, "one_of_two_concurrent_conditional_puts_succeeds"),
    (Bug::CursorLosesCancellations, "cancellation_records_stay_until_cursor_is_presented"),
    (Bug::DeadLettersIncludeOtherTenants, "dead_letters_are_read_in_pages"),
    (Bug::DelaysAreLost, "each_cause_is_explained_from_the_rows_of_the_store"),
    (Bug::DueAfterKeySkipsItsInstant, "instant_with_many_rows_is_read_in_pages"),
    (Bug::DueNextIsLimitedByUntil, "due_page_returns_position_of_the_next_row"),
    (Bug::DueUntilIsExcluded, "due_rows_are_in_key_order_within_bounds"),
    (Bug::FinalOutcomeReturnsDone, "occurrence_has_one_final_outcome"),
    (Bug::HandOverIsLost, "attempts_in_flight_are_handed_over_under_a_term"),
    (Bug::InsertsRunBackwards, "first_insert_of_an_id_in_a_batch_wins"),
    (Bug::ListedPageIsAlwaysLast, "schedules_are_listed_in_creation_order"),
    (Bug::ListedPageLosesItsLastItem, "schedules_are_listed_by_a_label"),
    (Bug::ListOrderIsIgnored, "schedules_are_listed_by_state"),
    (Bug::LoadsAreOutOfOrder, "results_of_10000_inserts_are_in_order"),
    (Bug::ServerMadeIdIsNotVerified, "chosen_id_in_server_made_form_is_only_a_name"),
    (Bug::CancellationIsReportedApplied, "cancellation_record_is_applied_or_returned"),
    (Bug::ChosenIdPageIsAlwaysLast, "chosen_ids_are_read_in_pages"),
    (Bug::ChosenIdPageIsAlwaysLast, "schedules_are_listed_in_order_of_ids"),
    (Bug::ChosenIdsAreOutOfOrder, "chosen_ids_are_read_in_pages"),
    (Bug::ChosenIdsAreOutOfOrder, "schedules_are_listed_in_order_of_ids"),
    (Bug::NothingIsStored, "data_survives_a_reopen"),
    (Bug::OldTermIsAccepted, "older_term_is_rejected_for_every_change"),
    (Bug::OneRejectionRejectsAll, "rejected_item_does_not_affect_other_items"),
    (Bug::PastTimingsIgnoreTheirStart, "past_timings_are_read_from_a_revision"),
    (Bug::PastTimingsLoseTheAuthor, "cancelled_revision_leaves_its_timing_and_author"),
    (Bug::PayloadIsConvertedToText, "every_field_of_a_schedule_is_preserved"),
    (Bug::PositionsAreOfAnotherPoller, "positions_never_decrease"),
    (Bug::ReopenKeepsPositions, "reopened_poller_keeps_its_new_rows"),
    (Bug::ReopenedIsNotCounted, "creator_observes_that_a_poller_was_reopened"),
    (Bug::RunFilterIsIgnored, "runs_are_listed_by_state_status_and_lateness"),
    (Bug::RunLatenessIsIgnored, "runs_are_listed_by_state_status_and_lateness"),
    (Bug::RunListIsAlwaysLast, "runs_are_listed_by_time"),
    (Bug::RunOrderIsIgnored, "runs_are_listed_by_time"),
    (Bug::RunStatusIsIgnored, "runs_are_listed_by_state_status_and_lateness"),
    (Bug::RunsAfterIsIncluded, "runs_are_read_in_pages"),
    (Bug::RunsOfAllSchedulesAreListed, "runs_are_listed_by_schedule_label_and_host"),
    (Bug::RunsUntilIsIncluded, "runs_are_listed_by_time"),
    (Bug::TenantIsIgnored, "tenants_are_isolated"),
    (Bug::TermsDoNotRise, "every_take_of_a_shard_returns_a_higher_term"),
    (Bug::WritesRunBackwards, "items_of_a_batch_take_effect_in_order"),
];

#[test]
fn each_deliberate_bug_is_detected_by_its_conformance_case() {
    let missed: Vec<_> =
        CAUGHT_BY.iter().filter(|(bug, case)| !(0..20).any(|seed| detects(*bug, case, seed))).collect();
    assert!(missed.is_empty(), "no seed catches {missed:?}");
}

/// Bugs that change the results of sequential calls, or the rows that these calls write.
const SEEN_BY_THE_MODEL: &[Bug] = &[
    Bug::ClosedIsNotChecked,
    Bug::ConditionIsIgnored,
    Bug::DeadLettersIncludeOtherTenants,
    Bug::DueAfterKeySkipsItsInstant,
    Bug::DueNextIsLimitedByUntil,
    Bug::DueUntilIsExcluded,
    Bug::FinalOutcomeReturnsDone,
    Bug::InsertsRunBackwards,
    Bug::ListedPageIsAlwaysLast,
    Bug::ListedPageLosesItsLastItem,
    Bug::ListOrderIsIgnored,
    Bug::LoadsAreOutOfOrder,
    Bug::CancellationIsReportedApplied,
    Bug::ChosenIdPageIsAlwaysLast,
    Bug::ChosenIdsAreOutOfOrder,
    Bug::NothingIsStored,
    Bug::OneRejectionRejectsAll,
    Bug::PayloadIsConvertedToText,
    Bug::PositionsAreOfAnotherPoller,
    Bug::ReopenKeepsPositions,
    Bug::RunFilterIsIgnored,
    Bug::RunLatenessIsIgnored,
    Bug::RunListIsAlwaysLast,
    Bug::RunOrderIsIgnored,
    Bug::RunStatusIsIgnored,
    Bug::RunsAfterIsIncluded,
    Bug::RunsOfAllSchedulesAreListed,
    Bug::RunsUntilIsIncluded,
    Bug::TenantIsIgnored,
    Bug::TermsDoNotRise,
    Bug::WritesRunBackwards,
];

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
        Arc::new(Broken { bug, store, under_way: Mutex::default() })
    })
}

/// Engine with one deliberate bug. It passes its calls on to a correct engine.
struct Broken {
    bug: Bug,
    store: MemoryStore,
    /// Due rows of the inserts that are under way.
    under_way: Mutex<BTreeSet<DueKey>>,
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
        self.store.counts(read)
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
            let mut responses = self.store.write(writes).await?;
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
