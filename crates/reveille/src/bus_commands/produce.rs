//! Command `reveille bus produce`, which sends records.
//!
//! The records of a partition have the order of their lines. After a failure, the command sends no further lines. The error
//! names the lines after the failure that the command has already sent.

use std::io::{self, BufRead, BufReader, Read as _};

use anyhow::{Context as _, anyhow, bail};
use bus::{BusError, Header, NewRecord, Partition, Position, Producer, ProducerOptions, TopicName};
use bytes::Bytes;
use clap::Args;
use cli_support::console;
use futures_util::future::FutureExt as _;
use futures_util::stream::{FuturesOrdered, StreamExt as _};
use runtime::{Runtime, TaskSet};
use tokio::sync::mpsc;

use super::{Common, check_partition, explain, note, text};
use crate::cli::show;

/// Largest number of records that wait for their acknowledgement.
const PENDING_MAX: usize = 1_000;
/// Size of the records that wait for their acknowledgement at which the command sends no further record, in bytes.
const PENDING_BYTES_MAX: usize = 64 << 20;
/// Number of lines that the command reads in advance. Each of them can have the size of the largest record.
const LINES_MAX: usize = 20;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Name of the topic
    topic: TopicName,
    #[command(flatten)]
    form: Form,
    /// Value of a single record [default: a record for each line of standard input]
    #[arg(long, conflicts_with = "key_separator")]
    value: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Form of the records.
#[derive(Args, Debug)]
struct Form {
    /// Key of all records
    #[arg(long, conflicts_with = "key_separator")]
    key: Option<String>,
    /// Character that separates the key and the value of each line
    #[arg(long, value_name = "CHARACTER")]
    key_separator: Option<char>,
    /// Header of all records; repeat the option for further headers
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<Header>,
    /// Number of the partition [default: the key determines the partition]
    #[arg(long, value_name = "NUMBER")]
    partition: Option<u32>,
}

fn header(text: &str) -> Result<Header, String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            Ok(Header { name: name.to_owned(), value: Some(Bytes::copy_from_slice(value.as_bytes())) })
        }
        _ => Err("a header must have the form NAME=VALUE, for example color=red".to_owned()),
    }
}

impl Form {
    /// Returns the record of a line, or of a single value.
    fn record(&self, topic: &TopicName, line: Bytes) -> anyhow::Result<NewRecord> {
        let (key, value) = match self.key_separator {
            None => (self.key.clone().map(Bytes::from), line),
            Some(separator) => {
                let mut bytes = [0; 4];
                let separator = separator.encode_utf8(&mut bytes).as_bytes();
                let at = line.windows(separator.len()).position(|window| window == separator).with_context(|| {
                    format!(
                        "the line does not contain the separator {:?} of the key and the value; add it",
                        String::from_utf8_lossy(separator)
                    )
                })?;
                (Some(line.slice(..at)), line.slice(at + separator.len()..))
            }
        };
        Ok(NewRecord {
            topic: topic.clone(),
            partition: self.partition,
            timestamp: None,
            key,
            value: Some(value),
            headers: self.header.clone(),
        })
    }
}

pub(super) async fn execute(runtime: &Runtime, arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { topic, form, value, common } = arguments;
    let bus = common.open(runtime).await?;
    // Without this request, the user of a terminal would see the error of an unknown topic only after the first line.
    let index = form.partition.unwrap_or(0);
    check_partition(&*bus, &Partition { topic: topic.clone(), index }, &format!("partition {index}")).await?;
    let producer = bus.producer(ProducerOptions::default()).await.map_err(explain)?;
    let done = match value {
        Some(value) => {
            let record = form.record(&topic, Bytes::from(value))?;
            let outcome = producer.send(vec![record]).map(first).await;
            let position = outcome.map_err(explain).context("the record was not acknowledged")?;
            print(&position, common.json)
        }
        None => {
            let reading = TaskSet::new(runtime);
            let bytes_max = bus.capabilities().record_bytes_max;
            let lines = lines(&reading, bytes_max);
            let record = |line| checked(form.record(&topic, line)?, bytes_max);
            send_lines(&*producer, lines, record, |position| print(position, common.json)).await
        }
    };
    producer.close().await.map_err(explain)?;
    done
}

