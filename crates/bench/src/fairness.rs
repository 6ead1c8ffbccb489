//! Whether a tenant's callbacks are on time beside another that is a burden: by how much the 99th percentile of its lateness moves.
//!
//! Always true here: the runs alone and beside the other take turns within one process, so that what the machine does meanwhile
//! befalls both; what arrived is the receivers' word.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use cli_support::receiver::Options;
use domain::{Incarnation, Timestamp};
use reveille_client::{Quotas, ScheduleRequest};
use runtime::Runtime;

use crate::arrivals::Arrivals;
use crate::create;
use crate::fire::{self, Due};
use crate::report::{self, Row};
use crate::server::{Server, ServerArguments};
use crate::tenant::{Tenant, unlimited_but};
use crate::{Common, print};

#[derive(Args, Debug)]
pub struct FairnessArguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    server: ServerArguments,
    /// Callbacks a second of the tenant that is looked at
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,
    /// Seconds of each run; a trial has four, twice alone and beside the other
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    duration: u64,
    /// By how many milliseconds its 99th percentile may move
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    bound_ms: u32,
    /// Only beside this one
    #[arg(long, value_enum)]
    only: Vec<Burden>,
}

/// What the other tenant does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Burden {
    /// It has a hundred schedules, each due every second, for a target that takes three seconds to answer.
    Slow,
    /// It has ten times as many callbacks as its quota allows.
    Busy,
}

/// Runs alone and beside the other, of one trial.
const PAIRS: u32 = 2;
const SLOW_SCHEDULES: u64 = 100;
const SLOW_ANSWER: Duration = Duration::from_secs(3);
const BUSY_QUOTA_PER_MINUTE: u32 = 6_000;
const BUSY_PER_SECOND: u64 = 10 * BUSY_QUOTA_PER_MINUTE as u64 / 60;
/// After a rest a tenant may call as much as its quota gives in a minute, at once: which is used up before the other begins.
const BUSY_BEFORE: Duration = Duration::from_secs(10);

/// # Errors
/// If a trial could not be made, or shows more than the bound.
pub(crate) async fn run(runtime: &Runtime, arguments: &FairnessArguments) -> anyhow::Result<()> {
    let FairnessArguments { common, rate, duration, .. } = arguments;
    let server = Server::start(runtime, &arguments.server, &common.data).await?;
    let quota = u32::try_from(2 * 60 * rate).ok();
    let tenant = Tenant::make(runtime, &server, "fair", unlimited_but(quota)).await?;
    let due = Due::Evenly { per_second: *rate, duration: Duration::from_secs(*duration) };
    let trial = Trial { runtime, server: &server, tenant: &tenant, due };
    let burdens = if arguments.only.is_empty() { vec![Burden::Slow, Burden::Busy] } else { arguments.only.clone() };
    let (mut shown, mut found) = (Vec::new(), Vec::new());
    for burden in burdens {
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..PAIRS * common.runs {
            alone.push(trial.alone().await?);
            beside.push(trial.beside(burden).await?);
        }
        found.push((burden, Found::of(&alone, &beside)));
        let last = beside.last_mut().expect("there is a pair");
        last.notes.extend(found.last().map(|(_, found)| found.in_words(arguments.bound_ms)));
        shown.extend([(alone, Vec::new()), (beside, Vec::new())]);
    }
    server.stop(runtime).await?;
    print(common, shown)?;
    for (burden, found) in found {
        found.judge(burden, f64::from(arguments.bound_ms))?;
    }
    Ok(())
}

/// What the pairs come to.
#[derive(Debug, Default)]
struct Found {
    /// Of each pair, in milliseconds: beside, less alone.
    moved: Vec<f64>,
    wrong: u64,
}

impl Found {
    fn of(alone: &[Row], beside: &[Row]) -> Self {
        let pairs = alone.iter().zip(beside);
        let moved = pairs.filter_map(|(alone, beside)| Some(beside.p99_ms? - alone.p99_ms?)).collect();
        let wrong = |row: &Row| [row.lost, row.doubled, row.early].into_iter().flatten().sum::<u64>();
        Found { moved, wrong: alone.iter().chain(beside).map(wrong).sum() }
    }

    fn in_words(&self, bound_ms: u32) -> String {
        let each: Vec<String> = self.moved.iter().map(|moved| format!("{moved:+.2} ms")).collect();
        let median = report::median(self.moved.iter().copied()).unwrap_or(f64::NAN);
        format!("the p99 moved by {median:+.2} ms (the median of {}; {bound_ms} ms is the bound)", each.join(", "))
    }

