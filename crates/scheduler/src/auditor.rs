//! Auditor. The leader compares the outcomes in the store with the timings of the schedules, again and again, and
//! reports the differences that last.
//!
//! The module [`store::audit`] reads the facts, and [`domain::audit`] compares them. This module limits the rate of the
//! reads, repeats the examination of suspects, and keeps the result in memory. A new leader starts with a pass over the
//! whole audited stretch, so no progress is stored.
//!
//! Invariants: the auditor only reads. While another task of this member reads for users, the auditor waits for its
//! turn like any tenant. Two leaders at the same time are harmless.
//!
//! docs/decisions/0245-compare-outcomes-with-timings.md gives the reasons for the design.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::{TenantId, Timestamp};
use runtime::{Monotonic, Runtime};
use store::StoreError;
use store::audit::{NamedDifference, Pace, examine, suspects};

use crate::metrics::count_store_error;
use crate::requests::{AuditFinding, AuditReport};
use crate::shared::Shared;
use crate::turns::Turn;

/// Time from the start of this member to its first pass.
const START_PAUSE: Duration = Duration::from_secs(10);
/// Time between two passes.
const PASS_PAUSE: Duration = Duration::from_secs(60);
/// Time between the two examinations of the suspects. A hand-over, a store failure or a creator that confirms its row
/// takes less time.
const EXAMINE_AGAIN_AFTER: Duration = Duration::from_secs(30);
/// Length of the audited stretch. No class of retention deletes history that is younger than a day, also not during a
/// change of the class. The rest of the day is a margin for clocks.
const STRETCH: Duration = Duration::from_secs(22 * 3_600);
/// Difference between the retention of a store and the audited stretch of a store with a shorter retention.
const HISTORY_MARGIN: Duration = Duration::from_secs(2 * 3_600);
/// Shortest and longest time between two slices of reads. In between, the auditor rests [`REST_FACTOR`] times as long
/// as the last slice took.
const REST_MIN: Duration = Duration::from_millis(5);
const REST_MAX: Duration = Duration::from_secs(5);
const REST_FACTOR: u32 = 9;
/// Time between two checks of the leadership.
const LEADERSHIP_PERIOD: Duration = Duration::from_secs(1);
/// Maximum number of differences that the auditor keeps.
pub(crate) const FINDINGS_MAX: usize = 10_000;
/// Maximum number of differences in one report.
const REPORTED_MAX: usize = 1_000;

/// Result of the audits of this member. It is empty unless this member is the leader.
#[derive(Debug, Default)]
pub(crate) struct Audits(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Differences of the last complete audit, with the instants at which an audit first found them.
    findings: BTreeMap<NamedDifference, Timestamp>,
    from: Option<Timestamp>,
    completed_at: Option<Timestamp>,
    is_truncated: bool,
}

impl Audits {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Returns the result for one tenant, or for all tenants.
    pub(crate) fn report(&self, tenant: Option<TenantId>) -> AuditReport {
        let kept = self.kept();
        let is_visible = |named: &NamedDifference| tenant.is_none_or(|tenant| named.tenant == tenant);
        let visible = || kept.findings.iter().filter(|(named, _)| is_visible(named));
        let finding = |(named, found_at): (&NamedDifference, &Timestamp)| {
            let NamedDifference { tenant, difference, ref schedule } = *named;
            AuditFinding { tenant, schedule: schedule.clone(), difference, found_at: *found_at }
        };
        AuditReport {
            from: kept.from,
            completed_at: kept.completed_at,
            unaccounted: u32::try_from(visible().count()).unwrap_or(u32::MAX),
            is_truncated: kept.is_truncated || visible().count() > REPORTED_MAX,
            findings: visible().take(REPORTED_MAX).map(finding).collect(),
        }
    }

    fn clear(&self) {
        *self.kept() = Kept::default();
    }

