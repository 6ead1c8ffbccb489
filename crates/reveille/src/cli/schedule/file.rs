//! Creates many schedules from a file or a pipe. The command sends requests while it reads the file, and prints results
//! when they arrive.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context, bail};
use cli_support::console;
use futures_util::stream;
use reveille_client::{Client, Error, Problem, ScheduleRequest, TryStreamExt as _};
use runtime::{Runtime, TaskSet};
use tokio::sync::mpsc;

use crate::cli::Output;
use crate::cli::explain::explain;
use crate::cli::show;
use crate::progress::Progress;

/// Maximum number of requests that the reader has read but the client has not sent yet.
const AHEAD: usize = 256;

/// Error that stopped the reader before the end of the file.
type ReadError = Arc<Mutex<Option<anyhow::Error>>>;

pub(super) async fn create_all(
    runtime: &Runtime,
    client: &Client,
    path: PathBuf,
    output: Output,
) -> anyhow::Result<()> {
    let input = open(&path)?;
    let (requests, read) = mpsc::channel(AHEAD);
    let read_error = ReadError::default();
    let reported = read_error.clone();
    let reader = TaskSet::new(runtime);
    // The reader has its own thread, because a read from a pipe may block.
    reader.spawn_thread("file", async move {
        if let Err(error) = read_all(input, requests).await {
            let name = if is_piped(&path) { "standard input".to_owned() } else { path.display().to_string() };
            let text = format!("cannot read further from {name}");
            *reported.lock().expect("no holder of this lock panics") = Some(error.context(text));
        }
    });
    let requests = stream::unfold(read, async |mut read| read.recv().await.map(|request| (request, read)));
    let counts = send_all(runtime, client, requests, output).await;
    let Counts { created, rejected, stopped_at } = counts.map_err(|(created, error)| {
        let explained = explain(client, &error);
        explained.context(format!(
            "stopped after {created} schedules were created; schedules without a response may have been created, too"
        ))
    })?;
    if !output.json {
        console::line(&format!("{created} created, {rejected} rejected"))?;
    }
    if let Some(number) = stopped_at {
        bail!(
            "the server stopped at number {number}: no schedule from there on was created, so send those again; of the \
             schedules before, {rejected} were rejected, and the others are created"
        );
    }
    if let Some(error) = read_error.lock().expect("no holder of this lock panics").take() {
        return Err(error);
    }
    if rejected > 0 {
        bail!("{rejected} schedules were rejected; the others are created");
    }
    Ok(())
}

/// Problem codes of a result that ends the batch. Such a result applies also to all further lines of the batch.
const FINAL_CODES: [&str; 4] = ["batch_too_long", "body_timeout", "body_broken", "invalid_credentials"];

#[derive(Default)]
struct Counts {
    created: u64,
    rejected: u64,
    /// Number of the first schedule in the file that the server did not process.
    stopped_at: Option<u64>,
}

/// Sends all requests and prints the results. An error contains the number of schedules that the server created before
/// the error.
async fn send_all(
    runtime: &Runtime,
    client: &Client,
    requests: impl stream::Stream<Item = ScheduleRequest> + Send + 'static,
    output: Output,
) -> Result<Counts, (u64, Error)> {
    let mut counts = Counts::default();
    let mut progress = Progress::new(runtime);
    let mut results = client.create_many(requests);
    while let Some(result) = results.try_next().await.map_err(|error| (counts.created, error))? {
        match &result.problem {
            None => counts.created += 1,
            Some(problem) if FINAL_CODES.contains(&&*problem.code) => counts.stopped_at = Some(result.line),
            Some(_) => counts.rejected += 1,
        }
        // The creation continues even if no process reads standard output any more.
        let _unwritten = match (&result.problem, output.json) {
            (_, true) => show::json(&result),
            (Some(problem), false) => show_rejection(result.line, problem),
            (None, false) => Ok(()),
        };
        progress.update(|| format!("{} created, {} rejected", counts.created, counts.rejected));
        // Stop here instead of reading to the end of the connection. The server has not read the whole request body, so
        // the connection may end with an error that is less specific than this result.
        if counts.stopped_at.is_some() {
            break;
        }
    }
    Ok(counts)
}

fn show_rejection(number: u64, problem: &Problem) -> anyhow::Result<()> {
    let reasons = problem.errors.iter().map(|error| {
        let place = error.pointer.as_deref().unwrap_or_default();
        let colon = if place.is_empty() { "" } else { ": " };
        format!("{place}{colon}{}", error.detail)
    });
    let reasons: Vec<String> = match problem.errors.is_empty() {
        true => vec![problem.detail.clone()],
        false => reasons.collect(),
    };
    Ok(console::line(&format!("number {number} is rejected: {}", show::escaped(&reasons.join("; "))))?)
}

fn is_piped(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn open(path: &Path) -> anyhow::Result<Box<dyn Read + Send>> {
    match is_piped(path) {
        true => Ok(Box::new(io::stdin())),
        false => Ok(Box::new(File::open(path).with_context(|| format!("cannot read {}", path.display()))?)),
    }
}

/// Reads consecutive JSON objects. An object may span several lines.
async fn read_all(input: Box<dyn Read + Send>, requests: mpsc::Sender<ScheduleRequest>) -> anyhow::Result<()> {
    for request in serde_json::Deserializer::from_reader(BufReader::new(input)).into_iter() {
        let request =
            request.context("invalid input: write JSON objects one after the other, without a list around them")?;
        if requests.send(request).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}
