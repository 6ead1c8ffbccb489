//! Loader of runs. It writes the runs through the store port, as owners of the shards do, and needs no server.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use clap::Args;
use cli_support::{Url, console};
use domain::occurrence::Run;
use domain::retry::RetryPolicy;
use domain::{
    Attempt, AttemptResult, DueKey, HttpTarget, Incarnation, Occurrence, PollerId, Revision, RunState, Schedule,
    ScheduleId, ShardId, Spec, Status, Target, Tenant, Term, Timestamp, When,
};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use runtime::Runtime;
use store::{Change, Insert, Inserted, OwnerWrite, Store};

use super::SCHEDULE;
use crate::create::schedules_far;

#[derive(Args, Debug)]
pub struct LoadRunsArguments {
    /// Folder of the benchmark whose data the command fills; the server of this data must be stopped
    #[arg(long, default_value = "bench-data", conflicts_with = "store")]
    pub data: PathBuf,
    /// Database to fill instead, postgres://…; its members must be stopped
    #[arg(long)]
    pub store: Option<Url>,
    /// Number of runs
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub count: u64,
}

impl LoadRunsArguments {
    /// Returns the data folder of the server.
    #[must_use]
    pub fn server_data(&self) -> PathBuf {
        crate::server::data(&self.data)
    }
}

/// Number of days before the day of the load over which the nominal instants of the runs are spread.
pub(super) const DAYS: u64 = 7;
const DAY_MILLIS: i64 = 86_400_000;
const SCHEDULES: usize = 10_000;
/// Number of labels `team`, and of hosts, of the schedules.
const GROUPS: usize = 100;
const WRITES_PER_CALL: usize = 2_000;
const CALLS_AT_ONCE: usize = 6;

/// Writes `count` runs of [`SCHEDULES`] new schedules of the tenant `default`. One percent of the runs failed. One per
/// mille each is retrying, missed, cancelled, and succeeded a minute late.
///
/// # Errors
/// Returns an error if the store has no tenant `default`, or if it rejects a write.
pub async fn load(runtime: &Runtime, store: &dyn Store, count: u64) -> anyhow::Result<()> {
    let tenants = store.tenants().await.context("cannot read the tenants")?;
    let tenant = tenants.iter().find(|tenant| tenant.name == "default");
    let tenant = tenant.context("the store has no tenant `default`: start a server once, and stop it")?;
    let begun = runtime.monotonic();
    let schedules = insert_schedules(runtime, store, tenant).await?;
    let shards: BTreeSet<ShardId> = schedules.iter().map(|schedule| schedule.poller.shard()).collect();
    let taken = store.take(shards.iter().copied().collect()).await.context("cannot take the shards")?;
    let terms: BTreeMap<ShardId, Term> = shards.into_iter().zip(taken).collect();
    let midnight = Timestamp::from_millis(runtime.now().as_millis() / DAY_MILLIS * DAY_MILLIS);
    let load = Load { schedules, terms, start: midnight - Duration::from_secs(DAYS * 86_400), count };
    let load = &load;
    for day in 0..DAYS {
        let [first, end] = [day, day + 1].map(|day| (day * count).div_ceil(DAYS));
        // The first write of a day creates the day's partition on PostgreSQL. Other writes would delay the creation.
        let second = end.min(first + 1);
        load.write_all(store, first..second).await?;
        let starts = (second..end).step_by(WRITES_PER_CALL);
        let calls = starts.map(|from| load.write_all(store, from..end.min(from + WRITES_PER_CALL as u64)));
        stream::iter(calls).buffer_unordered(CALLS_AT_ONCE).try_collect::<()>().await?;
        console::line(&format!("wrote {end} of {count} runs"))?;
    }
    let seconds = runtime.monotonic().since(begun).as_secs().max(1);
    console::line(&format!("loaded {count} runs in {seconds} s: {} per second", count / seconds))?;
    Ok(())
}

struct Load {
    schedules: Vec<Arc<Schedule>>,
    terms: BTreeMap<ShardId, Term>,
    start: Timestamp,
    count: u64,
}

impl Load {
    async fn write_all(&self, store: &dyn Store, numbers: Range<u64>) -> anyhow::Result<()> {
        let written = store.write(numbers.map(|number| self.write(number)).collect()).await;
        for result in written.context("the store does not accept the runs")? {
            result.context("the store rejects a run; stop the server, and load again")?;
        }
        Ok(())
    }

