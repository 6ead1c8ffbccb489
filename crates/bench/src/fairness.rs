//! Measures how much a demanding tenant delays the callbacks of another tenant. The result is the change of the 99th
//! percentile of the lateness.
//!
//! Invariants: runs with and runs without the demanding tenant alternate within one process, so that other work on the
//! machine affects both kinds of runs. The receivers count the arrivals.

mod attacks;

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use cli_support::receiver::Options;
use domain::{Incarnation, Timestamp};
use reveille_client::{Quotas, ScheduleRequest};
use runtime::Runtime;

use self::attacks::Attack;
use crate::arrivals::Arrivals;
use crate::create;
use crate::fire::{self, Due};
use crate::report::{self, Row};
use crate::server::{Server, ServerArguments};
use crate::tenant::{Tenant, unlimited_except};
use crate::{Common, print};

#[derive(Args, Debug)]
pub struct FairnessArguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    server: ServerArguments,
    /// Callbacks per second of the observed tenant
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,
    /// Seconds of each run; a trial has two runs without and two runs with the demanding tenant
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    duration: u64,
    /// Largest allowed increase of the 99th percentile, in milliseconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    bound_ms: u32,
    /// Kinds of load to test; repeat the option for several kinds [default: all]
    #[arg(long = "attack", value_enum)]
    attacks: Vec<Demand>,
}

/// Kind of load that the demanding tenant causes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Demand {
    /// A hundred schedules, each due every second, for a target that takes three seconds to respond
    Slow,
    /// Ten times as many callbacks as the tenant's quota allows
    Busy,
    /// Callbacks in more than all slots of the service, to targets that take 40 seconds to respond
    Slots,
    /// Listings on 64 connections that find no schedule among 20,000
    Listings,
    /// Batches on 64 connections with a field name of 250 KB
    Lines,
}

/// Pairs of runs in one trial.
const PAIRS: u32 = 2;
const SLOW_SCHEDULES: u64 = 100;
const SLOW_ANSWER: Duration = Duration::from_secs(3);
const BUSY_QUOTA_PER_MINUTE: u32 = 6_000;
const BUSY_PER_SECOND: u64 = 10 * BUSY_QUOTA_PER_MINUTE as u64 / 60;
/// Time from the start of the busy tenant's callbacks to the start of the observed run. After an idle period, a tenant
/// may send a minute's quota at once. The busy tenant uses up this burst before the observed run begins.
const BUSY_BEFORE: Duration = Duration::from_secs(10);

/// # Errors
/// Returns an error if a trial fails, or if the increase exceeds the bound.
pub(crate) async fn run(runtime: &Runtime, arguments: &FairnessArguments) -> anyhow::Result<()> {
    let FairnessArguments { common, rate, duration, .. } = arguments;
    let server = Server::start(runtime, &arguments.server, &common.data).await?;
    let quota = u32::try_from(2 * 60 * rate).ok();
    let tenant = Tenant::create(runtime, &server, "fair", unlimited_except(quota)).await?;
    let due = Due::Evenly { per_second: *rate, duration: Duration::from_secs(*duration) };
    let trial = Trial { runtime, server: &server, tenant: &tenant, due };
    let demands = if arguments.attacks.is_empty() { Demand::value_variants() } else { &arguments.attacks };
    let (mut shown, mut results) = (Vec::new(), Vec::new());
    for &demand in demands {
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..PAIRS * common.runs {
            alone.push(trial.alone().await?);
            beside.push(trial.beside(demand).await?);
        }
        results.push((demand, Results::of(&alone, &beside)));
        let last = beside.last_mut().expect("each trial has at least one pair");
        last.notes.extend(results.last().map(|(_, results)| results.to_text(arguments.bound_ms)));
        shown.extend([(alone, Vec::new()), (beside, Vec::new())]);
    }
    server.stop(runtime).await?;
    print(common, shown)?;
    for (demand, results) in results {
        results.judge(demand, f64::from(arguments.bound_ms))?;
    }
    Ok(())
}

