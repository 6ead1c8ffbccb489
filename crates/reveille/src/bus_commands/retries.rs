//! Commands `reveille bus retries`, which list and skip the records that block their keys, and redrive dead letters.

use std::sync::Arc;

use bus::processor::{Blocked, Operator};
use bus::{Admin, Position, TopicName};
use clap::{Args, Subcommand};
use cli_support::console;
use domain::Timestamp;
use runtime::Runtime;
use serde_json::{Value, json};

use super::redrive;
use super::text::{Content, position_json, shown};
use super::{Common, check_partition, explain};
use crate::cli::show::{self, or_dash};

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// List the records that block their keys, and the topics whose failing records are skipped
    List(Control),
    /// Skip a record; it becomes a dead letter if the group has a topic for dead letters
    Skip(Skip),
    /// Skip all failing records of a topic, until `resume`
    SkipAll(SkipTopic),
    /// End the effect of `skip-all`
    Resume(SkipTopic),
    /// Send dead letters again to the topics that they come from, each of them once
    Redrive(redrive::Arguments),
}

/// Options for the group whose records a command lists or skips.
#[derive(Args, Debug)]
pub(crate) struct Control {
    /// Control topic of the group, which the option `control` of its processors names
    #[arg(long, value_name = "TOPIC")]
    control: TopicName,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
pub(crate) struct Skip {
    /// Position of the record: TOPIC/PARTITION/OFFSET
    position: Position,
    #[command(flatten)]
    control: Control,
}

#[derive(Args, Debug)]
pub(crate) struct SkipTopic {
    /// Topic of the records
    topic: TopicName,
    #[command(flatten)]
    control: Control,
}

pub(super) async fn execute(runtime: &Runtime, command: Command) -> anyhow::Result<()> {
    match command {
        Command::List(control) => list(runtime, &control).await,
        Command::Skip(arguments) => skip(runtime, &arguments).await,
        Command::SkipAll(SkipTopic { topic, control }) => {
            let (bus, mut operator) = control.open(runtime).await?;
            // The command would have no effect on a topic that does not exist.
            bus.describe_topic(&topic).await.map_err(explain)?;
            operator.skip_all(&topic).await.map_err(explain)?;
            let text = format!("the group skips all failing records of {topic} until `reveille bus retries resume`");
            control.confirm(&text, &json!({ "skipped_topic": topic.as_str() }))
        }
        Command::Resume(SkipTopic { topic, control }) => {
            control.open(runtime).await?.1.resume(&topic).await.map_err(explain)?;
            let text = format!("the group no longer skips the failing records of {topic}");
            control.confirm(&text, &json!({ "resumed_topic": topic.as_str() }))
        }
        Command::Redrive(arguments) => redrive::execute(runtime, arguments).await,
    }
}

impl Control {
    async fn open(&self, runtime: &Runtime) -> anyhow::Result<(Arc<dyn Admin>, Operator)> {
        let bus = self.common.open(runtime).await?;
        let operator = Operator::open(runtime, bus.clone(), &self.control).await.map_err(explain)?;
        Ok((bus, operator))
    }

