//! Schedules of a tenant with default quotas, for one slow target.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::ensure;
use reveille_client::Quotas;
use runtime::TaskSet;

use super::schedules::{AttackSchedules, Series};
use super::{Attack, Stage, url};

const SCHEDULES: u32 = 100;
const ANSWER_AFTER: Duration = Duration::from_secs(3);

pub(super) async fn start(stage: &Stage<'_>) -> anyhow::Result<Attack> {
    let tenant = stage.tenant("slow", Quotas::new()).await?;
    let (receiver, received) = stage.receive(ANSWER_AFTER).await?;
    let port = receiver.address.port();
    let series = Series { count: SCHEDULES, every: Duration::from_secs(1), takes: ANSWER_AFTER };
    let target = |_| url(Ipv4Addr::LOCALHOST, port);
    let schedules = AttackSchedules::create(stage.runtime, tenant, series, target).await?;
    let effect = move || {
        let count = received.count();
        ensure!(
            count > u64::from(SCHEDULES),
            "the slow target received {count} callbacks; a valid trial requires more than {SCHEDULES}"
        );
        Ok(format!(
            "slow: {SCHEDULES} schedules were due every second; their target, which responds after {ANSWER_AFTER:?}, \
             received {count} callbacks"
        ))
    };
    let attack = Attack::new(TaskSet::new(stage.runtime), effect);
    Ok(Attack { _receivers: vec![receiver], schedules: Some(schedules), ..attack })
}