/// Results of the pairs of runs. In each pair, one run has the load of the demanding tenant and the other has not.
#[derive(Debug, Default)]
struct Results {
    /// Change of the 99th percentile in each pair, in milliseconds: the value with the demanding tenant minus the value
    /// without it.
    increases: Vec<f64>,
    wrong: u64,
}

impl Results {
    fn of(alone: &[Row], beside: &[Row]) -> Self {
        let pairs = alone.iter().zip(beside);
        let increases = pairs.filter_map(|(alone, beside)| Some(beside.p99_ms? - alone.p99_ms?)).collect();
        let wrong = |row: &Row| [row.lost, row.doubled, row.early].into_iter().flatten().sum::<u64>();
        Results { increases, wrong: alone.iter().chain(beside).map(wrong).sum() }
    }

    fn to_text(&self, bound_ms: u32) -> String {
        let each: Vec<String> = self.increases.iter().map(|increase| format!("{increase:+.2} ms")).collect();
        let median = report::median(self.increases.iter().copied()).unwrap_or(f64::NAN);
        format!("the p99 lateness changed by {median:+.2} ms (median of {}; bound: {bound_ms} ms)", each.join(", "))
    }

    fn judge(&self, demand: Demand, bound_ms: f64) -> anyhow::Result<()> {
        let median = report::median(self.increases.iter().copied());
        ensure!(median.is_some(), "too few callbacks arrived to compute the 99th percentile of their lateness");
        ensure!(self.wrong == 0, "{} callbacks were lost, duplicated or early", self.wrong);
        let is_within = median.is_some_and(|median| median < bound_ms);
        ensure!(is_within, "with the tenant {demand:?}, the p99 increased by more than {bound_ms} ms");
        Ok(())
    }
}

struct Trial<'a> {
    runtime: &'a Runtime,
    server: &'a Server,
    tenant: &'a Tenant,
    due: Due,
}

