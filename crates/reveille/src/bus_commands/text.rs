//! Records as lines for people and as JSON for programs.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use bus::{Header, Partition, Position, Record};
use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::show::escaped;

/// Returns bytes as text: `-` if they are missing, and base64 after `base64:` if they are not UTF-8.
pub(super) fn shown(bytes: Option<&Bytes>) -> String {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => "-".to_owned(),
        Some((_, Ok(text))) => escaped(text),
        Some((bytes, Err(_))) => format!("base64:{}", BASE64.encode(bytes)),
    }
}

/// Returns a position as a JSON object.
pub(super) fn position_json(position: &Position) -> Value {
    let Position { partition: Partition { topic, index }, offset } = position;
    json!({ "topic": topic.as_str(), "partition": index, "offset": offset.0 })
}

/// Bytes as a JSON field: text, or base64 in a field of its own.
pub(super) struct Content<'a> {
    /// `None` if the bytes are missing or not UTF-8.
    pub(super) text: Option<&'a str>,
    /// `None` unless the bytes are not UTF-8.
    pub(super) base64: Option<String>,
}

impl<'a> Content<'a> {
    pub(super) fn new(bytes: Option<&'a Bytes>) -> Self {
        let text = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
        let base64 = bytes.filter(|_| text.is_none()).map(|bytes| BASE64.encode(bytes));
        Content { text, base64 }
    }
}

#[derive(Serialize)]
struct RecordJson<'a> {
    topic: &'a str,
    partition: u32,
    offset: u64,
    timestamp: String,
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    value: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
    headers: Vec<HeaderJson<'a>>,
}

#[derive(Serialize)]
struct HeaderJson<'a> {
    name: &'a str,
    value: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
}

/// Returns a record as one line of JSON, without a line end.
///
/// # Errors
/// Returns an error if the JSON library fails.
pub(super) fn record_json(partition: &Partition, record: &Record) -> serde_json::Result<String> {
    let (key, value) = (Content::new(record.key.as_ref()), Content::new(record.value.as_ref()));
    serde_json::to_string(&RecordJson {
        topic: partition.topic.as_str(),
        partition: partition.index,
        offset: record.offset.0,
        timestamp: record.timestamp.to_string(),
        key: key.text,
        key_base64: key.base64,
        value: value.text,
        value_base64: value.base64,
        headers: record.headers.iter().map(header_json).collect(),
    })
}

fn header_json(header: &Header) -> HeaderJson<'_> {
    let value = Content::new(header.value.as_ref());
    HeaderJson { name: &header.name, value: value.text, value_base64: value.base64 }
}

/// Returns a record as one line for people, without a line end: its position, time, key, value and headers.
pub(super) fn record_line(partition: &Partition, record: &Record) -> String {
    let position = Position { partition: partition.clone(), offset: record.offset };
    let (key, value) = (shown(record.key.as_ref()), shown(record.value.as_ref()));
    let mut line = format!("{position}  {}  {key}  {value}", record.timestamp);
    for header in &record.headers {
        line.push_str(&format!("  {}={}", escaped(&header.name), shown(header.value.as_ref())));
    }
    line
}

#[cfg(test)]
mod tests {
    use bus::Offset;
    use domain::Timestamp;
    use expect_test::expect;

    use super::*;

    fn record(key: Option<&'static [u8]>, value: Option<&'static [u8]>) -> Record {
        let (key, value) = (key.map(Bytes::from_static), value.map(Bytes::from_static));
        let header = |name: &str, value| Header { name: name.to_owned(), value };
        let headers = vec![header("color", Some(Bytes::from_static(b"red"))), header("empty", None)];
        Record { offset: Offset(17), timestamp: Timestamp::from_millis(1_700_000_000_123), key, value, headers }
    }

    #[test]
    fn record_is_shown_as_a_line_and_as_json() {
        let partition = Partition { topic: "orders".parse().unwrap(), index: 3 };
        let texts = |record: &Record| {
            format!("{}\n{}\n", record_line(&partition, record), record_json(&partition, record).unwrap())
        };
        let all = [
            record(Some(b"ann"), Some(b"two\n\x1bbooks")),
            record(Some(b"\xff"), Some(b"\x00\xff")),
            record(None, None),
        ];
        expect![[r#"
            orders/3/17  2023-11-14T22:13:20.123Z  ann  two\n\u{1b}books  color=red  empty=-
            {"topic":"orders","partition":3,"offset":17,"timestamp":"2023-11-14T22:13:20.123Z","key":"ann","value":"two\n\u001bbooks","headers":[{"name":"color","value":"red"},{"name":"empty","value":null}]}
            orders/3/17  2023-11-14T22:13:20.123Z  base64:/w==  base64:AP8=  color=red  empty=-
            {"topic":"orders","partition":3,"offset":17,"timestamp":"2023-11-14T22:13:20.123Z","key":null,"key_base64":"/w==","value":null,"value_base64":"AP8=","headers":[{"name":"color","value":"red"},{"name":"empty","value":null}]}
            orders/3/17  2023-11-14T22:13:20.123Z  -  -  color=red  empty=-
            {"topic":"orders","partition":3,"offset":17,"timestamp":"2023-11-14T22:13:20.123Z","key":null,"value":null,"headers":[{"name":"color","value":"red"},{"name":"empty","value":null}]}
        "#]]
        .assert_eq(&all.iter().map(texts).collect::<String>());
    }
}
