//! Client of the HTTP API for tests. The client uses one connection and shares no code with Reveille.

use std::io;
use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};
use test_servers::http::{self, Connection};

use crate::TIMEOUT;

pub(crate) struct Client {
    connection: Connection,
    key: String,
    /// Additional header lines that the client sends with each request.
    more: String,
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) etag: Option<String>,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.body))
    }
}

impl Client {
    pub(crate) fn connect(address: SocketAddr, key: &str) -> io::Result<Self> {
        let connection = Connection::new(TcpStream::connect(address)?)?.with_timeout(TIMEOUT)?;
        Ok(Client { connection, key: key.to_owned(), more: String::new() })
    }

    /// Adds a header to all later requests.
    pub(crate) fn with_header(mut self, name: &str, value: &str) -> Self {
        self.more.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    /// Returns the part of the key after the dot, which is the secret.
    pub(crate) fn secret(&self) -> &str {
        self.key.split_once('.').map_or(&self.key, |(_, secret)| secret)
    }

    /// Sends a request. An error means that no complete response arrived. The request may have taken effect.
    pub(crate) fn send(&mut self, method: &str, path: &str, body: &str) -> io::Result<Response> {
        let headers = format!("authorization: Bearer {}\r\n{}content-type: application/json\r\n", self.key, self.more);
        let response = self.connection.exchange(&http::request(method, path, &headers, body.as_bytes()))?;
        let status = response.status().ok_or(io::ErrorKind::InvalidData)?;
        Ok(Response { status, etag: response.header("etag").map(str::to_owned), body: response.text() })
    }

    pub(crate) fn get(&mut self, path: &str) -> Response {
        self.send("GET", path, "").expect("the server responds")
    }

    pub(crate) fn create(&mut self, schedule: &Value) -> Response {
        self.send("POST", "/v1/schedules", &schedule.to_string()).expect("the server responds")
    }
}

/// Returns a schedule with a single callback to `url` at `at_millis`.
pub(crate) fn one_shot(id: &str, at_millis: u64, url: &str, payload: &Value) -> Value {
    json!({ "id": id, "at": rfc3339(at_millis), "target": { "http": { "url": url } }, "payload": payload })
}

pub(crate) fn rfc3339(millis: u64) -> String {
    domain::Timestamp::from_millis(i64::try_from(millis).expect("the instant fits in an i64")).to_string()
}
