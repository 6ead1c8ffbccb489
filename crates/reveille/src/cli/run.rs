//! `reveille run`: what failed for good, and running it again.

use anyhow::bail;
use clap::{Args, Subcommand};
use cli_support::console;
use futures_util::stream::{self, StreamExt as _};
use reveille_client::api::{Redriven, RunPage};
use reveille_client::{Client, Error, Run, TryStreamExt as _};
use runtime::Runtime;
use serde::Serialize;

use super::Output;
use super::connect::{As, Connect};
use super::explain::explain;
use super::show::{self, or_dash, word};
use crate::progress::Progress;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// List the runs that failed for good, and were not redriven
    DeadLetters(DeadLetters),
    /// Run dead letters again, at once
    Redrive(Redrive),
}

#[derive(Args, Debug)]
pub(crate) struct DeadLetters {
    #[command(flatten)]
    page: Page,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Args, Debug)]
pub(crate) struct Redrive {
    /// The runs, by their ids
    #[arg(required_unless_present = "all")]
    ids: Vec<String>,
    /// All dead letters that there are now
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

/// A part of a list.
#[derive(Args, Debug)]
pub(crate) struct Page {
    /// How many at most
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub(super) limit: u16,
    /// Go on where a page before ended
    #[arg(long, value_name = "TOKEN")]
    pub(super) page_token: Option<String>,
}

/// Asked of the server at once.
const REDRIVES_AT_ONCE: usize = 16;
/// Of one command; their ids are kept, some 100 bytes each.
const REDRIVES_MAX: usize = 1_000_000;
/// A redrive whose outcome is not known is asked for again: a run is redriven once.
const ASKS_MAX: usize = 3;

pub(super) async fn obey(runtime: &Runtime, command: Command) -> anyhow::Result<()> {
    match command {
        Command::DeadLetters(arguments) => dead_letters(arguments).await,
        Command::Redrive(arguments) => redrive(runtime, arguments).await,
    }
}

async fn dead_letters(arguments: DeadLetters) -> anyhow::Result<()> {
    let client = arguments.connect.client(As::Admin)?;
    let Page { limit, page_token } = &arguments.page;
    let page = client.dead_letters_page(*limit, page_token.as_deref()).await;
    show_page(&page.map_err(|error| explain(&client, &error))?, arguments.output)
}

pub(super) fn show_page(page: &RunPage, output: Output) -> anyhow::Result<()> {
    if output.json {
        return show::json(page);
    }
    let rows: Vec<_> = page.runs.iter().map(row).collect();
    show::table(["run", "schedule", "state", "scheduled at", "attempts", "last"], &rows)?;
    match &page.next_page_token {
        Some(token) => Ok(console::line(&format!("\nmore: --page-token {}", show::harmless(token)))?),
        None => Ok(()),
    }
}

fn row(run: &Run) -> [String; 6] {
    let last = run.attempts.last();
    let attempts = last.map_or(0, |last| last.number);
    let state = match run.missed_count {
        Some(count) => format!("missed ({count})"),
        None => word(&run.state),
    };
    let last = last.map(|last| match (&last.error, last.status) {
        (Some(error), _) => error.clone(),
        (None, status) => or_dash(status),
    });
    let schedule = run.schedule_id.clone();
    [run.id.clone(), or_dash(schedule), state, run.scheduled_at.to_string(), attempts.to_string(), or_dash(last)]
}

/// What became of one redrive.
#[derive(Serialize)]
struct Told {
    redriven: String,
    #[serde(flatten)]
    by: Redriven,
}

async fn redrive(runtime: &Runtime, arguments: Redrive) -> anyhow::Result<()> {
    let client = arguments.connect.client(As::Admin)?;
    let mut progress = Progress::new(runtime);
    // All are known before the first runs again: one that fails again is a dead letter again.
    let ids = match arguments.all {
        true => all(&client, &mut progress).await.map_err(|error| explain(&client, &error))?,
        false => arguments.ids,
    };
    let is_cut = ids.len() == REDRIVES_MAX;
    let asked = ids.len();
    let mut answers = stream::iter(ids)
        .map(|id| async {
            let answer = redrive_one(&client, &id).await;
            (id, answer)
        })
        .buffered(REDRIVES_AT_ONCE);
    let (mut done, mut before, mut failed) = (0_usize, 0_usize, None);
    while let Some((id, answer)) = answers.next().await {
        match answer {
            Ok(by) => {
                done += 1;
                match arguments.output.json {
                    true => show::json(&Told { redriven: id, by })?,
                    false if arguments.all => {}
                    false => show::fields(&[("redriven", Some(id)), ("as run", Some(by.run_id))])?,
                }
            }
            // Somebody else was faster, or an answer of ours was lost.
            Err(error) if arguments.all && error.code() == Some("not_dead_letter") => before += 1,
            Err(error) => {
                let context = format!("{} is not redriven", show::harmless(&id));
                failed.get_or_insert((0_usize, explain(&client, &error).context(context))).0 += 1;
            }
        }
        progress.tell(|| format!("{done} of {asked} redriven"));
    }
    drop(progress);
    if arguments.all && !arguments.output.json {
        let before = if before > 0 { format!(", {before} were already") } else { String::new() };
        let more = if is_cut { "; there may be more: ask again" } else { "" };
        console::line(&format!("{done} redriven{before}{more}"))?;
    }
    match failed {
        Some((1, error)) => Err(error),
        Some((count, error)) => bail!("{count} of {asked} are not redriven; the first: {error:#}"),
        None => Ok(()),
    }
}

async fn all(client: &Client, progress: &mut Progress) -> Result<Vec<String>, Error> {
    let mut ids = Vec::new();
    let mut runs = client.dead_letters();
    while let Some(run) = runs.try_next().await? {
        ids.push(run.id);
        progress.tell(|| format!("{} dead letters found", ids.len()));
        if ids.len() == REDRIVES_MAX {
            break;
        }
    }
    Ok(ids)
}

async fn redrive_one(client: &Client, id: &str) -> Result<Redriven, Error> {
    let mut asks = 1;
    loop {
        match client.redrive(id).await {
            Err(error) if error.is_outcome_unknown() && asks < ASKS_MAX => asks += 1,
            answer => return answer,
        }
    }
}
