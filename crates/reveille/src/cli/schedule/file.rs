//! Many schedules from a file or a pipe: sent as they are read, told as they are answered.

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

/// Read and not sent yet.
const AHEAD: usize = 256;

/// What ended the reading before the file's end.
type Broken = Arc<Mutex<Option<anyhow::Error>>>;

pub(super) async fn create_all(
    runtime: &Runtime,
    client: &Client,
    path: PathBuf,
    output: Output,
) -> anyhow::Result<()> {
    let input = open(&path)?;
    let (requests, read) = mpsc::channel(AHEAD);
    let broken = Broken::default();
    let told = broken.clone();
    let reader = TaskSet::new(runtime);
    // A thread of its own: a pipe may keep it waiting.
    reader.spawn_thread("file", async move {
        if let Err(error) = read_all(input, requests).await {
            let name = if is_piped(&path) { "standard input".to_owned() } else { path.display().to_string() };
            let text = format!("{name} is read no further");
            *told.lock().expect("no holder of this lock panics") = Some(error.context(text));
        }
    });
    let requests = stream::unfold(read, async |mut read| read.recv().await.map(|request| (request, read)));
    let counted = tell_all(runtime, client, requests, output).await;
    let Told { made, refused, broke_off_at } = counted.map_err(|(made, error)| {
        let refused = explain(client, &error);
        refused.context(format!("it broke off after {made} were made; what was not answered may have been made, too"))
    })?;
    if !output.json {
        console::line(&format!("{made} made, {refused} refused"))?;
    }
    if let Some(number) = broke_off_at {
        bail!(
            "the server broke off at number {number}: nothing from there on was made, so send that again; of those before, \
             {refused} were refused, and the others are made"
        );
    }
    if let Some(error) = broken.lock().expect("no holder of this lock panics").take() {
        return Err(error);
    }
    if refused > 0 {
        bail!("{refused} were refused; those that were not are made");
    }
    Ok(())
}

/// Codes of a last result that stands for all that was not taken.
const BREAKS: [&str; 4] = ["batch_too_long", "body_timeout", "body_broken", "invalid_credentials"];

#[derive(Default)]
struct Told {
    made: u64,
    refused: u64,
    /// The number of the first that the server did not take.
    broke_off_at: Option<u64>,
}

/// What became of them; with the error, how many were made before it.
async fn tell_all(
    runtime: &Runtime,
    client: &Client,
    requests: impl stream::Stream<Item = ScheduleRequest> + Send + 'static,
    output: Output,
) -> Result<Told, (u64, Error)> {
    let mut told = Told::default();
    let mut progress = Progress::new(runtime);
    let mut results = client.create_many(requests);
    while let Some(result) = results.try_next().await.map_err(|error| (told.made, error))? {
        match &result.problem {
            None => told.made += 1,
            Some(problem) if BREAKS.contains(&&*problem.code) => told.broke_off_at = Some(result.line),
            Some(_) => told.refused += 1,
        }
        // A reader of standard output that has gone away stops nothing.
        let _gone = match (&result.problem, output.json) {
            (_, true) => show::json(&result),
            (Some(problem), false) => tell_refusal(result.line, problem),
            (None, false) => Ok(()),
        };
        progress.tell(|| format!("{} made, {} refused", told.made, told.refused));
        // The connection may end with an error, as not all that was sent is read: that would say less.
        if told.broke_off_at.is_some() {
            break;
        }
    }
    Ok(told)
}

fn tell_refusal(number: u64, problem: &Problem) -> anyhow::Result<()> {
    let reasons = problem.errors.iter().map(|error| {
        let place = error.pointer.as_deref().unwrap_or_default();
        let colon = if place.is_empty() { "" } else { ": " };
        format!("{place}{colon}{}", error.detail)
    });
    let reasons: Vec<String> = match problem.errors.is_empty() {
        true => vec![problem.detail.clone()],
        false => reasons.collect(),
    };
    Ok(console::line(&format!("number {number} is refused: {}", show::harmless(&reasons.join("; "))))?)
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

/// JSON texts one after the other, on as many lines as they like.
async fn read_all(input: Box<dyn Read + Send>, requests: mpsc::Sender<ScheduleRequest>) -> anyhow::Result<()> {
    for request in serde_json::Deserializer::from_reader(BufReader::new(input)).into_iter() {
        let request = request.context("it takes one JSON object after the other, and no list around them")?;
        if requests.send(request).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}
