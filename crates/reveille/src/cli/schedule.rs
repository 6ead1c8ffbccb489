//! Commands `reveille schedule`, which create, preview, show, change and cancel schedules.

mod explain_at;
mod file;
pub(super) mod list;
mod preview;
mod request;
mod reschedule;

use std::path::PathBuf;

use anyhow::bail;
use clap::{ArgGroup, Args, Subcommand};
use domain::duration;
use reveille_client::api::{CloudEventMode, Retry, Target};
use reveille_client::{CancelResult, Cancelled, DryRun, IdempotencyKey, Schedule, ScheduleSummary, Tag};
use runtime::Runtime;

use self::file::FileOptions;
use super::Output;
use super::connect::{Connect, DefaultKey};
use super::explain::explain;
use super::run::{self, Page};
use super::show::{self, or_dash, word};

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Create a schedule, or many schedules from a file
    #[command(
        after_help = "Examples:\n  reveille schedule create --in 10m --url https://shop.example/remind --payload '{\"order\": 17}'\n  \
                      reveille schedule create --id report --cron '0 9 * * MON-FRI' --zone Europe/Berlin --url https://shop.example/report --replace\n  \
                      reveille schedule create --file schedules.ndjson"
    )]
    Create(Box<Create>),
    /// Check a schedule and list its next occurrences, without a server
    #[command(
        after_help = "Examples:\n  reveille schedule preview --cron '30 2 * * *' --zone Europe/Berlin --from 2030-03-30T00:00:00Z"
    )]
    Preview(Box<preview::Arguments>),
    /// Show a schedule
    Get(Get),
    /// List all schedules, or the schedules with a state, a label or a due time
    List(list::List),
    /// Change only the timing of a schedule
    Reschedule(reschedule::Reschedule),
    /// Cancel schedules
    Cancel(Cancel),
    /// List the runs of a schedule
    Runs(Runs),
    /// Explain why a schedule did, did not or will not fire at an instant
    Explain(explain_at::Explain),
}

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("destination").args(["url", "topic", "file"]).required(true).multiple(true)))]
pub(crate) struct Create {
    #[command(flatten)]
    request: request::RequestArguments,
    /// Replace the existing schedule that has this --id, if any
    #[arg(long, requires = "id")]
    replace: bool,
    /// Dry run: validate the schedule and print its next instants, but do not create it
    #[arg(long)]
    dry_run: bool,
    /// File of schedules to create, as consecutive JSON objects of the API; `-` reads standard input. The server checks
    /// all schedules before it creates the first schedule. If you send the same file again, the server creates only the
    /// missing schedules
    #[arg(long, value_name = "FILE", conflicts_with_all = ["request", "replace"])]
    file: Option<PathBuf>,
    /// Idempotency key of the request; the server creates only one schedule for equal requests with the same key
    #[arg(long, value_name = "KEY", conflicts_with_all = ["id", "replace"])]
    idempotency_key: Option<IdempotencyKey>,
    /// Create the schedules of --file again, even if an earlier call has created them
    #[arg(long, requires = "file", conflicts_with = "idempotency_key")]
    new: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Args, Debug)]
pub(crate) struct Get {
    /// Id of the schedule
    id: String,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Args, Debug)]
