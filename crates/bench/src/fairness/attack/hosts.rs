//! Callbacks to many hosts and ports, so that the service opens very many connections and can reuse few of them.

use std::time::Duration;

use anyhow::ensure;
use runtime::TaskSet;

use super::schedules::{AttackSchedules, Series};
use super::{Attack, Stage, loopback, url};
use crate::process::open_files;
use crate::tenant::unlimited_except;

/// Number of schedules, each with its own host. It is greater than the default of `--callback-idle-connections-max`.
const HOSTS: u32 = 6_000;
const PORTS: usize = 4;
const PERIOD: Duration = Duration::from_secs(5);

pub(super) async fn start(stage: &Stage<'_>) -> anyhow::Result<Attack> {
    let tenant = stage.tenant("hosts", unlimited_except(None)).await?;
    let (mut receivers, mut counts) = (Vec::new(), Vec::new());
    for _ in 0..PORTS {
        let (receiver, received) = stage.receive(Duration::ZERO).await?;
        receivers.push(receiver);
        counts.push(received);
    }
    let ports: Vec<u16> = receivers.iter().map(|receiver| receiver.address.port()).collect();
    let series = Series { count: HOSTS, every: PERIOD, takes: Duration::ZERO };
    let target = |number| {
        let port = ports[usize::try_from(number).unwrap_or(0) % PORTS];
        url(loopback(number), port)
    };
    let schedules = AttackSchedules::create(stage.runtime, tenant, series, target).await?;
    let pid = stage.server.pid();
    let effect = move || {
        let count: u64 = counts.iter().map(|received| received.count()).sum();
        ensure!(count > 0, "no callback of the attack `hosts` reached its target");
        let files = pid.map_or(0, open_files);
        Ok(format!("hosts: {HOSTS} hosts received {count} callbacks; the server had {files} open file descriptors"))
    };
    let attack = Attack::new(TaskSet::new(stage.runtime), effect);
    Ok(Attack { _receivers: receivers, schedules: Some(schedules), ..attack })
}
