//! Far more callbacks of a tenant than its quota allows.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::ensure;
use domain::ScheduleId;
use runtime::TaskSet;

use super::schedules::AttackSchedules;
use super::{Attack, Stage, url};
use crate::fire::{self, Due};
use crate::tenant::unlimited_except;

const QUOTA_PER_MINUTE: u32 = 6_000;
const PER_SECOND: u64 = 10 * QUOTA_PER_MINUTE as u64 / 60;
/// Time from the first callback of the attack to the first callback of the observed tenant. After an idle period, a
/// tenant may send a minute's quota at once. The busy tenant uses up this burst before the observed run begins.
const BEFORE: Duration = Duration::from_secs(10);

pub(super) async fn start(stage: &Stage<'_>) -> anyhow::Result<Attack> {
    let tenant = stage.tenant("busy", unlimited_except(Some(QUOTA_PER_MINUTE))).await?;
    let (receiver, arrived) = stage.receive(Duration::ZERO).await?;
    let due = Due::Evenly { per_second: PER_SECOND, duration: BEFORE + stage.lasts };
    let first_at = stage.runtime.now() + fire::lead(due.count());
    let target = url(Ipv4Addr::LOCALHOST, receiver.address.port());
    let head = tenant.head("application/x-ndjson");
    let incarnations = fire::plan_from(stage.runtime, head, due, first_at, vec![target]).await?;
    let id = |incarnation| ScheduleId::from_incarnation(incarnation).to_string();
    let ids = incarnations.into_iter().map(id).collect();
    let effect = move || {
        let (count, arrived) = (due.count(), arrived.count());
        ensure!(arrived < count, "the busy tenant did not exceed its quota, so the trial is invalid");
        Ok(format!(
            "busy: {count} callbacks were due at {PER_SECOND} per second; the quota is {QUOTA_PER_MINUTE} per minute; \
             {arrived} callbacks arrived"
        ))
    };
    let attack = Attack::new(TaskSet::new(stage.runtime), effect);
    let schedules = AttackSchedules { tenant, ids, takes: Duration::ZERO };
    Ok(Attack { _receivers: vec![receiver], schedules: Some(schedules), ready_at: Some(first_at + BEFORE), ..attack })
}
