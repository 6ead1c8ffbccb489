//! Command `reveille demo`, which runs a server, a receiver and some schedules for a few seconds in a temporary folder.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use cli_support::console;
use cli_support::http1::Connection;
use cli_support::receiver::{self, Receiver, Sink, header, late_millis};
use domain::{RunId, Timestamp};
use runtime::{Runtime, TaskSet};

use crate::identity;
use crate::service::{Options, Service};
use crate::stop::Signals;

/// Runs the demonstration for `duration`, or until the process receives a signal to stop.
///
/// # Errors
/// Returns an error if the server or the receiver cannot start, or if the server rejects a schedule.
pub(crate) async fn run(runtime: &Runtime, duration: Duration) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let folder = tempfile::tempdir().context("cannot create a temporary folder for the demo")?;
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = server::Options { listen: anywhere, ..server::Options::default() };
    let options = Options { data: folder.path().to_owned(), server, ..Options::default() };
    let service = Service::start(runtime, options).await?;
    let receiver = Receiver::start(runtime, anywhere, receiver::Options::default(), Arc::new(Announcer)).await?;
    let (api, target) = (service.address, receiver.address);
    console::line(&format!("the server listens on http://{api}, the receiver on http://{target}"))?;

    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let tasks = TaskSet::new(runtime);
    tasks.spawn(
        "demo-service",
        service.run_until(async move {
            // The demonstration ends when this channel's sender sends a message or is dropped.
            let _result = ended.await;
        }),
    );
    let key = std::fs::read_to_string(identity::admin_key_path(folder.path()))?;
    schedule_all(runtime, api, key.trim(), target).await?;
    let _early = runtime.timeout(duration, signals.next()).await;
    drop(end);
    tasks.join().await;
    console::line("the demo has ended and its data is deleted; start a real server with `reveille serve`")?;
    Ok(())
}

async fn schedule_all(runtime: &Runtime, api: SocketAddr, key: &str, target: SocketAddr) -> anyhow::Result<()> {
    let mut connection = Connection::open(api).await.context("cannot connect to the server of the demo")?;
    let in_a_while = |seconds| format!(r#""at":"{}""#, runtime.now() + Duration::from_secs(seconds));
    for (name, when) in [
        ("once-in-1-s", in_a_while(1)),
        ("once-in-2-s", in_a_while(2)),
        ("once-in-5-s", in_a_while(5)),
        ("every-3-s", r#""every":"3s""#.to_owned()),
        ("cron-each-5-s", r#""cron":"*/5 * * * * *","zone":"Europe/Berlin""#.to_owned()),
    ] {
        let body =
            format!(r#"{{{when},"target":{{"http":{{"url":"http://{target}/"}}}},"payload":{{"from":"demo"}}}}"#);
        let request = format!(
            "PUT /v1/schedules/{name} HTTP/1.1\r\nhost: {api}\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let status = connection.exchange(Bytes::from(request).as_ref()).await?;
        let response = String::from_utf8_lossy(connection.body()).into_owned();
        ensure!(status.0 == 201, "the server rejected the schedule {name} with status {}: {response}", status.0);
        console::line(&format!("PUT /v1/schedules/{name}  {when}  -> {}", status.0))?;
    }
    Ok(())
}

/// Sink that prints each callback when it arrives, with its lateness.
struct Announcer;

impl Sink for Announcer {
    fn arrived(&self, at_micros: i64, head: &httparse::Request<'_, '_>, _body: &[u8]) {
        let Some(occurrence) = RunId::parse(header(head, "webhook-id")) else { return };
        let at = Timestamp::from_millis(at_micros.div_euclid(1_000));
        let late = late_millis(at_micros, occurrence.nominal);
        let schedule = header(head, "reveille-schedule-id");
        if let Err(error) =
            console::line(&format!("{at}  {schedule:<14} due {}  {late:6.2} ms late", occurrence.nominal))
        {
            tracing::warn!(%error, "cannot print a callback");
        }
    }
}