impl Trial<'_> {
    async fn alone(&self) -> anyhow::Result<Row> {
        self.fire("alone", self.runtime.now() + fire::lead(self.due.count())).await
    }

    /// Creates schedules of the observed tenant that fall due from `first_at` on, and waits for their callbacks.
    async fn fire(&self, name: &str, first_at: Timestamp) -> anyhow::Result<Row> {
        let arrivals = Arc::new(Arrivals::logging());
        let receiver = fire::receive(self.runtime, Options::default(), arrivals.clone()).await?;
        let head = self.tenant.head("application/x-ndjson");
        let planned = fire::plan_from(self.runtime, head, self.due, first_at, fire::url_of(receiver.address)).await?;
        fire::wait(self.runtime, &arrivals, self.due, first_at).await?;
        let verdict = arrivals.verdict(&planned)?;
        drop(receiver);
        Ok(fire::row(name, self.due, first_at, &verdict))
    }

    async fn beside(&self, demand: Demand) -> anyhow::Result<Row> {
        match demand {
            Demand::Slow => self.beside_slow().await,
            Demand::Busy => self.beside_busy().await,
            Demand::Slots => self.beside_attack(attacks::slots(self.runtime, self.server).await?).await,
            Demand::Listings => {
                let attack = attacks::listings(self.runtime, self.server, self.attack_time()).await?;
                self.beside_attack(attack).await
            }
            Demand::Lines => {
                let attack = attacks::lines(self.runtime, self.server, self.attack_time()).await?;
                self.beside_attack(attack).await
            }
        }
    }

    /// Returns the time from the creation of the observed schedules to their last callback.
    fn attack_time(&self) -> Duration {
        fire::lead(self.due.count()) + self.due.lasts()
    }

    async fn beside_attack(&self, attack: Attack) -> anyhow::Result<Row> {
        let mut row = self.fire("beside an attack", self.runtime.now() + fire::lead(self.due.count())).await?;
        row.notes.push(attack.note.clone());
        attack.end(self.runtime).await?;
        Ok(row)
    }

    async fn beside_slow(&self) -> anyhow::Result<Row> {
        let other = Tenant::create(self.runtime, self.server, "slow", Quotas::new()).await?;
        let received = Arc::new(Arrivals::counting());
        let options = Options { answer_after: SLOW_ANSWER };
        let receiver = fire::receive(self.runtime, options, received.clone()).await?;
        let mut ids = Vec::new();
        for _ in 0..SLOW_SCHEDULES {
            let request = ScheduleRequest::every(Duration::from_secs(1), fire::url_of(receiver.address));
            ids.push(other.client.create(&request).await?.id.into_owned());
        }
        let mut row = self
            .fire("while another tenant's target is slow", self.runtime.now() + fire::lead(self.due.count()))
            .await?;
        row.notes.push(format!(
            "the other tenant's {SLOW_SCHEDULES} schedules were due every second; its target, which responds after \
             {SLOW_ANSWER:?}, received {} callbacks",
            received.count()
        ));
        for id in ids {
            other.client.cancel(&id).await?;
        }
        // The trial waits until the callbacks in flight have ended, so that the next run does not include them.
        self.runtime.sleep(SLOW_ANSWER).await;
        let count = received.count();
        ensure!(
            count > SLOW_SCHEDULES,
            "the slow target received {count} callbacks; a valid trial requires more than {SLOW_SCHEDULES}"
        );
        Ok(row)
    }

    async fn beside_busy(&self) -> anyhow::Result<Row> {
        let other =
            Tenant::create(self.runtime, self.server, "busy", unlimited_except(Some(BUSY_QUOTA_PER_MINUTE))).await?;
        let arrived = Arc::new(Arrivals::counting());
        let receiver = fire::receive(self.runtime, Options::default(), arrived.clone()).await?;
        let lasts = BUSY_BEFORE + self.due.lasts();
        let due = Due::Evenly { per_second: BUSY_PER_SECOND, duration: lasts };
        let from = self.runtime.now() + fire::lead(due.count() + self.due.count());
        let head = other.head("application/x-ndjson");
        let planned = fire::plan_from(self.runtime, head, due, from, fire::url_of(receiver.address)).await?;
        let mut row = self.fire("while another tenant is busy", from + BUSY_BEFORE).await?;
        row.notes.push(format!(
            "the busy tenant's {} callbacks were due at {BUSY_PER_SECOND} per second; its quota is \
             {BUSY_QUOTA_PER_MINUTE} per minute; {} callbacks arrived",
            due.count(),
            arrived.count()
        ));
        ensure!(arrived.count() < due.count(), "the busy tenant did not exceed its quota, so the trial is invalid");
        self.cancel(&other, planned).await?;
        Ok(row)
    }

    /// Cancels the remaining schedules of the other tenant, because they would affect the next run.
    async fn cancel(&self, other: &Tenant, planned: Vec<Incarnation>) -> anyhow::Result<()> {
        let outcome = create::cancel_all(self.runtime, other.head("application/json"), planned).await?;
        ensure!(
            outcome.broken == 0 && outcome.unsent == 0,
            "cannot cancel the other tenant's remaining schedules: {}",
            outcome.failure_summary()
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(p99_ms: f64, lost: u64) -> Row {
        Row { p99_ms: Some(p99_ms), lost: Some(lost), ..Row::new("run") }
    }

    #[test]
    fn verdict_compares_the_median_increase_of_p99_lateness_with_the_bound() {
        let results = Results::of(&[row(5.0, 0), row(6.0, 0)], &[row(14.0, 0), row(15.0, 0)]);
        assert_eq!(
            results.to_text(10),
            "the p99 lateness changed by +9.00 ms (median of +9.00 ms, +9.00 ms; bound: 10 ms)"
        );
        assert!(results.judge(Demand::Slow, 10.0).is_ok());
        assert!(results.judge(Demand::Slow, 9.0).unwrap_err().to_string().contains("Slow"));
    }

    #[test]
    fn trial_fails_if_a_callback_is_lost_or_no_callback_arrives() {
        assert!(Results::of(&[row(1.0, 0)], &[row(1.0, 1)]).judge(Demand::Busy, 10.0).is_err());
        assert!(Results::default().judge(Demand::Busy, 10.0).is_err());
    }
}
