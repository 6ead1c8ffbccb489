//! Command `roles`, which shows the jobs of a role match, their holders, and the candidates that wait for a job.

use coordination::recipes::{LeaderQueue, RoleMatch};
use coordination::tree::Acl;
use runtime::Runtime;
use serde_json::json;

use super::NodeArguments;
use crate::cli::show;

pub(super) async fn execute(runtime: &Runtime, at: &NodeArguments) -> anyhow::Result<()> {
    let client = at.engine.client(runtime).await?;
    client.session().await?.sync().await?;
    let roles = RoleMatch::new(&client, &at.path, Acl::Open)?;
    let waiting = LeaderQueue::new(&client, &at.path.join("queue")?, Acl::Open)?.candidates().await?;
    let assigned = roles.assignments().await?;
    let mut jobs = Vec::new();
    for id in roles.jobs().ids().await? {
        if let Some(description) = roles.jobs().get(id).await? {
            jobs.push((id, String::from_utf8_lossy(&description).into_owned(), assigned.get(&id)));
        }
    }
    client.close().await?;
    let text = |data: &[u8]| String::from_utf8_lossy(data).into_owned();
    if at.json {
        let jobs: Vec<_> = jobs
            .iter()
            .map(|(id, description, assignment)| {
                json!({
                    "job": id.0,
                    "description": description,
                    "holder": assignment.map(|assignment| text(&assignment.holder)),
                    "since": assignment.map(|assignment| assignment.since.to_string()),
                    "term": assignment.map(|assignment| assignment.term.0),
                })
            })
            .collect();
        let waiting: Vec<_> = waiting.iter().map(|node| text(&node.data)).collect();
        return show::json(&json!({"jobs": jobs, "waiting": waiting}));
    }
    let row = |(id, description, assignment): &(_, String, Option<&coordination::recipes::Assignment>)| {
        let id: &coordination::tree::Sequence = id;
        let holder = assignment.map(|assignment| text(&assignment.holder));
        let since = assignment.map(|assignment| assignment.since);
        [id.0.to_string(), description.clone(), show::or_dash(holder), show::or_dash(since)]
    };
    let rows: Vec<_> = jobs.iter().map(row).collect();
    show::table(["job", "description", "holder", "since"], &rows)?;
    Ok(cli_support::console::line(&format!("candidates waiting for a job: {}", waiting.len()))?)
}
