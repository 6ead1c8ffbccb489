//! Mover of the inbox: it carries out the requests that applications wrote to the inbox inside their own transactions.
//!
//! Each member moves the entries of its own shards, so an unreachable member delays only the entries of its own shards.
//! The mover judges an entry, makes the effect of the entry durable, and then settles the entry. If a member dies
//! between these steps, the next owner of the shard processes the entry again. The second create has no effect, because
//! the entry contains the incarnation of the schedule.
//!
//! If the mover rejects an entry, the inbox keeps it as a dead letter with the reason. An entry that fails stays in the
//! inbox and does not delay other entries, except later entries with the same id.
//!
//! Invariant: the mover settles an entry only after the entry's effect is durable, or after it has rejected the entry.
//!
//! docs/decisions/0209-let-owners-move-the-entries-of-the-inbox.md gives the reasons for the design.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use domain::quota::{Rate, TokenBucket};
use domain::{Author, Incarnation, PollerId, Quota, ScheduleId, ShardId, Spec, Tenant, TenantId, Timestamp};
use futures_util::FutureExt as _;
use runtime::Monotonic;
use store::{Cancellation, Health, Inbox, InboxEntry, InboxRead, StoreError};

use crate::changes::Changes;
use crate::metrics::count_store_error;
use crate::requests::{Create, CreateRejection, OwnerError};
use crate::shared::Shared;
use crate::tenants::Tenants;

/// Function that parses and judges the spec of an entry. It receives the text of the spec, the tenant, and the present
/// instant. Its error is the reason why the mover rejects the entry.
pub type ReadSpec = Arc<dyn Fn(&str, &Tenant, Timestamp) -> Result<Spec, String> + Send + Sync>;

/// Time between two reads of the inbox. After the commit of the application's transaction, an entry may wait this long
/// until the owner reads it.
const PERIOD: Duration = Duration::from_millis(200);
/// Author of the cancellations that applications requested in SQL.
const INBOX_AUTHOR: &str = "inbox";
/// Time between two publications of the usage.
const PUBLISH_PERIOD: Duration = Duration::from_secs(1);
/// Maximum number of entries in one read.
const ENTRIES_MAX: usize = 500;
/// Time until the next step after a step that failed.
const RETRY_WAIT: Duration = Duration::from_secs(1);
/// Number of times that an entry may fail alone, while the store creates the schedules of other entries. After that,
/// the mover rejects the entry.
const TRIES_MAX: u32 = 10;

pub(crate) struct Mover {
    shared: Arc<Shared>,
    changes: Arc<Changes>,
    inbox: Arc<dyn Inbox>,
    read_spec: ReadSpec,
    /// Rates at which this member creates the schedules that each tenant requested.
    rates: BTreeMap<TenantId, TokenBucket>,
    /// Number of times that each entry has failed alone until the previous step, and until this step.
    failures: BTreeMap<u64, u32>,
    failing: BTreeMap<u64, u32>,
    published_at: Option<Monotonic>,
}

/// Entry of the inbox whose parts are valid.
struct Judged {
    number: u64,
    tenant: TenantId,
    id: ScheduleId,
    effect: Effect,
}

enum Effect {
    Create { poller: PollerId, request: Box<Create> },
    Cancel,
}

/// Entry of the inbox that the mover rejects.
struct Rejected {
    number: u64,
    tenant: TenantId,
    id: String,
    reason: String,
}

/// Result of an attempt to move an entry.
enum Outcome {
    /// The effect is durable.
    Moved,
    Rejected(String),
    /// The entry stays in the inbox, and the mover or another owner tries it again.
    Waits,
}

/// Failure of the creation of one or more schedules.
enum Failure {
    NotOwned,
    Failed(String),
}

type Created = Result<(), CreateRejection>;

impl Mover {
    pub(crate) fn new(shared: Arc<Shared>, changes: Arc<Changes>, inbox: Arc<dyn Inbox>, read_spec: ReadSpec) -> Self {
        let (rates, failures, failing) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Mover { shared, changes, inbox, read_spec, rates, failures, failing, published_at: None }
    }

    /// Moves entries until the caller drops the future.
    pub(crate) async fn run(mut self) {
        loop {
            let wait = match AssertUnwindSafe(self.step()).catch_unwind().await {
                Ok(Ok(())) => PERIOD,
                Ok(Err(error)) => {
                    count_store_error(&self.shared.metrics, "inbox", &error);
                    RETRY_WAIT
                }
                Err(_) => {
                    self.shared.metrics.panics.inc();
                    tracing::error!("mover of the inbox panicked; it continues with its next step");
                    RETRY_WAIT
                }
            };
            self.shared.runtime.sleep(wait).await;
        }
    }

