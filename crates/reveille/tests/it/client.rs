//! A client of the HTTP API, over one connection and with nothing of Reveille in it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};

use crate::PATIENCE;

pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    key: String,
    /// Lines of the head that each request has.
    more: String,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) etag: Option<String>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.body))
    }
}

impl Client {
    pub(crate) fn connect(address: SocketAddr, key: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Client { stream: BufReader::new(stream), key: key.to_owned(), more: String::new() })
    }

    /// Sends this, too, from now on.
    pub(crate) fn with_header(mut self, name: &str, value: &str) -> Self {
        self.more.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    /// What is secret of the key.
    pub(crate) fn secret(&self) -> &str {
        self.key.split_once('.').map_or(&self.key, |(_, secret)| secret)
    }

    /// An error says that there was no whole answer: what was asked for may have happened or not.
    pub(crate) fn send(&mut self, method: &str, path: &str, body: &str) -> io::Result<Answer> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: reveille\r\nauthorization: Bearer {}\r\n{}\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.key,
            self.more,
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        let head = self.read_head()?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let header = |wanted: &str| {
            let fields = head.lines().filter_map(|line| line.split_once(':'));
            fields.filter(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim()).next()
        };
        let length = header("content-length").and_then(|length| length.parse().ok());
        let etag = header("etag").map(str::to_owned);
        let mut body = vec![0; length.ok_or_else(broken)?];
        self.stream.read_exact(&mut body)?;
        let body = String::from_utf8(body).map_err(|_| broken())?;
        Ok(Answer { status: status.ok_or_else(broken)?, etag, body })
    }

    fn read_head(&mut self) -> io::Result<String> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut head)? == 0 {
                return Err(broken());
            }
        }
        Ok(head)
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.send("GET", path, "").expect("the server answers")
    }

    pub(crate) fn create(&mut self, schedule: &Value) -> Answer {
        self.send("POST", "/v1/schedules", &schedule.to_string()).expect("the server answers")
    }
}

/// A one-shot to `url` at `at_millis`.
pub(crate) fn one_shot(id: &str, at_millis: u64, url: &str, payload: &Value) -> Value {
    json!({ "id": id, "at": rfc3339(at_millis), "target": { "http": { "url": url } }, "payload": payload })
}

pub(crate) fn rfc3339(millis: u64) -> String {
    domain::Timestamp::from_millis(i64::try_from(millis).expect("an instant of today")).to_string()
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended before a whole answer")
}
