//! Commands `reveille run`, which show a run, list and export runs, and list and redrive dead letters.

mod export;
mod follow;
mod list;

use anyhow::bail;
use clap::{Args, Subcommand};
use cli_support::console;
use futures_util::stream::{self, StreamExt as _};
use reveille_client::api::{Attempt, Redriven, RunPage};
use reveille_client::{Client, Error, Run, TryStreamExt as _};
use runtime::Runtime;

pub(super) use self::list::before;
use super::Output;
use super::connect::{Connect, DefaultKey};
use super::explain::explain;
use super::show::{self, or_dash, word};
use crate::progress::Progress;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Show a run with its attempts
    Get(Get),
    /// List runs by time, with filters
    #[command(
        after_help = "Examples:\n  reveille run list --state failed --last 24h\n  reveille run list --schedule report\n  \
                      reveille run list --status 503 --host shop.example --follow"
    )]
    List(Box<list::List>),
    /// Write the runs of a range to a compressed file of JSON lines
    #[command(
        after_help = "Examples:\n  reveille run export --last 24h --out runs.ndjson.gz\n  reveille run export --resume --out \
                      runs.ndjson.gz"
    )]
    Export(Box<export::Export>),
    /// List the dead letters: runs that failed after their last attempt and are not redriven
    DeadLetters(DeadLetters),
    /// Run dead letters again immediately
    Redrive(Redrive),
}

#[derive(Args, Debug)]
pub(crate) struct Get {
    /// Id of the run, which its callbacks carry as `webhook-id`
    id: String,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
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
    /// Ids of the runs
    #[arg(required_unless_present = "all")]
    ids: Vec<String>,
    /// Redrive all dead letters that exist now
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

/// Options for one page of a list.
#[derive(Args, Debug)]
pub(crate) struct Page {
    /// Maximum number of entries to print
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub(super) limit: u16,
    /// Token from the output of the previous page, at which the list continues
    #[arg(long, value_name = "TOKEN")]
    pub(super) page_token: Option<String>,
}

/// Maximum number of concurrent redrive requests.
const REDRIVES_AT_ONCE: usize = 16;
/// Maximum number of redrives of one command. The command stores the ids of the runs in memory, and an id needs about
/// 100 bytes.
const REDRIVES_MAX: usize = 1_000_000;
/// Maximum number of requests for one redrive. The command repeats a request if the outcome is unknown. A repeated
/// request is safe, because the server redrives a run only once.
const REQUESTS_MAX: usize = 3;

pub(super) async fn execute(runtime: &Runtime, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Get(arguments) => get(arguments).await,
        Command::List(arguments) => list::list(runtime, *arguments).await,
        Command::Export(arguments) => export::export(runtime, *arguments).await,
        Command::DeadLetters(arguments) => dead_letters(arguments).await,
        Command::Redrive(arguments) => redrive(runtime, arguments).await,
    }
}

async fn get(arguments: Get) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Admin)?;
    let run = client.run(&arguments.id).await.map_err(|error| explain(&client, &error))?;
    if arguments.output.json {
        return show::json(&run);
    }
    show::fields(&[
        ("run", Some(run.id.clone())),
        ("schedule", run.schedule_id.clone()),
        ("state", Some(state(&run))),
        ("scheduled at", Some(run.scheduled_at.to_string())),
        ("revision", Some(run.revision.to_string())),
        ("replay", Some(run.replay.to_string())),
    ])?;
    if run.attempts.is_empty() {
        return Ok(());
    }
    console::line("")?;
    let rows: Vec<_> = run.attempts.iter().map(attempt_row).collect();
    show::table(["attempt", "started at", "duration", "result"], &rows)?;
    run.attempts.iter().filter_map(excerpt_of).try_for_each(|text| Ok(console::line(&text)?))
}

/// Maximum length in columns of a line of an excerpt. With the indent, a line fits into a terminal of 80 columns.
const EXCERPT_COLUMNS: usize = 76;

/// Returns the text that shows the excerpt of an attempt: a heading and the indented lines of the excerpt. The lines are
/// so short that the terminal does not wrap them, so that no line looks like output of this command. The target chose
/// the excerpt, so the text contains no characters that control a terminal or the direction of text.
fn excerpt_of(attempt: &Attempt) -> Option<String> {
    let (form, excerpt) = match (&attempt.excerpt, &attempt.excerpt_base64) {
        (Some(text), _) => ("", text),
        (None, Some(base64)) => (" in base64", base64),
        (None, None) => return None,
    };
    let lines = excerpt.lines().flat_map(|line| show::foreign_lines(line, EXCERPT_COLUMNS));
    let lines: String = lines.map(|line| format!("\n  {line}")).collect();
    Some(format!("\nexcerpt of the response to attempt {}{form}:{lines}", attempt.number))
}

