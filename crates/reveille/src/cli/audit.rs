//! Command `reveille audit`, which shows the differences between the timings of schedules and the records in the store.

use anyhow::bail;
use clap::Args;
use reveille_client::api::Audit;

use super::Output;
use super::connect::{Connect, DefaultKey};
use super::explain::explain;
use super::show;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

/// Prints the differences. Returns an error if there are differences, or if no audit is complete.
pub(super) async fn audit(arguments: Arguments) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Operator)?;
    let audit = client.store_audit().await.map_err(|error| explain(&client, &error))?;
    match arguments.output.json {
        true => show::json(&audit)?,
        false => show_audit(&audit)?,
    }
    let Audit { unaccounted, completed_at, truncated, .. } = audit;
    match (unaccounted, completed_at) {
        (_, None) => bail!("the leader has not completed an audit yet; try again in some minutes"),
        (0, Some(_)) if !truncated => Ok(()),
        _ => bail!("the audit found {unaccounted} differences; see \"Differences\" in docs/operating.md"),
    }
}

fn show_audit(audit: &Audit) -> anyhow::Result<()> {
    if !audit.findings.is_empty() {
        let row = |finding: &reveille_client::api::AuditFinding| {
            let (kind, tenant, schedule) = (finding.kind.clone(), finding.tenant.clone(), finding.schedule.clone());
            [kind, tenant, schedule, finding.at.to_string(), finding.run.clone()]
        };
        let rows: Vec<_> = audit.findings.iter().map(row).collect();
        show::table(["kind", "tenant", "schedule", "at", "run"], &rows)?;
    }
    if audit.truncated {
        show::warn("there are more differences than the list contains");
    }
    match (audit.from, audit.completed_at) {
        (Some(from), Some(completed_at)) => {
            show::lines(&[format!("the audit of the time since {from} ended at {completed_at}")])
        }
        _ => Ok(()),
    }
}