pub(crate) struct Cancel {
    /// Ids of the schedules
    #[arg(required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Args, Debug)]
pub(crate) struct Runs {
    /// Id of the schedule
    id: String,
    #[command(flatten)]
    page: Page,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

pub(super) async fn execute(runtime: &Runtime, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create(arguments) => create(runtime, *arguments).await,
        Command::Preview(arguments) => preview::preview(runtime, *arguments),
        Command::Get(arguments) => get(arguments).await,
        Command::List(arguments) => list::list(arguments).await,
        Command::Reschedule(arguments) => reschedule::reschedule(runtime, arguments).await,
        Command::Cancel(arguments) => cancel(arguments).await,
        Command::Runs(arguments) => runs(arguments).await,
        Command::Explain(arguments) => explain_at::explain_at(arguments).await,
    }
}

async fn create(runtime: &Runtime, arguments: Create) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Admin)?;
    if let Some(path) = arguments.file {
        let key = match (arguments.idempotency_key, arguments.new) {
            (Some(key), _) => key.to_string(),
            (None, true) => format!("new {:032x}", runtime.random_u128()),
            (None, false) => String::new(),
        };
        let options = FileOptions { is_dry_run: arguments.dry_run, key, output: arguments.output };
        return file::create_all(runtime, &client, &path, &options).await;
    }
    let request = arguments.request.request(runtime.now())?;
    if arguments.dry_run {
        let dry = match (&request.id, arguments.replace) {
            (Some(id), true) => client.dry_run_put(id, &request).await,
            _ => client.dry_run(&request).await,
        };
        return show_dry_run(&dry.map_err(|error| explain(&client, &error))?, arguments.output);
    }
    let created = match (&request.id, &arguments.idempotency_key) {
        (Some(id), _) if arguments.replace => client.put(id, &request).await.map(|put| put.schedule),
        (_, Some(key)) => client.create_with_key(&request, key).await.map(|created| created.schedule),
        (_, None) => client.create(&request).await,
    };
    show_summary(&created.map_err(|error| explain(&client, &error))?, arguments.output)
}

async fn get(arguments: Get) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Admin)?;
    let (schedule, tag) = client.get_tagged(&arguments.id).await.map_err(|error| explain(&client, &error))?;
    match arguments.output.json {
        true => show::json(&schedule),
        false => show_schedule(&schedule, tag),
    }
}

