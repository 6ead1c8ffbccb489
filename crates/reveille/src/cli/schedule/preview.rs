//! Command `reveille schedule preview`, which checks a schedule and lists its next occurrences without a server.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use clap::{Args, value_parser};
use domain::Timestamp;
use domain::preview::COUNT_MAX;
use reveille_client::api::{ClockChangeKind, PreviewOccurrence};
use reveille_client::{Preview, Time};
use runtime::Runtime;
use server::BODY_BYTES_MAX;
use server::preview::{COUNT_DEFAULT, Invalid, PreviewRange};

use super::list::instant;
use super::request::RequestArguments;
use crate::cli::Output;
use crate::cli::explain::field_line;
use crate::cli::show;

/// URL that a preview checks if the user names no target.
const ANY_URL: &str = "https://localhost/";

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    request: RequestArguments,
    /// File with the schedule as a JSON object of the API; `-` reads standard input
    #[arg(long, value_name = "FILE", conflicts_with = "request")]
    file: Option<PathBuf>,
    /// Number of occurrences, from 1 to 100
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = COUNT_DEFAULT as u64,
        value_parser = value_parser!(u64).range(1..=COUNT_MAX as u64)
    )]
    count: u64,
    /// Earliest instant (RFC 3339) [default: the first occurrence of a schedule that is created now]
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    from: Option<Time>,
    #[command(flatten)]
    output: Output,
}

pub(super) fn preview(runtime: &Runtime, arguments: Arguments) -> anyhow::Result<()> {
    let now = runtime.now();
    let from = arguments.from.map(|from| Timestamp::from_millis(from.0));
    let is_valid = from.is_none_or(|from| (Timestamp::MIN..=Timestamp::MAX).contains(&from));
    ensure!(is_valid, "--from must be an instant from 1970 to 9999");
    let body = match &arguments.file {
        Some(path) => read(path)?,
        None => body(arguments.request, now)?,
    };
    let range = PreviewRange { from, count: usize::try_from(arguments.count).unwrap_or(COUNT_MAX) };
    let preview = server::preview::preview(&body, range, now).map_err(|invalid| explain(&invalid))?;
    match arguments.output.json {
        true => show::json(&preview),
        false => show_preview(&preview),
    }
}

/// Reads a file or standard input, which may have as many bytes as the body of a request to a server.
fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let (name, read) = match path.as_os_str() == "-" {
        true => ("standard input".to_owned(), read_start(io::stdin())),
        false => (path.display().to_string(), File::open(path).and_then(read_start)),
    };
    let bytes = read.with_context(|| format!("cannot read {name}"))?;
    ensure!(
        bytes.len() <= BODY_BYTES_MAX,
        "{name} has more than {BODY_BYTES_MAX} bytes, the limit of a schedule; name a file with one schedule"
    );
    Ok(bytes)
}

/// Reads at most one byte more than [`BODY_BYTES_MAX`].
fn read_start(input: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(BODY_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn body(arguments: RequestArguments, now: Timestamp) -> anyhow::Result<Vec<u8>> {
    let has_target = arguments.has_target();
    let mut request = arguments.request(now)?;
    if let Some(http) = request.target.http.as_mut().filter(|_| !has_target) {
        http.url = ANY_URL.to_owned();
    }
    Ok(serde_json::to_vec(&request)?)
}

fn explain(invalid: &Invalid) -> anyhow::Error {
    let lines = match invalid.errors.is_empty() {
        true => vec![format!("the schedule is invalid: {}", invalid.detail)],
        false => {
            let errors = invalid.errors.iter().map(|error| format!("  {}", field_line(error)));
            ["the schedule is invalid:".to_owned()].into_iter().chain(errors).collect()
        }
    };
    anyhow!(lines.iter().map(|line| show::escaped(line)).collect::<Vec<_>>().join("\n"))
}

/// Prints one line per occurrence and per dropped local time, in the order of their instants.
fn show_preview(preview: &Preview) -> anyhow::Result<()> {
    let mut all: Vec<&PreviewOccurrence> = preview.occurrences.iter().chain(&preview.dropped).collect();
    all.sort_by_key(|occurrence| occurrence.at);
    let rows: Vec<[String; 3]> = all.into_iter().map(row).collect();
    show::table(["fires at", "local time", "clock change"], &rows)?;
    let unlisted = preview.dropped_count.saturating_sub(preview.dropped.len() as u64);
    show::fields(&[
        ("time zone", Some(preview.zone.clone())),
        ("more dropped local times", (unlisted > 0).then(|| unlisted.to_string())),
    ])
}

fn row(occurrence: &PreviewOccurrence) -> [String; 3] {
    let change = occurrence.clock_change.as_ref();
    let is_dropped = change.is_some_and(|change| change.kind == ClockChangeKind::Dropped);
    let at = if is_dropped { "-".to_owned() } else { occurrence.at.to_string() };
    let text = change.map(|change| format!("{}: {}", show::word(&change.kind), change.text)).unwrap_or_default();
    [at, occurrence.local.clone(), text]
}