fn attempt_row(attempt: &Attempt) -> [String; 4] {
    let duration = format!("{} ms", attempt.duration_ms);
    [attempt.number.to_string(), attempt.started_at.to_string(), duration, result(attempt)]
}

async fn dead_letters(arguments: DeadLetters) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Admin)?;
    let Page { limit, page_token } = &arguments.page;
    let page = client.dead_letters_page(*limit, page_token.as_deref()).await;
    show_page(&page.map_err(|error| explain(&client, &error))?, arguments.output)
}

/// Prints a page, with the option that the user must add to the command for the next page.
pub(super) fn show_page(page: &RunPage, output: Output) -> anyhow::Result<()> {
    if output.json {
        return show::json(page);
    }
    let rows: Vec<_> = page.runs.iter().map(row).collect();
    show::table(["run", "schedule", "state", "scheduled at", "attempts", "last"], &rows)?;
    match &page.next_page_token {
        Some(token) => Ok(console::line(&format!("\nmore: --page-token {}", show::escaped(token)))?),
        None => Ok(()),
    }
}

fn row(run: &Run) -> [String; 6] {
    let last = run.attempts.last();
    let attempts = last.map_or(0, |last| last.number);
    let (schedule, scheduled_at) = (run.schedule_id.clone(), run.scheduled_at.to_string());
    [run.id.clone(), or_dash(schedule), state(run), scheduled_at, attempts.to_string(), or_dash(last.map(result))]
}

fn state(run: &Run) -> String {
    match run.missed_count {
        Some(count) if run.attempt_possible => format!("missed ({count}, attempt possible)"),
        Some(count) => format!("missed ({count})"),
        None => word(&run.state),
    }
}

fn result(attempt: &Attempt) -> String {
    match (&attempt.error, attempt.partition.zip(attempt.offset)) {
        (Some(error), _) => error.clone(),
        (None, Some((partition, offset))) => format!("partition {partition}, offset {offset}"),
        (None, None) => or_dash(attempt.status),
    }
}

async fn redrive(runtime: &Runtime, arguments: Redrive) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Admin)?;
    let mut progress = Progress::new(runtime);
    // The command reads all ids before the first redrive, because a redriven run that fails becomes a dead letter
    // again.
    let ids = match arguments.all {
        true => all(&client, &mut progress).await.map_err(|error| explain(&client, &error))?,
        false => arguments.ids,
    };
    let is_truncated = ids.len() == REDRIVES_MAX;
    let requested = ids.len();
    let mut responses = stream::iter(ids)
        .map(|id| async {
            let response = redrive_one(&client, &id).await;
            (id, response)
        })
        .buffered(REDRIVES_AT_ONCE);
    let (mut done, mut already_redriven, mut failed) = (0_usize, 0_usize, None);
    while let Some((id, response)) = responses.next().await {
        match response {
            Ok(by) => {
                done += 1;
                match arguments.output.json {
                    true => show::json_item(&id, &by)?,
                    false if arguments.all => {}
                    false => show::fields(&[("redriven", Some(id)), ("as run", Some(by.run_id))])?,
                }
            }
            // Either another client has redriven the run, or this command lost the response to its own earlier request.
            Err(error) if arguments.all && error.code() == Some("not_dead_letter") => already_redriven += 1,
            Err(error) => {
                if arguments.output.json {
                    show::json_failure(&id, &error)?;
                }
                let context = format!("{} is not redriven", show::escaped(&id));
                failed.get_or_insert((0_usize, explain(&client, &error).context(context))).0 += 1;
            }
        }
        progress.update(|| format!("{done} of {requested} redriven"));
    }
    drop(progress);
    if arguments.all && !arguments.output.json {
        let already =
            if already_redriven > 0 { format!(", {already_redriven} already redriven") } else { String::new() };
        let more = if is_truncated { "; more dead letters may exist: run the command again" } else { "" };
        console::line(&format!("{done} redriven{already}{more}"))?;
    }
    match failed {
        Some((1, error)) => Err(error),
        Some((count, error)) => bail!("{count} of {requested} runs were not redriven; the first error: {error:#}"),
        None => Ok(()),
    }
}

