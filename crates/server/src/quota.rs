//! Enforces the quotas of requests. The scheduler enforces the quotas of callbacks.
//!
//! Invariants: `creates_per_second` counts each request and each batch line before the server parses it, even if the
//! server then rejects it. The other quotas count only valid schedules. A rejected request has no further effect. If the
//! server does not create a schedule, it releases the reservation.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use api::FieldError;
use domain::quota::{Rate, TokenBucket};
use domain::{Quota, ScheduleId, Spec, Status, Tenant, TenantId, Timestamp, When};
use runtime::Monotonic;
use scheduler::Scheduler;

use crate::rejection::{Code, Rejected, reject_quota};

const DAY: Duration = Duration::from_secs(86_400);

/// Rates at which tenants send requests and batch lines that create or change schedules. Each member counts only its own requests.
#[derive(Default)]
pub(crate) struct Creates(Mutex<BTreeMap<TenantId, TokenBucket>>);

impl Creates {
    /// Counts one request or batch line if the tenant's rate allows a further one.
    pub(crate) fn admit(&self, tenant: &Tenant, now: Monotonic) -> Result<(), Rejected> {
        let Some(per_second) = tenant.quotas.get(Quota::CreatesPerSecond) else { return Ok(()) };
        let rate = Rate::new(per_second, Duration::from_secs(1));
        let mut buckets = self.0.lock().expect("no holder of this lock panics");
        if buckets.entry(tenant.id).or_default().take(rate, now.since_start()) {
            return Ok(());
        }
        let remedy = "send the request again in one second, or ask an admin to raise the quota with PATCH /v1/quotas";
        Err(reject_quota(Code::RateExceeded, Quota::CreatesPerSecond, per_second, remedy, Vec::new()))
    }
}

/// Numbers of active schedules of the tenants that recently created schedules.
#[derive(Default)]
pub(crate) struct Pending(Mutex<BTreeMap<TenantId, ActiveCount>>);

/// Reservation of one schedule: the tenant, and the read time of the count that includes the reservation. `None` if the
/// request needs no reservation. A dropped reservation counts as used until the next read of the store.
#[derive(Default)]
#[must_use]
pub(crate) struct Reservation(Option<(TenantId, Monotonic)>);

#[derive(Clone, Copy)]
struct ActiveCount {
    active: u64,
    /// Number of schedules that this member created since `read_at`.
    created: u64,
    read_at: Monotonic,
}

/// Age at which the server reads a count from the store again, because other members also create schedules.
const COUNT_AGE_MAX: Duration = Duration::from_secs(1);
/// Age at which the server reads a count that has reached the quota again, because fired and cancelled schedules free
/// capacity.
const FULL_COUNT_AGE_MAX: Duration = Duration::from_millis(100);

impl Pending {
    /// Reserves one schedule if the tenant's quota allows a further schedule. The count may omit schedules that other
    /// members created within the last second, and schedules whose creation was in progress at the time of the read.
    pub(crate) async fn admit(
        &self,
        scheduler: &Scheduler,
        tenant: &Tenant,
        named: Option<&ScheduleId>,
        now: Monotonic,
    ) -> Result<Reservation, Rejected> {
        let Some(pending_max) = tenant.quotas.get(Quota::PendingMax) else { return Ok(Reservation(None)) };
        let mut reserved = self.take(tenant.id, pending_max, now);
        if reserved.is_none() {
            let active = scheduler.tenants().count_active(tenant.id).await?;
            // Another request may have read the store during this read. This request then uses the other request's
            // count, because that count includes reservations.
            reserved = self.take(tenant.id, pending_max, now).or_else(|| {
                self.counts().insert(tenant.id, ActiveCount { active, created: 0, read_at: now });
                self.take(tenant.id, pending_max, now)
            });
        }
        if let Some(Some(reservation)) = reserved {
            return Ok(reservation);
        }
        // A request that replaces an active schedule does not increase the count.
        if let Some(id) = named
            && let Some(schedule) = scheduler.get(tenant.id, id.clone()).await?
            && schedule.status == Status::Active
        {
            return Ok(Reservation(None));
        }
        let remedy = "wait until some schedules have fired, cancel some, or ask an admin to raise the quota with \
                      PATCH /v1/quotas";
        Err(reject_quota(Code::QuotaExceeded, Quota::PendingMax, pending_max, remedy, Vec::new()))
    }

    /// Ends a reservation, and releases it if the schedule certainly does not exist.
    pub(crate) fn finish(&self, reservation: &Reservation, may_exist: bool) {
        let Reservation(Some((tenant, read_at))) = reservation else { return };
        // A newer count from the store does not include this reservation.
        if !may_exist && let Some(count) = self.counts().get_mut(tenant).filter(|count| count.read_at == *read_at) {
            count.created = count.created.saturating_sub(1);
        }
    }

    /// Takes a reservation from a known count. The outer `None` means that the count is unknown or too old. The inner
    /// `None` means that the count has reached the quota.
    fn take(&self, tenant: TenantId, pending_max: u32, now: Monotonic) -> Option<Option<Reservation>> {
        let mut counts = self.counts();
        let count = counts.get_mut(&tenant)?;
        let is_available = count.active + count.created < u64::from(pending_max);
        let age_max = if is_available { COUNT_AGE_MAX } else { FULL_COUNT_AGE_MAX };
        if now.since(count.read_at) >= age_max {
            return None;
        }
        count.created += u64::from(is_available);
        Some(is_available.then_some(Reservation(Some((tenant, count.read_at)))))
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<TenantId, ActiveCount>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

/// Checks the quotas that limit a single schedule.
pub(crate) fn check_spec(tenant: &Tenant, spec: &Spec, now: Timestamp) -> Result<(), Rejected> {
    let exceeded = |quota, number, pointer: &str, detail: String| {
        let pointer = Some(pointer.to_owned());
        let error = FieldError { pointer, code: "quota_exceeded".into(), detail, ..FieldError::default() };
        let remedy = "stay within the quota, or ask an admin to raise it with PATCH /v1/quotas";
        Err(reject_quota(Code::QuotaExceeded, quota, number, remedy, vec![error]))
    };
    if let Some(bytes_max) = tenant.quotas.get(Quota::PayloadBytesMax)
        && spec.payload.len() as u64 > u64::from(bytes_max)
    {
        let detail = format!("{} bytes", spec.payload.len());
        return exceeded(Quota::PayloadBytesMax, bytes_max, "/payload", detail);
    }
    if let Some(days) = tenant.quotas.get(Quota::HorizonDays) {
        let (pointer, ahead) = match spec.when {
            When::At(at) => ("/at", at.since(now)),
            When::Every { interval, .. } => ("/every", interval),
            When::Cron(_) => return Ok(()),
        };
        if ahead > DAY * days {
            return exceeded(Quota::HorizonDays, days, pointer, format!("{} days ahead", ahead.as_secs() / 86_400));
        }
    }
    Ok(())
}
