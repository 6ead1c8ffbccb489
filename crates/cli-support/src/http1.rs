//! HTTP/1.1 by hand, for load and for counting: as little work per message as there can be.
//!
//! It is for the benchmark and the small receiver, which share their two cores with the server that they measure. It
//! speaks to servers and clients that keep to the rules (no trailers, no folded headers, no pipelining) and breaks off
//! with everything else. It is not what callbacks are made with: that is the `callback` crate.
//!
//! Always true here: nothing of a connection outgrows [`HEAD_BYTES_MAX`] and [`BODY_BYTES_MAX`]
//! ([`REQUEST_BODY_BYTES_MAX`] on the side that receives requests).

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A head of a request or an answer.
pub const HEAD_BYTES_MAX: usize = 32 * 1024;
/// A request's body, on the side that receives it.
pub const REQUEST_BODY_BYTES_MAX: usize = 1024 * 1024;
/// An answer's body; that to an NDJSON batch is the longest there is.
pub const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

const HEADERS_MAX: usize = 64;

/// A client's side of one keep-alive connection.
pub struct Connection {
    stream: TcpStream,
    input: Input,
}

/// An answer's status; its body is in [`Connection::body`] until the next exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(pub u16);

impl Connection {
    /// Connects to a server.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, input: Input::default() })
    }

    /// Sends one whole request and reads its answer.
    ///
    /// Not cancel-safe: after a dropped exchange the connection must not be used again.
    ///
    /// # Errors
    /// If the connection ends, or the answer is not HTTP/1.1 within the limits. The connection must not be used again.
    pub async fn exchange(&mut self, request: &[u8]) -> io::Result<Status> {
        // A short request fits the socket's buffer. A long one is read by a server that answers line by line as it
        // reads, so that both directions have to move.
        const FITS_SOCKET: usize = 64 * 1024;
        if request.len() <= FITS_SOCKET {
            self.stream.write_all(request).await?;
            self.input.read_answer(&mut self.stream).await
        } else {
            let (mut from, mut to) = self.stream.split();
            let write = async move { to.write_all(request).await };
            let (written, answer) = futures_util::join!(write, self.input.read_answer(&mut from));
            let answer = answer?;
            written.map(|()| answer)
        }
    }

    pub fn body(&self) -> &[u8] {
        &self.input.body
    }
}

/// What has been read of a connection.
#[derive(Default)]
pub struct Input {
    /// Read, not yet used.
    buffer: Vec<u8>,
    /// Of the last answer.
    body: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BodyLength {
    Known(usize),
    Chunked,
}

impl Input {
    async fn read_answer(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Status> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
            let mut answer = httparse::Response::new(&mut headers);
            match answer.parse(&self.buffer).map_err(invalid)? {
                httparse::Status::Complete(head) => {
                    let status = Status(answer.code.unwrap_or(0));
                    let length = body_length(answer.headers)?;
                    self.buffer.drain(..head);
                    self.read_body(stream, length).await?;
                    return Ok(status);
                }
                httparse::Status::Partial => self.read_head(stream).await?,
            }
        }
    }

    /// Reads a request and shows it to `look`. `None` at the end of the connection.
    ///
    /// # Errors
    /// If the connection ends within a request, or the request is not HTTP/1.1 within the limits.
    pub async fn read_request<T>(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        mut look: impl FnMut(&httparse::Request<'_, '_>, &[u8]) -> T,
    ) -> io::Result<Option<T>> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
            let mut request = httparse::Request::new(&mut headers);
            match request.parse(&self.buffer).map_err(invalid)? {
                httparse::Status::Complete(head_end) => {
                    let end = match body_length(request.headers)? {
                        BodyLength::Known(length) if length <= REQUEST_BODY_BYTES_MAX => head_end + length,
                        BodyLength::Known(_) => return Err(invalid("a request's body is longer than the limit")),
                        BodyLength::Chunked => return Err(invalid("a request's body has no length")),
                    };
                    if self.buffer.len() >= end {
                        let seen = look(&request, &self.buffer[head_end..end]);
                        self.buffer.drain(..end);
                        return Ok(Some(seen));
                    }
                    // The head is parsed again with each read; all but the longest bodies come in one.
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
            return Err(invalid("a head is longer than the limit"));
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

    /// Moves `length` more bytes of the connection to the body.
    async fn read_exactly(&mut self, stream: &mut (impl AsyncRead + Unpin), length: usize) -> io::Result<()> {
        let until = self.body.len().saturating_add(length);
        if until > BODY_BYTES_MAX {
            return Err(invalid("a body is longer than the limit"));
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
            match httparse::parse_chunk_size(&self.buffer).map_err(|_| invalid("a chunk's length is not a number"))? {
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
            return Err(invalid("a chunk does not end where its length says"));
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
                Err(invalid("a transfer coding other than chunked"))
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

    async fn answer(bytes: &[u8]) -> io::Result<(Status, Vec<u8>)> {
        let mut input = Input::default();
        let status = input.read_answer(&mut &bytes[..]).await?;
        Ok((status, input.body))
    }

    fn now<T>(future: impl Future<Output = T>) -> T {
        futures_util::FutureExt::now_or_never(future).expect("reading from memory never waits")
    }

    #[test]
    fn an_answer_of_known_length_is_read_to_its_end_and_no_further() {
        let bytes = b"HTTP/1.1 201 Created\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n";
        assert_eq!(now(answer(bytes)).unwrap(), (Status(201), b"abc".to_vec()));
    }

    #[test]
    fn a_chunked_answer_is_put_together() {
        let bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(now(answer(bytes)).unwrap(), (Status(200), b"abc0123456789".to_vec()));
    }

    #[test]
    fn an_answer_that_breaks_off_is_an_error_wherever_it_does() {
        let bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        for end in 0..bytes.len() {
            assert!(now(answer(&bytes[..end])).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn a_body_above_the_limit_is_refused_before_it_is_read() {
        let bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n";
        assert_eq!(now(answer(bytes)).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn requests_follow_one_another_on_a_connection_until_it_ends() {
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
