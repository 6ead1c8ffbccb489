//! Commands `reveille bus groups`, which list groups of consumers and show their lag.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;
use bus::{Admin, BusError, GroupDescription, GroupMember, Offset, Partition};
use clap::{Args, Subcommand};
use cli_support::console;
use runtime::Runtime;
use serde_json::{Value, json};

use super::{Common, explain};
use crate::cli::show::{self, or_dash};

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// List the groups
    List(Common),
    /// Show the members of a group with their partitions, and the lag of each partition
    Show(Show),
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// Name of the group
    group: String,
    #[command(flatten)]
    common: Common,
}

pub(super) async fn execute(runtime: &Runtime, command: Command) -> anyhow::Result<()> {
    match command {
        Command::List(common) => list(runtime, &common).await,
        Command::Show(arguments) => show_group(runtime, &arguments).await,
    }
}

/// Returns the number of offsets of a partition that a group has not finished. `offsets` are the offset of the first
/// record of the partition and the offset after its last record.
fn lag(committed: Option<Offset>, offsets: (Offset, Offset)) -> u64 {
    let (first, end) = offsets;
    // The bus may have deleted records that the group has not finished.
    end.0.saturating_sub(committed.unwrap_or(first).max(first).0)
}

async fn list(runtime: &Runtime, common: &Common) -> anyhow::Result<()> {
    let groups = common.open(runtime).await?.groups().await.map_err(explain)?;
    if common.json {
        return show::json(&json!({ "groups": groups }));
    }
    show::table(["group"], &groups.into_iter().map(|group| [group]).collect::<Vec<_>>())
}

async fn show_group(runtime: &Runtime, arguments: &Show) -> anyhow::Result<()> {
    let Show { group, common } = arguments;
    let bus = common.open(runtime).await?;
    let description = bus.describe_group(group).await.map_err(explain)?;
    if description.members.is_empty() && description.committed.is_empty() {
        bail!("unknown group {group:?}: `reveille bus groups list` shows the groups");
    }
    let rows = rows(&*bus, &description).await?;
    match common.json {
        true => show::json(&group_json(group, &description, &rows)),
        false => print(group, &description, &rows),
    }
}

/// State of a group in one partition.
struct Row {
    partition: Partition,
    committed: Option<Offset>,
    /// Offset after the last record; `None` if the topic no longer exists or has fewer partitions.
    end: Option<Offset>,
    lag: Option<u64>,
}

/// Returns a row for each partition that the group has committed or that a member has.
async fn rows(bus: &dyn Admin, group: &GroupDescription) -> anyhow::Result<Vec<Row>> {
    let assigned = group.members.iter().flat_map(|member| &member.partitions);
    let partitions: BTreeSet<&Partition> = group.committed.keys().chain(assigned).collect();
    let mut topics = BTreeMap::new();
    for Partition { topic, .. } in &partitions {
        if !topics.contains_key(topic) {
            let offsets = match bus.describe_topic(topic).await {
                Ok(description) => description.offsets,
                Err(BusError::UnknownTopic(_)) => Vec::new(),
                Err(error) => return Err(explain(error)),
            };
            topics.insert(topic, offsets);
        }
    }
    let row = |partition: &Partition| {
        let committed = group.committed.get(partition).map(|committed| committed.offset);
        let index = usize::try_from(partition.index).ok();
        let offsets = topics.get(&partition.topic).and_then(|offsets| offsets.get(index?)).copied();
        let lag = offsets.map(|offsets| lag(committed, offsets));
        Row { partition: partition.clone(), committed, end: offsets.map(|(_, end)| end), lag }
    };
    Ok(partitions.into_iter().map(row).collect())
}

fn total(rows: &[Row]) -> u64 {
    rows.iter().filter_map(|row| row.lag).sum()
}

/// Returns the state of a group as a word.
fn state(description: &GroupDescription) -> &'static str {
    match (description.is_rebalancing, description.members.is_empty()) {
        (true, _) => "rebalancing",
        (false, true) => "empty",
        (false, false) => "stable",
    }
}

fn group_json(group: &str, description: &GroupDescription, rows: &[Row]) -> Value {
    let partition = |partition: &Partition| json!({ "topic": partition.topic.as_str(), "partition": partition.index });
    let member = |member: &GroupMember| {
        let partitions: Vec<Value> = member.partitions.iter().map(partition).collect();
        json!({ "id": member.id, "name": member.name, "host": member.host, "partitions": partitions })
    };
    let row = |row: &Row| {
        json!({
            "topic": row.partition.topic.as_str(),
            "partition": row.partition.index,
            "committed": row.committed.map(|offset| offset.0),
            "end": row.end.map(|offset| offset.0),
            "lag": row.lag,
        })
    };
    json!({
        "group": group,
        "state": state(description),
        "members": description.members.iter().map(member).collect::<Vec<_>>(),
        "partitions": rows.iter().map(row).collect::<Vec<_>>(),
        "lag": total(rows),
    })
}

fn print(group: &str, description: &GroupDescription, rows: &[Row]) -> anyhow::Result<()> {
    let members = description.members.len();
    show::fields(&[
        ("group", Some(group.to_owned())),
        ("state", Some(state(description).to_owned())),
        ("members", Some(members.to_string())),
        ("lag", Some(total(rows).to_string())),
    ])?;
    if members > 0 {
        let row = |member: &GroupMember| {
            let partitions: Vec<String> = member.partitions.iter().map(ToString::to_string).collect();
            [member.name.clone(), member.id.clone(), member.host.clone(), partitions.join(" ")]
        };
        console::line("")?;
        show::table(["member", "id", "host", "partitions"], &description.members.iter().map(row).collect::<Vec<_>>())?;
    }
    let row = |row: &Row| {
        let Partition { topic, index } = &row.partition;
        [topic.to_string(), index.to_string(), or_dash(row.committed), or_dash(row.end), or_dash(row.lag)]
    };
    console::line("")?;
    show::table(["topic", "partition", "committed", "end", "lag"], &rows.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_counts_only_records_that_exist() {
        let offsets = (Offset(10), Offset(15));
        assert_eq!(lag(Some(Offset(12)), offsets), 3);
        assert_eq!(lag(None, offsets), 5);
        assert_eq!(lag(Some(Offset(3)), offsets), 5);
        assert_eq!(lag(Some(Offset(15)), offsets), 0);
        // The committed offset can be newer than the end, which the command reads in another request.
        assert_eq!(lag(Some(Offset(16)), offsets), 0);
    }
}
