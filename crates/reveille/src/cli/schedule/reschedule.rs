//! `reveille schedule reschedule`.

use std::time::Duration;

use clap::{ArgGroup, Args};
use domain::duration;
use reveille_client::{Condition, SchedulePatch, Tag};
use runtime::Runtime;

use super::show_summary;
use crate::cli::Output;
use crate::cli::connect::{As, Connect};
use crate::cli::explain::explain;

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("change").args(["at", "after", "cron", "every", "zone"]).required(true).multiple(true)))]
pub(crate) struct Reschedule {
    id: String,
    /// Once, at this instant: 2030-01-02T03:04:05Z, with any offset
    #[arg(long, group = "when")]
    at: Option<String>,
    /// Once, after a while: 30s, 10m, 1h30m, by this machine's clock
    #[arg(long = "in", group = "when", value_name = "DURATION", value_parser = duration::parse)]
    after: Option<Duration>,
    /// By a cron expression of five fields, or six with seconds first
    #[arg(long, group = "when", value_name = "EXPRESSION")]
    cron: Option<String>,
    /// Every so often, counted from now: 30s, 10m, 1h30m
    #[arg(long, group = "when", value_name = "DURATION")]
    every: Option<String>,
    /// The zone of the cron expression, as Europe/Berlin [default: the one it has]
    #[arg(long)]
    zone: Option<String>,
    /// Only if it is as it was when `reveille schedule get` showed this tag, quotes included
    #[arg(long, value_name = "TAG")]
    if_match: Option<Tag>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

pub(super) async fn reschedule(runtime: &Runtime, arguments: Reschedule) -> anyhow::Result<()> {
    let Reschedule { id, at, after, cron, every, zone, if_match, output, connect } = arguments;
    let client = connect.client(As::Admin)?;
    let at = at.or_else(|| after.map(|after| (runtime.now() + after).to_string()));
    let patch = SchedulePatch::new();
    let patch = match (at, cron, every) {
        (Some(at), ..) => patch.at(at),
        (None, Some(cron), _) => patch.cron(cron),
        (None, None, Some(every)) => patch.every(every),
        (None, None, None) => patch,
    };
    let patch = match zone {
        Some(zone) => patch.zone(zone),
        None => patch,
    };
    let updated = match if_match {
        Some(tag) => client.update_if(&id, &patch, &Condition::Is(tag)).await,
        None => client.update(&id, &patch).await,
    };
    show_summary(&updated.map_err(|error| explain(&client, &error))?.schedule, output)
}
