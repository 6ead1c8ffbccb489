//! A small HTTP server that callbacks can go to: it takes every request, tells a [`Sink`] of it and answers 200.
//!
//! It is the other end of the benchmark and of `demo`, and `reveille receiver` for whoever wants to see callbacks
//! arrive. It does not verify signatures; a receiver of one's own should.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use domain::{Occurrence, RunId, Timestamp};
use listener::Shutdown;
use runtime::{Runtime, TaskSet};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::DropGuard;

use crate::console;
use crate::wire::Input;

/// Connections at once; one more waits in the kernel.
const CONNECTIONS_MAX: usize = 16_384;

/// Hears of callbacks, on the connection's task.
pub(crate) trait Sink: Send + Sync + 'static {
    /// A whole request has been read, `at_micros` by this machine's wall clock (microseconds since 1970).
    fn arrived(&self, at_micros: i64, head: &httparse::Request<'_, '_>, body: &[u8]);
}

/// A header's value, or nothing if there is none or it is not text.
pub(crate) fn header<'a>(head: &httparse::Request<'_, 'a>, name: &str) -> &'a str {
    let found = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
    found.and_then(|header| std::str::from_utf8(header.value).ok()).unwrap_or("")
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    /// How long each answer is held back. Default: not at all.
    pub(crate) answer_after: Duration,
}

/// A receiver that runs. Dropped, it stops.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    tasks: TaskSet,
    kill: DropGuard,
}

impl Receiver {
    /// # Errors
    /// If the address cannot be listened on.
    pub(crate) async fn start(
        runtime: &Runtime,
        listen: SocketAddr,
        options: Options,
        sink: Arc<dyn Sink>,
    ) -> anyhow::Result<Self> {
        let socket = TcpListener::bind(listen).await;
        let socket = socket.with_context(|| format!("the receiver cannot listen on {listen}"))?;
        let address = socket.local_addr()?;
        let tasks = TaskSet::new(runtime);
        let shutdown = Shutdown::default();
        let kill = shutdown.kill.clone().drop_guard();
        let runtime = runtime.clone();
        tasks.spawn("receiver", async move {
            let serve = |stream| {
                let (runtime, sink) = (runtime.clone(), sink.clone());
                async move {
                    if let Err(error) = exchanges(&runtime, options, &*sink, stream).await {
                        tracing::debug!(%error, "a connection to the receiver broke off");
                    }
                }
            };
            let limits = listener::Options {
                connections_max: CONNECTIONS_MAX,
                drain_timeout: Duration::ZERO,
                task: "receiver-connection",
                accept_failed: "the receiver cannot accept a connection",
                drain_timed_out: "the receiver closes its connections",
            };
            listener::serve_until(&runtime, socket, limits, shutdown, serve, std::future::pending()).await;
        });
        Ok(Receiver { address, tasks, kill })
    }

    /// Waits until it ends, which it does only if it fails.
    pub(crate) async fn ended(self) {
        let _kill = self.kill;
        self.tasks.join().await;
    }
}

async fn exchanges(runtime: &Runtime, options: Options, sink: &dyn Sink, mut stream: TcpStream) -> io::Result<()> {
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let mut input = Input::default();
    while input.read_request(&mut stream, |head, body| sink.arrived(wall_micros(), head, body)).await?.is_some() {
        if !options.answer_after.is_zero() {
            runtime.sleep(options.answer_after).await;
        }
        stream.write_all(ANSWER).await?;
    }
    Ok(())
}

/// The wall clock in microseconds since 1970: finer than `runtime`'s, for measuring lateness only.
pub(crate) fn wall_micros() -> i64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1_000
}

#[derive(Args, Debug)]
pub(crate) struct ReceiverArguments {
    /// Where callbacks go
    #[arg(long, default_value = "127.0.0.1:9000")]
    listen: SocketAddr,
    /// Append a line for each callback to this file: arrival in microseconds since 1970, webhook-id, attempt, nominal
    /// instant in milliseconds since 1970, `-` (signatures are not verified), schedule id
    #[arg(long)]
    log: Option<PathBuf>,
}

/// `reveille receiver`: prints a line for each callback, until it is stopped.
pub(crate) async fn print(runtime: &Runtime, arguments: &ReceiverArguments) -> anyhow::Result<()> {
    let log = arguments.log.as_ref().map(|path| {
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.with_context(|| format!("cannot write the log {}", path.display()))
    });
    let printer = Printer { log: log.transpose()? };
    let receiver = Receiver::start(runtime, arguments.listen, Options::default(), Arc::new(printer)).await?;
    console::line(&format!("waiting for callbacks on http://{}", receiver.address))?;
    receiver.ended().await;
    Ok(())
}

/// Prints callbacks, with their lateness by this machine's clock.
#[derive(Default)]
pub(crate) struct Printer {
    log: Option<File>,
}

/// So much of a body is printed.
const SHOWN_BYTES: usize = 200;

impl Sink for Printer {
    fn arrived(&self, at_micros: i64, head: &httparse::Request<'_, '_>, body: &[u8]) {
        let occurrence = RunId::parse(header(head, "webhook-id"));
        let text = in_words(at_micros, head, body, occurrence);
        // What arrives is a stranger's text: control characters in it must not move the terminal's cursor.
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let logged = self.log.as_ref().map_or(Ok(()), |mut log| {
            // In one write, so that lines of several connections stay whole.
            log.write_all(log_line(at_micros, head, occurrence).as_bytes())
        });
        if let Err(error) = console::line(&text).and(logged) {
            tracing::warn!(%error, "a callback could not be told");
        }
    }
}

fn in_words(at_micros: i64, head: &httparse::Request<'_, '_>, body: &[u8], occurrence: Option<Occurrence>) -> String {
    let shown = String::from_utf8_lossy(&body[..body.len().min(SHOWN_BYTES)]);
    let cut = if body.len() > SHOWN_BYTES { "…" } else { "" };
    let at = Timestamp::from_millis(at_micros.div_euclid(1_000));
    match occurrence {
        Some(occurrence) => {
            let (schedule, attempt) = (header(head, "reveille-schedule-id"), header(head, "reveille-attempt"));
            let late = late_millis(at_micros, occurrence.nominal);
            format!("{at}  {schedule}  attempt {attempt}  {late:.1} ms late  {shown}{cut}")
        }
        None => {
            let (method, path) = (head.method.unwrap_or(""), head.path.unwrap_or(""));
            format!("{at}  {method} {path}, which is no callback of Reveille  {shown}{cut}")
        }
    }
}

fn log_line(at_micros: i64, head: &httparse::Request<'_, '_>, occurrence: Option<Occurrence>) -> String {
    let field = |name| Some(header(head, name)).filter(|text| !text.is_empty() && !text.contains(' ')).unwrap_or("-");
    let nominal = occurrence.map_or("-".to_owned(), |occurrence| occurrence.nominal.as_millis().to_string());
    let (id, attempt, schedule) = (field("webhook-id"), field("reveille-attempt"), field("reveille-schedule-id"));
    format!("{at_micros} {id} {attempt} {nominal} - {schedule}\n")
}

/// How late a callback arrived, in milliseconds; negative if it was early.
pub(crate) fn late_millis(at_micros: i64, nominal: Timestamp) -> f64 {
    at_micros.saturating_sub(nominal.as_millis().saturating_mul(1_000)) as f64 / 1_000.0
}
