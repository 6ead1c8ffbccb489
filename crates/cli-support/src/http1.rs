//! HTTP/1.1 for load generation and measurement, with minimal work per message.
//!
//! The benchmarks and the small receiver use this module, because they share two cores with the server that the
//! benchmarks measure. The module supports only peers that use no trailers, no folded headers and no pipelining. It
//! returns an error for all other input. This module does not send real callbacks. The crate `callback` sends them.
//!
//! Invariant: the memory of a connection is limited by [`HEAD_BYTES_MAX`] and [`BODY_BYTES_MAX`], and by
//! [`REQUEST_BODY_BYTES_MAX`] on the side that receives requests.
//!
//! docs/decisions/0080-write-the-load-generators-http-by-hand.md gives the reasons for the design.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Maximum size of the head of a request or a response, in bytes.
pub const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Maximum size of a request body on the side that receives the request, in bytes.
pub const REQUEST_BODY_BYTES_MAX: usize = 1024 * 1024;
/// Maximum size of a response body, in bytes. The response to an NDJSON batch is the longest response.
pub const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

const HEADERS_MAX: usize = 64;

/// Client side of one keep-alive connection to a server.
pub struct Connection {
    stream: TcpStream,
    input: Input,
}

/// Status of a response. [`Connection::body`] returns the body of the response until the caller sends the next request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(pub u16);

impl Connection {
    /// Connects to a server.
    ///
    /// # Errors
    /// Returns an error if the connection to the server cannot be established.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, input: Input::default() })
    }

    /// Sends one complete request and reads its response.
    ///
    /// This function is not cancel-safe: if the caller drops the future, the caller must not use the connection again.
    ///
    /// # Errors
    /// Returns an error if the connection ends, or if the response is not valid HTTP/1.1 or exceeds a limit. After an
    /// error, the caller must not use the connection again.
    pub async fn exchange(&mut self, request: &[u8]) -> io::Result<Status> {
        // A short request fits in the socket's buffer. Every longer request is a batch. The server sends results while
        // it reads the lines of the batch, so the client must write and read at the same time.
        const FITS_SOCKET: usize = 64 * 1024;
        if request.len() <= FITS_SOCKET {
            self.stream.write_all(request).await?;
            self.input.read_response(&mut self.stream).await
        } else {
            let (mut from, mut to) = self.stream.split();
            let write = async move { to.write_all(request).await };
            let (written, response) = futures_util::join!(write, self.input.read_response(&mut from));
            let response = response?;
            written.map(|()| response)
        }
    }

    /// Returns the body of the last response.
    pub fn body(&self) -> &[u8] {
        &self.input.body
    }
}

/// Buffer of the bytes that a reader received from a connection.
#[derive(Default)]
pub struct Input {
    /// Received bytes that the reader has not parsed yet.
    buffer: Vec<u8>,
    /// Body of the last response.
    body: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BodyLength {
    Known(usize),
    Chunked,
}

impl Input {
    async fn read_response(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Status> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
            let mut response = httparse::Response::new(&mut headers);
            match response.parse(&self.buffer).map_err(invalid)? {
                httparse::Status::Complete(head) => {
                    let status = Status(response.code.unwrap_or(0));
                    let length = body_length(response.headers)?;
                    self.buffer.drain(..head);
                    self.read_body(stream, length).await?;
                    return Ok(status);
                }
                httparse::Status::Partial => self.read_head(stream).await?,
            }
        }
    }

