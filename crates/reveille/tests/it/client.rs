//! A client of the HTTP API, over one connection and with nothing of Reveille in it.

use std::io;
use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};
use test_servers::http::{self, Connection};

use crate::PATIENCE;

pub(crate) struct Client {
    connection: Connection,
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
        let connection = Connection::new(TcpStream::connect(address)?)?.with_timeout(PATIENCE)?;
        Ok(Client { connection, key: key.to_owned(), more: String::new() })
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
        let headers = format!("authorization: Bearer {}\r\n{}content-type: application/json\r\n", self.key, self.more);
        let answer = self.connection.exchange(&http::request(method, path, &headers, body.as_bytes()))?;
        let status = answer.status().ok_or(io::ErrorKind::InvalidData)?;
        Ok(Answer { status, etag: answer.header("etag").map(str::to_owned), body: answer.text() })
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
