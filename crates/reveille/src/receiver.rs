//! Command `reveille receiver`, which prints each callback that arrives. The command does not verify signatures.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use cli_support::console;
use cli_support::receiver::{Options, Receiver, Sink, header, late_millis};
use domain::{Occurrence, RunId, Timestamp};
use runtime::Runtime;

#[derive(Args, Debug)]
pub(crate) struct ReceiverArguments {
    /// Listen address for callbacks
    #[arg(long, default_value = "127.0.0.1:9000")]
    listen: SocketAddr,
    /// File to which the receiver appends a line for each callback: arrival in microseconds since 1970, webhook-id,
    /// attempt, nominal instant in milliseconds since 1970, `-` (because the receiver does not verify signatures),
    /// schedule id
    #[arg(long)]
    log: Option<PathBuf>,
}

/// Prints a line for each callback until a signal stops the process.
pub(crate) async fn print(runtime: &Runtime, arguments: &ReceiverArguments) -> anyhow::Result<()> {
    let log = arguments.log.as_ref().map(|path| {
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.with_context(|| format!("cannot open the log file {}", path.display()))
    });
    let printer = Printer { log: log.transpose()? };
    let receiver = Receiver::start(runtime, arguments.listen, Options::default(), Arc::new(printer)).await?;
    console::line(&format!("waiting for callbacks on http://{}", receiver.address))?;
    receiver.ended().await;
    Ok(())
}

/// Sink that prints callbacks, with their lateness by this machine's clock.
#[derive(Default)]
pub(crate) struct Printer {
    log: Option<File>,
}

/// Maximum number of bytes of a body that the sink prints.
const SHOWN_BYTES: usize = 200;

impl Sink for Printer {
    fn arrived(&self, at_micros: i64, head: &httparse::Request<'_, '_>, body: &[u8]) {
        let occurrence = RunId::parse(header(head, "webhook-id"));
        let text = describe(at_micros, head, body, occurrence);
        // Other users wrote the content of the callback, so its control characters must not reach the terminal.
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let logged = self.log.as_ref().map_or(Ok(()), |mut log| {
            // The sink writes the line in one call, so that the lines of several connections do not mix.
            log.write_all(log_line(at_micros, head, occurrence).as_bytes())
        });
        if let Err(error) = console::line(&text).and(logged) {
            tracing::warn!(%error, "cannot print or log a callback");
        }
    }
}

fn describe(at_micros: i64, head: &httparse::Request<'_, '_>, body: &[u8], occurrence: Option<Occurrence>) -> String {
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
            format!("{at}  {method} {path}, not a callback of Reveille  {shown}{cut}")
        }
    }
}

fn log_line(at_micros: i64, head: &httparse::Request<'_, '_>, occurrence: Option<Occurrence>) -> String {
    let field = |name| Some(header(head, name)).filter(|text| !text.is_empty() && !text.contains(' ')).unwrap_or("-");
    let nominal = occurrence.map_or("-".to_owned(), |occurrence| occurrence.nominal.as_millis().to_string());
    let (id, attempt, schedule) = (field("webhook-id"), field("reveille-attempt"), field("reveille-schedule-id"));
    format!("{at_micros} {id} {attempt} {nominal} - {schedule}\n")
}
