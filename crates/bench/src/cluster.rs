//! Members of a cluster over one database: what each more of them brings, and how late callbacks are when one goes.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use cli_support::Url;
use cli_support::receiver::Options;
use runtime::Runtime;

use crate::fire::{self, Due};
use crate::report::Row;
use crate::server::Server;

/// How long the target of the trial of scale takes to answer.
const ANSWER_AFTER: Duration = Duration::from_millis(100);
/// How long that trial fires.
const FIRING: u64 = 8;
/// Callbacks a second while members come and go.
const PER_SECOND: u64 = 500;
const LEASE: Duration = Duration::from_secs(6);
const SHARDS: u64 = 256;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    pub(crate) members: u64,
    /// Callbacks in flight of each member.
    pub(crate) in_flight: u64,
}

/// # Errors
/// If members cannot be started, or do not share the shards.
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
    rows.push(going(runtime, store, folder, Going::Politely).await?);
    rows.push(going(runtime, store, folder, Going::Killed).await?);
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
    share(runtime, &started).await?;
    Ok(started)
}

/// Waits until each owns its share.
async fn share(runtime: &Runtime, members: &[Server]) -> anyhow::Result<()> {
    const GIVE_UP: Duration = Duration::from_secs(30);
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
        ensure!(runtime.monotonic().since(started) < GIVE_UP, "the members do not share the shards: {owned:?}");
        runtime.sleep(Duration::from_millis(50)).await;
    }
}

async fn owned_by(member: &Server) -> anyhow::Result<u64> {
    member.metric("reveille_shards_owned").await?.context("a member does not say how many shards it owns")
}

async fn stop_all(runtime: &Runtime, members: Vec<Server>) -> anyhow::Result<()> {
    for member in members {
        member.stop(runtime).await?;
    }
    Ok(())
}

/// So many members fire at a target that takes its time, each with as much in flight as it may have.
async fn scale(runtime: &Runtime, store: &Url, folder: &Path, members: u64, in_flight: u64) -> anyhow::Result<Row> {
    let limit = in_flight.to_string();
    let running = start(runtime, store, folder, members, &["--in-flight-per-target", &limit]).await?;
    let a_second = in_flight * 1_000 / u64::try_from(ANSWER_AFTER.as_millis()).unwrap_or(1);
    let due = Due::AtOnce { count: a_second * FIRING * members };
    let options = Options { answer_after: ANSWER_AFTER };
    let (verdict, first_at) = fire::observe(runtime, &running[0], due, options, async |_| Ok(())).await?;
    let name = format!("{members} members, {in_flight} in flight each");
    let mut row = fire::row(&name, due, first_at, &verdict);
    row.notes.push(format!("a target that answers after {ANSWER_AFTER:?} allows {} a second", a_second * members));
    stop_all(runtime, running).await?;
    Ok(row)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Going {
    Politely,
    Killed,
}

/// One of two members goes while both fire; after a polite stop it comes back, too.
async fn going(runtime: &Runtime, store: &Url, folder: &Path, how: Going) -> anyhow::Result<Row> {
    const CALM: Duration = Duration::from_secs(4);
    let mut running = start(runtime, store, folder, 2, &[]).await?;
    let mut leaving = running.pop().context("two were started")?;
    let due = Due::Evenly { per_second: PER_SECOND, duration: CALM * 4 };
    let staying = &running[0];
    let observed = fire::observe(runtime, staying, due, Options::default(), async |first_at: domain::Timestamp| {
        runtime.sleep((first_at + CALM).since(runtime.now())).await;
        match how {
            Going::Killed => leaving.kill().await,
            Going::Politely => {
                leaving.end(runtime).await?;
                runtime.sleep(CALM).await;
                leaving.start_again(runtime).await.map(drop)
            }
        }
    });
    let (verdict, first_at) = observed.await?;
    let name = match how {
        Going::Politely => "one of two stops, and comes back",
        Going::Killed => "one of two is killed",
    };
    let mut row = fire::row(name, due, first_at, &verdict);
    if how == Going::Killed {
        row.notes.push(format!("its lease of {} s is a part of the lateness", LEASE.as_secs()));
    } else {
        leaving.stop(runtime).await?;
    }
    stop_all(runtime, running).await?;
    Ok(row)
}