    /// Publishes the usage. Then moves the entries of this member's shards until no entry is left that this member can
    /// move now.
    async fn step(&mut self) -> Result<(), StoreError> {
        self.publish().await;
        self.failures = std::mem::take(&mut self.failing);
        let mut throttled = BTreeSet::new();
        loop {
            let is_valid = self.shared.lease.is_valid(self.shared.runtime.monotonic());
            let shards: Arc<[ShardId]> = if is_valid { self.shared.shards.owned().into() } else { Arc::new([]) };
            if shards.is_empty() {
                return Ok(());
            }
            let except: Vec<TenantId> = throttled.iter().copied().collect();
            let (count_before, limit) = (except.len(), ENTRIES_MAX);
            let entries = self.inbox.read_inbox(InboxRead { shards, except, limit }).await?;
            let is_last = entries.len() < limit;
            let settled = self.move_entries(entries, &mut throttled).await?;
            let is_stuck = settled == 0 && throttled.len() == count_before;
            if is_last || is_stuck {
                return Ok(());
            }
        }
    }

    /// Publishes the usage, unless the period since the last publication has not passed yet.
    async fn publish(&mut self) {
        let now = self.shared.runtime.monotonic();
        if self.published_at.is_some_and(|at| now.since(at) < PUBLISH_PERIOD) {
            return;
        }
        self.published_at = Some(now);
        match self.inbox.publish_usage().await {
            Ok(state) => self.shared.metrics.set_inbox(&state, self.shared.runtime.now()),
            Err(error) => count_store_error(&self.shared.metrics, "inbox", &error),
        }
    }

    /// Moves the entries, and returns the number of entries that it settled. Adds the tenants that have reached the
    /// quota `creates_per_second` to `throttled`, and leaves the remaining entries of these tenants in the inbox.
    async fn move_entries(
        &mut self,
        entries: Vec<InboxEntry>,
        throttled: &mut BTreeSet<TenantId>,
    ) -> Result<usize, StoreError> {
        let mut rejected = Vec::new();
        // Entries with the same id belong to separate waves, because they must take effect in their order.
        let mut waves: Vec<Vec<Judged>> = Vec::new();
        let mut wave_of: BTreeMap<(TenantId, ScheduleId), usize> = BTreeMap::new();
        self.know_tenants(&entries).await?;
        for entry in entries {
            if throttled.contains(&entry.tenant) || !self.admit(&entry) {
                throttled.insert(entry.tenant);
                continue;
            }
            let (number, tenant, id) = (entry.number, entry.tenant, entry.id.clone());
            match self.judge(entry) {
                Ok(judged) => {
                    let wave = wave_of.entry((judged.tenant, judged.id.clone())).or_default();
                    if waves.len() == *wave {
                        waves.push(Vec::new());
                    }
                    waves[*wave].push(judged);
                    *wave += 1;
                }
                Err(reason) => rejected.push(Rejected { number, tenant, id, reason }),
            }
        }
        let mut settled = self.settle(Vec::new(), rejected).await?;
        let mut blocked = BTreeSet::new();
        for wave in waves {
            let free = wave.into_iter().filter(|entry| !blocked.contains(&(entry.tenant, entry.id.clone()))).collect();
            let (mut moved, mut rejected) = (Vec::new(), Vec::new());
            for (entry, outcome) in self.move_wave(free).await? {
                match outcome {
                    Outcome::Moved => moved.push(entry.number),
                    Outcome::Rejected(reason) => {
                        let Judged { number, tenant, id, .. } = entry;
                        rejected.push(Rejected { number, tenant, id: id.to_string(), reason });
                    }
                    Outcome::Waits => {
                        blocked.insert((entry.tenant, entry.id));
                    }
                }
            }
            settled += self.settle(moved, rejected).await?;
        }
        Ok(settled)
    }

    /// Reads the tenants again if this member does not know the tenant or the poller of one of the entries.
    async fn know_tenants(&self, entries: &[InboxEntry]) -> Result<(), StoreError> {
        let is_known = |entry: &InboxEntry| {
            self.shared.tenants.get(entry.tenant).is_some_and(|tenant| has_poller(&tenant, entry.poller))
        };
        if entries.iter().all(is_known) { Ok(()) } else { Tenants::new(self.shared.clone()).refresh().await }
    }

