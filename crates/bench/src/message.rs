//! Requests that the benchmarks send. Each schedule fires one callback with a payload of 1 KB.

use std::io::Write;
use std::net::SocketAddr;

use domain::Timestamp;

/// Number of bytes of a payload, including its braces.
pub(crate) const PAYLOAD_BYTES: usize = 1_000;

/// Series of schedules that fall due one after the other. Each schedule has one callback.
#[derive(Clone, Debug)]
pub(crate) struct Schedules {
    /// Targets of the callbacks. Schedule number n has the target number n modulo the number of targets.
    pub(crate) target_urls: Vec<String>,
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
        let number = usize::try_from(index).unwrap_or(0) % self.target_urls.len();
        let url = &self.target_urls[number];
        write!(out, r#"{{"at":"{}","target":{{"http":{{"url":"{url}"}}}},"payload":"#, self.at(index))
            .expect("a write to a Vec succeeds");
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

    fn schedules() -> Schedules {
        Schedules {
            target_urls: vec!["http://127.0.0.1:9000/a".to_owned()],
            first_at: Timestamp::from_millis(1_800_000_000_000),
            gap_micros: 100,
        }
    }

    #[test]
    fn benchmark_writes_a_schedule_with_a_payload_of_1000_bytes() {
        let mut out = Vec::new();
        schedules().write_json(12_345, &mut out);
        #[derive(serde::Deserialize)]
        struct Shape<'a> {
            at: &'a str,
            #[serde(borrow)]
            payload: &'a serde_json::value::RawValue,
        }
        let shape: Shape<'_> = serde_json::from_slice(&out).unwrap();
        assert_eq!(shape.at, "2027-01-15T08:00:01.234Z");
        assert_eq!(shape.payload.get().len(), PAYLOAD_BYTES);
    }
}