    fn judge(&self, burden: Burden, bound_ms: f64) -> anyhow::Result<()> {
        let median = report::median(self.moved.iter().copied());
        ensure!(median.is_some(), "nothing arrived, so nothing is shown");
        ensure!(self.wrong == 0, "{} callbacks were lost, doubled or early", self.wrong);
        let is_kept = median.is_some_and(|median| median < bound_ms);
        ensure!(is_kept, "beside the tenant that is {burden:?}, the p99 moved by more than {bound_ms} ms");
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

    /// Schedules of the tenant that is looked at, due from `first_at` on.
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

    async fn beside(&self, burden: Burden) -> anyhow::Result<Row> {
        match burden {
            Burden::Slow => self.beside_slow().await,
            Burden::Busy => self.beside_busy().await,
        }
    }

    async fn beside_slow(&self) -> anyhow::Result<Row> {
        let other = Tenant::make(self.runtime, self.server, "slow", Quotas::new()).await?;
        let held = Arc::new(Arrivals::counting());
        let options = Options { answer_after: SLOW_ANSWER };
        let receiver = fire::receive(self.runtime, options, held.clone()).await?;
        let mut ids = Vec::new();
        for _ in 0..SLOW_SCHEDULES {
            let request = ScheduleRequest::every("1s", fire::url_of(receiver.address));
            ids.push(other.client.create(&request).await?.id.into_owned());
        }
        let mut row = self.fire("beside a slow target", self.runtime.now() + fire::lead(self.due.count())).await?;
        row.notes.push(format!(
            "{SLOW_SCHEDULES} schedules due every second, for a target that answers after {SLOW_ANSWER:?}: {} calls",
            held.count()
        ));
        for id in ids {
            other.client.cancel(&id).await?;
        }
        // What is in flight ends, and none of it is counted in the next run.
        self.runtime.sleep(SLOW_ANSWER).await;
        ensure!(held.count() > SLOW_SCHEDULES, "the slow target was hardly called, so nothing is shown");
        Ok(row)
    }

    async fn beside_busy(&self) -> anyhow::Result<Row> {
        let other = Tenant::make(self.runtime, self.server, "busy", unlimited_but(Some(BUSY_QUOTA_PER_MINUTE))).await?;
        let arrived = Arc::new(Arrivals::counting());
        let receiver = fire::receive(self.runtime, Options::default(), arrived.clone()).await?;
        let lasts = BUSY_BEFORE + self.due.lasts();
        let due = Due::Evenly { per_second: BUSY_PER_SECOND, duration: lasts };
        let from = self.runtime.now() + fire::lead(due.count() + self.due.count());
        let head = other.head("application/x-ndjson");
        let planned = fire::plan_from(self.runtime, head, due, from, fire::url_of(receiver.address)).await?;
        let mut row = self.fire("beside a busy tenant", from + BUSY_BEFORE).await?;
        row.notes.push(format!(
            "of its {} callbacks, due at {BUSY_PER_SECOND} a second with a quota of {BUSY_QUOTA_PER_MINUTE} a minute, {} came",
            due.count(),
            arrived.count()
        ));
        ensure!(arrived.count() < due.count(), "the busy tenant was not above its quota, so nothing is shown");
        self.cancel(&other, planned).await?;
        Ok(row)
    }

    /// What is left of the other's would burden the next run, too.
    async fn cancel(&self, other: &Tenant, planned: Vec<Incarnation>) -> anyhow::Result<()> {
        let outcome = create::cancel_all(self.runtime, other.head("application/json"), planned).await?;
        ensure!(outcome.broken == 0 && outcome.unsent == 0, "what was left could not be cancelled");
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
    fn the_median_of_what_each_pair_moved_by_is_held_to_the_bound() {
        let found = Found::of(&[row(5.0, 0), row(6.0, 0)], &[row(14.0, 0), row(15.0, 0)]);
        assert_eq!(
            found.in_words(10),
            "the p99 moved by +9.00 ms (the median of +9.00 ms, +9.00 ms; 10 ms is the bound)"
        );
        assert!(found.judge(Burden::Slow, 10.0).is_ok());
        assert!(found.judge(Burden::Slow, 9.0).unwrap_err().to_string().contains("Slow"));
    }

    #[test]
    fn a_trial_that_lost_something_or_saw_nothing_shows_nothing() {
        assert!(Found::of(&[row(1.0, 0)], &[row(1.0, 1)]).judge(Burden::Busy, 10.0).is_err());
        assert!(Found::default().judge(Burden::Busy, 10.0).is_err());
    }
}