    /// Takes a token of the tenant's quota `creates_per_second`. Returns false if no token is available.
    fn admit(&mut self, entry: &InboxEntry) -> bool {
        let tenant = self.shared.tenants.get(entry.tenant).filter(|_| entry.spec.is_some());
        let per_second = tenant.and_then(|tenant| tenant.quotas.get(Quota::CreatesPerSecond));
        let Some(per_second) = per_second else { return true };
        let rate = Rate::new(per_second, Duration::from_secs(1));
        self.rates.entry(entry.tenant).or_default().take(rate, self.shared.runtime.monotonic().since_start())
    }

    fn judge(&self, entry: InboxEntry) -> Result<Judged, String> {
        let InboxEntry { number, tenant, id, poller, incarnation, spec } = entry;
        let id = ScheduleId::new(&id).map_err(|error| error.to_string())?;
        let Some(spec) = spec else { return Ok(Judged { number, tenant, id, effect: Effect::Cancel }) };
        let known = self.shared.tenants.get(tenant).ok_or("the tenant does not exist")?;
        if !has_poller(&known, poller) {
            return Err(format!("the tenant has no poller {poller:?}"));
        }
        // The text comes from a user. If it makes the parser panic, the other entries must still be moved.
        let now = self.shared.runtime.now();
        let read = std::panic::catch_unwind(AssertUnwindSafe(|| (self.read_spec)(&spec, &known, now)));
        let spec = read.unwrap_or_else(|_| {
            self.shared.metrics.panics.inc();
            Err("the check of the spec panicked".to_owned())
        })?;
        let by = Some(INBOX_AUTHOR.to_owned());
        let request = Create { tenant: known, id: Some(id.clone()), incarnation: Some(incarnation), spec, by };
        Ok(Judged { number, tenant, id, effect: Effect::Create { poller, request: Box::new(request) } })
    }

    /// Moves entries with different ids.
    async fn move_wave(&mut self, wave: Vec<Judged>) -> Result<Vec<(Judged, Outcome)>, StoreError> {
        let (creates, cancels): (Vec<Judged>, Vec<Judged>) =
            wave.into_iter().partition(|entry| matches!(entry.effect, Effect::Create { .. }));
        let mut outcomes = self.create_all(creates).await?;
        outcomes.extend(self.cancel_all(cancels).await?);
        Ok(outcomes)
    }

    /// Creates the schedules of these entries in one call. If the call fails, creates each schedule alone, so that one
    /// entry cannot stop the others.
    async fn create_all(&mut self, entries: Vec<Judged>) -> Result<Vec<(Judged, Outcome)>, StoreError> {
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        match self.try_create(&entries).await {
            Ok(results) => {
                let outcomes = self.outcomes_of(&entries, results).await?;
                return Ok(entries.into_iter().zip(outcomes).collect());
            }
            Err(Failure::Failed(error)) => tracing::debug!(error, "cannot create the schedules of the inbox together"),
            Err(Failure::NotOwned) => {}
        }
        let mut outcomes = Vec::with_capacity(entries.len());
        let mut failed = Vec::new();
        let mut has_succeeded = false;
        for entry in entries {
            // If the store accepts no calls now, the failure is not the fault of an entry.
            if self.shared.store.health() != Health::Ready {
                outcomes.push((entry, Outcome::Waits));
                continue;
            }
            match self.try_create(std::slice::from_ref(&entry)).await {
                Ok(results) => {
                    has_succeeded = true;
                    let outcome = self.outcomes_of(std::slice::from_ref(&entry), results).await?.pop();
                    outcomes.push((entry, outcome.expect("each entry has one outcome")));
                }
                Err(Failure::NotOwned) => outcomes.push((entry, Outcome::Waits)),
                Err(Failure::Failed(error)) => failed.push((entry, error)),
            }
        }
        for (entry, error) in failed {
            let before = self.failures.get(&entry.number).copied().unwrap_or(0);
            let tries = before + u32::from(has_succeeded);
            self.failing.insert(entry.number, tries);
            tracing::warn!(number = entry.number, id = entry.id.as_str(), error, "cannot move an entry of the inbox");
            outcomes.push((entry, if tries >= TRIES_MAX { Outcome::Rejected(error) } else { Outcome::Waits }));
        }
        Ok(outcomes)
    }

