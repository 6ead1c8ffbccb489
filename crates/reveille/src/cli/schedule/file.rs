//! Creation of many schedules from a file or a pipe.
//!
//! The server checks every request before it creates the first schedule. For each request without an id, the command
//! derives an idempotency key from the text of the request. A user can therefore send the same file again after an
//! interruption: the server creates only the missing schedules.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, ensure};
use cli_support::console;
use futures_util::stream::{self, StreamExt as _};
use reveille_client::{Client, Created, DryRun, Error, IdempotencyKey, Problem, ScheduleRequest, ScheduleSummary};
use runtime::Runtime;
use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::cli::Output;
use crate::cli::explain::explain;
use crate::cli::show;
use crate::progress::Progress;

/// Number of requests in flight. The server makes the schedules of concurrent requests durable together.
const CONCURRENT: usize = 64;

pub(super) struct FileOptions {
    /// True if the server only checks the requests and creates no schedule.
    pub(super) is_dry_run: bool,
    /// Text that is part of each idempotency key of this call of the command. With a different text, the server creates
    /// the schedules of equal requests again.
    pub(super) key: String,
    pub(super) output: Output,
}

pub(super) async fn create_all(
    runtime: &Runtime,
    client: &Client,
    path: &Path,
    options: &FileOptions,
) -> anyhow::Result<()> {
    let input = open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut progress = Progress::new(runtime);
    let checked = check_all(client, &input, options, &mut progress).await?;
    ensure!(
        checked.rejected == 0,
        "{} of {} requests are invalid, and no schedule was created; correct them and try again",
        checked.rejected,
        checked.accepted + checked.rejected
    );
    if options.is_dry_run {
        return summarize(options, &format!("valid requests: {}; no schedule was created", checked.accepted));
    }
    let counts = send_all(client, &input, options, &mut progress).await?;
    summarize(options, &counts.text())?;
    ensure!(
        counts.rejected == 0,
        "the server rejected {} requests; the schedules of all other requests exist",
        counts.rejected
    );
    Ok(())
}

fn summarize(options: &FileOptions, text: &str) -> anyhow::Result<()> {
    if options.output.json { Ok(()) } else { Ok(console::line(text)?) }
}

#[derive(Default)]
struct Checked {
    accepted: u64,
    rejected: u64,
}

/// Sends each request as a dry run, and prints the invalid requests.
async fn check_all(
    client: &Client,
    input: &File,
    options: &FileOptions,
    progress: &mut Progress,
) -> anyhow::Result<Checked> {
    let mut checked = Checked::default();
    let results = stream::iter(entries(input)?).map(|entry| async {
        let dry_run = match &entry.request {
            Ok(request) => Ok(client.dry_run(request).await),
            Err(reason) => Err(reason.clone()),
        };
        (entry, dry_run)
    });
    let mut results = pin!(results.buffered(CONCURRENT));
    while let Some((entry, dry_run)) = results.next().await {
        let line = LineResult { line: entry.line, id: entry.id(), ..LineResult::default() };
        match dry_run {
            Ok(Ok(dry_run)) => {
                checked.accepted += 1;
                if options.is_dry_run && options.output.json {
                    show::json(&LineResult { status: Some(201), dry_run: Some(&dry_run), ..line })?;
                }
            }
            // An earlier call may have created the schedule with this request's id, so the request counts as valid.
            Ok(Err(error)) if error.code() == Some("schedule_exists") => checked.accepted += 1,
            Ok(Err(error)) if is_about_request(&error) => {
                checked.rejected += 1;
                line.rejected(&error).show(options.output)?;
            }
            Ok(Err(error)) => {
                let context = format!("the check stopped at line {}, and no schedule was created", entry.line);
                return Err(explain(client, &error).context(context));
            }
            Err(reason) => {
                checked.rejected += 1;
                LineResult { detail: Some(reason), ..line }.show(options.output)?;
            }
        }
        progress.update(|| format!("{} checked, {} rejected", checked.accepted, checked.rejected));
    }
    Ok(checked)
}

#[derive(Default)]
struct Counts {
    created: u64,
    replayed: u64,
    /// Number of requests with the id of an existing schedule.
    existing: u64,
    rejected: u64,
}

impl Counts {
    fn text(&self) -> String {
        let mut text = format!("{} created", self.created);
        let others =
            [(self.replayed, "created before"), (self.existing, "with an existing id"), (self.rejected, "rejected")];
        for (count, what) in others.iter().filter(|(count, _)| *count > 0) {
            text.push_str(&format!(", {count} {what}"));
        }
        text
    }
}

