//! What a request asks of its tenant's quotas. Those of callbacks are the scheduler's.
//!
//! Always true here: a quota counts only what was fit to be kept, and what is refused by one has no effect. The room that a
//! schedule takes is given back if none was made.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use api::FieldError;
use domain::quota::{Rate, TokenBucket};
use domain::{Quota, ScheduleId, Spec, Status, Tenant, TenantId, Timestamp, When};
use runtime::Monotonic;
use scheduler::Scheduler;

use crate::refusal::{Code, Refused, refuse_quota};

const DAY: Duration = Duration::from_secs(86_400);

/// How many schedules each tenant made lately. Each member counts what it is asked itself.
#[derive(Default)]
pub(crate) struct Creates(Mutex<BTreeMap<TenantId, TokenBucket>>);

impl Creates {
    /// One more for this tenant, if its rate allows it.
    pub(crate) fn admit(&self, tenant: &Tenant, now: Monotonic) -> Result<(), Refused> {
        let Some(per_second) = tenant.quotas.get(Quota::CreatesPerSecond) else { return Ok(()) };
        let rate = Rate::new(per_second, Duration::from_secs(1));
        let mut buckets = self.0.lock().expect("no holder of this lock panics");
        if buckets.entry(tenant.id).or_default().take(rate, now.since_start()) {
            return Ok(());
        }
        let what_to_do = "send it again in a second, or have an admin raise it with PATCH /v1/quotas";
        Err(refuse_quota(Code::RateExceeded, Quota::CreatesPerSecond, per_second, what_to_do, Vec::new()))
    }
}

/// How many schedules each tenant has, as far as a creation has to know.
#[derive(Default)]
pub(crate) struct Pending(Mutex<BTreeMap<TenantId, Known>>);

/// Room for one schedule, of which tenant, and since when the store was not asked; `None` where none is taken. Dropped, it is
/// as good as used, until the store is asked anew.
#[derive(Default)]
#[must_use]
pub(crate) struct Room(Option<(TenantId, Monotonic)>);

#[derive(Clone, Copy)]
struct Known {
    active: u64,
    /// Since the store was asked, by this member.
    made: u64,
    asked_at: Monotonic,
}

/// The store is asked anew after so long, as other members make schedules, too.
const KNOWN_FOR: Duration = Duration::from_secs(1);
/// Likewise by those who are refused: what fires or is cancelled makes room.
const FULL_FOR: Duration = Duration::from_millis(100);

impl Pending {
    /// Whether the tenant may have one more, and the room that it takes until [`Pending::settle`] tells what came of it. Not
    /// counted is what other members make within a second, and what was under way when the store was asked.
    pub(crate) async fn admit(
        &self,
        scheduler: &Scheduler,
        tenant: &Tenant,
        named: Option<&ScheduleId>,
        now: Monotonic,
    ) -> Result<Room, Refused> {
        let Some(pending_max) = tenant.quotas.get(Quota::PendingMax) else { return Ok(Room(None)) };
        let mut has_room = self.take(tenant.id, pending_max, now);
        if has_room.is_none() {
            let active = scheduler.tenants().count_active(tenant.id).await?;
            // Another may have asked meanwhile, and those who took room since are not to be forgotten.
            has_room = self.take(tenant.id, pending_max, now).or_else(|| {
                self.known().insert(tenant.id, Known { active, made: 0, asked_at: now });
                self.take(tenant.id, pending_max, now)
            });
        }
        if let Some(Some(room)) = has_room {
            return Ok(room);
        }
        // What replaces one that is pending adds none.
        if let Some(id) = named
            && let Some(schedule) = scheduler.get(tenant.id, id.clone()).await?
            && schedule.status == Status::Active
        {
            return Ok(Room(None));
        }
        let what_to_do = "wait until some have fired, cancel some, or have an admin raise it with PATCH /v1/quotas";
        Err(refuse_quota(Code::QuotaExceeded, Quota::PendingMax, pending_max, what_to_do, Vec::new()))
    }

    /// Gives the room back if it is certain that it was not needed.
    pub(crate) fn settle(&self, room: &Room, is_made: bool) {
        let Room(Some((tenant, asked_at))) = room else { return };
        // Once the store was asked anew, the room is not counted any more.
        if !is_made && let Some(known) = self.known().get_mut(tenant).filter(|known| known.asked_at == *asked_at) {
            known.made = known.made.saturating_sub(1);
        }
    }

    /// Takes room for one, if there is; `None` if that is not known.
    fn take(&self, tenant: TenantId, pending_max: u32, now: Monotonic) -> Option<Option<Room>> {
        let mut all = self.known();
        let known = all.get_mut(&tenant)?;
        let has_room = known.active + known.made < u64::from(pending_max);
        let known_for = if has_room { KNOWN_FOR } else { FULL_FOR };
        if now.since(known.asked_at) >= known_for {
            return None;
        }
        known.made += u64::from(has_room);
        Some(has_room.then_some(Room(Some((tenant, known.asked_at)))))
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<TenantId, Known>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

/// Whether the tenant may have such a schedule.
pub(crate) fn check_spec(tenant: &Tenant, spec: &Spec, now: Timestamp) -> Result<(), Refused> {
    let exceeded = |quota, number, pointer: &str, detail: String| {
        let pointer = Some(pointer.to_owned());
        let error = FieldError { pointer, code: "quota_exceeded".into(), detail, ..FieldError::default() };
        let what_to_do = "stay within it, or have an admin raise it with PATCH /v1/quotas";
        Err(refuse_quota(Code::QuotaExceeded, quota, number, what_to_do, vec![error]))
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