    async fn try_create(&self, entries: &[Judged]) -> Result<Vec<Created>, Failure> {
        let mut pollers = Vec::with_capacity(entries.len());
        let mut requests = Vec::with_capacity(entries.len());
        for entry in entries {
            if let Effect::Create { poller, request } = &entry.effect {
                pollers.push(*poller);
                requests.push((**request).clone());
            }
        }
        let creating = AssertUnwindSafe(self.changes.create_in(requests, Some(&pollers))).catch_unwind();
        match Box::pin(creating).await {
            Ok(Ok(results)) => Ok(results.into_iter().map(|result| result.map(drop)).collect()),
            Ok(Err(OwnerError::NotOwned)) => Err(Failure::NotOwned),
            Ok(Err(OwnerError::Failed(error))) => Err(Failure::Failed(error.to_string())),
            Err(_) => {
                self.shared.metrics.panics.inc();
                Err(Failure::Failed("the creation of the schedule panicked".to_owned()))
            }
        }
    }

    async fn outcomes_of(&self, entries: &[Judged], results: Vec<Created>) -> Result<Vec<Outcome>, StoreError> {
        let incarnation_of = |entry: &Judged| match &entry.effect {
            Effect::Create { request, .. } => request.incarnation,
            Effect::Cancel => None,
        };
        let is_existing = |(_, result): &(&Judged, &Created)| **result == Err(CreateRejection::Exists);
        let existing: Vec<Incarnation> =
            entries.iter().zip(&results).filter(is_existing).filter_map(|(entry, _)| incarnation_of(entry)).collect();
        // An earlier attempt to move an entry may have created its schedule.
        let loaded = if existing.is_empty() { Vec::new() } else { self.shared.store.load(existing).await? };
        let created: BTreeSet<Incarnation> =
            loaded.into_iter().flatten().map(|schedule| schedule.incarnation).collect();
        let outcome_of = |(entry, result): (&Judged, Created)| match result {
            Ok(()) => Outcome::Moved,
            Err(CreateRejection::Exists) if incarnation_of(entry).is_some_and(|it| created.contains(&it)) => {
                Outcome::Moved
            }
            Err(CreateRejection::Unreachable) => Outcome::Waits,
            Err(rejection @ (CreateRejection::Exists | CreateRejection::NeverFires)) => {
                Outcome::Rejected(rejection.to_string())
            }
        };
        Ok(entries.iter().zip(results).map(outcome_of).collect())
    }

    /// Appends a cancellation record for each entry. The owner of the schedule applies the record, if the store has not
    /// applied it. The owner may be another member if the schedule is older than the newest generation of pollers.
    async fn cancel_all(&self, entries: Vec<Judged>) -> Result<Vec<(Judged, Outcome)>, StoreError> {
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let author = Some(Author { at: self.shared.runtime.now(), key: Some(INBOX_AUTHOR.to_owned()) });
        let cancellation = |entry: &Judged| {
            let (tenant, id, author) = (entry.tenant, entry.id.clone(), author.clone());
            Cancellation { tenant, id, author }
        };
        let recorded = self.shared.store.append_cancellations(entries.iter().map(cancellation).collect()).await?;
        for result in recorded {
            let Some(schedule) = result.before else { continue };
            // If this call fails, the owner applies the record in its next read of the cancellation records.
            let _record_is_durable = self.changes.cancel(schedule.poller, schedule.incarnation, result.applied).await;
        }
        Ok(entries.into_iter().map(|entry| (entry, Outcome::Moved)).collect())
    }

    /// Settles entries, and returns their number.
    async fn settle(&self, moved: Vec<u64>, rejected: Vec<Rejected>) -> Result<usize, StoreError> {
        let (moved_count, rejected_count) = (moved.len(), rejected.len());
        if moved_count + rejected_count == 0 {
            return Ok(0);
        }
        let reasons = rejected.iter().map(|entry| (entry.number, entry.reason.clone())).collect();
        self.inbox.settle_inbox(moved, reasons).await?;
        for Rejected { number, tenant, id, reason } in rejected {
            let tenant = self.shared.tenants.get(tenant).map_or_else(String::new, |tenant| tenant.name.clone());
            tracing::warn!(number, tenant, id, reason, "rejected a request of the inbox and kept it as a dead letter");
        }
        self.shared.metrics.inbox_moved.inc_by(moved_count as u64);
        self.shared.metrics.inbox_rejected.inc_by(rejected_count as u64);
        Ok(moved_count + rejected_count)
    }
}

/// Returns true if the tenant has this poller.
fn has_poller(tenant: &Tenant, poller: PollerId) -> bool {
    let pollers = tenant.generations.get(usize::from(poller.generation));
    poller.tenant == tenant.id && pollers.is_some_and(|pollers| poller.number < *pollers)
}
