//! Trial that raises and lowers a tenant's quota while many schedules are pending, and checks that each callback
//! arrives exactly once.
//!
//! Invariants: at each change of the quota, schedules are pending, and the trial creates further schedules after the
//! change. Therefore the pollers of each generation have due rows. The receiver counts the callbacks that arrive. The
//! trial expects exactly the callbacks of the schedules that the server acknowledged.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use cli_support::receiver::Options;
use domain::Incarnation;
use reveille_client::Quota;
use runtime::Runtime;

use crate::arrivals::Arrivals;
use crate::fire::{self, Due};
use crate::process::Meter;
use crate::report::Row;
use crate::server::{Server, ServerArguments};
use crate::tenant::{Tenant, unlimited_except};
use crate::{Common, print};

#[derive(Args, Debug)]
pub struct QuotaChangeArguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    server: ServerArguments,
    /// Number of schedules that are pending when the first schedule falls due
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    pending: u64,
    /// Seconds in which the trial creates the schedules before the first schedule falls due [default: derived from the
    /// number of schedules]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    lead: Option<u64>,
}

/// Quotas that the trial sets one after the other, in percent of the rate of due callbacks; `None` means no quota. The
/// second and the fourth quota open additional pollers.
const QUOTAS: [Option<u64>; 6] = [Some(10), Some(200), Some(1), Some(1_000), Some(25), None];
const PER_SECOND_MAX: u64 = 10_000;
/// Number of schedules that the server creates per second on a busy machine.
const CREATED_PER_SECOND: u64 = 8_000;
/// Shortest time over which schedules fall due, in seconds. Each of the six quotas is in force for at least a sixth of
/// this time.
const LASTS_MIN: u64 = 12;
/// Divisor of the number of pending schedules. The quotient is the number of schedules that the trial creates after
/// each change.
const ADDED_DIVISOR: u64 = 50;

/// # Errors
/// Returns an error if the trial fails, or if a callback is missing, duplicated or early.
pub(crate) async fn run(runtime: &Runtime, arguments: &QuotaChangeArguments) -> anyhow::Result<()> {
    let server = Server::start(runtime, &arguments.server, &arguments.common.data).await?;
    let mut rows = Vec::new();
    for _ in 0..arguments.common.runs {
        let lead = arguments.lead.unwrap_or(4 + arguments.pending / CREATED_PER_SECOND);
        rows.push(trial(runtime, &server, arguments.pending, Duration::from_secs(lead)).await?);
    }
    server.stop(runtime).await?;
    print(&arguments.common, vec![(rows.clone(), Vec::new())])?;
    let wrong: u64 = rows.iter().flat_map(|row| [row.lost, row.doubled, row.early]).flatten().sum();
    ensure!(wrong == 0, "{wrong} callbacks were missing, duplicated or early");
    Ok(())
}

async fn trial(runtime: &Runtime, server: &Server, pending: u64, lead: Duration) -> anyhow::Result<Row> {
    let tenant = Tenant::create(runtime, server, "changing", unlimited_except(None)).await?;
    let arrivals = Arc::new(Arrivals::logging());
    let receiver = fire::receive(runtime, Options::default(), arrivals.clone()).await?;
    let url = fire::url_of(receiver.address);
    let due = due(pending);
    let head = || tenant.head("application/x-ndjson");
    let first_at = runtime.now() + lead;
    let meter = Meter::start(runtime, server.pid());
    let mut planned: Vec<Incarnation> = fire::plan_from(runtime, head(), due, first_at, vec![url.clone()]).await?;
    let throttled_before = throttled(server).await?;

    let mut last_at = first_at + due.lasts();
    let mut notes = Vec::new();
    let added = due.with_count(pending.div_ceil(ADDED_DIVISOR));
    for (at, percent) in (0..).zip(QUOTAS) {
        let begins = first_at + due.lasts() * at / 6;
        runtime.sleep(begins.since(runtime.now())).await;
        let quota = percent.map(|percent| due.per_minute() * percent / 100);
        set(&tenant, quota).await?;
        notes.push(format!("{}: {}", seconds(begins.since(first_at)), describe(quota, arrivals.count())));
        let from = runtime.now() + fire::lead(added.count());
        planned.extend(fire::plan_from(runtime, head(), added, from, vec![url.clone()]).await?);
        last_at = last_at.max(from + added.lasts());
    }
    fire::wait_for(runtime, &arrivals, planned.len() as u64, last_at).await?;
    let cost = meter.stop().await;
    let throttled = throttled(server).await? - throttled_before;
    ensure!(throttled > 0, "no quota delayed a callback, so the trial is invalid");
    let verdict = arrivals.verdict(&planned)?;
    let mut row = fire::row("quota changed", due, first_at, &verdict).with_cost(&cost, verdict.arrived);
    row.notes.extend(notes);
    row.notes.push(format!("a quota delayed {throttled} callbacks"));
    Ok(row)
}

fn due(pending: u64) -> Due {
    let lasts = (pending / PER_SECOND_MAX).max(LASTS_MIN);
    Due::Evenly { per_second: pending.div_ceil(lasts), duration: Duration::from_secs(lasts) }
}

impl Due {
    /// Returns a plan with at least `count` callbacks at the same rate as this plan.
    fn with_count(self, count: u64) -> Due {
        let Due::Evenly { per_second, .. } = self else { return Due::AtOnce { count } };
        Due::Evenly { per_second, duration: Duration::from_secs(count.div_ceil(per_second)) }
    }

    fn per_minute(self) -> u64 {
        match self {
            Due::Evenly { per_second, .. } => per_second * 60,
            Due::AtOnce { count } => count,
        }
    }
}

async fn set(tenant: &Tenant, callbacks_per_minute: Option<u64>) -> anyhow::Result<()> {
    let number = callbacks_per_minute.map(|number| u32::try_from(number.max(1))).transpose()?;
    tenant.client.set_quotas(&[(Quota::CallbacksPerMinute, number)].into()).await?;
    Ok(())
}

async fn throttled(server: &Server) -> anyhow::Result<u64> {
    Ok(server.metric("reveille_callbacks_throttled_total").await?.unwrap_or(0))
}

fn describe(quota: Option<u64>, arrived: u64) -> String {
    match quota {
        Some(quota) => {
            format!("the trial set a quota of {quota} callbacks per minute when {arrived} callbacks had arrived")
        }
        None => format!("the trial removed the quota when {arrived} callbacks had arrived"),
    }
}

fn seconds(since: Duration) -> String {
    format!("{:>3} s", since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_with_more_callbacks_has_a_longer_duration() {
        assert_eq!((due(1_000_000).lasts(), due(1_000_000).count()), (Duration::from_secs(100), 1_000_000));
        assert_eq!((due(1_200).lasts(), due(1_200).count()), (Duration::from_secs(12), 1_200));
        assert_eq!(due(1_000_000).with_count(20_000).count(), 20_000);
    }
}
