//! Quotas of requests. The scheduler enforces the quotas of callbacks.
//!
//! Invariants: a quota counts only valid schedules, and a rejected request has no effect. The reservation of a schedule
//! that was not created is released.

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

/// Rate of schedule creation for each tenant. Each member counts only its own requests.
#[derive(Default)]
pub(crate) struct Creates(Mutex<BTreeMap<TenantId, TokenBucket>>);

impl Creates {
    /// Counts one creation, if the tenant's rate allows it.
    pub(crate) fn admit(&self, tenant: &Tenant, now: Monotonic) -> Result<(), Rejected> {
        let Some(per_second) = tenant.quotas.get(Quota::CreatesPerSecond) else { return Ok(()) };
        let rate = Rate::new(per_second, Duration::from_secs(1));
        let mut buckets = self.0.lock().expect("no holder of this lock panics");
        if buckets.entry(tenant.id).or_default().take(rate, now.since_start()) {
            return Ok(());
        }
        let remedy = "send the request again in one second, or have an admin raise the quota with PATCH /v1/quotas";
        Err(reject_quota(Code::RateExceeded, Quota::CreatesPerSecond, per_second, remedy, Vec::new()))
    }
}

/// Number of active schedules for each tenant, as far as creations need it.
#[derive(Default)]
pub(crate) struct Pending(Mutex<BTreeMap<TenantId, ActiveCount>>);

/// Reservation of one schedule: the tenant, and the read time of the count that includes the reservation. `None` if
/// none is needed. A dropped reservation counts as used until the store is read again.
#[derive(Default)]
#[must_use]
pub(crate) struct Reservation(Option<(TenantId, Monotonic)>);

#[derive(Clone, Copy)]
struct ActiveCount {
    active: u64,
    /// Schedules created by this member since `read_at`.
    created: u64,
    read_at: Monotonic,
}

/// Age at which a count is read from the store again, because other members create schedules too.
const COUNT_AGE_MAX: Duration = Duration::from_secs(1);
/// The same for a count at its quota, because fired and cancelled schedules free capacity.
const FULL_COUNT_AGE_MAX: Duration = Duration::from_millis(100);

impl Pending {
    /// Reserves one schedule, if the tenant's quota allows it. The count does not include schedules that other members
    /// created within the last second, nor those that were being created when the store was read.
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
            // Another request may have read the store in the meantime. Its reservations must remain counted.
            reserved = self.take(tenant.id, pending_max, now).or_else(|| {
                self.counts().insert(tenant.id, ActiveCount { active, created: 0, read_at: now });
                self.take(tenant.id, pending_max, now)
            });
        }
        if let Some(Some(reservation)) = reserved {
            return Ok(reservation);
        }
        // Replacing an active schedule does not increase the count.
        if let Some(id) = named
            && let Some(schedule) = scheduler.get(tenant.id, id.clone()).await?
            && schedule.status == Status::Active
        {
            return Ok(Reservation(None));
        }
        let remedy = "wait until some have fired, cancel some, or have an admin raise the quota with PATCH /v1/quotas";
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
    /// `None` means that the quota is used up.
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
        let remedy = "stay within the quota, or have an admin raise it with PATCH /v1/quotas";
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
            When::Every(interval) => ("/every", interval),
            When::Cron(_) => return Ok(()),
        };
        if ahead > DAY * days {
            return exceeded(Quota::HorizonDays, days, pointer, format!("{} days ahead", ahead.as_secs() / 86_400));
        }
    }
    Ok(())
}