/// Sends all requests and prints the results.
async fn send_all(
    client: &Client,
    input: &File,
    options: &FileOptions,
    progress: &mut Progress,
) -> anyhow::Result<Counts> {
    let mut counts = Counts::default();
    let results = stream::iter(entries(input)?).map(|entry| async {
        let created = send(client, &entry, &options.key).await;
        (entry, created)
    });
    let mut results = pin!(results.buffered(CONCURRENT));
    while let Some((entry, created)) = results.next().await {
        let line = LineResult { line: entry.line, id: entry.id(), ..LineResult::default() };
        // The command creates the remaining schedules even if no process reads its standard output.
        let _unwritten = match created {
            Ok(Created { schedule, is_replay }) => {
                *(if is_replay { &mut counts.replayed } else { &mut counts.created }) += 1;
                let (status, replayed) = (Some(201), Some(is_replay));
                match options.output.json {
                    true => show::json(&LineResult { status, replayed, schedule: Some(&schedule), ..line }),
                    false => Ok(()),
                }
            }
            Err(error) if error.code() == Some("schedule_exists") => {
                counts.existing += 1;
                line.rejected(&error).show(options.output)
            }
            Err(error) if is_about_request(&error) => {
                counts.rejected += 1;
                line.rejected(&error).show(options.output)
            }
            Err(error) => {
                let context = format!(
                    "the creation stopped at line {}: {}; requests of later lines may also have created schedules. \
                     Send the file again: the server creates only the missing schedules",
                    entry.line,
                    counts.text()
                );
                return Err(explain(client, &error).context(context));
            }
        };
        progress.update(|| counts.text());
    }
    Ok(counts)
}

async fn send(client: &Client, entry: &Entry, key: &str) -> Result<Created, Error> {
    let request = entry.request.as_ref().expect("the check accepted every entry");
    match request.id {
        Some(_) => client.create(request).await.map(|schedule| Created { schedule, is_replay: false }),
        None => client.create_with_key(request, &entry.key(key)).await,
    }
}

/// Returns true if the error concerns one request, and false if it would also concern the next requests.
fn is_about_request(error: &Error) -> bool {
    let is_of_caller = matches!(error.code(), Some("invalid_credentials" | "role_forbidden"));
    matches!(error, Error::Rejected(_)) && !is_of_caller && !error.is_retryable() && error.status() < Some(500)
}

/// Result of one request, as JSON for programs.
#[derive(Serialize, Default)]
struct LineResult<'a> {
    line: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<&'a ScheduleSummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dry_run: Option<&'a DryRun>,
    /// Defect that this module found before it sent the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

impl LineResult<'_> {
    fn rejected(self, error: &Error) -> Self {
        LineResult { status: error.status(), problem: error.problem().cloned(), ..self }
    }

    fn show(&self, output: Output) -> anyhow::Result<()> {
        if output.json {
            return show::json(self);
        }
        let reasons = match (&self.detail, &self.problem) {
            (Some(detail), _) => detail.clone(),
            (None, Some(problem)) if problem.errors.is_empty() => problem.detail.clone(),
            (None, Some(problem)) => {
                let reasons = problem.errors.iter().map(|error| match error.pointer.as_deref() {
                    Some(place) if !place.is_empty() => format!("{place}: {}", error.detail),
                    _ => error.detail.clone(),
                });
                reasons.collect::<Vec<_>>().join("; ")
            }
            (None, None) => String::new(),
        };
        let id = self.id.map(|id| format!(" ({id})")).unwrap_or_default();
        Ok(console::line(&show::escaped(&format!("line {}{id} is rejected: {reasons}", self.line)))?)
    }
}

/// One JSON value of the input, with the request that it contains.
struct Entry {
    /// Number of the input line on which the JSON value starts, from 1.
    line: u64,
    /// Request that the JSON value contains, or the reason why the value is not a request.
    request: Result<ScheduleRequest, String>,
    /// SHA-256 hash of the JSON value's text.
    digest: [u8; 32],
    /// Number of equal JSON values before this value in the input.
    ordinal: u64,
}

impl Entry {
    fn id(&self) -> Option<&str> {
        self.request.as_ref().ok()?.id.as_deref()
    }

