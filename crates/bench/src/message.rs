//! Requests that the benchmarks send. Each schedule fires one callback with a payload of 1 KB.

use std::io::Write;
use std::net::SocketAddr;

use domain::Timestamp;

/// Number of bytes of a payload, including its braces.
pub(crate) const PAYLOAD_BYTES: usize = 1_000;

/// Number of different keys of the records in a topic.
const KEYS: u64 = 10_000;

/// Targets of a series of schedules.
#[derive(Clone, Debug)]
pub(crate) enum Targets {
    /// URLs. Schedule number n has the URL number n modulo the number of URLs.
    Urls(Vec<String>),
    /// Topic of the server's message bus. The records have 10,000 different keys. The schedules have so many attempts that
    /// their runs survive some minutes without a broker.
    Topic(String),
}

impl From<Vec<String>> for Targets {
    fn from(urls: Vec<String>) -> Self {
        Targets::Urls(urls)
    }
}

impl Targets {
    /// Appends the target of schedule number `index` as the value of a JSON field, and further fields of the schedule.
    fn write_json(&self, index: u64, out: &mut Vec<u8>) {
        match self {
            Targets::Urls(urls) => {
                let url = &urls[usize::try_from(index).unwrap_or(0) % urls.len()];
                write!(out, r#"{{"http":{{"url":"{url}"}}}}"#)
            }
            Targets::Topic(topic) => write!(
                out,
                r#"{{"bus":{{"topic":"{topic}","key":"key-{}"}}}},"retry":{{"attempts_max":20,"backoff_max":"10s"}}"#,
                index % KEYS
            ),
        }
        .expect("a write to a Vec succeeds");
    }
}

/// Series of schedules that fall due one after the other. Each schedule has one callback.
#[derive(Clone, Debug)]
pub(crate) struct Schedules {
    pub(crate) targets: Targets,
    pub(crate) first_at: Timestamp,
    /// Interval between due instants in microseconds: schedule number n is due n intervals after schedule number 0,
    /// rounded down to a millisecond.
    pub(crate) gap_micros: u64,
}

impl Schedules {
    pub(crate) fn at(&self, index: u64) -> Timestamp {
        let offset = i64::try_from(index.saturating_mul(self.gap_micros) / 1_000).unwrap_or(i64::MAX);
        Timestamp::from_millis(self.first_at.as_millis().saturating_add(offset))
    }

    /// Appends schedule number `index` to `out` as one line of JSON.
    pub(crate) fn write_json(&self, index: u64, out: &mut Vec<u8>) {
        const FILL: &[u8] = b"This ordinary text fills the payload of an ordinary order. ";
        write!(out, r#"{{"at":"{}","target":"#, self.at(index)).expect("a write to a Vec succeeds");
        self.targets.write_json(index, out);
        out.extend_from_slice(br#","payload":"#);
        let start = out.len();
        write!(out, r#"{{"number":{index},"text":""#).expect("a write to a Vec succeeds");
        let end = start + PAYLOAD_BYTES - 2;
        while out.len() < end {
            let take = FILL.len().min(end - out.len());
            out.extend_from_slice(&FILL[..take]);
        }
        out.extend_from_slice(b"\"}}");
    }
}

/// Appends a complete HTTP/1.1 request to `out`.
pub(crate) fn write_request(method: &str, path: &str, head: &Head, body: &[u8], out: &mut Vec<u8>) {
    write!(
        out,
        "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: {}\r\ncontent-length: {}\r\n\r\n",
        head.host,
        head.key,
        head.content_type,
        body.len()
    )
    .expect("a write to a Vec succeeds");
    out.extend_from_slice(body);
}

/// Parts of the request head that are equal in every request.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) host: SocketAddr,
    /// API key in the form `id.secret`.
    pub(crate) key: String,
    pub(crate) content_type: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedules(targets: Targets) -> Schedules {
        Schedules { targets, first_at: Timestamp::from_millis(1_800_000_000_000), gap_micros: 100 }
    }

    #[test]
    fn benchmark_writes_a_schedule_with_a_payload_of_1000_bytes() {
        #[derive(serde::Deserialize)]
        struct Shape<'a> {
            at: &'a str,
            target: serde_json::Value,
            #[serde(borrow)]
            payload: &'a serde_json::value::RawValue,
        }
        let urls = vec!["http://127.0.0.1:9000/a".to_owned(), "http://127.0.0.1:9000/b".to_owned()];
        let http = serde_json::json!({"http": {"url": "http://127.0.0.1:9000/b"}});
        let bus = serde_json::json!({"bus": {"topic": "orders", "key": "key-2345"}});
        for (targets, target) in [(urls.into(), http), (Targets::Topic("orders".to_owned()), bus)] {
            let mut out = Vec::new();
            schedules(targets).write_json(12_345, &mut out);
            let shape: Shape<'_> = serde_json::from_slice(&out).unwrap();
            assert_eq!((shape.at, shape.target), ("2027-01-15T08:00:01.234Z", target));
            assert_eq!(shape.payload.get().len(), PAYLOAD_BYTES);
        }
    }
}