/// Returns the outcome of a call for one record.
fn first(mut outcomes: Vec<Result<Position, BusError>>) -> Result<Position, BusError> {
    outcomes.pop().unwrap_or_else(|| Err(BusError::Disconnected("the producer returned no outcome".to_owned())))
}

fn print(position: &Position, as_json: bool) -> anyhow::Result<()> {
    match as_json {
        true => show::json(&text::position_json(position)),
        false => Ok(console::line(&position.to_string())?),
    }
}

/// Returns the record if the bus accepts its size. The bus would reject it only after it has accepted later records.
fn checked(record: NewRecord, bytes_max: usize) -> anyhow::Result<NewRecord> {
    let bytes = record.bytes();
    if bytes > bytes_max {
        bail!("the record has {bytes} bytes, and the bus accepts at most {bytes_max} bytes; send a smaller record");
    }
    Ok(record)
}

/// Reads the lines of standard input on a thread of its own. The thread does not delay the end of the process while it
/// waits for a line.
fn lines(reading: &TaskSet, bytes_max: usize) -> mpsc::Receiver<io::Result<Bytes>> {
    let (sender, lines) = mpsc::channel(LINES_MAX);
    reading.spawn_thread("standard input", async move {
        let mut input = BufReader::new(io::stdin());
        while let Some(line) = next_line(&mut input, bytes_max).transpose() {
            let is_last = line.is_err();
            if sender.send(line).await.is_err() || is_last {
                return;
            }
        }
    });
    lines
}

/// Returns the next line without its line end, or `None` at the end of the input.
fn next_line(input: &mut impl BufRead, bytes_max: usize) -> io::Result<Option<Bytes>> {
    let mut line = Vec::new();
    // The limit has room for the line end.
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    if input.by_ref().take(limit).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() > bytes_max {
        let text = format!("the line is longer than the bus accepts, {bytes_max} bytes; send a shorter line");
        return Err(io::Error::other(text));
    }
    Ok(Some(line.into()))
}

/// Sends a record for each line, and calls `print` for each acknowledged record in the order of the lines.
///
/// # Errors
/// Returns an error for the first line that the command did not send or the bus did not acknowledge.
async fn send_lines(
    producer: &dyn Producer,
    mut lines: mpsc::Receiver<io::Result<Bytes>>,
    record: impl Fn(Bytes) -> anyhow::Result<NewRecord>,
    mut print: impl FnMut(&Position) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut pending = FuturesOrdered::new();
    let (mut pending_bytes, mut sent, mut has_ended) = (0, 0_u64, false);
    let mut failure: Option<Failure> = None;
    loop {
        tokio::select! {
            biased;
            Some((number, bytes, outcome)) = pending.next(), if !pending.is_empty() => {
                pending_bytes -= bytes;
                match outcome {
                    Ok(position) => {
                        print(&position)?;
                        failure.iter_mut().for_each(|failure| failure.acknowledged += 1);
                    }
                    Err(error) => {
                        let other = Failure::new(number, "was not acknowledged", explain(error));
                        failure = Some(Failure::first(failure, other));
                    }
                }
            }
            line = lines.recv(), if !has_ended
                && failure.is_none()
                && pending.len() < PENDING_MAX
                && pending_bytes < PENDING_BYTES_MAX => {
                match line.map(|line| line.map_err(|error| anyhow!(error)).and_then(&record)) {
                    None => has_ended = true,
                    Some(Ok(record)) => {
                        sent += 1;
                        let (number, bytes) = (sent, record.bytes());
                        pending_bytes += bytes;
                        let outcome = producer.send(vec![record]);
                        pending.push_back(outcome.map(move |outcomes| (number, bytes, first(outcomes))));
                    }
                    Some(Err(error)) => {
                        failure = Some(Failure::new(sent + 1, "was not sent", error));
                    }
                }
            }
            else => break,
        }
    }
    failure.map_or(Ok(()), |failure| Err(failure.explain(sent)))
}

/// First line that failed.
struct Failure {
    line: u64,
    /// Verb of the sentence about the line.
    verb: &'static str,
    error: anyhow::Error,
    /// Number of later lines that the bus has acknowledged.
    acknowledged: u64,
}

