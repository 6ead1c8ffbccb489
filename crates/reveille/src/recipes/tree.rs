//! Nodes, from the command line.

use std::io::{self, Read as _, Write as _};
use std::time::Duration;

use anyhow::{Context, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::Bytes;
use clap::Subcommand;
use cli_support::console;
use coordination::recipes::Client;
use coordination::tree::{CreateMode, Event, Expected, Node, NodePath, Stat, Tree, TreeError};
use futures_util::StreamExt as _;
use runtime::Runtime;
use serde_json::{Value, json};

use super::{At, told};
use crate::cli::show;

/// Between two tries to be told again.
const RETRY_WAIT: Duration = Duration::from_millis(500);

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// List the children of a node
    Ls {
        #[command(flatten)]
        at: At,
        /// And what is below them
        #[arg(long, short)]
        recursive: bool,
    },
    /// Print what a node holds
    Get {
        #[command(flatten)]
        at: At,
        /// Its bytes as they are, and nothing else
        #[arg(long, conflicts_with = "json")]
        raw: bool,
    },
    /// Write to a node; with `--create`, make it and what is missing above it
    Set {
        #[command(flatten)]
        at: At,
        /// What to write; without it, standard input
        value: Option<String>,
        /// Only if the node has this version
        #[arg(long, conflicts_with = "create")]
        version: Option<i32>,
        /// Make it if it is not there
        #[arg(long)]
        create: bool,
    },
    /// Print what happens to a node and below it, until it is stopped
    Watch(At),
    /// Delete a node
    Rm {
        #[command(flatten)]
        at: At,
        /// And all below it
        #[arg(long, short)]
        recursive: bool,
        /// Only if the node has this version
        #[arg(long, conflicts_with = "recursive")]
        version: Option<i32>,
    },
}

pub(super) async fn obey(runtime: &Runtime, command: Command) -> anyhow::Result<()> {
    let at = match &command {
        Command::Watch(at) => at,
        Command::Ls { at, .. } | Command::Get { at, .. } | Command::Set { at, .. } | Command::Rm { at, .. } => at,
    };
    let client = at.engine.client(runtime).await?;
    let tree = client.session().await?;
    tree.sync().await?;
    let done = match &command {
        Command::Ls { at, recursive } => ls(&*tree, at, *recursive).await,
        Command::Get { at, raw } => get(&*tree, at, *raw).await,
        Command::Set { at, value, version, create } => {
            let data = match value {
                Some(value) => Bytes::from(value.clone()),
                None => standard_input()?,
            };
            set(&*tree, at, data, *version, *create).await
        }
        Command::Watch(at) => watch(&client, at).await,
        Command::Rm { at, recursive, version } => rm(&*tree, at, *recursive, *version).await,
    };
    if let Err(error) = client.close().await {
        tracing::debug!(%error, "the session ends by itself");
    }
    done
}

fn standard_input() -> anyhow::Result<Bytes> {
    let mut data = Vec::new();
    io::stdin().lock().read_to_end(&mut data).context("cannot read standard input")?;
    Ok(data.into())
}

