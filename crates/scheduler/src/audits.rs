//! Results of the auditor of this member, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use domain::{TenantId, Timestamp};
use store::audit::{NamedDifference, TenantAudit};

use crate::requests::{AuditFinding, AuditReport};

/// Maximum number of differences that the auditor keeps, of all tenants.
const FINDINGS_MAX: usize = 10 * store::audit::FINDINGS_MAX;
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
    /// Tenants with more differences than `findings` contains.
    truncated: BTreeSet<TenantId>,
    /// Tenants of which the store cannot read some rows.
    incomplete: BTreeSet<TenantId>,
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
        let tenants: BTreeSet<TenantId> = visible().map(|(named, _)| named.tenant).collect();
        // A tenant with many differences does not displace those of other tenants.
        let share = (REPORTED_MAX / tenants.len().max(1)).max(1);
        let mut counts: BTreeMap<TenantId, usize> = BTreeMap::new();
        let mut is_reported = |named: &NamedDifference| {
            let count = counts.entry(named.tenant).or_default();
            *count += 1;
            *count <= share
        };
        let finding = |(named, found_at): (&NamedDifference, &Timestamp)| {
            let NamedDifference { tenant, difference, ref schedule } = *named;
            AuditFinding { tenant, schedule: schedule.clone(), difference, found_at: *found_at }
        };
        let reported = visible().filter(|(named, _)| is_reported(named)).take(REPORTED_MAX);
        let findings: Vec<AuditFinding> = reported.map(finding).collect();
        let is_listed =
            |tenants: &BTreeSet<TenantId>| tenant.map_or(!tenants.is_empty(), |tenant| tenants.contains(&tenant));
        AuditReport {
            from: kept.from,
            completed_at: kept.completed_at,
            unaccounted: u32::try_from(visible().count()).unwrap_or(u32::MAX),
            is_truncated: is_listed(&kept.truncated) || visible().count() > findings.len(),
            is_incomplete: is_listed(&kept.incomplete),
            findings,
        }
    }

    pub(crate) fn clear(&self) {
        *self.kept() = Kept::default();
    }

    /// Replaces the result. Returns the new differences, and the number of differences that no longer exist.
    pub(crate) fn replace(&self, pass: Pass, now: Timestamp) -> (Vec<NamedDifference>, usize) {
        let mut kept = self.kept();
        let before = std::mem::take(&mut kept.findings);
        (kept.from, kept.completed_at) = (Some(pass.from), Some(now));
        (kept.truncated, kept.incomplete) = (pass.truncated, pass.incomplete);
        let mut new = Vec::new();
        for named in pass.found {
            let found_at = before.get(&named).copied();
            if found_at.is_none() {
                new.push(named.clone());
            }
            kept.findings.insert(named, found_at.unwrap_or(now));
        }
        let gone = before.keys().filter(|named| !kept.findings.contains_key(*named)).count();
        (new, gone)
    }

    pub(crate) fn len(&self) -> usize {
        self.kept().findings.len()
    }
}

/// Result of one audit of all tenants.
pub(crate) struct Pass {
    from: Timestamp,
    found: BTreeSet<NamedDifference>,
    truncated: BTreeSet<TenantId>,
    pub(crate) incomplete: BTreeSet<TenantId>,
}

impl Pass {
    pub(crate) fn new(from: Timestamp) -> Self {
        Pass { from, found: BTreeSet::new(), truncated: BTreeSet::new(), incomplete: BTreeSet::new() }
    }

    pub(crate) fn add(&mut self, tenant: TenantId, audit: TenantAudit) {
        let room = FINDINGS_MAX.saturating_sub(self.found.len());
        if audit.is_truncated || audit.found.len() > room {
            self.truncated.insert(tenant);
        }
        if audit.is_incomplete {
            self.incomplete.insert(tenant);
        }
        self.found.extend(audit.found.into_iter().take(room));
    }
}
