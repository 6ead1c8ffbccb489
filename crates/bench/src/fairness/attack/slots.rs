//! More callbacks than the service has slots, to targets that respond very slowly.

use std::time::Duration;

use anyhow::ensure;
use runtime::TaskSet;

use super::schedules::{AttackSchedules, Series};
use super::{Attack, Stage, loopback, url};
use crate::tenant::unlimited_except;

/// Number of schedules. It is greater than the default of `--in-flight-max`.
const SCHEDULES: u32 = 4_300;
/// Number of targets. Each target has its own limit, so the attack uses many targets.
const TARGETS: u64 = 1_000;
const ANSWER_AFTER: Duration = Duration::from_secs(40);

pub(super) async fn start(stage: &Stage<'_>) -> anyhow::Result<Attack> {
    let tenant = stage.tenant("slots", unlimited_except(None)).await?;
    let (receiver, received) = stage.receive(ANSWER_AFTER).await?;
    let port = receiver.address.port();
    let series = Series { count: SCHEDULES, every: Duration::from_secs(1), takes: ANSWER_AFTER };
    let target = |number| url(loopback(number % TARGETS), port);
    let schedules = AttackSchedules::create(stage.runtime, tenant, series, target).await?;
    // The observed tenant starts when the callbacks of the attack are in flight.
    stage.runtime.sleep(Duration::from_secs(3)).await;
    let effect = move || {
        let count = received.count();
        ensure!(count > 0, "no callback of the attack `slots` reached its target");
        Ok(format!("slots: the targets, which respond after {ANSWER_AFTER:?}, received {count} callbacks"))
    };
    let attack = Attack::new(TaskSet::new(stage.runtime), effect);
    Ok(Attack { _receivers: vec![receiver], schedules: Some(schedules), ..attack })
}
