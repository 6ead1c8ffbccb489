//! Deliberate bugs in an engine, each of which the suite must see.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Incarnation, Occurrence, PollerId, Schedule, ScheduleId, ShardId, Tenant, TenantId, Term, Timestamp,
};
use futures_util::FutureExt as _;
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use runtime::Runtime;
use simulator::Simulation;
use store::memory::{MemoryOptions, MemoryStore};
use store::{
    Answer, Arrival, Change, Cursor, DueBound, DuePage, DueRead, HandOver, HandedOver, Health, Insert, Inserted,
    ListBy, ListPage, ListRead, Mark, Marked, Outdated, OwnerWrite, Placed, Positions, Store, StoreError, WriteRefusal,
    Written,
};
use store_conformance::differential::{self, Operation};

use crate::support::{Memory, weak_and_slow};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    /// As a sequence in a database whose later number can be committed first.
    ArrivalCursorPassesWhatIsUnderWay,
    ArrivalCursorSkips,
    ClosedIsReadBeforeTheRow,
    ClosedIsNotLookedAt,
    /// A change with a condition is made without one.
    ConditionIsIgnored,
    ConditionIsLookedAtBefore,
    CursorForgetsMarks,
    DeadLettersOfAnyTenant,
    DueAfterKeyLosesItsInstant,
    DueNextStopsAtUntil,
    DueUntilIsExcluded,
    FinalOutcomeIsAnsweredDone,
    HandOverIsLost,
    InsertsBackwards,
    ListedPageIsTheLast,
    ListedPageLosesItsLast,
    LoadsOutOfOrder,
    MadeIdIsTakenFromItsText,
    MarkIsClaimedApplied,
    NothingIsKept,
    OldTermPasses,
    OneRefusalRefusesAll,
    PayloadIsMadeText,
    PositionsOfAnotherPoller,
    RunsAfterIsIncluded,
    TenantIsIgnored,
    TermsStay,
    WritesBackwards,
}

const CAUGHT_BY: &[(Bug, &str)] = &[
    (Bug::ArrivalCursorPassesWhatIsUnderWay, "no_arrival_is_lost_under_a_moving_cursor"),
    (Bug::ArrivalCursorSkips, "no_arrival_is_lost_under_a_moving_cursor"),
    (Bug::ClosedIsReadBeforeTheRow, "a_creator_or_the_owner_sees_the_other"),
    (Bug::ClosedIsNotLookedAt, "a_creator_behind_closed_is_moved_or_can_see_it"),
    (Bug::ConditionIsIgnored, "a_cancel_of_an_edition_spares_every_other"),
    (Bug::ConditionIsIgnored, "a_put_if_nothing_has_changed_replaces_what_was_seen"),
    (Bug::ConditionIsIgnored, "a_put_if_nothing_is_there_makes_an_id_only_once"),
    (Bug::ConditionIsLookedAtBefore, "a_put_and_a_cancel_at_once_agree_on_what_was_there"),
    (Bug::ConditionIsLookedAtBefore, "of_puts_at_once_that_saw_the_same_one_takes_effect"),
    (Bug::CursorForgetsMarks, "marks_are_kept_until_their_cursor_is_presented"),
    (Bug::DeadLettersOfAnyTenant, "dead_letters_are_read_in_pages"),
    (Bug::DueAfterKeyLosesItsInstant, "an_instant_with_many_rows_is_read_in_pages"),
    (Bug::DueNextStopsAtUntil, "a_due_page_says_where_the_next_row_is"),
    (Bug::DueUntilIsExcluded, "due_rows_come_in_key_order_between_their_bounds"),
    (Bug::FinalOutcomeIsAnsweredDone, "an_occurrence_has_one_final_outcome"),
    (Bug::HandOverIsLost, "what_is_in_flight_is_handed_over_under_a_term"),
    (Bug::InsertsBackwards, "of_two_inserts_of_one_id_in_a_batch_the_first_wins"),
    (Bug::ListedPageIsTheLast, "schedules_are_listed_in_the_order_of_their_making"),
    (Bug::ListedPageLosesItsLast, "schedules_are_listed_by_a_label"),
    (Bug::LoadsOutOfOrder, "a_batch_of_ten_thousand_is_answered_in_order"),
    (Bug::MadeIdIsTakenFromItsText, "a_chosen_id_in_the_form_of_a_made_one_is_only_a_name"),
    (Bug::MarkIsClaimedApplied, "a_mark_is_applied_or_told_to_the_owner"),
    (Bug::NothingIsKept, "everything_is_there_after_a_reopen"),
    (Bug::OldTermPasses, "an_older_term_is_refused_for_every_change"),
    (Bug::OneRefusalRefusesAll, "a_refused_item_leaves_the_others_alone"),
    (Bug::PayloadIsMadeText, "every_field_and_every_byte_of_a_schedule_is_kept"),
    (Bug::PositionsOfAnotherPoller, "positions_never_go_back"),
    (Bug::RunsAfterIsIncluded, "runs_are_read_in_pages"),
    (Bug::TenantIsIgnored, "tenants_are_apart"),
    (Bug::TermsStay, "terms_rise"),
    (Bug::WritesBackwards, "items_of_a_batch_take_effect_in_order"),
];

