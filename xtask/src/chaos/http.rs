//! As much HTTP/1.1 as both sides of the harness need: heads, and bodies of a known length.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

const HEAD_LINES_MAX: usize = 200;
const BODY_BYTES_MAX: usize = 1 << 20;
const CONNECT_TIME: Duration = Duration::from_secs(1);

/// A message: its first line, its headers with names in lower case, its body.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) first_line: String,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Message {
    /// # Errors
    /// If the connection ends, times out, or does not speak HTTP.
    pub(super) fn read(stream: &mut BufReader<TcpStream>) -> io::Result<Message> {
        let first_line = read_line(stream)?;
        let mut headers = Vec::new();
        loop {
            let line = read_line(stream)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| broken("a header without a colon"))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            if headers.len() > HEAD_LINES_MAX {
                return Err(broken("too many headers"));
            }
        }
        let mut message = Message { first_line, headers, body: Vec::new() };
        let length = message.header("content-length").map_or(Ok(0), str::parse);
        let length: usize = length.map_err(|_| broken("a length that is no number"))?;
        if length > BODY_BYTES_MAX {
            return Err(broken("a body that is too long"));
        }
        message.body = vec![0; length];
        stream.read_exact(&mut message.body)?;
        Ok(message)
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// Of an answer.
    pub(super) fn status(&self) -> Option<u16> {
        self.first_line.split(' ').nth(1)?.parse().ok()
    }
}

fn read_line(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// A connection to one member.
pub(super) struct Connection(BufReader<TcpStream>);

impl Connection {
    /// # Errors
    /// If nobody answers there; then nothing was asked.
    pub(super) fn open(address: SocketAddr, patience: Duration) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIME)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Connection(BufReader::new(stream)))
    }

    /// # Errors
    /// If there was no whole answer: what was asked for may have happened or not.
    pub(super) fn send(&mut self, key: &str, method: &str, path: &str, body: &str) -> io::Result<Message> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: reveille\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.0.get_mut().write_all(request.as_bytes())?;
        Message::read(&mut self.0)
    }
}
