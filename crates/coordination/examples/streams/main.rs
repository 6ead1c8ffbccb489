//! Stream processing. Two models learn from observations of students who answer items. The shards of `ability` contain
//! students, and the shards of `difficulty` contain items. Shards are jobs of the recipe `RoleMatch`. Processes may
//! therefore join, leave and die, and the number of shards may change, while observations arrive. Each model needs the
//! parameters of the other model. To subscribe to parameters, a process adds its address to a bag (the recipe `Bag`).
//! Start some processes, give each model shards, and feed observations:
//!
//! ```sh
//! cargo run -p reveille-coordination --example streams -- zookeeper://127.0.0.1:2181 --credentials shop.credentials work
//! cargo run -p reveille-coordination --example streams -- zookeeper://127.0.0.1:2181 --credentials shop.credentials shard 4
//! cargo run -p reveille-coordination --example streams -- zookeeper://127.0.0.1:2181 --credentials shop.credentials feed --count 1000 --per-second 50
//! cargo run -p reveille-coordination --example streams -- zookeeper://127.0.0.1:2181 --credentials shop.credentials shard 8
//! ```
//!
//! Promises: if the command `feed` succeeds in adding an observation, the observation changes the parameters of each
//! model once, even if processes die. In one model, two holders never learn the same observation, even if one of them
//! still holds a shard that the command `shard` has replaced. The reason is that a single change removes the
//! observation from the inbox of the model, records it as done and stores the parameter. This change contains the fence
//! of the shard's holder. A message to a subscriber may be lost. The next message about the same parameter replaces the
//! lost message.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the example reports its progress")]

#[path = "../access/options.rs"]
mod access;
mod model;
mod process;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Parser, Subcommand};
use coordination_connect::{ConnectOptions, connect_with};
use reveille_coordination::recipes::{Client, Lock};
use reveille_coordination::tree::{CreateMode, Op};
use runtime::Runtime;

use model::{Model, Shard};
use process::Process;

#[derive(Parser)]
struct Arguments {
    /// Coordination engine of the processes: zookeeper://HOST:PORT,HOST:PORT/ROOT or
    /// postgres://USER:PASSWORD@HOST:PORT/DATABASE
    coordination: String,
    #[command(flatten)]
    access: access::Access,
    /// Milliseconds without contact with the engine after which a process loses its shards and its subscriptions
    #[arg(long, default_value_t = 10_000)]
    session_millis: u64,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Hold shards of both models and learn their observations
    Work(Work),
    /// Replace the shards of each model by COUNT shards
    Shard {
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        count: u64,
    },
    /// Feed random observations
    Feed {
        #[arg(long, default_value_t = 1_000)]
        count: u64,
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1_000))]
        per_second: u64,
    },
    /// Show the holder of each shard and the size of the inboxes
    Show,
}

#[derive(clap::Args)]
struct Work {
    /// Name of this process
    #[arg(long, default_value_t = format!("process-{}", std::process::id()))]
    name: String,
    /// Largest number of shards of each model that this process holds
    #[arg(long, default_value_t = 4)]
    hands: usize,
    /// Address at which this process receives parameters
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Arguments { coordination, access, session_millis, command } = Arguments::parse();
    let session_timeout = Duration::from_millis(session_millis);
    let options = ConnectOptions { session_timeout, ..ConnectOptions::default() };
    let client = connect_with(&coordination, access.choice()?, options).await?;
    let models = [Model::open(&client, "ability").await?, Model::open(&client, "difficulty").await?];
    match command {
        Command::Work(Work { name, hands, listen }) => {
            let socket = tokio::net::UdpSocket::bind(&listen).await.context("--listen")?;
            Process::new(name, &client, socket, models).work(hands).await?;
        }
        Command::Shard { count } => {
            for model in &models {
                shard(&client, model, count).await?;
            }
        }
        Command::Feed { count, per_second } => feed(client.runtime(), &client, &models, count, per_second).await?,
        Command::Show => {
            for model in &models {
                show(&client, model).await?;
            }
        }
    }
    client.close().await?;
    Ok(())
}

/// Divides the keys of a model into `count` shards. The function first removes the shards of any other count, and then
/// adds the missing shards. Shards of different counts therefore never exist at the same time. A process may safely
/// repeat the call, for example after another process has died during such a call.
async fn shard(client: &Client, model: &Model, count: u64) -> anyhow::Result<()> {
    let lock = Lock::new(client, model.path.join("sharding")?, client.default_acl()).acquire().await?;
    // The function checks the lock before each change. A process that is paused between the check and the change may
    // make its change while another process holds the lock. This late change does no harm: a holder learns each
    // observation in one change with the fence of its shard, so the model neither loses an observation nor counts it
    // twice. The next run of `shard` corrects the shards.
    let check = || -> anyhow::Result<()> {
        ensure!(lock.is_valid(), "this process lost the lock; run the command again");
        Ok(())
    };
    let jobs = model.shards.jobs();
    let mut missing: BTreeSet<Shard> = (0..count).map(|number| Shard { number, count }).collect();
    for id in jobs.ids().await? {
        let shard = jobs.get(id).await?.and_then(|description| Shard::parse(&description));
        if shard.is_none_or(|shard| !missing.remove(&shard)) {
            check()?;
            jobs.remove(id).await?;
        }
    }
    for shard in missing {
        check()?;
        jobs.add(shard.to_string().into()).await?;
    }
    lock.release().await;
    println!("{} has {count} shards", model.name);
    Ok(())
}

/// Adds each observation to the inboxes of both models in one change.
async fn feed(
    runtime: &Runtime,
    client: &Client,
    models: &[Model; 2],
    count: u64,
    per_second: u64,
) -> anyhow::Result<()> {
    let tree = client.session().await?;
    for _ in 0..count {
        let (student, item) = (format!("student-{}", runtime.random() % 16), format!("item-{}", runtime.random() % 16));
        let text = format!("{student} {item} {}", runtime.random() % 2);
        let [one, other] = [(&models[0], &student), (&models[1], &item)].map(|(model, key)| {
            let (mode, acl) = (CreateMode::PersistentSequential, client.default_acl());
            Ok::<_, anyhow::Error>(Op::Create {
                path: model.inbox.join(&format!("{key}."))?,
                data: text.clone().into(),
                mode,
                acl,
            })
        });
        tree.multi(vec![one?, other?])
            .await
            .context("cannot confirm that an observation was added; it is either in both inboxes or in neither")?;
        runtime.sleep(Duration::from_secs(1) / u32::try_from(per_second)?).await;
    }
    println!("{count} observations were fed");
    Ok(())
}

async fn show(client: &Client, model: &Model) -> anyhow::Result<()> {
    let (tree, jobs, holders) = (client.session().await?, model.shards.jobs(), model.shards.assignments().await?);
    println!("{}: {} observations in the inbox", model.name, tree.children(&model.inbox).await?.names.len());
    for id in jobs.ids().await? {
        let shard = jobs.get(id).await?.unwrap_or_default();
        let holder =
            holders.get(&id).map_or("no process".into(), |assignment| String::from_utf8_lossy(&assignment.holder));
        println!("  {} is held by {holder}", String::from_utf8_lossy(&shard));
    }
    Ok(())
}
