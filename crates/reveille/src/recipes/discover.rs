//! Command `discover`, which lists the instances of services.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use coordination::recipes::{Discovery, Instances, Service, Source};
use coordination::tree::{Acl, NodePath};
use runtime::Runtime;
use serde_json::json;

use super::{Engine, path};
use crate::cli::show;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Class of the service, such as `kestrel` or `queues/kestrel`
    class: String,
    /// Name of the service; without a name, the command lists all services of the class and of the classes below it
    name: Option<String>,
    #[command(flatten)]
    engine: Engine,
    /// Path of the node that holds all services
    #[arg(long, default_value = Discovery::ROOT, value_parser = path)]
    root: NodePath,
    /// Folder with files that describe instances; the command uses the files when the engine has no instances; repeat
    /// the option for further folders
    #[arg(long)]
    files: Vec<PathBuf>,
    /// Print the instances again after each change, until a signal stops the command
    #[arg(long)]
    watch: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn execute(runtime: &Runtime, arguments: &Arguments) -> anyhow::Result<()> {
    let client = match arguments.watch {
        true => arguments.engine.client_when_reachable(runtime).await?,
        false => arguments.engine.client(runtime).await?,
    };
    let discovery = Discovery::new(&client, arguments.root.clone(), Acl::Open);
    let discovery = discovery.with_files(arguments.files.clone());
    let following = match &arguments.name {
        Some(name) => {
            let service = Service { class: arguments.class.clone(), name: name.clone() };
            discovery.follow(&service).await
        }
        None => discovery.follow_class(&arguments.class).await,
    };
    let mut following = following.context("cannot read the service instances")?;
    let mut now = following.now();
    loop {
        print(&now, arguments.json)?;
        if !arguments.watch {
            drop(following);
            return Ok(client.close().await?);
        }
        now = following.changed().await;
    }
}

fn print(instances: &Instances, as_json: bool) -> anyhow::Result<()> {
    let source = match instances.source {
        Source::Engine => "engine",
        Source::Cache => "cache",
        Source::Files => "files",
    };
    if as_json {
        let instance = |instance: &coordination::recipes::Instance| {
            json!({
                "class": instance.service.class,
                "name": instance.service.name,
                "key": instance.key,
                "payload": instance.payload,
                "problem": instance.problem,
            })
        };
        let all: Vec<_> = instances.all.iter().map(instance).collect();
        return show::json(&json!({"source": source, "instances": all}));
    }
    let row = |instance: &coordination::recipes::Instance| {
        let mut payload = instance.payload.clone();
        payload.remove("header");
        let payload = match &instance.problem {
            Some(problem) => problem.clone(),
            None => serde_json::Value::Object(payload).to_string(),
        };
        [
            instance.service.class.clone(),
            instance.service.name.clone(),
            instance.key.clone(),
            source.to_owned(),
            payload,
        ]
    };
    let rows: Vec<_> = instances.all.iter().map(row).collect();
    show::table(["class", "name", "key", "source", "payload"], &rows)
}
