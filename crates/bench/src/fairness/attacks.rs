//! Attacks of a tenant on the service: slow targets for all slots, many listings, and many invalid lines.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use cli_support::receiver::{Options, Receiver};
use futures_util::{StreamExt as _, TryStreamExt as _};
use reveille_client::ScheduleRequest;
use runtime::{Runtime, TaskSet};

use crate::arrivals::Arrivals;
use crate::batch;
use crate::create::schedules_far;
use crate::load::{self, Exchange, Pace, Plan};
use crate::message::{Head, write_request};
use crate::server::Server;
use crate::tenant::{Tenant, unlimited_except};

/// Number of schedules for slow targets. It is greater than the default of `--in-flight-max`.
const SLOT_SCHEDULES: u64 = 4_300;
const SLOT_ANSWER: Duration = Duration::from_secs(40);
const SLOT_TIMEOUT: Duration = Duration::from_secs(60);
/// Connections on which an attack sends requests.
const CONNECTIONS: usize = 64;
/// Number of schedules that the listings of an attack read.
const LISTED_SCHEDULES: u64 = 20_000;
/// Length of the name of an unknown field in an invalid line.
const NAME_BYTES: usize = 250_000;

/// Attack in progress. A drop of this value ends it.
pub(super) struct Attack {
    _tasks: TaskSet,
    /// Tenant that attacks, and its recurring schedules.
    tenant: Tenant,
    schedules: Vec<String>,
    /// Description of the attack for the report.
    pub(super) note: String,
}

impl Attack {
    /// Ends the attack, and waits until its callbacks in flight have ended.
    pub(super) async fn end(self, runtime: &Runtime) -> anyhow::Result<()> {
        for id in &self.schedules {
            self.tenant.client.cancel(id).await?;
        }
        if !self.schedules.is_empty() {
            runtime.sleep(SLOT_ANSWER).await;
        }
        Ok(())
    }
}

/// Starts more callbacks than the service has slots, at targets that respond after [`SLOT_ANSWER`]. Returns when the
/// first callbacks are in flight.
pub(super) async fn slots(runtime: &Runtime, server: &Server) -> anyhow::Result<Attack> {
    let tenant = Tenant::create(runtime, server, "slots", unlimited_except(None)).await?;
    let received = Arc::new(Arrivals::counting());
    let any_address = SocketAddr::from(([0, 0, 0, 0], 0));
    let options = Options { answer_after: SLOT_ANSWER };
    let receiver = Receiver::start(runtime, any_address, options, received.clone()).await?;
    let port = receiver.address.port();
    let create = |number: u64| {
        // Each target has its own limit, so the attack uses many targets.
        let url = format!("http://127.0.{}.{}:{port}/", number % 10, 1 + number % 200);
        let request = ScheduleRequest::every(Duration::from_secs(1), url).timeout(SLOT_TIMEOUT);
        let client = &tenant.client;
        async move { anyhow::Ok(client.create(&request).await?.id.into_owned()) }
    };
    let schedules = futures_util::stream::iter((0..SLOT_SCHEDULES).map(create));
    let schedules: Vec<String> = schedules.buffer_unordered(CONNECTIONS).try_collect().await?;
    runtime.sleep(Duration::from_secs(3)).await;
    let note = format!("{} callbacks of the attack were in flight", received.count());
    ensure!(received.count() > 0, "no callback of the attack reached its target");
    let tasks = TaskSet::new(runtime);
    tasks.spawn("slow-target", async move {
        let _receiver = receiver;
        std::future::pending::<()>().await;
    });
    Ok(Attack { _tasks: tasks, tenant, schedules, note })
}

/// Sends listings for a state that no schedule has, on many connections.
pub(super) async fn listings(runtime: &Runtime, server: &Server, lasts: Duration) -> anyhow::Result<Attack> {
    let tenant = Tenant::create(runtime, server, "listings", unlimited_except(None)).await?;
    batch::create_all(runtime, tenant.head("application/x-ndjson"), schedules_far(runtime), LISTED_SCHEDULES).await?;
    let head = tenant.head("application/json");
    Ok(flood(runtime, tenant, lasts, Get { head, path: "/v1/schedules?state=cancelled&limit=1000" }))
}

/// Sends lines with an unknown field whose name is very long.
pub(super) async fn lines(runtime: &Runtime, server: &Server, lasts: Duration) -> anyhow::Result<Attack> {
    let tenant = Tenant::create(runtime, server, "lines", unlimited_except(None)).await?;
    let body = format!("{{\"{}\":1}}\n", "x".repeat(NAME_BYTES)).into_bytes();
    let head = tenant.head("application/x-ndjson");
    Ok(flood(runtime, tenant, lasts, Post { head, body }))
}

fn flood(runtime: &Runtime, tenant: Tenant, lasts: Duration, exchange: impl Exchange) -> Attack {
    let plan = Plan {
        address: tenant.head("").host,
        connections: CONNECTIONS,
        pace: Pace::Closed,
        duration: lasts,
        requests_max: u64::MAX,
    };
    let tasks = TaskSet::new(runtime);
    let inside = runtime.clone();
    tasks.spawn("attack", async move { drop(load::run(&inside, plan, Arc::new(exchange)).await) });
    let note = format!("the attack sent requests on {CONNECTIONS} connections");
    Attack { _tasks: tasks, tenant, schedules: Vec::new(), note }
}

struct Get {
    head: Head,
    path: &'static str,
}

impl Exchange for Get {
    fn write(&self, _index: u64, out: &mut Vec<u8>) {
        write_request("GET", self.path, &self.head, b"", out);
    }

    fn accept(&self, _index: u64, _status: u16, _body: &[u8]) -> bool {
        true
    }
}

struct Post {
    head: Head,
    body: Vec<u8>,
}

impl Exchange for Post {
    fn write(&self, _index: u64, out: &mut Vec<u8>) {
        write_request("POST", "/v1/schedules:batch", &self.head, &self.body, out);
    }

    fn accept(&self, _index: u64, _status: u16, _body: &[u8]) -> bool {
        true
    }
}
