//! Trials that create, cancel and reschedule schedules. Each HTTP request concerns a single schedule.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use domain::{Incarnation, ScheduleId, Timestamp};
use runtime::Runtime;

use crate::load::{self, Exchange, Pace, Plan};
use crate::message::{Head, PAYLOAD_BYTES, Schedules, write_request};
use crate::process::Meter;
use crate::report::{Row, mebibytes};
use crate::server::Server;

/// Load of a trial: the connections, the rate of requests and the duration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    pub(crate) pace: Pace,
    pub(crate) duration: Duration,
}

/// Target of schedules that never fall due.
pub(crate) const FAR_URL: &str = "http://127.0.0.1:9/create";

/// Returns an instant far enough ahead that no schedule falls due during a trial.
fn far(runtime: &Runtime) -> Timestamp {
    runtime.now() + Duration::from_secs(300 * 86_400)
}

pub(crate) fn schedules_far(runtime: &Runtime) -> Schedules {
    Schedules { targets: vec![FAR_URL.to_owned()].into(), first_at: far(runtime), gap_micros: 100 }
}

/// Exchange `POST /v1/schedules`, which creates one schedule per request.
pub(crate) struct Create {
    pub(crate) head: Head,
    pub(crate) schedules: Schedules,
}

impl Exchange for Create {
    fn write(&self, index: u64, out: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(PAYLOAD_BYTES + 200);
        self.schedules.write_json(index, &mut body);
        write_request("POST", "/v1/schedules", &self.head, &body, out);
    }

    fn accept(&self, _index: u64, status: u16, _body: &[u8]) -> bool {
        status == 201
    }
}

/// Runs the trial that creates single schedules.
pub(crate) async fn trial(runtime: &Runtime, server: &Server, load: Load) -> anyhow::Result<Row> {
    let head = server.head("application/json");
    let create = Arc::new(Create { head, schedules: schedules_far(runtime) });
    measure(runtime, server, "create", load, u64::MAX, create).await
}

/// Exchange `DELETE /v1/schedules/{id}`, which cancels each schedule once.
struct Cancel {
    head: Head,
    incarnations: Arc<[Incarnation]>,
}

impl Exchange for Cancel {
    fn write(&self, index: u64, out: &mut Vec<u8>) {
        write_request("DELETE", &path(&self.incarnations, index), &self.head, b"", out);
    }

    fn accept(&self, _index: u64, status: u16, body: &[u8]) -> bool {
        const CANCELLED: &[u8] = b"\"cancelled\"";
        status == 200 && body.windows(CANCELLED.len()).any(|window| window == CANCELLED)
    }
}

/// Exchange `PUT /v1/schedules/{id}`, which moves each schedule once to another instant.
struct Reschedule {
    head: Head,
    incarnations: Arc<[Incarnation]>,
    schedules: Schedules,
}

impl Exchange for Reschedule {
    fn write(&self, index: u64, out: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(PAYLOAD_BYTES + 200);
        self.schedules.write_json(index, &mut body);
        write_request("PUT", &path(&self.incarnations, index), &self.head, &body, out);
    }

    fn accept(&self, _index: u64, status: u16, _body: &[u8]) -> bool {
        status == 200
    }
}

fn path(incarnations: &[Incarnation], index: u64) -> String {
    let at = usize::try_from(index).unwrap_or(usize::MAX);
    let mut path = Vec::with_capacity(48);
    write!(path, "/v1/schedules/{}", ScheduleId::from_incarnation(incarnations[at]))
        .expect("a write to a Vec succeeds");
    String::from_utf8(path).expect("a schedule's id contains only ASCII characters")
}

/// Runs the trials that reschedule and then cancel the given schedules.
pub(crate) async fn change_trial(
    runtime: &Runtime,
    server: &Server,
    load: Load,
    incarnations: Vec<Incarnation>,
) -> anyhow::Result<[Row; 2]> {
    let incarnations: Arc<[Incarnation]> = incarnations.into();
    let count = incarnations.len() as u64;
    let head = server.head("application/json");
    let mut schedules = schedules_far(runtime);
    schedules.first_at = schedules.first_at + Duration::from_secs(86_400);
    let reschedule = Arc::new(Reschedule { head: head.clone(), incarnations: incarnations.clone(), schedules });
    let cancel = Arc::new(Cancel { head, incarnations });
    Ok([
        measure(runtime, server, "reschedule", load, count, reschedule).await?,
        measure(runtime, server, "cancel", load, count, cancel).await?,
    ])
}

async fn measure(
    runtime: &Runtime,
    server: &Server,
    name: &str,
    load: Load,
    requests_max: u64,
    exchange: Arc<dyn Exchange>,
) -> anyhow::Result<Row> {
    let Load { connections, pace, duration } = load;
    let plan = Plan { address: server.address, connections, pace, duration, requests_max };
    let meter = Meter::start(runtime, server.pid());
    let outcome = load::run(runtime, plan, exchange).await?;
    let cost = meter.stop().await;
    let mut row = Row::new(name).with_latency(&outcome.latency).with_cost(&cost, outcome.accepted);
    row.per_second = Some(outcome.per_second());
    row.count = Some(outcome.accepted);
    row.failed = Some(outcome.failed());
    row.disk_mib = Some(mebibytes(server.disk_bytes()));
    if outcome.failed() > 0 {
        row.notes.push(outcome.failure_summary());
    }
    Ok(row)
}
