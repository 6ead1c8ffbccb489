//! Command `reveille audit`, which shows the differences between the timings of schedules and the records in the store.

use anyhow::bail;
use clap::Args;
use reveille_client::api::{Audit, AuditFinding, Time};
use runtime::Runtime;

use super::Output;
use super::connect::{Connect, DefaultKey};
use super::explain::explain;
use super::show;

/// Age of the last audit for which the command fails. An audit covers about a day, so an older one leaves a gap.
const AGE_MAX_MILLIS: i64 = 24 * 3_600 * 1_000;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

/// Prints the differences. Returns an error if there are differences, or if no complete audit of the last day shows
/// that there are none.
pub(super) async fn audit(runtime: &Runtime, arguments: Arguments) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Operator)?;
    let audit = client.store_audit().await.map_err(|error| explain(&client, &error))?;
    match arguments.output.json {
        true => show::json(&audit)?,
        false => show_audit(&audit)?,
    }
    check(&audit, Time(runtime.now().as_millis()))
}

fn check(audit: &Audit, now: Time) -> anyhow::Result<()> {
    let Audit { unaccounted, completed_at, truncated, incomplete, .. } = *audit;
    let Some(completed_at) = completed_at else {
        bail!("the leader has not completed an audit yet; try again in some minutes");
    };
    if truncated {
        bail!("the audit found at least {unaccounted} differences; see \"Differences\" in docs/operating.md");
    }
    if unaccounted > 0 {
        bail!("the audit found {unaccounted} differences; see \"Differences\" in docs/operating.md");
    }
    if incomplete {
        bail!("the audit skipped schedules that the store cannot read; see \"Damaged data\" in docs/operating.md");
    }
    if now.0 - completed_at.0 > AGE_MAX_MILLIS {
        bail!("the last audit ended at {completed_at}, more than a day ago; check the leader's log for failed reads");
    }
    Ok(())
}

fn show_audit(audit: &Audit) -> anyhow::Result<()> {
    if !audit.findings.is_empty() {
        let row = |finding: &AuditFinding| {
            let (kind, tenant, schedule) = (finding.kind.clone(), finding.tenant.clone(), finding.schedule.clone());
            [kind, tenant, schedule, finding.at.to_string(), finding.run.clone()]
        };
        let rows: Vec<_> = audit.findings.iter().map(row).collect();
        show::table(["kind", "tenant", "schedule", "at", "run"], &rows)?;
    }
    if audit.truncated {
        show::warn("there are more differences than the list contains");
    }
    if audit.incomplete {
        show::warn("the audit skipped schedules that the store cannot read");
    }
    match (audit.from, audit.completed_at) {
        (Some(from), Some(completed_at)) => {
            show::lines(&[format!("the audit of the time since {from} ended at {completed_at}")])
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_fails_unless_it_is_complete_recent_and_empty() {
        let completed_at = Time(1_790_000_000_000);
        let day = Time(completed_at.0 + 24 * 3_600 * 1_000);
        let later = Time(day.0 + 1);
        let complete = Some(completed_at);
        for (unaccounted, completed_at, truncated, incomplete, now, expected) in [
            (0, complete, false, false, day, None),
            (0, complete, false, false, later, Some("more than a day ago")),
            (0, complete, false, true, day, Some("skipped schedules")),
            (3, complete, false, true, day, Some("found 3 differences")),
            (3, complete, true, false, day, Some("at least 3 differences")),
            (0, None, false, false, day, Some("not completed")),
        ] {
            let audit = serde_json::json!({
                "completed_at": completed_at,
                "unaccounted": unaccounted,
                "truncated": truncated,
                "incomplete": incomplete,
                "findings": [],
            });
            let audit: Audit = serde_json::from_value(audit).unwrap();
            let error = check(&audit, now).err().map(|error| error.to_string());
            let is_expected = match (&error, expected) {
                (None, None) => true,
                (Some(error), Some(expected)) => error.contains(expected),
                _ => false,
            };
            assert!(is_expected, "{expected:?}: {error:?}");
        }
    }
}
