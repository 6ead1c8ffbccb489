//! The load generator. It has many keep-alive connections and sends one request at a time on each connection.
//!
//! *Open loop*: request number n is due at `start + n / rate`, even if earlier requests have no response yet. Its
//! latency counts from that instant. If a server stalls for a second, the latency of every request that was due in this
//! second includes the rest of the stall. The tool wrk2 avoids "coordinated omission" (Gil Tene) in the same way.
//! *Closed loop*: each connection sends its next request when it has received the response to its previous request. A
//! closed loop finds the highest rate. It does not measure the latency at a given rate.
//!
//! Invariant: the generator counts each request once, as accepted, rejected, broken off or never sent.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Context;
use cli_support::http1::Connection;
use hdrhistogram::Histogram;
use runtime::{Monotonic, Runtime, TaskSet};
use tokio::sync::Semaphore;

/// Requests that the generator sends, and the test of their responses.
pub(crate) trait Exchange: Send + Sync + 'static {
    /// Appends the head and the body of request number `index` to the empty `out`.
    fn write(&self, index: u64, out: &mut Vec<u8>);

    /// Returns true if the response has the expected status and body.
    fn accept(&self, index: u64, status: u16, body: &[u8]) -> bool;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) address: SocketAddr,
    pub(crate) connections: usize,
    pub(crate) pace: Pace,
    /// Time in which the requests fall due (open loop) or in which the generator starts requests (closed loop).
    pub(crate) duration: Duration,
    /// Largest number of requests that the generator sends.
    pub(crate) requests_max: u64,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Pace {
    Closed,
    Open { per_second: f64 },
}

pub(crate) struct LoadReport {
    pub(crate) accepted: u64,
    /// Number of rejected requests by response status.
    pub(crate) rejected: BTreeMap<u16, u64>,
    /// Number of requests for which the generator received no complete response. After each of these failures, the
    /// generator tries to open a new connection.
    pub(crate) broken: u64,
    /// Number of due requests that the generator had not sent when [`LATE_MAX`] had passed after the last due instant.
    pub(crate) unsent: u64,
    /// Time from the start of the load to the last response.
    pub(crate) elapsed: Duration,
    /// Latency of all responses in microseconds, counted from the due instant (open loop) or from the instant at which
    /// the generator sent the request (closed loop).
    pub(crate) latency: Histogram<u64>,
}

impl LoadReport {
    #[expect(clippy::cast_precision_loss, reason = "counts of requests stay far below 2^52")]
    pub(crate) fn per_second(&self) -> f64 {
        self.accepted as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns a summary of the failed requests.
    pub(crate) fn failure_summary(&self) -> String {
        let rejected: Vec<String> = self.rejected.iter().map(|(status, count)| format!("{count} x {status}")).collect();
        let (broken, unsent) = (self.broken, self.unsent);
        let rejected = rejected.join(", ");
        format!(
            "rejected requests by status: [{rejected}]; requests without a complete response: {broken}; \
             requests not sent: {unsent}"
        )
    }

    pub(crate) fn failed(&self) -> u64 {
        self.rejected.values().sum::<u64>() + self.broken + self.unsent
    }
}

/// Time after the last due instant in which an open loop still sends late requests.
const LATE_MAX: Duration = Duration::from_secs(30);

/// Returns an empty histogram of microseconds from 1 us to ten minutes with three significant digits.
pub(crate) fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000, 3).expect("the histogram's lower bound is below its upper bound")
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Sends all requests of the plan.
///
/// # Errors
/// Returns an error if a connection does not open.
pub(crate) async fn run(runtime: &Runtime, plan: Plan, exchange: Arc<dyn Exchange>) -> anyhow::Result<LoadReport> {
    let mut connections = Vec::with_capacity(plan.connections);
    for _ in 0..plan.connections {
        let connection = Connection::open(plan.address).await;
        connections.push(connection.with_context(|| format!("cannot connect to {}", plan.address))?);
    }
    let generator = Arc::new(Generator::new(runtime, plan, exchange));
    let tasks = TaskSet::new(runtime);
    if let Pace::Open { .. } = plan.pace {
        let generator = generator.clone();
        tasks.spawn_thread("load-pacer", async move { generator.pace() });
    }
    for connection in connections {
        tasks.spawn("load-connection", generator.clone().work(connection));
    }
    tasks.join().await;
    Ok(generator.outcome())
}

struct Generator {
    runtime: Runtime,
    plan: Plan,
    exchange: Arc<dyn Exchange>,
    start: Monotonic,
    /// Number of requests that the generator sends if the time of the plan suffices.
    total: u64,
    next: AtomicU64,
    /// Permits of an open loop: one permit for each due request.
    due: Semaphore,
    tally: Mutex<Tally>,
}