    /// Returns the request's idempotency key: a hash of the JSON value's digest, the value's ordinal and the text
    /// `key`.
    fn key(&self, key: &str) -> IdempotencyKey {
        let digest = Sha256::new()
            .chain_update(self.digest)
            .chain_update(self.ordinal.to_be_bytes())
            .chain_update(key)
            .finalize();
        let text: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        text.parse().expect("a hexadecimal hash is a valid idempotency key")
    }
}

/// Reads JSON values one after the other; a value may span several lines. If the reader finds text that is not JSON,
/// the entry for this text is the last entry.
fn entries(mut input: &File) -> anyhow::Result<impl Iterator<Item = Entry>> {
    input.rewind().context("cannot return to the start of the input to read it again")?;
    let line = Arc::new(AtomicU64::new(1));
    let reader = LineCounter { input: BufReader::new(input), line: line.clone() };
    let mut ordinals: HashMap<[u8; 32], u64> = HashMap::new();
    let values = serde_json::Deserializer::from_reader(reader).into_iter::<Box<RawValue>>();
    Ok(values.map(move |value| {
        let end = line.load(Ordering::Relaxed);
        let value = match value {
            Ok(value) => value,
            Err(error) => return Entry { line: end, request: Err(invalid(&error)), digest: [0; 32], ordinal: 0 },
        };
        let text = value.get();
        let digest: [u8; 32] = Sha256::digest(text).into();
        let ordinal = ordinals.entry(digest).or_default();
        *ordinal += 1;
        let newlines = text.bytes().filter(|byte| *byte == b'\n').count();
        let request = serde_json::from_str(text).map_err(|error| invalid(&error));
        Entry { line: end - newlines as u64, request, digest, ordinal: *ordinal - 1 }
    }))
}

/// Describes a defect without its position, because the position is relative to the JSON value and not to the input.
fn invalid(error: &serde_json::Error) -> String {
    let position = format!(" at line {} column {}", error.line(), error.column());
    let text = error.to_string();
    format!("{}; write JSON objects one after the other, without a list around them", text.trim_end_matches(&position))
}

/// Reader that counts the lines that it has read.
struct LineCounter<R> {
    input: R,
    line: Arc<AtomicU64>,
}

impl<R: Read> Read for LineCounter<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.input.read(buffer)?;
        let newlines = buffer[..length].iter().filter(|byte| **byte == b'\n').count();
        self.line.fetch_add(newlines as u64, Ordering::Relaxed);
        Ok(length)
    }
}

/// Opens the input. Copies a pipe into a temporary file, because the caller reads the input twice.
fn open(path: &Path) -> io::Result<File> {
    if path.as_os_str() == "-" {
        return spooled(&mut io::stdin().lock());
    }
    let mut file = File::open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { spooled(&mut file) }
}

fn spooled(input: &mut impl Read) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    io::copy(input, &mut file)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn read(text: &str) -> Vec<Entry> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        entries(&file).unwrap().collect()
    }

    #[test]
    fn schedule_file_entry_contains_the_number_of_its_first_line() {
        let object = r#"{"every":"1h","target":{"http":{"url":"http://a"}}}"#;
        let spread = object.replace(',', ",\n");
        let found = read(&format!("{object}\n\n{spread}{object}\n{{\"evry\":1}}\n[{object}]\n{{oops\n{object}\n"));
        assert_eq!(found.iter().map(|entry| entry.line).collect::<Vec<_>>(), [1, 3, 4, 5, 6, 7]);
        let reasons: Vec<_> = found.iter().filter_map(|entry| entry.request.as_ref().err()).collect();
        assert!(reasons[0].starts_with("unknown field `evry`"), "{reasons:?}");
        assert!(reasons[1].contains("without a list"), "{reasons:?}");
        assert!(reasons[2].starts_with("key must be a string"), "{reasons:?}");
    }

    #[test]
    fn equal_requests_in_one_file_get_different_idempotency_keys() {
        let object = r#"{"every":"1h","target":{"http":{"url":"http://a"}}}"#;
        let keys = |text: &str, key: &str| read(text).iter().map(|entry| entry.key(key)).collect::<Vec<_>>();
        let twice = keys(&format!("{object}{object}"), "");
        assert_ne!(twice[0], twice[1]);
        assert_eq!(keys(&format!("\n{object}"), ""), twice[..1]);
        assert_ne!(keys(object, "new"), twice[..1]);
    }
}
