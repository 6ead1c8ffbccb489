//! Commands `tree`, which show and change nodes of the coordination tree.

use std::io::{self, Read as _, Write as _};
use std::time::Duration;

use anyhow::{Context, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::Bytes;
use clap::Subcommand;
use cli_support::console;
use coordination::recipes::Client;
use coordination::tree::{Acl, CreateMode, Event, Expected, Node, NodePath, Stat, Tree, TreeError};
use futures_util::StreamExt as _;
use runtime::Runtime;
use serde_json::{Value, json};

use super::{NodeArguments, explain};
use crate::cli::show;

/// Time between two attempts to start a watch again.
const RETRY_WAIT: Duration = Duration::from_millis(500);

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// List the children of a node
    Ls {
        #[command(flatten)]
        at: NodeArguments,
        /// List all nodes below the node
        #[arg(long, short)]
        recursive: bool,
    },
    /// Print the data of a node
    Get {
        #[command(flatten)]
        at: NodeArguments,
        /// Print the bytes of the data unchanged, without an added line end
        #[arg(long, conflicts_with = "json")]
        raw: bool,
    },
    /// Write the data of a node; with `--create`, also create the node and missing nodes above it
    Set {
        #[command(flatten)]
        at: NodeArguments,
        /// Data to write; without it, the data comes from standard input
        value: Option<String>,
        /// Version that the node must have
        #[arg(long, conflicts_with = "create")]
        version: Option<i32>,
        /// Create the node if it does not exist; needs `--credentials` or `--open`
        #[arg(long)]
        create: bool,
        /// Create nodes that every client of the engine can access and delete
        #[arg(long, requires = "create")]
        open: bool,
    },
    /// Print the changes of a node and of all nodes below it, until a signal stops the command
    Watch(NodeArguments),
    /// Delete a node
    Rm {
        #[command(flatten)]
        at: NodeArguments,
        /// Also delete all nodes below the node
        #[arg(long, short)]
        recursive: bool,
        /// Version that the node must have
        #[arg(long, conflicts_with = "recursive")]
        version: Option<i32>,
    },
}

pub(super) async fn execute(runtime: &Runtime, command: Command) -> anyhow::Result<()> {
    let at = match &command {
        Command::Watch(at) => at,
        Command::Ls { at, .. } | Command::Get { at, .. } | Command::Set { at, .. } | Command::Rm { at, .. } => at,
    };
    let new_acl = match &command {
        Command::Set { at, create: true, open, .. } => Some(at.engine.acl(*open)?),
        _ => None,
    };
    let client = at.engine.client(runtime).await?;
    let tree = client.session().await?;
    tree.sync().await?;
    let done = match &command {
        Command::Ls { at, recursive } => ls(&*tree, at, *recursive).await,
        Command::Get { at, raw } => get(&*tree, at, *raw).await,
        Command::Set { at, value, version, .. } => {
            let data = match value {
                Some(value) => Bytes::from(value.clone()),
                None => standard_input()?,
            };
            set(&*tree, at, data, *version, new_acl).await
        }
        Command::Watch(at) => watch(&client, at).await,
        Command::Rm { at, recursive, version } => rm(&*tree, at, *recursive, *version).await,
    };
    if let Err(error) = client.close().await {
        tracing::debug!(%error, "cannot close the session; the session ends after its timeout");
    }
    done
}

fn standard_input() -> anyhow::Result<Bytes> {
    let mut data = Vec::new();
    io::stdin().lock().read_to_end(&mut data).context("cannot read the data of the node from standard input")?;
    Ok(data.into())
}

