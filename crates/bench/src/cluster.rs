//! Trials of a cluster over one database: the rate of callbacks with one, two and three members, and the lateness of
//! callbacks when a member stops.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use cli_support::Url;
use cli_support::receiver::Options;
use runtime::Runtime;

use crate::fire::{self, Due};
use crate::report::Row;
use crate::server::Server;

/// Response time of the target in the scaling trial.
const ANSWER_AFTER: Duration = Duration::from_millis(100);
/// Duration of the scaling trial in seconds.
const FIRING: u64 = 8;
/// Callbacks per second while members stop and start.
const PER_SECOND: u64 = 500;
const LEASE: Duration = Duration::from_secs(6);
const SHARDS: u64 = 256;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    pub(crate) members: u64,
    /// Limit of the callbacks in flight on each member.
    pub(crate) in_flight: u64,
}

/// # Errors
/// Returns an error if a member does not start, or if the members do not balance the shards.
pub(crate) async fn run(runtime: &Runtime, store: &Url, folder: &Path, trial: Trial) -> anyhow::Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    for members in 1..=trial.members {
        let mut row = scale(runtime, store, folder, members, trial.in_flight).await?;
        let alone = rows.first().unwrap_or(&row).per_second;
        #[expect(clippy::cast_precision_loss, reason = "members are few")]
        let expected = alone.map(|alone| alone * members as f64);
        row.ratio = row.per_second.zip(expected).map(|(rate, expected)| rate / expected);
        rows.push(row);
    }
    rows.push(departure(runtime, store, folder, Departure::Graceful).await?);
    rows.push(departure(runtime, store, folder, Departure::Killed).await?);
    Ok(rows)
}

async fn start(
    runtime: &Runtime,
    store: &Url,
    folder: &Path,
    members: u64,
    arguments: &[&str],
) -> anyhow::Result<Vec<Server>> {
    let mut started: Vec<Server> = Vec::new();
    for number in 0..members {
        let name = format!("m{number}");
        let lease = LEASE.as_secs().to_string();
        let own = ["--name", &name, "--lease", &lease];
        let all = [&own, arguments].concat();
        started.push(Server::start_member(runtime, store, folder, &name, &all).await?);
    }
    wait_until_balanced(runtime, &started).await?;
    Ok(started)
}

/// Waits until each member owns its share of the shards.
async fn wait_until_balanced(runtime: &Runtime, members: &[Server]) -> anyhow::Result<()> {
    const TIMEOUT: Duration = Duration::from_secs(30);
    let fair = SHARDS / members.len() as u64;
    let started = runtime.monotonic();
    loop {
        let mut owned = Vec::new();
        for member in members {
            owned.push(owned_by(member).await?);
        }
        if owned.iter().sum::<u64>() == SHARDS && owned.iter().all(|owned| (fair..=fair + 1).contains(owned)) {
            return Ok(());
        }
        ensure!(
            runtime.monotonic().since(started) < TIMEOUT,
            "the members did not balance the shards within {TIMEOUT:?}; shards per member: {owned:?}"
        );
        runtime.sleep(Duration::from_millis(50)).await;
    }
}

async fn owned_by(member: &Server) -> anyhow::Result<u64> {
    let value = member.metric("reveille_shards_owned").await?;
    value.context("a member does not report the metric reveille_shards_owned")
}

async fn stop_all(runtime: &Runtime, members: Vec<Server>) -> anyhow::Result<()> {
    for member in members {
        member.stop(runtime).await?;
    }
    Ok(())
}

/// Runs `members` members that call a slow target, each with the highest permitted number of callbacks in flight.
async fn scale(runtime: &Runtime, store: &Url, folder: &Path, members: u64, in_flight: u64) -> anyhow::Result<Row> {
    let limit = in_flight.to_string();
    let running = start(runtime, store, folder, members, &["--in-flight-per-target", &limit]).await?;
    let per_second = in_flight * 1_000 / u64::try_from(ANSWER_AFTER.as_millis()).unwrap_or(1);
    let due = Due::AtOnce { count: per_second * FIRING * members };
    let options = Options { answer_after: ANSWER_AFTER };
    let (verdict, first_at) = fire::observe(runtime, &running[0], due, options, async |_| Ok(())).await?;
    let name = format!("{members} members, {in_flight} callbacks in flight each");
    let mut row = fire::row(&name, due, first_at, &verdict);
    row.notes.push(format!(
        "upper limit with a target that responds after {ANSWER_AFTER:?}: {} callbacks per second",
        per_second * members
    ));
    stop_all(runtime, running).await?;
    Ok(row)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Departure {
    Graceful,
    Killed,
}

/// Stops or kills one of two members while both members send callbacks. The trial restarts a member that it stopped
/// gracefully.
async fn departure(runtime: &Runtime, store: &Url, folder: &Path, how: Departure) -> anyhow::Result<Row> {
    const CALM: Duration = Duration::from_secs(4);
    let mut running = start(runtime, store, folder, 2, &[]).await?;
    let mut leaving = running.pop().context("the second member is missing")?;
    let due = Due::Evenly { per_second: PER_SECOND, duration: CALM * 4 };
    let staying = &running[0];
    let observed = fire::observe(runtime, staying, due, Options::default(), async |first_at: domain::Timestamp| {
        runtime.sleep((first_at + CALM).since(runtime.now())).await;
        match how {
            Departure::Killed => leaving.kill().await,
            Departure::Graceful => {
                leaving.stop_process(runtime).await?;
                runtime.sleep(CALM).await;
                leaving.restart(runtime).await.map(drop)
            }
        }
    });
    let (verdict, first_at) = observed.await?;
    let name = match how {
        Departure::Graceful => "one of two members stops and restarts",
        Departure::Killed => "one of two members is killed",
    };
    let mut row = fire::row(name, due, first_at, &verdict);
    if how == Departure::Killed {
        let lease = LEASE.as_secs();
        row.notes.push(format!("the lateness includes the time until the killed member's lease of {lease} s expires"));
    } else {
        leaving.stop(runtime).await?;
    }
    stop_all(runtime, running).await?;
    Ok(row)
}
