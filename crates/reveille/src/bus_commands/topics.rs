//! Commands `reveille bus topics`, which list, show, create and grow topics.

use bus::{Offset, TopicDescription, TopicName, TopicOptions};
use clap::{Args, Subcommand};
use cli_support::console;
use runtime::Runtime;
use serde_json::{Value, json};

use super::growth::{self, Grow};
use super::{Common, explain};
use crate::cli::show;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// List the topics
    List(Common),
    /// Show the partitions of a topic and their offsets
    Show(Show),
    /// Create a topic
    Create(Create),
    /// Add partitions to a topic; the records of a key keep their order only within one number of partitions
    Grow(Grow),
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// Name of the topic
    topic: TopicName,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
pub(crate) struct Create {
    /// Name of the topic
    topic: TopicName,
    /// Number of partitions
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    partitions: u32,
    /// Number of brokers that store each record [default: the default of the bus]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    replicas: Option<u16>,
    /// Delete a record some time after a later record with the same key
    #[arg(long)]
    compacted: bool,
    #[command(flatten)]
    common: Common,
}

pub(super) async fn execute(runtime: &Runtime, command: Command) -> anyhow::Result<()> {
    match command {
        Command::List(common) => list(runtime, &common).await,
        Command::Show(Show { topic, common }) => {
            let bus = common.open(runtime).await?;
            print(&topic, &bus.describe_topic(&topic).await.map_err(explain)?, common.json)
        }
        Command::Create(arguments) => create(runtime, &arguments).await,
        Command::Grow(arguments) => {
            arguments.check()?;
            let bus = arguments.common.open(runtime).await?;
            let grown = growth::grow(runtime, &*bus, &arguments).await?;
            if !arguments.common.json {
                return print(&arguments.topic, &grown.description, false);
            }
            let mut shown = topic_json(&arguments.topic, &grown.description);
            shown["arrivals"] = json!(grown.arrivals);
            show::json(&shown)
        }
    }
}

async fn list(runtime: &Runtime, common: &Common) -> anyhow::Result<()> {
    let topics = common.open(runtime).await?.topics().await.map_err(explain)?;
    if common.json {
        let names: Vec<&str> = topics.iter().map(TopicName::as_str).collect();
        return show::json(&json!({ "topics": names }));
    }
    show::table(["topic"], &topics.iter().map(|topic| [topic.to_string()]).collect::<Vec<_>>())
}

async fn create(runtime: &Runtime, arguments: &Create) -> anyhow::Result<()> {
    let Create { topic, partitions, replicas, compacted, common } = arguments;
    let bus = common.open(runtime).await?;
    let options = TopicOptions { partitions: *partitions, replicas: *replicas, is_compacted: *compacted };
    bus.create_topic(topic, options).await.map_err(explain)?;
    print(topic, &bus.describe_topic(topic).await.map_err(explain)?, common.json)
}

fn print(topic: &TopicName, description: &TopicDescription, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        return show::json(&topic_json(topic, description));
    }
    let TopicDescription { replicas, offsets } = description;
    show::fields(&[
        ("topic", Some(topic.to_string())),
        ("partitions", Some(offsets.len().to_string())),
        ("replicas", Some(replicas.to_string())),
    ])?;
    console::line("")?;
    let row =
        |(index, (first, end)): (usize, &(Offset, Offset))| [index.to_string(), first.to_string(), end.to_string()];
    show::table(["partition", "first", "end"], &offsets.iter().enumerate().map(row).collect::<Vec<_>>())
}

fn topic_json(topic: &TopicName, description: &TopicDescription) -> Value {
    let TopicDescription { replicas, offsets } = description;
    let partition = |(index, (first, end)): (usize, &(Offset, Offset))| json!({ "partition": index, "first": first.0, "end": end.0 });
    let partitions: Vec<_> = offsets.iter().enumerate().map(partition).collect();
    json!({ "topic": topic.as_str(), "replicas": replicas, "partitions": partitions })
}
