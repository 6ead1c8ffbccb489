//! Enforces the quotas of requests. The scheduler enforces the quotas of callbacks.
//!
//! Invariants: `creates_per_second` counts each request and each batch line before the server parses it, even if the
//! server then rejects it. A rejected request has no further effect. The other quotas count only valid schedules. If
//! the server does not create the schedule of a valid request, it releases the schedule's reservation.
//!
//! docs/decisions/0201-count-stored-bytes-with-every-change.md gives the reasons for the design.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use api::FieldError;
use domain::quota::{Rate, TokenBucket};
use domain::{Quota, ScheduleId, Secret, Spec, Status, Tenant, TenantId, Timestamp, When};
use runtime::Monotonic;
use scheduler::Scheduler;
use store::Usage;

use crate::rejection::{Code, Rejected, reject_quota};

const DAY: Duration = Duration::from_secs(86_400);

/// Rates at which tenants send requests and batch lines that create or change schedules. Each member counts only the
/// requests that it receives.
#[derive(Default)]
pub(crate) struct Creates(Mutex<BTreeMap<TenantId, TokenBucket>>);

impl Creates {
    /// Counts one request or batch line of `tenant`. Rejects it if the tenant exceeds its rate.
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

/// Stored schedules and bytes of the tenants that recently created or changed schedules.
#[derive(Default)]
pub(crate) struct Stored(Mutex<BTreeMap<TenantId, KnownUsage>>);

/// Reservation of one schedule and its bytes. `None` if the request needs no reservation. A dropped reservation counts
/// as used until the next read of the store.
#[derive(Default)]
#[must_use]
pub(crate) struct Reservation(Option<Reserved>);

struct Reserved {
    tenant: TenantId,
    bytes: u64,
    /// [`KnownUsage::read_at`] of the usage to which the server added this reservation.
    read_at: Monotonic,
}

/// Rows that a request with a reservation has written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Written {
    Nothing,
    /// New spec of an active schedule. The spec adds bytes, but the number of active schedules stays the same.
    Spec,
    /// Schedule that increases the number of active schedules.
    Schedule,
}

#[derive(Clone, Copy)]
struct KnownUsage {
    /// Usage that the server read from the store at `read_at`.
    usage: Usage,
    /// Number of schedules that this member has reserved since `read_at`.
    schedules: u64,
    /// Number of bytes that this member has reserved since `read_at`.
    bytes: u64,
    read_at: Monotonic,
}

/// Age at which the server reads a usage from the store again. Runs and other members add rows that the known usage
/// does not include.
const USAGE_AGE_MAX: Duration = Duration::from_secs(1);
/// Age at which the server reads a usage that has reached a quota again, because fired, cancelled and deleted schedules
/// free capacity.
const FULL_USAGE_AGE_MAX: Duration = Duration::from_millis(100);
/// Estimated bytes of a schedule's row in addition to its payload, target and labels.
const ROW_BYTES: u64 = 256;

impl Stored {
    /// Reserves one schedule and its bytes if the tenant's quotas allow them. The check uses numbers that are up to
    /// one second old. These numbers may omit recent runs, and schedules that other members created recently. They may
    /// also omit schedules whose creation was in progress when the server read the numbers from the store.
    pub(crate) async fn admit(
        &self,
        scheduler: &Scheduler,
        tenant: &Tenant,
        named: Option<&ScheduleId>,
        spec: &Spec,
        now: Monotonic,
    ) -> Result<Reservation, Rejected> {
        let limits = [Quota::PendingMax, Quota::StoredMibMax].map(|quota| tenant.quotas.get(quota));
        if limits == [None, None] {
            return Ok(Reservation(None));
        }
        let bytes = size(spec);
        let reserved = match self.take(tenant, bytes, now, None) {
            Some(reserved) => reserved,
            None => {
                let usage = scheduler.tenants().usage(tenant.id).await?;
                self.take(tenant, bytes, now, Some(usage)).expect("`take` returns a decision if it receives the usage")
            }
        };
        let quota = match reserved {
            Ok(reservation) => return Ok(reservation),
            Err(quota) => quota,
        };
        // A request that replaces an active schedule adds no schedule, and a spec of at most the same size adds no bytes.
        let replaced = match named {
            Some(id) => scheduler.get(tenant.id, id.clone()).await?,
            None => None,
        };
        let fits = replaced.is_some_and(|replaced| {
            replaced.status == Status::Active && (quota == Quota::PendingMax || bytes <= size(&replaced.spec))
        });
        if fits { Ok(Reservation(None)) } else { Err(reject_full(tenant, quota)) }
    }