struct Tally {
    accepted: u64,
    rejected: BTreeMap<u16, u64>,
    broken: u64,
    last: Monotonic,
    latency: Histogram<u64>,
}

impl Generator {
    fn new(runtime: &Runtime, plan: Plan, exchange: Arc<dyn Exchange>) -> Self {
        let start = runtime.monotonic();
        let total = match plan.pace {
            Pace::Closed => plan.requests_max,
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, far below 2^52")]
            Pace::Open { per_second } => ((per_second * plan.duration.as_secs_f64()) as u64).min(plan.requests_max),
        };
        let tally = Tally { accepted: 0, rejected: BTreeMap::new(), broken: 0, last: start, latency: latencies() };
        Generator {
            runtime: runtime.clone(),
            plan,
            exchange,
            start,
            total,
            next: AtomicU64::new(0),
            due: Semaphore::new(0),
            tally: Mutex::new(tally),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of requests stay far below 2^52")]
    fn due_at(&self, index: u64, per_second: f64) -> Monotonic {
        self.start + Duration::from_secs_f64(index as f64 / per_second)
    }

    /// Adds permits every 200 microseconds, one for each request that has fallen due. Puts the thread to sleep between
    /// these steps, because a timer of tokio is less precise.
    #[expect(clippy::disallowed_methods, reason = "a dedicated thread can sleep for less than 1 ms; a timer cannot")]
    fn pace(&self) {
        const STEP: Duration = Duration::from_micros(200);
        let Pace::Open { per_second } = self.plan.pace else { return };
        let mut released = 0;
        while released < self.total {
            let elapsed = self.runtime.monotonic().since(self.start).as_secs_f64();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, far below 2^52")]
            let due = ((elapsed * per_second) as u64 + 1).min(self.total);
            self.due.add_permits(usize::try_from(due - released).unwrap_or(usize::MAX));
            released = due;
            std::thread::sleep(STEP);
        }
        // Each connection needs one more permit, with which it finds out that no request remains.
        self.due.add_permits(self.plan.connections);
    }

    /// Returns the number of the next request and the instant from which its latency counts; `None` if no request
    /// remains.
    async fn take(&self) -> Option<(u64, Monotonic)> {
        match self.plan.pace {
            Pace::Closed => {
                let now = self.runtime.monotonic();
                let in_time = now.since(self.start) < self.plan.duration;
                let index = self.next.fetch_add(1, Ordering::Relaxed);
                (in_time && index < self.total).then_some((index, now))
            }
            Pace::Open { per_second } => {
                self.due.acquire().await.ok()?.forget();
                let late = self.runtime.monotonic().since(self.start) > self.plan.duration + LATE_MAX;
                if late {
                    return None;
                }
                let index = self.next.fetch_add(1, Ordering::Relaxed);
                (index < self.total).then(|| (index, self.due_at(index, per_second)))
            }
        }
    }

    async fn work(self: Arc<Self>, mut connection: Connection) {
        let mut request = Vec::with_capacity(4096);
        while let Some((index, from)) = self.take().await {
            request.clear();
            self.exchange.write(index, &mut request);
            match connection.exchange(&request).await {
                Ok(status) => {
                    let accepted = self.exchange.accept(index, status.0, connection.body());
                    self.count(from, status.0, accepted);
                }
                Err(error) => {
                    tracing::debug!(%error, index, "exchange failed");
                    self.tally().broken += 1;
                    match self.reconnect().await {
                        Some(fresh) => connection = fresh,
                        None => return,
                    }
                }
            }
        }
    }

    /// Opens a new connection. Returns `None` if the plan's time is over.
    async fn reconnect(&self) -> Option<Connection> {
        const BACKOFF: Duration = Duration::from_millis(20);
        while self.runtime.monotonic().since(self.start) < self.plan.duration {
            if let Ok(connection) = Connection::open(self.plan.address).await {
                return Some(connection);
            }
            self.runtime.sleep(BACKOFF).await;
        }
        None
    }

    fn count(&self, from: Monotonic, status: u16, accepted: bool) {
        let now = self.runtime.monotonic();
        let mut tally = self.tally();
        tally.last = tally.last.max(now);
        tally.latency.saturating_record(micros(now.since(from)));
        if accepted {
            tally.accepted += 1;
        } else {
            *tally.rejected.entry(status).or_default() += 1;
        }
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().expect("no task panics while it holds this lock")
    }

    fn outcome(&self) -> LoadReport {
        let tally = self.tally();
        let sent = tally.accepted + tally.rejected.values().sum::<u64>() + tally.broken;
        let unsent = match self.plan.pace {
            Pace::Closed => 0,
            Pace::Open { .. } => self.total.saturating_sub(sent),
        };
        LoadReport {
            accepted: tally.accepted,
            rejected: tally.rejected.clone(),
            broken: tally.broken,
            unsent,
            elapsed: tally.last.since(self.start),
            latency: tally.latency.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
