//! Trial that creates schedules in NDJSON batches. Other trials use the same batches to fill a server with pending
//! schedules.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, ensure};
use domain::{Incarnation, ScheduleId, Timestamp};
use runtime::Runtime;
use serde::{Deserialize, Serialize};

use crate::load::{self, Exchange, LoadReport, Pace, Plan};
use crate::message::{Head, PAYLOAD_BYTES, Schedules, write_request};
use crate::process::Meter;
use crate::report::{Row, mebibytes};
use crate::server::{self, Server};

/// Number of lines of one request. The size of a request with this number of lines is about 5 MB.
const LINES: u64 = 5_000;
/// Number of connections on which the bench fills a server with schedules. Two connections keep the server busy while
/// the bench builds a request or reads a response on the third connection.
const CONNECTIONS: usize = 3;
/// Time limit within which the bench sends all batches.
const DURATION_MAX: Duration = Duration::from_secs(3_600);

/// Exchange that creates schedules in batches. Request number n, counted from 0, starts with schedule number
/// `first + n * LINES`.
struct Batches {
    head: Head,
    schedules: Schedules,
    first: u64,
    count: u64,
    /// True if the trial records the ids of acknowledged schedules.
    named: bool,
    acknowledged: AtomicU64,
    incarnations: Mutex<Vec<Incarnation>>,
    /// Progress file, which the fill updates after each batch.
    progress: Option<Progress>,
}

impl Exchange for Batches {
    fn write(&self, index: u64, out: &mut Vec<u8>) {
        let start = self.first + index * LINES;
        let end = (start + LINES).min(self.first + self.count);
        let mut body = Vec::with_capacity(usize::try_from(end - start).unwrap_or(0) * (PAYLOAD_BYTES + 200));
        for number in start..end {
            self.schedules.write_json(number, &mut body);
            body.push(b'\n');
        }
        write_request("POST", "/v1/schedules:batch", &self.head, &body, out);
    }

    fn accept(&self, index: u64, status: u16, body: &[u8]) -> bool {
        let expected = LINES.min(self.count - index * LINES);
        if status != 200 {
            tracing::warn!(status, answer = %String::from_utf8_lossy(&body[..body.len().min(500)]), "batch rejected");
            return false;
        }
        let acknowledged = acknowledged(body);
        let count = u64::try_from(acknowledged.len()).unwrap_or(0);
        let total = self.acknowledged.fetch_add(count, Ordering::Relaxed) + count;
        if self.named {
            self.incarnations.lock().expect("no task panics while it holds this lock").extend(acknowledged);
        }
        if let Some(progress) = &self.progress {
            progress.reach(total);
        }
        if count != expected {
            let line = body.split(|byte| *byte == b'\n').find(|line| !contains(line, b"\"status\":201"));
            let line = line.map(String::from_utf8_lossy).unwrap_or_default();
            tracing::warn!(created = count, expected, first_rejected = %line, "server rejected some lines of a batch");
        }
        count == expected
    }
}

/// Returns the schedules that the response to a batch reports as created.
fn acknowledged(body: &[u8]) -> Vec<Incarnation> {
    let created = body.split(|byte| *byte == b'\n').filter(|line| contains(line, b"\"status\":201"));
    created.filter_map(server_chosen_id).collect()
}

/// Returns the value of the first field `"id"` in a line of a batch response. Reveille writes this field without
/// blanks.
fn server_chosen_id(line: &[u8]) -> Option<Incarnation> {
    const KEY: &[u8] = b"\"id\":\"";
    let start = line.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    let length = line[start..].iter().position(|byte| *byte == b'"')?;
    let text = std::str::from_utf8(&line[start..start + length]).ok()?;
    ScheduleId::new(text).ok()?.to_incarnation()
}

fn contains(line: &[u8], part: &[u8]) -> bool {
    line.windows(part.len()).any(|window| window == part)
}

/// Creates `count` schedules for the tenant whose key is in `head`, and returns their incarnations.
///
/// # Errors
/// Returns an error if the server did not create all schedules.
pub(crate) async fn create_all(
    runtime: &Runtime,
    head: Head,
    schedules: Schedules,
    count: u64,
) -> anyhow::Result<Vec<Incarnation>> {
    let batches = Arc::new(Batches {
        head,
        schedules,
        first: 0,
        count,
        named: true,
        acknowledged: AtomicU64::new(0),
        incarnations: Mutex::default(),
        progress: None,
    });
    send(runtime, &batches, CONNECTIONS).await?;
    let mut incarnations = batches.incarnations.lock().expect("no task panics while it holds this lock");
    let incarnations = std::mem::take(&mut *incarnations);
    ensure!(
        incarnations.len() as u64 == count,
        "the server created only {} of {count} schedules; see the server's log",
        incarnations.len()
    );
    Ok(incarnations)
}

async fn send(runtime: &Runtime, batches: &Arc<Batches>, connections: usize) -> anyhow::Result<LoadReport> {
    let plan = Plan {
        address: batches.head.host,
        connections,
        pace: Pace::Closed,
        duration: DURATION_MAX,
        requests_max: batches.count.div_ceil(LINES),
    };
    load::run(runtime, plan, batches.clone()).await
}

/// Number of pending schedules that the bench has created in a data folder. These schedules fall due long after any
/// trial.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Filled {
    count: u64,
}

