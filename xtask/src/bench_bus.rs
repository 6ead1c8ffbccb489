//! Command that runs a benchmark on a Kafka broker, and lets the benchmark control the broker.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use anyhow::{Context, bail};
use test_servers::kafka::Kafka;

use crate::chores;

/// Runs a trial of `reveille bench` with one Kafka broker.
///
/// # Errors
/// Returns an error if the broker or the benchmark does not start.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<ExitCode> {
    let kafka = Arc::new(Kafka::start(1)?);
    let bus = format!("kafka://{}", kafka.addresses());
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("broker");
    let listener = UnixListener::bind(&socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
    serve_in_background(kafka.clone(), listener);
    let mut command: Command = chores::bench_command();
    command.args(arguments).args(["--bus", &bus]);
    if arguments.first().is_none_or(|trial| trial != "fire") {
        command.arg("--broker-control").arg(&socket);
    }
    let status = command.status().context("cannot start cargo")?;
    // The other owner of the broker is a thread that never ends.
    kafka.kill(0)?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[expect(clippy::disallowed_methods, reason = "this command has no runtime, and the thread ends with the process")]
fn serve_in_background(kafka: Arc<Kafka>, listener: UnixListener) {
    std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| drop(serve(&kafka, &stream))));
}

/// Carries out one command to the broker, and answers `done` or the error text.
fn serve(kafka: &Kafka, mut stream: &UnixStream) -> anyhow::Result<()> {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let answer = match carry_out(kafka, line.trim()) {
        Ok(()) => "done".to_owned(),
        Err(error) => format!("{error:#}"),
    };
    Ok(stream.write_all(answer.as_bytes())?)
}

fn carry_out(kafka: &Kafka, order: &str) -> anyhow::Result<()> {
    match order {
        "pause" => kafka.pause(0),
        "resume" => kafka.resume(0),
        "kill" => kafka.kill(0),
        "stop" => kafka.stop(0),
        "start" => kafka.restart(0),
        _ => bail!("unknown command `{order}`; use pause, resume, kill, stop or start"),
    }
}