    /// Returns the write of run number `number`. The nominal instants ascend with the numbers.
    fn write(&self, number: u64) -> OwnerWrite {
        let at = usize::try_from(number).unwrap_or(usize::MAX) % self.schedules.len();
        let schedule = &self.schedules[at];
        let range_millis = u128::from(DAYS) * 86_400_000;
        let offset = u128::from(number) * range_millis / u128::from(self.count);
        let nominal = self.start + Duration::from_millis(u64::try_from(offset).unwrap_or(u64::MAX));
        let occurrence = Occurrence { incarnation: schedule.incarnation, nominal, revision: Revision(0), replay: 0 };
        // The factor spreads the rare runs over all schedules.
        let (state, status, delay) = match (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % 1_000 {
            0..10 => (RunState::Failed, Some(503), 40),
            10 => (RunState::Retrying, Some(503), 40),
            11 => (RunState::Missed { last: nominal, count: 1, attempt_possible: false }, None, 0),
            12 => (RunState::Cancelled, None, 0),
            13 => (RunState::Succeeded, Some(204), 60_000),
            _ => (RunState::Succeeded, Some(204), 40),
        };
        let attempts = status.map(|status| Attempt {
            number: 1,
            started_at: nominal + Duration::from_millis(delay),
            duration: Duration::from_millis(12),
            result: AttemptResult::Answered(status),
            delay: None,
            excerpt: None,
        });
        let then = (state == RunState::Retrying).then(|| DueKey {
            position: schedule.next.unwrap_or(nominal),
            occurrence,
            attempt: 2,
            target: schedule.spec.target.key(),
        });
        let run = Run { tenant: schedule.tenant, occurrence, state, attempts: attempts.into_iter().collect() };
        let poller = schedule.poller;
        OwnerWrite {
            term: self.terms[&poller.shard()],
            poller,
            change: Change::Run { run, then, ends: false, origin: None },
        }
    }
}

/// Inserts schedules that never fall due during a trial.
async fn insert_schedules(runtime: &Runtime, store: &dyn Store, tenant: &Tenant) -> anyhow::Result<Vec<Arc<Schedule>>> {
    const INSERTS_PER_CALL: usize = 500;
    let Some((generation, count)) = (0..).zip(&tenant.generations).last() else {
        bail!("the tenant {} has no pollers", tenant.name);
    };
    let (now, far) = (runtime.now(), schedules_far(runtime).first_at);
    let schedule = |number: usize| {
        let incarnation = Incarnation::new(now, runtime.random_u128());
        let id = ScheduleId::from_incarnation(incarnation);
        let group = number % GROUPS;
        let target = Target::Http(HttpTarget {
            url: format!("https://h{group}.example/"),
            method: "POST".to_owned(),
            headers: Vec::new(),
            timeout: Duration::from_secs(10),
        });
        let labels = [("order", number.to_string()), ("team", format!("t{group}"))];
        let labels = labels.map(|(name, value)| (name.to_owned(), value)).into();
        let (backoff, backoff_max) = (Duration::from_secs(1), Duration::from_secs(60));
        let retry = RetryPolicy { attempts_max: 5, backoff, backoff_max };
        Arc::new(Schedule {
            tenant: tenant.id,
            poller: PollerId::of(tenant.id, generation, *count, &id),
            id,
            incarnation,
            revision: Revision(0),
            status: Status::Active,
            created_at: now,
            updated_at: now,
            next: Some(far),
            spec: Spec { when: When::At(far), target, payload: Bytes::from_static(b"{}"), labels, retry },
        })
    };
    let schedules: Vec<Arc<Schedule>> = (0..SCHEDULES).map(schedule).collect();
    const { assert!(SCHEDULE < SCHEDULES, "the trial lists the runs of a loaded schedule") };
    for some in schedules.chunks(INSERTS_PER_CALL) {
        let insert = |schedule: &Arc<Schedule>| {
            let (incarnation, revision) = (schedule.incarnation, schedule.revision);
            let occurrence = Occurrence { incarnation, nominal: far, revision, replay: 0 };
            let due = DueKey { position: far, occurrence, attempt: 1, target: schedule.spec.target.key() };
            Insert { schedule: schedule.clone(), due, by: None }
        };
        let inserted = store.insert(some.iter().map(insert).collect()).await.context("cannot insert the schedules")?;
        let is_created = |inserted: &Inserted| matches!(inserted, Inserted::Placed(_));
        ensure!(inserted.iter().all(is_created), "the store has a schedule with the id of a new one; load again");
    }
    Ok(schedules)
}