/// Cancels all given schedules, even if the cancellation of one schedule fails. Returns the first error at the end.
async fn cancel(arguments: Cancel) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Admin)?;
    let mut failed = None;
    for id in &arguments.ids {
        match client.cancel(id).await {
            Ok(cancelled) if arguments.output.json => show::json_item(id, &cancelled)?,
            Ok(cancelled) => show::fields(&[(id, Some(describe(&cancelled)))])?,
            Err(error) => {
                if arguments.output.json {
                    show::json_failure(id, &error)?;
                }
                let explained = explain(&client, &error).context(format!("{} is not cancelled", show::escaped(id)));
                failed.get_or_insert(explained);
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

fn describe(cancelled: &Cancelled) -> String {
    match cancelled.result {
        CancelResult::Cancelled => "cancelled: no callback will be sent".to_owned(),
        CancelResult::TooLate => "too late: a callback is in flight; no other callback will be sent".to_owned(),
        CancelResult::Pending => {
            let decided_by = or_dash(cancelled.decided_by);
            format!("pending: the owner of the schedule is unavailable; no callback starts after {decided_by}")
        }
        other => word(&other),
    }
}

async fn runs(arguments: Runs) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Admin)?;
    let Page { limit, page_token } = &arguments.page;
    let page = client.runs_page(&arguments.id, *limit, page_token.as_deref()).await;
    run::show_page(&page.map_err(|error| explain(&client, &error))?, arguments.output)
}

fn show_dry_run(dry: &DryRun, output: Output) -> anyhow::Result<()> {
    if output.json {
        return show::json(dry);
    }
    show_schedule(&dry.schedule, None)?;
    let upcoming: Vec<String> = dry.upcoming.iter().map(ToString::to_string).collect();
    show::fields(&[
        ("upcoming", Some(upcoming.join("  "))),
        ("dry run", Some("the server did not create or change a schedule".to_owned())),
    ])
}

fn show_summary(summary: &ScheduleSummary, output: Output) -> anyhow::Result<()> {
    if output.json {
        return show::json(summary);
    }
    let too_late = summary.too_late.then(|| "a callback of the replaced schedule is in flight".to_owned());
    show::fields(&[
        ("id", Some(summary.id.to_string())),
        ("state", Some(word(&summary.state))),
        ("next", Some(or_dash(summary.next))),
        ("revision", Some(summary.revision.to_string())),
        ("too late", too_late),
    ])
}

/// Describes the attempts of a run and the waits between them. Each wait is random and below a bound. The bound doubles
/// after each attempt until it reaches `backoff_max`.
fn attempts(retry: &Retry) -> String {
    let Retry { attempts_max, backoff, backoff_max } = retry;
    let second = match (duration::parse(backoff), duration::parse(backoff_max)) {
        (Ok(first), Ok(longest)) if first * 2 < longest => format!(", then up to {}, …", duration::format(first * 2)),
        _ => String::new(),
    };
    match attempts_max {
        0 | 1 => "1".to_owned(),
        2 => format!("up to 2 attempts; wait between them: up to {backoff}"),
        _ => {
            format!("up to {attempts_max} attempts; waits between them: up to {backoff}{second}, at most {backoff_max}")
        }
    }
}

/// Returns the address of a target: the method and the URL, or the topic.
fn target(target: &Target) -> String {
    match target {
        Target::Http(http) => format!("{} {}", http.method, http.url),
        Target::Bus(bus) => match bus.cloud_event.as_ref().map(|event| event.mode) {
            None => format!("topic {}", bus.topic),
            Some(CloudEventMode::Binary) => format!("topic {} (binary CloudEvents)", bus.topic),
            Some(CloudEventMode::Structured) => format!("topic {} (structured CloudEvents)", bus.topic),
        },
        other => format!("{other:?}"),
    }
}

fn show_schedule(schedule: &Schedule, tag: Option<Tag>) -> anyhow::Result<()> {
    let (headers, timeout, key) = match &schedule.target {
        Target::Http(http) => (&http.headers, &http.timeout, None),
        Target::Bus(bus) => (&bus.headers, &bus.timeout, bus.key.clone()),
        other => bail!("this version of the command cannot show the target {other:?}; use --json"),
    };
    let pairs = |pairs: &std::collections::BTreeMap<String, String>| {
        let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}:{value}")).collect();
        (!pairs.is_empty()).then(|| pairs.join("  "))
    };
    show::fields(&[
        ("id", Some(schedule.id.clone())),
        ("state", Some(word(&schedule.state))),
        ("next", Some(or_dash(schedule.next))),
        ("at", schedule.at.map(|at| at.to_string())),
        ("cron", schedule.cron.clone()),
        ("zone", schedule.zone.clone()),
        ("every", schedule.every.clone()),
        ("target", Some(target(&schedule.target))),
        ("key", key),
        ("headers", pairs(headers)),
        ("timeout", Some(timeout.clone())),
        ("attempts", Some(attempts(&schedule.retry))),
        ("payload", schedule.payload.as_ref().map(|payload| payload.get().to_owned())),
        ("labels", pairs(&schedule.labels)),
        ("revision", Some(schedule.revision.to_string())),
        ("created", Some(schedule.created_at.to_string())),
        ("updated", Some(schedule.updated_at.to_string())),
        ("tag", tag.map(|tag| tag.to_string())),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_of_retries_states_the_maximum_waits() {
        let described = |attempts_max, backoff: &str, backoff_max: &str| {
            attempts(&Retry { attempts_max, backoff: backoff.to_owned(), backoff_max: backoff_max.to_owned() })
        };
        assert_eq!(
            described(5, "1s", "10m"),
            "up to 5 attempts; waits between them: up to 1s, then up to 2s, …, at most 10m"
        );
        assert_eq!(described(5, "6m", "10m"), "up to 5 attempts; waits between them: up to 6m, at most 10m");
        assert_eq!(described(2, "1s", "10m"), "up to 2 attempts; wait between them: up to 1s");
        assert_eq!(described(1, "1s", "10m"), "1");
    }
}
