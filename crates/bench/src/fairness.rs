//! Measures how much an attacking tenant delays the callbacks of another tenant. The result is the change of the 99th
//! percentile of the lateness.
//!
//! Invariants: attack and control alternate within one process, so that other work on the machine affects both. The
//! control uses as much processor time as the attack, without any request of the attacker. The receivers count the
//! arrivals.

mod attack;
mod burner;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use cli_support::receiver::{Options, Receiver};
use domain::{Incarnation, Timestamp};
use futures_util::TryStreamExt as _;
use reveille_client::{Quota, Quotas};
use runtime::{LowPriorityThreads, Runtime};

use self::attack::{Attack, Equipment, Kind, Stage};
use self::burner::Burner;
use crate::arrivals::Arrivals;
use crate::fire::{self, Due};
use crate::process::{Cost, Meter};
use crate::report::{self, Row};
use crate::server::{Server, ServerArguments};
use crate::tenant::{Tenant, unlimited_except};
use crate::topic::broker::{Broker, BrokerArguments};
use crate::{Common, print};

#[derive(Args, Debug)]
pub struct FairnessArguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    server: ServerArguments,
    /// Callbacks per second of the observed tenant; above 800, the tenant's only quota is twice this rate
    #[arg(long, default_value_t = 800, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,
    /// Targets of the observed tenant, each with an equal part of the callbacks
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    targets: u64,
    /// Seconds of each run; `--runs` is the number of pairs of an attack and a control
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    duration: u64,
    /// Seconds in which the trial creates the schedules of a run [default: 10, plus one for each 4,000 schedules]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    lead: Option<u64>,
    /// Largest allowed increase of the 99th percentile, in milliseconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    bound_ms: u32,
    /// Attacks to test; repeat the option for several attacks [default: each attack alone, `bus` only
    /// with --bus]
    #[arg(long = "attack", value_enum)]
    attacks: Vec<Kind>,
    #[command(flatten)]
    broker: BrokerArguments,
}

/// Highest rate of callbacks that the default quotas of a tenant allow.
const DEFAULT_RATE_MAX: u64 = 800;
/// Largest anonymous memory of the server under an attack, in MiB. docs/limits.md states this figure.
const MEMORY_MIB_MAX: f64 = 1_024.0;
/// Time that the start of all attacks together may take.
const STARTS_MAX: Duration = Duration::from_secs(60);

/// # Errors
/// Returns an error if a trial fails, or if the increase exceeds the bound.
pub(crate) async fn run(runtime: &Runtime, arguments: &FairnessArguments) -> anyhow::Result<()> {
    let common = &arguments.common;
    let attackers =
        LowPriorityThreads::start("attackers", None).context("cannot start the threads that run attacks")?;
    let broker = Broker::of(runtime, &arguments.broker);
    let has_broker = broker.is_some();
    let equipment = Equipment::prepare(&attackers.runtime, &common.data, broker).await?;
    let more = equipment.server_arguments();
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let mut server = Server::start_with(runtime, &arguments.server, &common.data, &more).await?;
    let tenant = Tenant::create(runtime, &server, "fair", quotas(arguments.rate)).await?;
    let is_alone = |kind: &Kind| *kind != Kind::All && (has_broker || *kind != Kind::Bus);
    let each: Vec<Kind> = Kind::value_variants().iter().copied().filter(is_alone).collect();
    let kinds = if arguments.attacks.is_empty() { &each } else { &arguments.attacks };
    let (mut shown, mut results) = (Vec::new(), Vec::new());
    for &kind in kinds {
        if !shown.is_empty() {
            // After a restart, the memory of the server includes no memory of the previous attack.
            server.stop_and_restart(runtime).await?;
        }
        let attackers = &attackers.runtime;
        let trial = Trial { runtime, attackers, server: &server, equipment: &equipment, tenant: &tenant, arguments };
        let (mut controls, mut attacked) = (Vec::new(), Vec::new());
        for _ in 0..common.runs {
            let (row, processors) = trial.attack(kind).await?;
            attacked.push(row);
            controls.push(trial.control(kind, processors).await?);
        }
        results.push((kind, Results::of(&controls, &attacked)));
        let last = attacked.last_mut().expect("the trial runs each attack at least once");
        last.notes.extend(results.last().map(|(_, results)| results.to_text(arguments.bound_ms)));
        shown.extend([(controls, Vec::new()), (attacked, Vec::new())]);
    }
    server.stop(runtime).await?;
    print(common, shown)?;
    for (kind, results) in results {
        results.judge(kind, f64::from(arguments.bound_ms))?;
    }
    Ok(())
}

/// Returns the quotas of the observed tenant. They always allow the trial to create schedules without a pause.
fn quotas(rate: u64) -> Quotas {
    match rate {
        ..=DEFAULT_RATE_MAX => [(Quota::CreatesPerSecond, None)].into(),
        _ => unlimited_except(u32::try_from(2 * 60 * rate).ok()),
    }
}