struct Progress {
    path: PathBuf,
    before: u64,
    /// Highest number of acknowledged schedules that a task has recorded in the file. A task holds the lock while it
    /// writes the file, because batches end concurrently on several connections.
    written: Mutex<u64>,
}

impl Progress {
    /// Records the number of acknowledged schedules. If the bench is killed before it records some schedules, the next
    /// fill creates these schedules again. The folder then contains more schedules than requested.
    fn reach(&self, acknowledged: u64) {
        let mut highest = self.written.lock().expect("no task panics while it holds this lock");
        if acknowledged <= *highest {
            return;
        }
        *highest = acknowledged;
        let filled = Filled { count: self.before + acknowledged };
        let written = serde_json::to_string(&filled).map_err(anyhow::Error::from).and_then(|text| {
            let draft = self.path.with_extension("draft");
            fs::write(&draft, text)?;
            Ok(fs::rename(&draft, &self.path)?)
        });
        if let Err(error) = written {
            tracing::warn!(%error, path = %self.path.display(), "cannot record the number of created schedules");
        }
    }
}

/// Creates schedules until the server has at least `count` pending schedules. The fill continues where an earlier fill
/// of this folder ended.
///
/// # Errors
/// Returns an error if the server rejects a schedule.
pub(crate) async fn fill(runtime: &Runtime, server: &Server, folder: &Path, count: u64) -> anyhow::Result<()> {
    const AFTER: Duration = Duration::from_secs(400 * 86_400);
    // The fill stores the count in the data folder, so that the deletion of this folder also deletes the count.
    let path = server::data(folder).join("filled.json");
    let data = server::data(folder);
    fs::create_dir_all(&data).with_context(|| format!("cannot create the folder {}", data.display()))?;
    let before = match fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str::<Filled>(&text).with_context(|| format!("cannot read {}", path.display()))?,
        Err(_) => Filled::default(),
    };
    let missing = count.saturating_sub(before.count);
    if missing == 0 {
        return Ok(());
    }
    tracing::info!(missing, present = before.count, "creating the missing pending schedules");
    let batches = Arc::new(Batches {
        head: server.head("application/x-ndjson"),
        schedules: Schedules {
            targets: vec!["http://127.0.0.1:9/pending".to_owned()].into(),
            first_at: runtime.now() + AFTER,
            gap_micros: 1_000,
        },
        first: before.count,
        count: missing,
        named: false,
        acknowledged: AtomicU64::new(0),
        incarnations: Mutex::default(),
        progress: Some(Progress { path, before: before.count, written: Mutex::new(0) }),
    });
    let outcome = send(runtime, &batches, CONNECTIONS).await?;
    let created = batches.acknowledged.load(Ordering::Relaxed);
    ensure!(
        created == missing,
        "the server created only {created} of {missing} missing schedules; run the trial again to create the rest"
    );
    tracing::info!(rows_per_second = rows_per_second(created, &outcome), "filled");
    Ok(())
}

/// Runs the trial: creates `count` schedules as fast as the server accepts them.
pub(crate) async fn trial(
    runtime: &Runtime,
    server: &Server,
    count: u64,
    connections: usize,
    first_at: Timestamp,
) -> anyhow::Result<Row> {
    let batches = Arc::new(Batches {
        head: server.head("application/x-ndjson"),
        schedules: Schedules { targets: vec!["http://127.0.0.1:9/batch".to_owned()].into(), first_at, gap_micros: 100 },
        first: 0,
        count,
        named: false,
        acknowledged: AtomicU64::new(0),
        incarnations: Mutex::default(),
        progress: None,
    });
    let meter = Meter::start(runtime, server.pid());
    let outcome = send(runtime, &batches, connections).await?;
    let cost = meter.stop().await;
    let created = batches.acknowledged.load(Ordering::Relaxed);
    let mut row = Row::new("batch, rows").with_cost(&cost, created);
    row.per_second = Some(rows_per_second(created, &outcome));
    row.count = Some(created);
    row.failed = Some(count - created);
    row.disk_mib = Some(mebibytes(server.disk_bytes()));
    Ok(row)
}

#[expect(clippy::cast_precision_loss, reason = "counts of rows stay far below 2^52")]
fn rows_per_second(rows: u64, outcome: &LoadReport) -> f64 {
    rows as f64 / outcome.elapsed.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_batch_lines_with_status_201_count_as_acknowledged() {
        let created = Incarnation(0x0190_0000_0000_1234);
        let id = ScheduleId::from_incarnation(created);
        let body = format!(
            "{{\"line\":1,\"status\":201,\"schedule\":{{\"id\":\"{id}\"}}}}\n\
             {{\"line\":2,\"status\":409,\"problem\":{{\"id\":\"{id}\"}}}}\n"
        );
        assert_eq!(acknowledged(body.as_bytes()), [created]);
    }

    #[test]
    fn recorded_count_of_created_schedules_never_decreases() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("filled.json");
        let progress = Progress { path: path.clone(), before: 100, written: Mutex::new(0) };
        for (acknowledged, recorded) in [(10, 110), (30, 130), (20, 130)] {
            progress.reach(acknowledged);
            let filled: Filled = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            assert_eq!(filled.count, recorded);
        }
    }
}