async fn ls(tree: &dyn Tree, at: &At, recursive: bool) -> anyhow::Result<()> {
    // Of those that are closed nothing is known but that they are there.
    let mut found = Vec::new();
    let mut unread = vec![at.path.clone()];
    while let Some(parent) = unread.pop() {
        let children = match tree.children(&parent).await {
            // It went meanwhile, or is another's.
            Err(TreeError::NoNode | TreeError::Forbidden) if parent != at.path => continue,
            children => children.map_err(told(&parent))?,
        };
        for name in children.names {
            let child = parent.join(&name)?;
            match tree.exists(&child).await {
                Ok(None) => {}
                Ok(Some(stat)) => {
                    found.push((child.clone(), Some(stat)));
                    if recursive {
                        unread.push(child);
                    }
                }
                Err(TreeError::Forbidden) => found.push((child, None)),
                Err(error) => return Err(told(&child)(error)),
            }
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    if at.json {
        let of = |(path, stat): &(NodePath, Option<Stat>)| match stat {
            Some(stat) => of(path, stat),
            None => json!({"path": path.as_str(), "closed": true}),
        };
        return show::json(&found.iter().map(of).collect::<Vec<Value>>());
    }
    let row = |(path, stat): &(NodePath, Option<Stat>)| {
        let name = (if recursive { path.as_str() } else { path.name() }).to_owned();
        let Some(stat) = stat else { return [name, "closed".into(), "-".into(), "-".into(), "-".into(), "-".into()] };
        [
            name,
            stat.data_bytes.to_string(),
            stat.children.to_string(),
            stat.version.to_string(),
            show::or_dash(stat.owner),
            stat.modified_at.to_string(),
        ]
    };
    let rows: Vec<_> = found.iter().map(row).collect();
    show::table(["node", "bytes", "children", "version", "owner", "modified"], &rows)
}

fn of(path: &NodePath, stat: &Stat) -> Value {
    json!({
        "path": path.as_str(),
        "bytes": stat.data_bytes,
        "children": stat.children,
        "version": stat.version,
        "owner": stat.owner.map(|owner| owner.to_string()),
        "created": stat.created.0,
        "modified": stat.modified.0,
        "created_at": stat.created_at.to_string(),
        "modified_at": stat.modified_at.to_string(),
    })
}

async fn get(tree: &dyn Tree, at: &At, raw: bool) -> anyhow::Result<()> {
    let Node { data, stat } = tree.get(&at.path).await.map_err(told(&at.path))?;
    if raw {
        return Ok(io::stdout().lock().write_all(&data)?);
    }
    let text = std::str::from_utf8(&data);
    if at.json {
        let mut node = of(&at.path, &stat);
        match text {
            Ok(text) => node["text"] = text.into(),
            Err(_) => node["base64"] = BASE64.encode(&data).into(),
        }
        return show::json(&node);
    }
    match text {
        Ok(text) => Ok(console::line(&show::harmless_lines(text))?),
        Err(_) => Ok(console::line(&format!("base64:{}", BASE64.encode(&data)))?),
    }
}

async fn set(tree: &dyn Tree, at: &At, data: Bytes, version: Option<i32>, create: bool) -> anyhow::Result<()> {
    let expected = version.map_or(Expected::Any, Expected::Version);
    let stat = match tree.set(&at.path, data.clone(), expected).await {
        Err(TreeError::NoNode) if create => make(tree, at, data).await?,
        Err(TreeError::NoNode) => {
            anyhow::bail!("there is no node {}: `--create` makes it", at.path)
        }
        Err(TreeError::BadVersion) => {
            let now = tree.exists(&at.path).await?.map(|stat| stat.version);
            anyhow::bail!("{} has another version: {}", at.path, show::or_dash(now))
        }
        stat => stat.map_err(told(&at.path))?,
    };
    if at.json {
        return show::json(&of(&at.path, &stat));
    }
    Ok(console::line(&format!("{} has version {}", at.path, stat.version))?)
}

/// With what is missing above it.
async fn make(tree: &dyn Tree, at: &At, data: Bytes) -> anyhow::Result<Stat> {
    let acl = at.engine.acl();
    let mut missing = vec![at.path.clone()];
    while let Some(path) = missing.last().cloned() {
        let data = if path == at.path { data.clone() } else { Bytes::new() };
        match tree.create(&path, data, CreateMode::Persistent, acl.clone()).await {
            Ok(made) if path == at.path => return Ok(made.stat),
            Ok(_) | Err(TreeError::NodeExists) => drop(missing.pop()),
            Err(TreeError::NoNode) => missing.extend(path.parent()),
            Err(error) => return Err(told(&path)(error)),
        }
    }
    tree.set(&at.path, data, Expected::Any).await.map_err(told(&at.path))
}

/// From one session to the next.
async fn watch(client: &Client, at: &At) -> anyhow::Result<()> {
    let tell = |what: &str, path: Option<&NodePath>| {
        let path = path.map(|path| path.as_str());
        if at.json {
            return show::json(&json!({"event": what, "path": path}));
        }
        Ok(console::line(&format!("{what:<8} {}", path.unwrap_or("more may have happened: look again")))?)
    };
    loop {
        let watching = async { client.session().await?.watch_all(&at.path).await };
        let mut events = match watching.await {
            Ok(events) => events,
            Err(TreeError::Disconnected(_) | TreeError::SessionLost) => {
                client.runtime().sleep(RETRY_WAIT).await;
                continue;
            }
            Err(error) => return Err(told(&at.path)(error)),
        };
        while let Some(event) = events.next().await {
            match &event {
                Event::Created(path) => tell("created", Some(path))?,
                Event::Changed(path) => tell("changed", Some(path))?,
                Event::Deleted(path) => tell("deleted", Some(path))?,
                Event::ChildrenChanged(path) => tell("children", Some(path))?,
                Event::Gap => tell("gap", None)?,
            }
        }
        tell("gap", None)?;
    }
}

async fn rm(tree: &dyn Tree, at: &At, recursive: bool, version: Option<i32>) -> anyhow::Result<()> {
    ensure!(!at.path.is_root(), "the root stays");
    let mut paths = vec![at.path.clone()];
    let mut next = 0;
    while recursive && next < paths.len() {
        let parent = paths[next].clone();
        match tree.children(&parent).await {
            Ok(children) => {
                for name in children.names {
                    paths.push(parent.join(&name)?);
                }
            }
            Err(TreeError::NoNode) if parent != at.path => {}
            Err(error) => return Err(told(&parent)(error)),
        }
        next += 1;
    }
    let mut count = 0;
    for path in paths.iter().rev() {
        let expected = version.map_or(Expected::Any, Expected::Version);
        match tree.delete(path, expected).await {
            Ok(()) => count += 1,
            // It went meanwhile; a container, because what was in it did.
            Err(TreeError::NoNode) if *path != at.path || count > 0 => {}
            Err(error) => return Err(told(path)(error)),
        }
    }
    if at.json {
        return show::json(&json!({"deleted": count}));
    }
    Ok(console::line(&format!("nodes deleted: {count}"))?)
}
