//! Command `reveille schedule reschedule`, which changes the timing of a schedule.

use std::time::Duration;

use clap::{ArgGroup, Args};
use domain::duration;
use reveille_client::{Condition, SchedulePatch, Tag};
use runtime::Runtime;

use super::show_summary;
use crate::cli::Output;
use crate::cli::connect::{Connect, DefaultKey};
use crate::cli::explain::explain;

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("change").args(["at", "after", "cron", "every", "zone"]).required(true).multiple(true)))]
pub(crate) struct Reschedule {
    /// Id of the schedule
    id: String,
    /// Instant of a single callback, such as 2030-01-02T03:04:05Z, with any UTC offset
    #[arg(long, group = "when")]
    at: Option<String>,
    /// Delay of a single callback from now, by this machine's clock, such as 30s, 10m or 1h30m
    #[arg(long = "in", group = "when", value_name = "DURATION", value_parser = duration::parse)]
    after: Option<Duration>,
    /// Cron expression of five fields, or of six fields with the seconds first
    #[arg(long, group = "when", value_name = "EXPRESSION")]
    cron: Option<String>,
    /// Interval between callbacks, counted from now, such as 30s, 10m or 1h30m
    #[arg(long, group = "when", value_name = "DURATION", value_parser = duration::parse)]
    every: Option<Duration>,
    /// Time zone of the cron expression, such as Europe/Berlin [default: unchanged]
    #[arg(long)]
    zone: Option<String>,
    /// Tag that `reveille schedule get` showed, with its quotes; the command fails if the schedule has changed since
    #[arg(long, value_name = "TAG")]
    if_match: Option<Tag>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

pub(super) async fn reschedule(runtime: &Runtime, arguments: Reschedule) -> anyhow::Result<()> {
    let Reschedule { id, at, after, cron, every, zone, if_match, output, connect } = arguments;
    let client = connect.client(DefaultKey::Admin)?;
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