    fn confirm(&self, text: &str, as_json: &Value) -> anyhow::Result<()> {
        match self.common.json {
            true => show::json(as_json),
            false => Ok(console::line(text)?),
        }
    }
}

async fn list(runtime: &Runtime, control: &Control) -> anyhow::Result<()> {
    let (_, mut operator) = control.open(runtime).await?;
    let blocked = operator.blocked().await.map_err(explain)?;
    let skipped = operator.skipped_topics().await.map_err(explain)?;
    let now = runtime.now();
    if control.common.json {
        let blocked: Vec<Value> = blocked.iter().map(|blocked| blocked_json(now, blocked)).collect();
        let skipped: Vec<&str> = skipped.iter().map(TopicName::as_str).collect();
        return show::json(&json!({ "blocked": blocked, "skipped_topics": skipped }));
    }
    let rows: Vec<_> = blocked.iter().map(|blocked| row(now, blocked)).collect();
    show::table(["record", "key", "calls", "blocked since", "last failure", "next call", "reason"], &rows)?;
    if !skipped.is_empty() {
        let skipped: Vec<&str> = skipped.iter().map(TopicName::as_str).collect();
        console::line(&format!("\nskipped topics: {}", skipped.join(", ")))?;
    }
    Ok(())
}

/// Returns the time of the next call of a blocked record; `None` if the list contains only the time of an earlier call.
fn next_call_at(now: Timestamp, blocked: &Blocked) -> Option<Timestamp> {
    blocked.next_call_at.filter(|at| *at > now)
}

fn row(now: Timestamp, blocked: &Blocked) -> [String; 7] {
    [
        blocked.position.to_string(),
        shown(blocked.key.as_ref()),
        blocked.calls.to_string(),
        blocked.blocked_since.to_string(),
        blocked.failed_at.to_string(),
        or_dash(next_call_at(now, blocked)),
        blocked.reason.clone(),
    ]
}

fn blocked_json(now: Timestamp, blocked: &Blocked) -> Value {
    let key = Content::new(blocked.key.as_ref());
    let mut object = json!({
        "record": position_json(&blocked.position),
        "key": key.text,
        "calls": blocked.calls,
        "blocked_since": blocked.blocked_since.to_string(),
        "failed_at": blocked.failed_at.to_string(),
        "next_call_at": next_call_at(now, blocked).map(|at| at.to_string()),
        "reason": blocked.reason,
    });
    if let Some(base64) = key.base64 {
        object["key_base64"] = base64.into();
    }
    object
}

async fn skip(runtime: &Runtime, arguments: &Skip) -> anyhow::Result<()> {
    let Skip { position, control } = arguments;
    let (bus, mut operator) = control.open(runtime).await?;
    check_partition(&*bus, &position.partition, &format!("record {position}")).await?;
    let is_blocked = operator.blocked().await.map_err(explain)?.iter().any(|blocked| blocked.position == *position);
    operator.skip(position).await.map_err(explain)?;
    let text = match is_blocked {
        true => format!("the group skips the record {position}"),
        false => format!(
            "the group skips the record {position} when it fails or when its turn comes; no record at this position blocks \
             its key now"
        ),
    };
    control.confirm(&text, &json!({ "skipped": position_json(position), "was_blocked": is_blocked }))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn next_call_of_a_blocked_record_is_shown_if_it_is_known() {
        let time = |secs: i64| Timestamp::from_millis(1_700_000_000_000 + secs * 1_000);
        let blocked = Blocked {
            position: "orders/3/17".parse().unwrap(),
            key: Some("ann".into()),
            calls: 4,
            reason: "no route".to_owned(),
            blocked_since: time(0),
            failed_at: time(7),
            next_call_at: Some(time(15)),
        };
        expect![[r#"
            [
                "orders/3/17",
                "ann",
                "4",
                "2023-11-14T22:13:20.000Z",
                "2023-11-14T22:13:27.000Z",
                "2023-11-14T22:13:35.000Z",
                "no route",
            ]
        "#]]
        .assert_debug_eq(&row(time(8), &blocked));
        assert_eq!(row(time(15), &blocked)[5], "-");
        let key = Some(bytes::Bytes::from_static(b"\xff"));
        let blocked = Blocked { key, ..blocked };
        let object = blocked_json(time(14), &blocked);
        assert_eq!((&object["key"], &object["key_base64"]), (&Value::Null, &json!("/w==")));
        let next = json!("2023-11-14T22:13:35.000Z");
        assert_eq!((&object["next_call_at"], &object["record"]["offset"]), (&next, &json!(17)));
        for (now, next_call_at) in [(15, blocked.next_call_at), (8, None)] {
            let object = blocked_json(time(now), &Blocked { next_call_at, ..blocked.clone() });
            assert_eq!(object["next_call_at"], Value::Null);
        }
    }
}