    /// Reads a request and passes it to `handle`. Returns the result of `handle`, or `None` if the connection ended
    /// before the request.
    ///
    /// # Errors
    /// Returns an error if the connection ends within a request, or if the request is not valid HTTP/1.1 or exceeds a
    /// limit.
    pub async fn read_request<T>(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        mut handle: impl FnMut(&httparse::Request<'_, '_>, &[u8]) -> T,
    ) -> io::Result<Option<T>> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
            let mut request = httparse::Request::new(&mut headers);
            match request.parse(&self.buffer).map_err(invalid)? {
                httparse::Status::Complete(head_end) => {
                    let end = match body_length(request.headers)? {
                        BodyLength::Known(length) if length <= REQUEST_BODY_BYTES_MAX => head_end + length,
                        BodyLength::Known(length) => {
                            return Err(invalid(format!(
                                "the request body has {length} bytes, but the limit is {REQUEST_BODY_BYTES_MAX} bytes"
                            )));
                        }
                        BodyLength::Chunked => {
                            return Err(invalid("the request body is chunked; send it with a content-length header"));
                        }
                    };
                    if self.buffer.len() >= end {
                        let handled = handle(&request, &self.buffer[head_end..end]);
                        self.buffer.drain(..end);
                        return Ok(Some(handled));
                    }
                    // The loop parses the head again after each read. This is cheap, because only the longest bodies
                    // need more than one read.
                    self.read_more(stream).await?;
                }
                httparse::Status::Partial if self.buffer.is_empty() => {
                    if stream.read_buf(&mut self.buffer).await? == 0 {
                        return Ok(None);
                    }
                }
                httparse::Status::Partial => self.read_head(stream).await?,
            }
        }
    }

    async fn read_head(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        if self.buffer.len() >= HEAD_BYTES_MAX {
            return Err(invalid(format!(
                "the message head or chunk length is incomplete after {HEAD_BYTES_MAX} bytes"
            )));
        }
        self.read_more(stream).await
    }

    async fn read_more(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        self.buffer.reserve(16 * 1024);
        match stream.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    async fn read_body(&mut self, stream: &mut (impl AsyncRead + Unpin), length: BodyLength) -> io::Result<()> {
        self.body.clear();
        match length {
            BodyLength::Known(length) => self.read_exactly(stream, length).await,
            BodyLength::Chunked => {
                while let length @ 1.. = self.read_chunk_length(stream).await? {
                    self.read_exactly(stream, length).await?;
                    self.skip_line_end(stream).await?;
                }
                self.skip_line_end(stream).await
            }
        }
    }

    /// Appends the next `length` bytes of the connection to the body.
    async fn read_exactly(&mut self, stream: &mut (impl AsyncRead + Unpin), length: usize) -> io::Result<()> {
        let until = self.body.len().saturating_add(length);
        if until > BODY_BYTES_MAX {
            return Err(invalid(format!("the response body is longer than the limit of {BODY_BYTES_MAX} bytes")));
        }
        while self.body.len() < until {
            if self.buffer.is_empty() {
                self.read_more(stream).await?;
            }
            let take = self.buffer.len().min(until - self.body.len());
            self.body.extend_from_slice(&self.buffer[..take]);
            self.buffer.drain(..take);
        }
        Ok(())
    }

    async fn read_chunk_length(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        loop {
            match httparse::parse_chunk_size(&self.buffer)
                .map_err(|_| invalid("the chunk length is not a hexadecimal number"))?
            {
                httparse::Status::Complete((end, length)) => {
                    self.buffer.drain(..end);
                    return usize::try_from(length).map_err(invalid);
                }
                httparse::Status::Partial => self.read_head(stream).await?,
            }
        }
    }

    async fn skip_line_end(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        while self.buffer.len() < 2 {
            self.read_more(stream).await?;
        }
        if !self.buffer.starts_with(b"\r\n") {
            return Err(invalid("the bytes after a chunk are not a line end"));
        }
        self.buffer.drain(..2);
        Ok(())
    }
}

fn body_length(headers: &[httparse::Header<'_>]) -> io::Result<BodyLength> {
    let mut length = 0;
    for header in headers {
        if header.name.eq_ignore_ascii_case("content-length") {
            let text = std::str::from_utf8(header.value).map_err(invalid)?;
            length = text.trim().parse().map_err(invalid)?;
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return if header.value.eq_ignore_ascii_case(b"chunked") {
                Ok(BodyLength::Chunked)
            } else {
                let coding = String::from_utf8_lossy(header.value);
                Err(invalid(format!("the transfer coding {coding:?} is not supported; only chunked is supported")))
            };
        }
    }
    Ok(BodyLength::Known(length))
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn response(bytes: &[u8]) -> io::Result<(Status, Vec<u8>)> {
        let mut input = Input::default();
        let status = input.read_response(&mut &bytes[..]).await?;
        Ok((status, input.body))
    }

    fn now<T>(future: impl Future<Output = T>) -> T {
        futures_util::FutureExt::now_or_never(future).expect("reading from memory never waits")
    }

    #[test]
    fn reader_stops_at_the_declared_end_of_a_response() {
        let bytes = b"HTTP/1.1 201 Created\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n";
        assert_eq!(now(response(bytes)).unwrap(), (Status(201), b"abc".to_vec()));
    }

    #[test]
    fn reader_joins_the_chunks_of_a_response() {
        let bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(now(response(bytes)).unwrap(), (Status(200), b"abc0123456789".to_vec()));
    }

    #[test]
    fn response_truncated_at_any_byte_is_an_error() {
        let bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        for end in 0..bytes.len() {
            assert!(now(response(&bytes[..end])).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn reader_rejects_response_body_with_declared_length_above_limit() {
        let bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n";
        assert_eq!(now(response(bytes)).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn reader_returns_requests_of_a_connection_in_order() {
        let mut input = Input::default();
        let mut stream = &b"POST /a HTTP/1.1\r\ncontent-length: 2\r\n\r\nhiGET /b HTTP/1.1\r\n\r\n"[..];
        let mut next = || {
            now(input.read_request(&mut stream, |head, body| (head.path.unwrap_or("").to_owned(), body.to_vec())))
                .unwrap()
        };
        assert_eq!(next(), Some(("/a".to_owned(), b"hi".to_vec())));
        assert_eq!(next(), Some(("/b".to_owned(), Vec::new())));
        assert_eq!(next(), None);
    }
}