/// Results of the pairs of an attack run and a control run.
#[derive(Debug, Default)]
struct Results {
    /// Change of the 99th percentile in each pair, in milliseconds: the value under attack minus the value of the
    /// control.
    increases: Vec<f64>,
    wrong: u64,
    /// Largest anonymous memory of the server, in MiB.
    memory_mib: f64,
}

impl Results {
    fn of(controls: &[Row], attacked: &[Row]) -> Self {
        let pairs = controls.iter().zip(attacked);
        let increases = pairs.filter_map(|(control, attacked)| Some(attacked.p99_ms? - control.p99_ms?)).collect();
        let wrong = |row: &Row| [row.failed, row.lost, row.doubled, row.early].into_iter().flatten().sum::<u64>();
        let memory_mib = attacked.iter().filter_map(|row| row.rss_anon_mib).fold(0.0, f64::max);
        Results { increases, wrong: controls.iter().chain(attacked).map(wrong).sum(), memory_mib }
    }

    fn to_text(&self, bound_ms: u32) -> String {
        let each: Vec<String> = self.increases.iter().map(|increase| format!("{increase:+.2} ms")).collect();
        let median = report::median(self.increases.iter().copied()).unwrap_or(f64::NAN);
        format!("the p99 lateness changed by {median:+.2} ms (median of {}; bound: {bound_ms} ms)", each.join(", "))
    }

    fn judge(&self, kind: Kind, bound_ms: f64) -> anyhow::Result<()> {
        let median = report::median(self.increases.iter().copied());
        ensure!(median.is_some(), "too few callbacks arrived to compute the 99th percentile of their lateness");
        ensure!(self.wrong == 0, "{} callbacks failed, or were lost, duplicated or early", self.wrong);
        let memory_mib = self.memory_mib;
        ensure!(
            memory_mib <= MEMORY_MIB_MAX,
            "under the attack {kind:?}, the server used {memory_mib:.0} MiB of anonymous memory; the limit is \
             {MEMORY_MIB_MAX} MiB"
        );
        let is_within = median.is_some_and(|median| median < bound_ms);
        ensure!(is_within, "under the attack {kind:?}, the p99 lateness increased by more than {bound_ms} ms");
        Ok(())
    }
}

struct Trial<'a> {
    runtime: &'a Runtime,
    /// Runtime of the attackers and their targets, on threads with a low priority. The work of the attackers on this
    /// machine therefore does not delay the receivers of the observed tenant.
    attackers: &'a Runtime,
    server: &'a Server,
    equipment: &'a Equipment,
    tenant: &'a Tenant,
    arguments: &'a FairnessArguments,
}

/// Schedules of the observed tenant in one run.
struct Planned {
    arrivals: Arc<Arrivals>,
    incarnations: Vec<Incarnation>,
    /// Receivers of the callbacks, which must outlive the run.
    _receivers: Vec<Receiver>,
}