async fn all(client: &Client, progress: &mut Progress) -> Result<Vec<String>, Error> {
    let mut ids = Vec::new();
    let mut runs = client.dead_letters();
    while let Some(run) = runs.try_next().await? {
        ids.push(run.id);
        progress.update(|| format!("{} dead letters found", ids.len()));
        if ids.len() == REDRIVES_MAX {
            break;
        }
    }
    Ok(ids)
}

async fn redrive_one(client: &Client, id: &str) -> Result<Redriven, Error> {
    let mut requests = 1;
    loop {
        match client.redrive(id).await {
            Err(error) if error.is_outcome_unknown() && requests < REQUESTS_MAX => requests += 1,
            response => return response,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpt_cannot_control_the_terminal_or_imitate_output() {
        let text_of = |fields: &str| {
            let json = format!(r#"{{"number":2,"started_at":"2026-03-29T01:00:00Z","duration_ms":1{fields}}}"#);
            excerpt_of(&serde_json::from_str(&json).unwrap())
        };
        assert_eq!(text_of(""), None);
        let hostile = r#","excerpt":"a\u001b[2J\u009b2K\u007f\rb\u202e\u2066\nRUN  state\tdone\r\n""#;
        let lines = ["", "excerpt of the response to attempt 2:", r"  a\u{1b}[2J\u{9b}2K\u{7f}\rb\u{202e}\u{2066}"];
        let shown = format!("{}\n{}", lines.join("\n"), r"  RUN  state\tdone");
        assert_eq!(text_of(hostile), Some(shown));
        let binary = "\nexcerpt of the response to attempt 2 in base64:\n  H4sI";
        assert_eq!(text_of(r#","excerpt_base64":"H4sI""#).as_deref(), Some(binary));
        assert_eq!(text_of(r#","excerpt_base64":"\u001b[2J""#), Some(binary.replace("H4sI", "\\u{1b}[2J")));
    }

    #[test]
    fn long_line_of_an_excerpt_does_not_reach_the_left_margin() {
        let lines_of = |excerpt: &str| {
            let json = format!(
                r#"{{"number":1,"started_at":"2026-03-29T01:00:00Z","duration_ms":1,"excerpt":{}}}"#,
                serde_json::to_string(excerpt).unwrap()
            );
            let text = excerpt_of(&serde_json::from_str(&json).unwrap()).unwrap();
            text.lines().skip(2).map(str::to_owned).collect::<Vec<_>>()
        };
        let padding = "a".repeat(76);
        assert_eq!(lines_of(&padding), [format!("  {padding}")]);
        let imitation = format!("{padding}run    r1\n\n{}\x1bb", &padding[1..]);
        let expected = [padding.as_str(), "run    r1", "", &padding[1..], r"\u{1b}b"].map(|line| format!("  {line}"));
        assert_eq!(lines_of(&imitation), expected, "the command breaks no line within an escaped character");
        let wide = "\u{6f22}".repeat(39);
        assert_eq!(lines_of(&wide), [format!("  {}", "\u{6f22}".repeat(38)), "  \u{6f22}".to_owned()]);
    }

    #[test]
    fn invisible_characters_of_an_excerpt_are_escaped() {
        for hidden in
            "\u{34f}\u{115f}\u{1160}\u{2800}\u{3164}\u{fe00}\u{fe0f}\u{ffa0}\u{fff9}\u{fffb}\u{e0100}\u{e01ef}\u{ad}"
                .chars()
        {
            assert_eq!(show::foreign_lines(&hidden.to_string(), 76), [hidden.escape_unicode().to_string()]);
        }
        assert_eq!(show::foreign_lines("gr\u{f6}\u{df}e \u{2713}", 76), ["gr\u{f6}\u{df}e \u{2713}"]);
    }

    #[test]
    fn state_of_a_missed_run_names_its_count_and_its_mark() {
        let state_of = |fields: &str| {
            let json = format!(
                r#"{{"id":"r","state":"missed","scheduled_at":"2026-03-29T01:00:00Z","revision":0,"replay":0,"attempts":[],
                    "missed_last":"2026-03-29T04:00:00Z","missed_count":4{fields}}}"#
            );
            state(&serde_json::from_str(&json).unwrap())
        };
        assert_eq!(state_of(""), "missed (4)");
        assert_eq!(state_of(r#","attempt_possible":true"#), "missed (4, attempt possible)");
    }
}