#[test]
fn each_deliberate_bug_is_caught_by_its_case() {
    let missed: Vec<_> =
        CAUGHT_BY.iter().filter(|(bug, case)| !(0..20).any(|seed| catches(*bug, case, seed))).collect();
    assert!(missed.is_empty(), "no seed catches {missed:?}");
}

/// Those that show in the answers to calls made one after another, and in what the calls leave.
const SEEN_BY_THE_MODEL: &[Bug] = &[
    Bug::ClosedIsNotLookedAt,
    Bug::ConditionIsIgnored,
    Bug::DeadLettersOfAnyTenant,
    Bug::DueAfterKeyLosesItsInstant,
    Bug::DueNextStopsAtUntil,
    Bug::DueUntilIsExcluded,
    Bug::FinalOutcomeIsAnsweredDone,
    Bug::InsertsBackwards,
    Bug::ListedPageIsTheLast,
    Bug::ListedPageLosesItsLast,
    Bug::LoadsOutOfOrder,
    Bug::MarkIsClaimedApplied,
    Bug::NothingIsKept,
    Bug::OneRefusalRefusesAll,
    Bug::PayloadIsMadeText,
    Bug::PositionsOfAnotherPoller,
    Bug::RunsAfterIsIncluded,
    Bug::TenantIsIgnored,
    Bug::TermsStay,
    Bug::WritesBackwards,
];

#[test]
fn the_comparison_with_the_model_catches_what_shows_in_answers() {
    let sequences = sequences(200);
    let missed: Vec<_> =
        SEEN_BY_THE_MODEL.iter().filter(|bug| !sequences.iter().any(|it| differs(**bug, it))).collect();
    assert!(missed.is_empty(), "{} sequences do not show {missed:?}", sequences.len());
}

/// The same on every run.
fn sequences(count: usize) -> Vec<Vec<Operation>> {
    let mut runner = TestRunner::deterministic();
    let operations = differential::operations(30);
    let mut draw = || operations.new_tree(&mut runner).expect("nothing is rejected").current();
    (0..count).map(|_| draw()).collect()
}

/// Whether an engine with this bug differs from the model over these calls.
fn differs(bug: Bug, operations: &[Operation]) -> bool {
    let sim = Simulation::new(1);
    sim.run_until(async {
        let model = MemoryStore::new(sim.member("b"), MemoryOptions::weak());
        let subject = broken(bug, sim.member("a"));
        AssertUnwindSafe(differential::compare(&subject, &model, operations)).catch_unwind().await.is_err()
    })
}

/// Whether the case fails on an engine with this bug. (That it passes on one without is what the suites show.)
fn catches(bug: Bug, case: &str, seed: u64) -> bool {
    let sim = Simulation::new(seed);
    sim.run_until(async {
        let subject = broken(bug, sim.member("a"));
        AssertUnwindSafe(store_conformance::case(case).run(&subject)).catch_unwind().await.is_err()
    })
}

fn broken(bug: Bug, runtime: Runtime) -> Memory {
    Memory::new(runtime.clone(), weak_and_slow()).broken(move |store| {
        let nothing = MemoryStore::new(runtime.clone(), weak_and_slow());
        let store = if bug == Bug::NothingIsKept { nothing } else { store };
        Arc::new(Broken { bug, store, under_way: Mutex::default() })
    })
}

/// An engine with one bug, made of one without.
struct Broken {
    bug: Bug,
    store: MemoryStore,
    /// The rows of inserts that are not answered yet.
    under_way: Mutex<BTreeSet<DueKey>>,
}

