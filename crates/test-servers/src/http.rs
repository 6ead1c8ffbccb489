//! HTTP/1.1 for tests. The module reads and writes whole messages over a blocking stream or a tokio stream. It shares
//! no code with Reveille, sends exactly the bytes of the caller, and works for clients and servers.
//!
//! The body of a message has either a content length or chunks. A message with neither has an empty body.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Maximum number of bytes of a message. A test that reads a longer message has a defect.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// HTTP request or response.
#[derive(Clone, Debug)]
pub struct Message {
    pub first_line: String,
    /// Headers in the order of the message, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body of the message without the framing of chunks.
    pub body: Vec<u8>,
}

impl Message {
    /// Returns the value of the first header with this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the status code of a response.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.first_line.split(' ').nth(1)?.parse().ok()
    }

    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as JSON, or `null` if the body is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    fn is_chunked(&self) -> bool {
        self.header("transfer-encoding") == Some("chunked")
    }

    /// Parses the head of a message. The head ends with an empty line.
    fn of_head(head: &[u8]) -> io::Result<Self> {
        let head = std::str::from_utf8(head).map_err(|_| invalid("the head of the HTTP message is not UTF-8"))?;
        let mut lines = head.trim_end().split("\r\n");
        let first_line = lines.next().unwrap_or_default().to_owned();
        let header = |line: &str| {
            let (name, value) =
                line.split_once(':').ok_or_else(|| invalid("a header line of the HTTP message has no colon"))?;
            Ok((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        let headers = lines.map(header).collect::<io::Result<_>>()?;
        Ok(Message { first_line, headers, body: Vec::new() })
    }
}

/// Returns the bytes of a request. `headers` consists of whole lines. The function adds `Host` and `Content-Length`.
#[must_use]
pub fn request(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n{headers}content-length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// Bytes that a connection has read from its stream and has not yet returned to a caller.
#[derive(Default)]
struct Unread(Vec<u8>);

impl Unread {
    fn line_end(&self, end: &[u8]) -> Option<usize> {
        self.0.windows(end.len()).position(|window| window == end).map(|at| at + end.len())
    }

    fn take(&mut self, length: usize) -> Option<Vec<u8>> {
        (self.0.len() >= length).then(|| self.0.drain(..length).collect())
    }

    fn head(&mut self) -> Option<io::Result<Message>> {
        let end = self.line_end(b"\r\n\r\n")?;
        self.take(end).map(|head| Message::of_head(&head))
    }

    /// Returns the next chunk of a body, or `None` if the chunk is incomplete. The last chunk is empty.
    fn chunk(&mut self) -> Option<io::Result<Vec<u8>>> {
        let line_end = self.line_end(b"\r\n")?;
        let line = String::from_utf8_lossy(&self.0[..line_end]).trim().to_owned();
        let Ok(length) = usize::from_str_radix(&line, 16) else {
            return Some(Err(invalid("a chunk of the HTTP body does not start with a hexadecimal length")));
        };
        let whole = self.take(line_end + length + 2)?;
        Some(Ok(whole[line_end..line_end + length].to_vec()))
    }

    fn message(&mut self) -> Option<io::Result<Message>> {
        let length = match self.length()? {
            Ok(length) => length,
            Err(error) => return Some(Err(error)),
        };
        let mut rest = Unread(self.take(length)?);
        let mut message = rest.head()?;
        if let Ok(message) = &mut message {
            if message.is_chunked() {
                while let Some(Ok(chunk)) = rest.chunk() {
                    message.body.extend(chunk);
                }
            } else {
                message.body = rest.0;
            }
        }
        Some(message)
    }

    /// Returns the length of the next message in bytes, or `None` if the connection has not read the whole message.
    fn length(&self) -> Option<io::Result<usize>> {
        let head_end = self.line_end(b"\r\n\r\n")?;
        let length = Message::of_head(&self.0[..head_end]).and_then(|head| {
            if !head.is_chunked() {
                let length = head.header("content-length").map_or(Ok(0), str::parse::<usize>);
                return length
                    .map(|length| Some(head_end + length))
                    .map_err(|_| invalid("the value of the header content-length is not a number"));
            }
            let mut rest = Unread(self.0[head_end..].to_vec());
            loop {
                match rest.chunk().transpose()? {
                    Some(chunk) if chunk.is_empty() => return Ok(Some(self.0.len() - rest.0.len())),
                    Some(_) => {}
                    None => return Ok(None),
                }
            }
        });
        match length.transpose()? {
            Ok(length) if self.0.len() < length => None,
            length => Some(length),
        }
    }

    fn extend(&mut self, piece: &[u8]) -> io::Result<()> {
        if piece.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.0.extend_from_slice(piece);
        if self.0.len() > MESSAGE_BYTES_MAX { Err(invalid("the HTTP message is longer than 64 MiB")) } else { Ok(()) }
    }
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_owned())
}

/// One end of an HTTP connection. Its methods block the calling thread.
pub struct Connection {
    stream: TcpStream,
    unread: Unread,
}

impl Connection {
    /// # Errors
    /// Returns an error if the operating system rejects the socket option `TCP_NODELAY`.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Connection { stream, unread: Unread::default() })
    }

    /// Sets a timeout for each later read and write.
    ///
    /// # Errors
    /// Returns an error if `timeout` is zero, or if the operating system rejects it.
    pub fn with_timeout(self, timeout: Duration) -> io::Result<Self> {
        self.stream.set_read_timeout(Some(timeout))?;
        self.stream.set_write_timeout(Some(timeout))?;
        Ok(self)
    }

    /// # Errors
    /// Returns an error if the connection is closed.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Reads the next whole message.
    ///
    /// # Errors
    /// Returns an error if the connection ends within the message, if the read times out, or if the bytes are not HTTP.
    pub fn read(&mut self) -> io::Result<Message> {
        let mut piece = [0; 16 * 1024];
        loop {
            if let Some(message) = self.unread.message() {
                return message;
            }
            let length = self.stream.read(&mut piece)?;
            self.unread.extend(&piece[..length])?;
        }
    }

    /// Sends a request and reads its response.
    ///
    /// # Errors
    /// Returns the same errors as [`Connection::read`]. After an error, the request may have taken effect.
    pub fn exchange(&mut self, request: &[u8]) -> io::Result<Message> {
        self.write(request)?;
        self.read()
    }
}

/// One end of an HTTP connection. Its methods are asynchronous and use a tokio stream.
pub struct AsyncConnection<S> {
    pub stream: S,
    unread: Unread,
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncConnection<S> {
    pub fn new(stream: S) -> Self {
        AsyncConnection { stream, unread: Unread::default() }
    }

    /// # Errors
    /// Returns an error if the connection is closed.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Reads the next message.
    ///
    /// # Errors
    /// Returns the same errors as [`Connection::read`].
    pub async fn read(&mut self) -> io::Result<Message> {
        self.next(Unread::message).await?
    }

    /// Reads the head of the next message. [`AsyncConnection::read_chunk`] reads its body.
    ///
    /// # Errors
    /// Returns the same errors as [`Connection::read`].
    pub async fn read_head(&mut self) -> io::Result<Message> {
        self.next(Unread::head).await?
    }

    /// Reads the next chunk of a body. The last chunk is empty.
    ///
    /// # Errors
    /// Returns the same errors as [`Connection::read`].
    pub async fn read_chunk(&mut self) -> io::Result<Vec<u8>> {
        self.next(Unread::chunk).await?
    }

    /// Reads the bytes of the next message. Returns fewer bytes if the connection ends before the end of the message.
    pub async fn read_bytes(&mut self) -> Vec<u8> {
        match self.next(|unread| unread.length()).await {
            Ok(Ok(length)) => self.unread.take(length).unwrap_or_default(),
            _ => std::mem::take(&mut self.unread.0),
        }
    }

    /// Reads until the connection ends. Returns all bytes that this connection has not yet returned.
    ///
    /// # Errors
    /// Returns an error if the connection fails.
    pub async fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = std::mem::take(&mut self.unread.0);
        self.stream.read_to_end(&mut bytes).await?;
        Ok(bytes)
    }

    async fn next<T>(&mut self, take: impl Fn(&mut Unread) -> Option<T>) -> io::Result<T> {
        let mut piece = vec![0; 16 * 1024];
        loop {
            if let Some(taken) = take(&mut self.unread) {
                return Ok(taken);
            }
            let length = self.stream.read(&mut piece).await?;
            self.unread.extend(&piece[..length])?;
        }
    }
}
