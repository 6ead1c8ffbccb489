//! Command `reveille bus produce`, which sends records.
//!
//! The records of a partition have the order of their lines. After a failure, the command sends no further lines.

use std::io::{self, BufRead, BufReader, Read as _};

use anyhow::{Context as _, anyhow, ensure};
use bus::{BusError, Header, NewRecord, Position, Producer, ProducerOptions, TopicName};
use bytes::Bytes;
use clap::Args;
use cli_support::console;
use futures_util::future::FutureExt as _;
use futures_util::stream::{FuturesOrdered, StreamExt as _};
use runtime::{Runtime, TaskSet};
use tokio::sync::mpsc;

use super::{Common, explain, text};
use crate::cli::show;

/// Largest number of records that wait for their acknowledgement.
const PENDING_MAX: usize = 1_000;
/// Number of lines that the command reads in advance.
const LINES_MAX: usize = 100;

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
    let partitions = bus.describe_topic(&topic).await.map_err(explain)?.offsets.len();
    if let Some(index) = form.partition {
        let is_known = usize::try_from(index).is_ok_and(|index| index < partitions);
        ensure!(
            is_known,
            "the topic {topic} has {partitions} partitions, so it has no partition {index}; name a smaller --partition"
        );
    }
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
            let lines = lines(&reading, bus.capabilities().record_bytes_max);
            let record = |line| form.record(&topic, line);
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
async fn send_lines(
    producer: &dyn Producer,
    mut lines: mpsc::Receiver<io::Result<Bytes>>,
    record: impl Fn(Bytes) -> anyhow::Result<NewRecord>,
    mut print: impl FnMut(&Position) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut pending = FuturesOrdered::new();
    let (mut number, mut failed, mut has_ended) = (0_u64, None, false);
    loop {
        tokio::select! {
            biased;
            Some((number, outcome)) = pending.next(), if !pending.is_empty() => match outcome {
                Ok(position) => print(&position)?,
                Err(error) => {
                    let text = format!("line {number} was not acknowledged, and the command sends no further lines");
                    failed.get_or_insert(explain(error).context(text));
                }
            },
            line = lines.recv(), if !has_ended && failed.is_none() && pending.len() < PENDING_MAX => {
                number += 1;
                match line.map(|line| line.map_err(|error| anyhow!(error)).and_then(&record)) {
                    None => has_ended = true,
                    Some(Ok(record)) => {
                        let number = number;
                        pending.push_back(producer.send(vec![record]).map(move |outcomes| (number, first(outcomes))));
                    }
                    Some(Err(error)) => {
                        let text = format!("line {number} was not sent, and the command sends no further lines");
                        failed = Some(error.context(text));
                    }
                }
            }
            else => break,
        }
    }
    failed.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use bus::memory::{MemoryBus, MemoryOptions};
    use bus::{Bus as _, TopicOptions};

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
        let error = send_lines(&*producer, lines, |line| form.record(&topic, line), print).await.unwrap_err();
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
        let (printed, error) = send(&["a:1", &long]).await;
        assert_eq!(printed, ["orders/0/0"]);
        assert!(error.starts_with("line 2 was not acknowledged, and the command sends no further lines"), "{error}");
        assert!(error.contains("send a smaller record"), "{error}");
    }
}