impl Broken {
    fn has(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    /// Makes changes without their conditions; refuses those whose condition does not hold now.
    async fn look_before(&self, writes: &mut [OwnerWrite]) -> Result<bool, StoreError> {
        for write in writes {
            write.change = match write.change.clone() {
                Change::PutIf { insert, seen } => {
                    let name = (insert.schedule.tenant, insert.schedule.id.clone());
                    let now = self.store.get(vec![name]).await?.pop().flatten();
                    if self.has(Bug::ConditionIsLookedAtBefore) && now.map(|now| now.seen()) != seen {
                        return Ok(false);
                    }
                    Change::Put(insert)
                }
                Change::CancelIf(edition) => {
                    let now = self.store.load(vec![edition.incarnation]).await?.pop().flatten();
                    if self.has(Bug::ConditionIsLookedAtBefore) && now.map(|now| now.edition()) != Some(edition) {
                        return Ok(false);
                    }
                    Change::Cancel(edition.incarnation)
                }
                other => other,
            };
        }
        Ok(true)
    }

    async fn insert_without_looking(&self, inserts: Vec<Insert>, closed: Option<Vec<Timestamp>>) -> Vec<Inserted> {
        let mut inserts = inserts;
        for (insert, closed) in inserts.iter_mut().zip(closed.into_iter().flatten()) {
            insert.due.position = insert.due.position.max(closed + std::time::Duration::from_millis(1));
        }
        let mut answers = self.store.insert(inserts).await.expect("the model does not fail");
        for answer in &mut answers {
            if let Inserted::Placed(Placed { settled, .. }) = answer {
                *settled = true;
            }
        }
        answers
    }
}

impl Store for Broken {
    fn insert(&self, mut inserts: Vec<Insert>) -> Answer<'_, Vec<Inserted>> {
        Box::pin(async move {
            match self.bug {
                Bug::ClosedIsNotLookedAt => return Ok(self.insert_without_looking(inserts, None).await),
                Bug::ClosedIsReadBeforeTheRow => {
                    let pollers = inserts.iter().map(|insert| insert.schedule.poller).collect();
                    let closed = self.store.closed(pollers).await?;
                    return Ok(self.insert_without_looking(inserts, Some(closed)).await);
                }
                Bug::PayloadIsMadeText => {
                    for insert in &mut inserts {
                        let schedule = Arc::make_mut(&mut insert.schedule);
                        let text = String::from_utf8_lossy(&schedule.spec.payload).into_owned();
                        schedule.spec.payload = text.into();
                    }
                }
                Bug::InsertsBackwards => {
                    inserts.reverse();
                    let mut answers = self.store.insert(inserts).await?;
                    answers.reverse();
                    return Ok(answers);
                }
                _ => {}
            }
            let rows: BTreeSet<DueKey> = inserts.iter().map(|insert| insert.due).collect();
            self.under_way.lock().expect("nothing panics with it").extend(&rows);
            let answers = self.store.insert(inserts).await;
            self.under_way.lock().expect("nothing panics with it").retain(|row| !rows.contains(row));
            answers
        })
    }

    fn closed(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Timestamp>> {
        self.store.closed(pollers)
    }

    fn place(&self, rows: Vec<(PollerId, DueKey)>) -> Answer<'_, Vec<Placed>> {
        self.store.place(rows)
    }