    /// Ends a reservation, and releases the part that the request has certainly not used.
    pub(crate) fn finish(&self, reservation: &Reservation, written: Written) {
        let Some(reserved) = &reservation.0 else { return };
        let mut known = self.known();
        // If the server has read the usage again since the reservation, the known usage does not include the
        // reservation.
        let Some(known) = known.get_mut(&reserved.tenant).filter(|known| known.read_at == reserved.read_at) else {
            return;
        };
        if written != Written::Schedule {
            known.schedules = known.schedules.saturating_sub(1);
        }
        if written == Written::Nothing {
            known.bytes = known.bytes.saturating_sub(reserved.bytes);
        }
    }

    /// Takes a reservation from a known usage, or from `read`, the usage that the caller has just read from the store.
    /// Returns `None` if no usage is known, or if it is too old. The inner error is the quota that allows no further
    /// schedule or no further bytes.
    fn take(
        &self,
        tenant: &Tenant,
        bytes: u64,
        now: Monotonic,
        read: Option<Usage>,
    ) -> Option<Result<Reservation, Quota>> {
        let mut known = self.known();
        // Another request may have read the store during the read of this request. This request then uses the numbers
        // of the other request, because those numbers include reservations.
        if let Some(usage) = read
            && known.get(&tenant.id).is_none_or(|known| now.since(known.read_at) >= FULL_USAGE_AGE_MAX)
        {
            known.insert(tenant.id, KnownUsage { usage, schedules: 0, bytes: 0, read_at: now });
        }
        let known = known.get_mut(&tenant.id)?;
        let limit = |quota| tenant.quotas.get(quota).map_or(u64::MAX, u64::from);
        let is_full = |quota: &Quota| match quota {
            Quota::PendingMax => known.usage.active + known.schedules >= limit(*quota),
            _ => known.usage.bytes + known.bytes + bytes > limit(*quota).saturating_mul(1 << 20),
        };
        // The function checks the quota of bytes first, because the quota of pending schedules does not limit a request
        // that replaces an active schedule.
        let full = [Quota::StoredMibMax, Quota::PendingMax].into_iter().find(is_full);
        let age_max = if full.is_none() { USAGE_AGE_MAX } else { FULL_USAGE_AGE_MAX };
        if read.is_none() && now.since(known.read_at) >= age_max {
            return None;
        }
        if let Some(full) = full {
            return Some(Err(full));
        }
        known.schedules += 1;
        known.bytes += bytes;
        Some(Ok(Reservation(Some(Reserved { tenant: tenant.id, bytes, read_at: known.read_at }))))
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<TenantId, KnownUsage>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

/// Returns the approximate number of bytes that a schedule with this spec adds to the usage.
fn size(spec: &Spec) -> u64 {
    let headers = spec.target.headers().len() * Secret::ENCRYPTION_OVERHEAD;
    (spec.content_bytes() + headers) as u64 + ROW_BYTES
}

fn reject_full(tenant: &Tenant, quota: Quota) -> Rejected {
    let remedy = match quota {
        Quota::PendingMax => {
            "wait until some schedules have fired, cancel some, or ask an admin to raise the quota with PATCH /v1/quotas"
        }
        _ => {
            "the service deletes ended schedules and runs after the retention time; send smaller payloads, or ask an \
             admin to raise the quota with PATCH /v1/quotas"
        }
    };
    reject_quota(Code::QuotaExceeded, quota, tenant.quotas.get(quota).unwrap_or(0), remedy, Vec::new())
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
