//! Stream processing, seed 001's: observations of students who answer items flow into two models, each sharded along an axis of its own: `ability` by
//! student, `difficulty` by item. Shards are jobs of a role match, so that processes come, go and die, and shards become more and fewer, while the
//! stream flows. Each model needs the other's parameters, and subscribes to them by putting its address into a bag.
//! Start some processes, give each model shards, and let observations flow:
//! `cargo run -p coordination --example streams -- zookeeper://127.0.0.1:2181 work`
//! `cargo run -p coordination --example streams -- zookeeper://127.0.0.1:2181 shard 4`
//! `cargo run -p coordination --example streams -- zookeeper://127.0.0.1:2181 feed --count 1000 --per-second 50`
//! `cargo run -p coordination --example streams -- zookeeper://127.0.0.1:2181 shard 8`
//!
//! What is promised: an observation whose feeding was answered changes each model's parameters once, whoever is killed, and never by two holders
//! of one shard or by shards of two counts at a time: it is taken out of the inbox, noted as done, and learnt in one change, under the fence of the
//! shard's holder. Subscribers are told on the way that may lose a message; the next about that parameter makes up for it.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it tells its story")]

mod model;
mod process;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Parser, Subcommand};
use coordination::recipes::{Client, Lock};
use coordination::tree::{Acl, CreateMode, Op, SessionOptions};
use runtime::Runtime;

use model::{Model, Shard};
use process::Process;

#[derive(Parser)]
struct Arguments {
    /// Where the processes meet: zookeeper://HOST:PORT,HOST:PORT/ROOT or postgres://USER:PASSWORD@HOST:PORT/DATABASE
    coordination: String,
    /// Milliseconds after which a process that is not heard of has lost its shards and its subscriptions
    #[arg(long, default_value_t = 10_000)]
    session_millis: u64,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Hold shards of both models
    Work(Work),
    /// Give each model so many shards, in place of those that it has
    Shard {
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        count: u64,
    },
    /// Let observations flow
    Feed {
        #[arg(long, default_value_t = 1_000)]
        count: u64,
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1_000))]
        per_second: u64,
    },
    /// Show who holds which shard, and what is in the inboxes
    Show,
}

#[derive(clap::Args)]
struct Work {
    /// This process's name
    #[arg(long, default_value_t = format!("process-{}", std::process::id()))]
    name: String,
    /// How many shards of each model it holds at most
    #[arg(long, default_value_t = 4)]
    hands: usize,
    /// The address at which it is told parameters
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Arguments { coordination, session_millis, command } = Arguments::parse();
    let runtime = Runtime::real();
    let trees = coordination_connect::trees(&runtime, &coordination, None).await?;
    let session = SessionOptions { timeout: Duration::from_millis(session_millis), ..SessionOptions::default() };
    let client = Client::new(&runtime, trees, session);
    let opened = client.connect(Duration::from_secs(10)).await;
    opened.context("cannot open a session: is the engine there, and reachable from here?")?;
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
        Command::Feed { count, per_second } => feed(&runtime, &client, &models, count, per_second).await?,
        Command::Show => {
            for model in &models {
                show(&client, model).await?;
            }
        }
    }
    client.close().await?;
    Ok(())
}

/// Withdraws the shards of other counts, and then adds what is missing: none of the new count is there while one of the old is. Harmless if it is
/// done again, as by who finds that another has died over it.
async fn shard(client: &Client, model: &Model, count: u64) -> anyhow::Result<()> {
    let alone = Lock::new(client, model.path.join("sharding")?, Acl::Open).acquire().await?;
    // Before each change; and still, who stands still between this and the change may make it beside another. As each observation is learnt under the
    // fence of its shard, that loses and doubles none, and whoever shards again puts it right.
    let check = || -> anyhow::Result<()> {
        ensure!(alone.is_valid(), "the lock was lost: shard again");
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
    alone.release().await;
    println!("{} has {count} shards", model.name);
    Ok(())
}

/// Each observation goes into both inboxes, in one change.
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
            let (mode, acl) = (CreateMode::PersistentSequential, Acl::Open);
            Ok::<_, anyhow::Error>(Op::Create {
                path: model.inbox.join(&format!("{key}."))?,
                data: text.clone().into(),
                mode,
                acl,
            })
        });
        tree.multi(vec![one?, other?]).await.context("it is not known whether the last observation was fed")?;
        runtime.sleep(Duration::from_secs(1) / u32::try_from(per_second)?).await;
    }
    println!("{count} observations were fed");
    Ok(())
}

async fn show(client: &Client, model: &Model) -> anyhow::Result<()> {
    let (tree, jobs, holders) = (client.session().await?, model.shards.jobs(), model.shards.assignments().await?);
    println!("{}: {} wait in the inbox", model.name, tree.children(&model.inbox).await?.names.len());
    for id in jobs.ids().await? {
        let shard = jobs.get(id).await?.unwrap_or_default();
        let holder = holders.get(&id).map_or("nobody".into(), |assignment| String::from_utf8_lossy(&assignment.holder));
        println!("  {} is held by {holder}", String::from_utf8_lossy(&shard));
    }
    Ok(())
}