    fn mark(&self, marks: Vec<Mark>) -> Answer<'_, Vec<Marked>> {
        Box::pin(async move {
            let mut answers = self.store.mark(marks).await?;
            for answer in &mut answers {
                answer.applied |= self.has(Bug::MarkIsClaimedApplied);
            }
            Ok(answers)
        })
    }

    fn get(&self, mut names: Vec<(TenantId, ScheduleId)>) -> Answer<'_, Vec<Option<Arc<Schedule>>>> {
        if self.has(Bug::MadeIdIsTakenFromItsText)
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
        if self.has(Bug::LoadsOutOfOrder) {
            incarnations.sort();
        }
        self.store.load(incarnations)
    }

    fn list(&self, read: ListRead) -> Answer<'_, ListPage> {
        Box::pin(async move {
            let mut page = self.store.list(read).await?;
            if self.has(Bug::ListedPageLosesItsLast) && read.by != ListBy::All {
                page.incarnations.pop();
            }
            page.next = page.next.filter(|_| !self.has(Bug::ListedPageIsTheLast));
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

    fn dead_letters(&self, tenant: TenantId, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>> {
        Box::pin(async move {
            let mut dead = self.store.dead_letters(tenant, after, limit).await?;
            if self.has(Bug::DeadLettersOfAnyTenant) {
                dead.extend(self.store.dead_letters(TenantId(tenant.0 + 1), after, limit).await?);
            }
            Ok(dead)
        })
    }

    fn active(&self, tenants: Vec<TenantId>) -> Answer<'_, Vec<u64>> {
        self.store.active(tenants)
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
            if self.has(Bug::TermsStay) {
                terms.fill(Term(1));
            }
            Ok(terms)
        })
    }

    fn hand_over(&self, mut lists: Vec<HandOver>) -> Answer<'_, Vec<Result<(), WriteRefusal>>> {
        if self.has(Bug::HandOverIsLost) {
            lists.iter_mut().for_each(|list| list.attempts.clear());
        }
        self.store.hand_over(lists)
    }

    fn handed_over(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Vec<HandedOver>>> {
        self.store.handed_over(shards)
    }

    fn positions(&self, mut pollers: Vec<PollerId>) -> Answer<'_, Vec<Positions>> {
        if self.has(Bug::PositionsOfAnotherPoller) {
            pollers.iter_mut().for_each(|poller| poller.number = 0);
        }
        self.store.positions(pollers)
    }

    fn arrivals(&self, shards: Arc<[ShardId]>, cursor: Cursor, limit: usize) -> Answer<'_, (Vec<Arrival>, Cursor)> {
        Box::pin(async move {
            let (mut told, next) = self.store.arrivals(shards, cursor, limit).await?;
            if self.has(Bug::ArrivalCursorSkips) && told.len() == limit {
                told.pop();
            }
            if self.has(Bug::ArrivalCursorPassesWhatIsUnderWay) {
                let under_way = self.under_way.lock().expect("nothing panics with it");
                told.retain(|arrival| !under_way.contains(&arrival.key));
            }
            Ok((told, next))
        })
    }

    fn marks(&self, shards: Arc<[ShardId]>, cursor: Cursor) -> Answer<'_, (Vec<(ShardId, Incarnation)>, Cursor)> {
        Box::pin(async move {
            let (told, next) = self.store.marks(shards.clone(), cursor).await?;
            if self.has(Bug::CursorForgetsMarks) {
                self.store.marks(shards, next).await?;
            }
            Ok((told, next))
        })
    }

    fn due(&self, mut reads: Vec<DueRead>) -> Answer<'_, Vec<DuePage>> {
        for read in &mut reads {
            if self.has(Bug::DueUntilIsExcluded) {
                read.until = read.until - std::time::Duration::from_millis(1);
            }
            if self.has(Bug::DueAfterKeyLosesItsInstant)
                && let DueBound::Key(key) = read.after
            {
                read.after = DueBound::Instant(key.position);
            }
        }
        Box::pin(async move {
            let mut pages = self.store.due(reads.clone()).await?;
            if self.has(Bug::DueNextStopsAtUntil) {
                for (page, read) in pages.iter_mut().zip(reads) {
                    page.next = page.next.filter(|next| *next <= read.until);
                }
            }
            Ok(pages)
        })
    }

    fn write(&self, mut writes: Vec<OwnerWrite>) -> Answer<'_, Vec<Result<Written, WriteRefusal>>> {
        Box::pin(async move {
            if self.has(Bug::WritesBackwards) {
                writes.reverse();
            }
            if self.has(Bug::OldTermPasses) {
                // No other takes the shards meanwhile: as good as not looking at the term.
                let shards = writes.iter().map(|write| write.poller.shard()).collect();
                let terms = self.store.take(shards).await?;
                let newest = terms.into_iter().max();
                writes.iter_mut().for_each(|write| write.term = newest.unwrap_or(write.term));
            }
            let is_unconditional = self.has(Bug::ConditionIsIgnored) || self.has(Bug::ConditionIsLookedAtBefore);
            if is_unconditional && !self.look_before(&mut writes).await? {
                return Ok(vec![Err(WriteRefusal::Changed); writes.len()]);
            }
            let mut answers = self.store.write(writes).await?;
            let refused = answers.iter().find_map(|answer| answer.clone().err());
            match (self.bug, refused) {
                (Bug::OneRefusalRefusesAll, Some(refusal)) => answers.fill(Err(refusal)),
                (Bug::FinalOutcomeIsAnsweredDone, Some(WriteRefusal::Resolved)) => answers.fill(Ok(Written::Done)),
                (Bug::WritesBackwards, _) => answers.reverse(),
                _ => {}
            }
            Ok(answers)
        })
    }
}