impl Failure {
    fn new(line: u64, verb: &'static str, error: anyhow::Error) -> Self {
        Failure { line, verb, error, acknowledged: 0 }
    }

    /// Returns the failure of the earlier line, and prints the other one.
    fn first(known: Option<Self>, new: Self) -> Self {
        let Some(known) = known else { return new };
        let (first, other) = if known.line < new.line { (known, new) } else { (new, known) };
        note(&format!("line {} {}: {:#}", other.line, other.verb, other.error));
        first
    }

    /// Returns the error of the command. It names the later lines, up to the line `sent`, that the command has sent.
    fn explain(self, sent: u64) -> anyhow::Error {
        let Failure { line, verb, error, acknowledged } = self;
        if sent <= line {
            return error.context(format!("line {line} {verb}, and the command sends no further lines"));
        }
        error.context(format!(
            "line {line} {verb}, and the command sends no lines after line {sent}; the bus acknowledged {acknowledged} of the \
             {} lines from {} to {sent}",
            sent - line,
            line + 1
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use bus::memory::{MemoryBus, MemoryOptions};
    use bus::{Answer, Bus as _, TopicOptions};
    use futures_util::future::BoxFuture;
    use simulator::Simulation;

    use super::*;

    fn form(key: Option<&str>, key_separator: Option<char>) -> Form {
        let header = vec![header("color=red=blue").unwrap()];
        Form { key: key.map(str::to_owned), key_separator, header, partition: None }
    }

    #[test]
    fn line_becomes_a_record_with_its_key_and_headers() {
        let topic = TopicName::new("orders").unwrap();
        let parts = |form: &Form, line: &'static [u8]| {
            let record = form.record(&topic, Bytes::from_static(line)).unwrap();
            assert_eq!(record.headers, [Header { name: "color".to_owned(), value: Some("red=blue".into()) }]);
            (record.key, record.value.unwrap())
        };
        assert_eq!(parts(&form(None, None), b"a:b"), (None, "a:b".into()));
        assert_eq!(parts(&form(Some("k"), None), b""), (Some("k".into()), "".into()));
        assert_eq!(parts(&form(None, Some(':')), b"a:b:c"), (Some("a".into()), "b:c".into()));
        assert_eq!(parts(&form(None, Some('→')), "\u{e4}→b".as_bytes()), (Some("ä".into()), "b".into()));
        let error = form(None, Some('\t')).record(&topic, "a b".into()).unwrap_err().to_string();
        assert!(error.contains(r#"separator "\t""#), "{error}");
        for invalid in ["", "=red", "red"] {
            assert!(header(invalid).unwrap_err().contains("NAME=VALUE"));
        }
    }

    #[test]
    fn lines_have_a_bounded_length_and_any_bytes() {
        let mut input = &b"one\n\n\xff\r\nlong\nlonger\n"[..];
        let mut lines = Vec::new();
        let error = loop {
            match next_line(&mut input, 4) {
                Ok(line) => lines.push(line.unwrap()),
                Err(error) => break error.to_string(),
            }
        };
        assert_eq!(lines, [&b"one"[..], b"", b"\xff\r", b"long"]);
        assert!(error.contains("4 bytes"), "{error}");
        let mut last = &b"end"[..];
        assert_eq!(next_line(&mut last, 4).unwrap(), Some("end".into()));
        assert_eq!(next_line(&mut last, 4).unwrap(), None);
    }

    /// Sends lines in the form `KEY:VALUE`. Returns the printed positions and the error.
    async fn send(all: &[&str]) -> (Vec<String>, String) {
        let bus = MemoryBus::new(Runtime::real(), MemoryOptions::default());
        let topic = TopicName::new("orders").unwrap();
        bus.create_topic(&topic, TopicOptions::with_partitions(1)).await.unwrap();
        let producer = bus.producer(ProducerOptions::default()).await.unwrap();
        let (sender, lines) = mpsc::channel(10);
        for line in all {
            sender.send(Ok(Bytes::from((*line).to_owned()))).await.unwrap();
        }
        drop(sender);
        let (form, mut printed) = (form(None, Some(':')), Vec::new());
        let print = |position: &Position| {
            printed.push(position.to_string());
            Ok(())
        };
        let bytes_max = bus.capabilities().record_bytes_max;
        let record = |line| checked(form.record(&topic, line)?, bytes_max);
        let error = send_lines(&*producer, lines, record, print).await.unwrap_err();
        (printed, format!("{error:#}"))
    }

    #[tokio::test]
    async fn failure_names_the_line_and_stops_the_later_lines() {
        let (printed, error) = send(&["a:1", "b:2", "c", "d:4"]).await;
        assert_eq!(printed, ["orders/0/0", "orders/0/1"]);
        assert!(
            error.starts_with("line 3 was not sent, and the command sends no further lines: the line does"),
            "{error}"
        );
        let long = format!("b:{}", "x".repeat(2 << 20));
        let (printed, error) = send(&["a:1", &long, "c:3"]).await;
        assert_eq!(printed, ["orders/0/0"]);
        assert!(error.starts_with("line 2 was not sent, and the command sends no further lines"), "{error}");
        assert!(error.contains("send a smaller record"), "{error}");
    }

    /// Producer that waits for a second, and then acknowledges the values that are not empty.
    struct Slow {
        runtime: Runtime,
        /// Number and bytes of the records without an outcome, and the largest values of both.
        pending: Arc<Mutex<[usize; 4]>>,
    }

    impl Producer for Slow {
        fn send(&self, mut records: Vec<NewRecord>) -> BoxFuture<'static, Vec<Result<Position, BusError>>> {
            let (runtime, pending, record) = (self.runtime.clone(), self.pending.clone(), records.remove(0));
            let bytes = record.bytes();
            let mut counts = self.pending.lock().unwrap();
            let [count, sum, count_max, bytes_max] = *counts;
            *counts = [count + 1, sum + bytes, count_max.max(count + 1), bytes_max.max(sum + bytes)];
            async move {
                runtime.sleep(Duration::from_secs(1)).await;
                let mut counts = pending.lock().unwrap();
                counts[0] -= 1;
                counts[1] -= bytes;
                let position = "orders/0/0".parse().unwrap();
                let is_empty = record.value.is_none_or(|value| value.is_empty());
                vec![if is_empty { Err(BusError::Unauthorized("no".to_owned())) } else { Ok(position) }]
            }
            .boxed()
        }

        fn close(&self) -> Answer<'_, ()> {
            async { Ok(()) }.boxed()
        }
    }

    /// Sends lines with a slow producer. Returns the largest number and bytes of pending records, and the outcome.
    fn send_slowly(lines: Vec<Bytes>) -> (usize, usize, Result<(), String>) {
        let sim = Simulation::new(0);
        sim.run_until(async {
            let producer = Slow { runtime: sim.outside(), pending: Arc::default() };
            let (sender, received) = mpsc::channel(lines.len());
            for line in lines {
                sender.send(Ok(line)).await.unwrap();
            }
            drop(sender);
            let (topic, form) = (TopicName::new("orders").unwrap(), form(None, None));
            let done = send_lines(&producer, received, |line| form.record(&topic, line), |_| Ok(())).await;
            let [_, _, count_max, bytes_max] = *producer.pending.lock().unwrap();
            (count_max, bytes_max, done.map_err(|error| format!("{error:#}")))
        })
    }

    #[test]
    fn pending_records_have_a_bounded_number_and_size() {
        let (count_max, _, done) = send_slowly(vec!["1".into(); 2 * PENDING_MAX]);
        assert_eq!((count_max, done), (PENDING_MAX, Ok(())));
        let line = Bytes::from(vec![b'x'; 1 << 20]);
        let (_, bytes_max, done) = send_slowly(vec![line; 200]);
        assert!(bytes_max <= PENDING_BYTES_MAX + (1 << 20) + 100, "{bytes_max} bytes are pending");
        assert_eq!(done, Ok(()));
    }

    #[test]
    fn failure_names_the_later_lines_that_are_already_sent() {
        let lines = ["1", "", "3", "", "5"].map(Bytes::from);
        let (_, _, done) = send_slowly(lines.to_vec());
        let error = done.unwrap_err();
        assert!(
            error.starts_with("line 2 was not acknowledged, and the command sends no lines after line 5; "),
            "{error}"
        );
        assert!(error.contains("the bus acknowledged 2 of the 3 lines from 3 to 5"), "{error}");
    }
}