impl Trial<'_> {
    /// Runs an attack. Returns the result, and the mean number of processors that the server and the benchmark used.
    async fn attack(&self, kind: Kind) -> anyhow::Result<(Row, f64)> {
        let Trial { runtime, attackers, server, equipment, .. } = *self;
        let starts = if kind == Kind::All { STARTS_MAX } else { Duration::ZERO };
        let lasts = starts + self.lead() + self.due().lasts();
        let attacks = kind.start(&Stage { runtime: attackers, server, equipment, lasts, lead: self.lead() }).await?;
        let ready_at = attacks.iter().filter_map(|attack| attack.ready_at).max();
        let (mut row, processors) = self.fire(format!("attack {kind:?}"), ready_at, None).await?;
        let effects: anyhow::Result<Vec<String>> = attacks.iter().map(Attack::effect).collect();
        row.notes.extend(effects?);
        row.notes.push(format!("the server and the benchmark used {processors:.2} processors"));
        // The attacks end in reverse order, because the attacks that send requests start last and would delay the end
        // of the other attacks.
        for attack in attacks.into_iter().rev() {
            attack.end(runtime).await?;
        }
        Ok((row, processors))
    }

    /// Runs the observed tenant without an attack, and uses as much processor time as the attack used.
    async fn control(&self, kind: Kind, processors: f64) -> anyhow::Result<Row> {
        let (mut row, used) = self.fire(format!("control of {kind:?}"), None, Some(processors)).await?;
        row.notes.push(format!("the server and the benchmark used {used:.2} processors"));
        Ok(row)
    }

    /// Returns the due instants of the callbacks to one target.
    fn due(&self) -> Due {
        let FairnessArguments { rate, targets, duration, .. } = *self.arguments;
        Due::Evenly { per_second: rate.div_ceil(targets), duration: Duration::from_secs(duration) }
    }

    fn count(&self) -> u64 {
        self.due().count() * self.arguments.targets
    }

    fn lead(&self) -> Duration {
        Duration::from_secs(self.arguments.lead.unwrap_or(10 + self.count() / 4_000))
    }

    /// Measures callbacks of the observed tenant that fall due from `ready_at` on, and waits for them. If the
    /// server and the benchmark use fewer than `processors` processors, uses the rest of this processor time.
    async fn fire(
        &self,
        name: String,
        ready_at: Option<Timestamp>,
        processors: Option<f64>,
    ) -> anyhow::Result<(Row, f64)> {
        let (runtime, pid) = (self.runtime, self.server.pid());
        let failed_before = self.dead_letters().await?;
        let first_at = (runtime.now() + self.lead()).max(ready_at.unwrap_or(Timestamp::from_millis(0)));
        let planned = self.plan(first_at).await?;
        runtime.sleep(first_at.since(runtime.now())).await;
        let (meter, started) = (Meter::start(runtime, pid), runtime.monotonic());
        let burner = processors.map(|processors| Burner::start(runtime, pid, processors));
        fire::wait_for(runtime, &planned.arrivals, self.count(), first_at + self.due().lasts()).await?;
        let (cost, elapsed) = (meter.stop().await, runtime.monotonic().since(started));
        drop(burner);
        let verdict = planned.arrivals.verdict(&planned.incarnations)?;
        let mut row = fire::row(&name, self.due(), first_at, &verdict).with_cost(&cost, verdict.arrived);
        row.failed = Some(self.dead_letters().await?.saturating_sub(failed_before));
        Ok((row, processors_in_use(&cost, elapsed)))
    }

    /// Creates the schedules of the observed tenant, due from `first_at` on.
    async fn plan(&self, first_at: Timestamp) -> anyhow::Result<Planned> {
        let arrivals = Arc::new(Arrivals::logging());
        let (mut incarnations, mut receivers) = (Vec::new(), Vec::new());
        for number in 0..self.arguments.targets {
            let receiver = fire::receive(self.runtime, Options::default(), arrivals.clone()).await?;
            let (head, target) = (self.tenant.head("application/x-ndjson"), fire::url_of(receiver.address));
            // The callbacks to different targets are not due at the same instants.
            let first_at = first_at + Duration::from_millis(number);
            incarnations.extend(fire::plan_from(self.runtime, head, self.due(), first_at, vec![target]).await?);
            receivers.push(receiver);
        }
        Ok(Planned { arrivals, incarnations, _receivers: receivers })
    }

    /// Returns the number of failed runs of the observed tenant.
    async fn dead_letters(&self) -> anyhow::Result<u64> {
        let runs = self.tenant.client.dead_letters();
        Ok(runs.try_fold(0, |count, _| async move { Ok(count + 1) }).await?)
    }
}

fn processors_in_use(cost: &Cost, elapsed: Duration) -> f64 {
    (cost.cpu.unwrap_or_default() + cost.own_cpu).as_secs_f64() / elapsed.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(p99_ms: f64, lost: u64) -> Row {
        Row { p99_ms: Some(p99_ms), lost: Some(lost), ..Row::new("run") }
    }

    #[test]
    fn verdict_fails_if_the_increase_of_lateness_reaches_its_bound() {
        let results = Results::of(&[row(5.0, 0), row(6.0, 0)], &[row(14.0, 0), row(15.0, 0)]);
        assert_eq!(
            results.to_text(10),
            "the p99 lateness changed by +9.00 ms (median of +9.00 ms, +9.00 ms; bound: 10 ms)"
        );
        assert!(results.judge(Kind::Slow, 10.0).is_ok());
        assert!(results.judge(Kind::Slow, 9.0).unwrap_err().to_string().contains("Slow"));
    }

    #[test]
    fn trial_fails_if_the_server_exceeds_the_documented_memory_limit() {
        let attacked = |rss_anon_mib| Row { rss_anon_mib: Some(rss_anon_mib), ..row(1.0, 0) };
        let results = |rss_anon_mib| Results::of(&[row(1.0, 0)], &[attacked(rss_anon_mib)]);
        assert!(results(1_024.0).judge(Kind::All, 10.0).is_ok());
        assert!(results(1_025.0).judge(Kind::All, 10.0).unwrap_err().to_string().contains("1025 MiB"));
    }

    #[test]
    fn trial_fails_if_a_callback_is_lost_or_no_callback_arrives() {
        assert!(Results::of(&[row(1.0, 0)], &[row(1.0, 1)]).judge(Kind::Busy, 10.0).is_err());
        assert!(Results::default().judge(Kind::Busy, 10.0).is_err());
    }
}