    /// Replaces the result. Returns the new differences, and the number of differences that no longer exist.
    fn replace(&self, found: BTreeSet<NamedDifference>, pass: &Pass, now: Timestamp) -> (Vec<NamedDifference>, usize) {
        let mut kept = self.kept();
        let before = std::mem::take(&mut kept.findings);
        kept.is_truncated = pass.is_truncated || found.len() > FINDINGS_MAX;
        (kept.from, kept.completed_at) = (Some(pass.from), Some(now));
        let mut new = Vec::new();
        for named in found.into_iter().take(FINDINGS_MAX) {
            let found_at = before.get(&named).copied();
            if found_at.is_none() {
                new.push(named.clone());
            }
            kept.findings.insert(named, found_at.unwrap_or(now));
        }
        let gone = before.keys().filter(|named| !kept.findings.contains_key(*named)).count();
        (new, gone)
    }

    fn len(&self) -> usize {
        self.kept().findings.len()
    }
}

/// Properties of a pass.
struct Pass {
    from: Timestamp,
    is_truncated: bool,
}

/// Audits the store while `leads` returns true. Never returns.
pub(crate) async fn audit(shared: Arc<Shared>, leads: impl Fn() -> bool) {
    let mut pause = START_PAUSE;
    loop {
        shared.runtime.sleep(pause).await;
        pause = PASS_PAUSE;
        if !leads() {
            forget(&shared);
            continue;
        }
        let lost = async {
            while leads() {
                shared.runtime.sleep(LEADERSHIP_PERIOD).await;
            }
        };
        let audited = tokio::select! {
            biased;
            () = lost => None,
            audited = audit_once(&shared) => Some(audited),
        };
        match audited {
            Some(Ok(())) => {}
            Some(Err(error)) => count_store_error(&shared.metrics, "audit", &error),
            None => forget(&shared),
        }
    }
}

fn forget(shared: &Shared) {
    shared.audits.clear();
    shared.metrics.unaccounted.set(0);
}

/// Makes one complete audit, and keeps its result.
async fn audit_once(shared: &Arc<Shared>) -> Result<(), StoreError> {
    let pace = Paced { shared: shared.clone(), last: Arc::default() };
    let from = pace.start();
    let store = &*shared.store;
    let suspects = suspects(store, &pace).await?;
    let mut found = examine(store, &pace, &suspects).await?;
    if !found.is_empty() {
        shared.runtime.sleep(EXAMINE_AGAIN_AFTER).await;
        let again = examine(store, &pace, &suspects).await?;
        found.retain(|named| again.contains(named));
    }
    let pass = Pass { from, is_truncated: suspects.is_truncated };
    let (new, gone) = shared.audits.replace(found, &pass, shared.clock.now());
    for NamedDifference { tenant, difference, schedule } in new {
        tracing::warn!(
            tenant = tenant.0,
            %schedule,
            run = %difference.occurrence.run_id(),
            instant = %difference.occurrence.nominal,
            kind = difference.kind.name(),
            "the store's records do not match the timing of a schedule; see `reveille audit`"
        );
    }
    if gone > 0 {
        tracing::info!(gone, "differences between records and timings no longer exist or are older than the audit");
    }
    shared.metrics.unaccounted.set(i64::try_from(shared.audits.len()).unwrap_or(i64::MAX));
    Ok(())
}

/// Pace of the reads of one audit.
struct Paced {
    shared: Arc<Shared>,
    /// Duration of the last slice of reads.
    last: Arc<Mutex<Duration>>,
}

/// Turn whose end sets the rest before the next turn.
struct TimedTurn {
    runtime: Runtime,
    last: Arc<Mutex<Duration>>,
    since: Monotonic,
    _turn: Turn,
}

impl Drop for TimedTurn {
    fn drop(&mut self) {
        let took = self.runtime.monotonic().since(self.since);
        *self.last.lock().expect("no holder of this lock panics") = took;
    }
}

impl Pace for Paced {
    type Turn = TimedTurn;

    async fn turn(&self, tenant: TenantId) -> TimedTurn {
        let Paced { shared, last } = self;
        let rest = *last.lock().expect("no holder of this lock panics") * REST_FACTOR;
        shared.runtime.sleep(rest.clamp(REST_MIN, REST_MAX)).await;
        let turn = shared.turns.take(tenant).await;
        let (runtime, last, since) = (shared.runtime.clone(), last.clone(), shared.runtime.monotonic());
        TimedTurn { runtime, last, since, _turn: turn }
    }

    fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    fn start(&self) -> Timestamp {
        let history = self.shared.options.history.saturating_sub(HISTORY_MARGIN);
        self.now() - STRETCH.min(history)
    }
}