async fn ls(tree: &dyn Tree, at: &NodeArguments, recursive: bool) -> anyhow::Result<()> {
    // The list also contains nodes that this client has no permission to read. It shows only the paths of these nodes.
    let mut found = Vec::new();
    let mut unread = vec![at.path.clone()];
    while let Some(parent) = unread.pop() {
        let children = match tree.children(&parent).await {
            // Another process has deleted the node, or this client has no permission to list the node's children.
            Err(TreeError::NoNode | TreeError::Forbidden) if parent != at.path => continue,
            children => children.map_err(explain(&parent))?,
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
                Err(error) => return Err(explain(&child)(error)),
            }
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    if at.json {
        let node_json = |(path, stat): &(NodePath, Option<Stat>)| match stat {
            Some(stat) => node_json(path, stat),
            None => json!({"path": path.as_str(), "closed": true}),
        };
        return show::json(&found.iter().map(node_json).collect::<Vec<Value>>());
    }
    let row = |(path, stat): &(NodePath, Option<Stat>)| {
        let name = (if recursive { path.as_str() } else { path.name() }).to_owned();
        let Some(stat) = stat else {
            return [name, "no access".into(), "-".into(), "-".into(), "-".into(), "-".into()];
        };
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

fn node_json(path: &NodePath, stat: &Stat) -> Value {
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

async fn get(tree: &dyn Tree, at: &NodeArguments, raw: bool) -> anyhow::Result<()> {
    let Node { data, stat } = tree.get(&at.path).await.map_err(explain(&at.path))?;
    if raw {
        return Ok(io::stdout().lock().write_all(&data)?);
    }
    let text = std::str::from_utf8(&data);
    if at.json {
        let mut node = node_json(&at.path, &stat);
        match text {
            Ok(text) => node["text"] = text.into(),
            Err(_) => node["base64"] = BASE64.encode(&data).into(),
        }
        return show::json(&node);
    }
    match text {
        Ok(text) => Ok(console::line(&show::escaped_lines(text))?),
        Err(_) => Ok(console::line(&format!("base64:{}", BASE64.encode(&data)))?),
    }
}

async fn set(
    tree: &dyn Tree,
    at: &NodeArguments,
    data: Bytes,
    version: Option<i32>,
    new_acl: Option<Acl>,
) -> anyhow::Result<()> {
    let expected = version.map_or(Expected::Any, Expected::Version);
    let stat = match tree.set(&at.path, data.clone(), expected).await {
        Err(TreeError::NoNode) => match new_acl {
            Some(acl) => create_with_parents(tree, at, data, acl).await?,
            None => anyhow::bail!("no such node: {}; `--create` creates the node", at.path),
        },
        Err(TreeError::BadVersion) => {
            let now = tree.exists(&at.path).await?.map(|stat| stat.version);
            anyhow::bail!("{} has another version: {}", at.path, show::or_dash(now))
        }
        stat => stat.map_err(explain(&at.path))?,
    };
    if at.json {
        return show::json(&node_json(&at.path, &stat));
    }
    Ok(console::line(&format!("{} has version {}", at.path, stat.version))?)
}

/// Creates the node and the missing nodes above it.
async fn create_with_parents(tree: &dyn Tree, at: &NodeArguments, data: Bytes, acl: Acl) -> anyhow::Result<Stat> {
    let mut missing = vec![at.path.clone()];
    while let Some(path) = missing.last().cloned() {
        let data = if path == at.path { data.clone() } else { Bytes::new() };
        match tree.create(&path, data, CreateMode::Persistent, acl.clone()).await {
            Ok(created) if path == at.path => return Ok(created.stat),
            Ok(_) | Err(TreeError::NodeExists) => drop(missing.pop()),
            Err(TreeError::NoNode) => missing.extend(path.parent()),
            Err(error) => return Err(explain(&path)(error)),
        }
    }
    tree.set(&at.path, data, Expected::Any).await.map_err(explain(&at.path))
}

/// Prints the events of a node and of all nodes below it. After the end of a session, the function continues with a
/// new session.
async fn watch(client: &Client, at: &NodeArguments) -> anyhow::Result<()> {
    let print = |event: &str, path: Option<&NodePath>| {
        let path = path.map(|path| path.as_str());
        if at.json {
            return show::json(&json!({"event": event, "path": path}));
        }
        Ok(console::line(&format!("{event:<8} {}", path.unwrap_or("events may be missing: read the nodes again")))?)
    };
    loop {
        let watching = async { client.session().await?.watch_all(&at.path).await };
        let mut events = match watching.await {
            Ok(events) => events,
            Err(TreeError::Disconnected(_) | TreeError::SessionLost) => {
                client.runtime().sleep(RETRY_WAIT).await;
                continue;
            }
            Err(error) => return Err(explain(&at.path)(error)),
        };
        while let Some(event) = events.next().await {
            match &event {
                Event::Created(path) => print("created", Some(path))?,
                Event::Changed(path) => print("changed", Some(path))?,
                Event::Deleted(path) => print("deleted", Some(path))?,
                Event::ChildrenChanged(path) => print("children", Some(path))?,
                Event::Gap => print("gap", None)?,
            }
        }
        print("gap", None)?;
    }
}

async fn rm(tree: &dyn Tree, at: &NodeArguments, recursive: bool, version: Option<i32>) -> anyhow::Result<()> {
    ensure!(!at.path.is_root(), "cannot delete the root of the tree; name a node below the root");
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
            Err(error) => return Err(explain(&parent)(error)),
        }
        next += 1;
    }
    let mut count = 0;
    for path in paths.iter().rev() {
        let expected = version.map_or(Expected::Any, Expected::Version);
        match tree.delete(path, expected).await {
            Ok(()) => count += 1,
            // Another process has deleted the node, or the coordination engine has deleted it as an empty container
            // node.
            Err(TreeError::NoNode) if *path != at.path || count > 0 => {}
            Err(error) => return Err(explain(path)(error)),
        }
    }
    if at.json {
        return show::json(&json!({"deleted": count}));
    }
    Ok(console::line(&format!("nodes deleted: {count}"))?)
}
