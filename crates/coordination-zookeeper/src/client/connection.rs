//! Connection to one server: addresses, TCP, TLS, and messages with their length in front.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use runtime::Runtime;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::net::{TcpStream, lookup_host};

use super::tls::{Tls, TlsError};

/// Largest message of a server, in bytes. A list of a million children fits into it.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Number of bytes that one read can receive at least.
const READ_BYTES: usize = 8 << 10;
/// First bytes of a TLS alert. No message of ZooKeeper is so long that its length starts with these bytes.
const TLS_ALERT: [u8; 2] = [21, 3];
/// Number of bytes in front of a message that contain its length.
const LENGTH_BYTES: usize = 4;

/// Server of an ensemble, as the URL names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Server {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The address of IPv6 is in brackets.
        if self.host.contains(':') {
            return write!(f, "[{}]:{}", self.host, self.port);
        }
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Stream of bytes, with or without TLS.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connection to a server. [`Connection::exchange`] sends the queued messages and receives the next message.
pub(crate) struct Connection {
    reader: ReadHalf<Box<dyn Stream>>,
    writer: WriteHalf<Box<dyn Stream>>,
    received: BytesMut,
    queued: BytesMut,
    /// True if the writer may have bytes that it has not passed on.
    is_unflushed: bool,
}

impl Connection {
    /// Connects to `server`, and encrypts the connection if `tls` is set. The TCP connection takes at most `limit`.
    pub(super) async fn open(
        runtime: &Runtime,
        server: &Server,
        tls: Option<&Tls>,
        limit: Duration,
    ) -> Result<Self, TlsError> {
        let stream = Self::connect(runtime, server, limit).await.map_err(TlsError::Io)?;
        let stream: Box<dyn Stream> = match tls {
            None => Box::new(stream),
            Some(tls) => Box::new(tls.handshake(stream, &server.host).await?),
        };
        let (reader, writer) = split(stream);
        Ok(Connection { reader, writer, received: BytesMut::new(), queued: BytesMut::new(), is_unflushed: false })
    }

    /// Connects to one of the addresses of `server`. Begins with a random address, so that repeated attempts try all
    /// servers behind one name.
    async fn connect(runtime: &Runtime, server: &Server, limit: Duration) -> io::Result<TcpStream> {
        let connecting = async {
            let found = lookup_host((server.host.as_str(), server.port)).await;
            let found = found.map_err(|error| io::Error::other(format!("the host name does not resolve: {error}")))?;
            let mut addresses: Vec<SocketAddr> = found.collect();
            let count = addresses.len().max(1);
            let first = usize::try_from(runtime.random() % count as u64).unwrap_or(0);
            if !addresses.is_empty() {
                addresses.rotate_left(first);
            }
            let mut failed = io::Error::other("the host name has no address");
            for address in addresses {
                let each = limit / u32::try_from(count).unwrap_or(u32::MAX);
                match runtime.timeout(each, TcpStream::connect(address)).await {
                    Some(Ok(stream)) => return Ok(stream),
                    Some(Err(error)) => failed = error,
                    None => failed = io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {each:?}")),
                }
            }
            Err(failed)
        };
        let no_response = || io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {limit:?}"));
        let stream = runtime.timeout(limit, connecting).await.ok_or_else(no_response)??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Queues a message with its length in front.
    pub(crate) fn queue(&mut self, message: &[u8]) {
        let length = i32::try_from(message.len()).expect("the callers limit all messages to far less than 2 GiB");
        self.queued.put_i32(length);
        self.queued.extend_from_slice(message);
    }

    /// Number of queued bytes that the connection has not sent.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued.len()
    }

    /// Sends queued bytes and receives bytes until a message has arrived. A caller may drop this future: it loses no
    /// byte.
    pub(crate) async fn exchange(&mut self) -> io::Result<Bytes> {
        loop {
            if let Some(message) = take_message(&mut self.received)? {
                return Ok(message);
            }
            let has_bytes = !self.queued.is_empty();
            let send = async {
                if has_bytes { self.writer.write(&self.queued).await } else { self.writer.flush().await.map(|()| 0) }
            };
            self.received.reserve(READ_BYTES);
            tokio::select! {
                biased;
                // The queued bytes are bounded, so writes never stop reads.
                sent = send, if has_bytes || self.is_unflushed => {
                    self.queued.advance(sent?);
                    self.is_unflushed = has_bytes;
                }
                received = self.reader.read_buf(&mut self.received) => if received? == 0 {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
                },
            }
        }
    }
}

/// Takes the first message from the received bytes, if it is complete.
fn take_message(received: &mut BytesMut) -> io::Result<Option<Bytes>> {
    let Some(length) = received.first_chunk::<LENGTH_BYTES>().map(|length| i32::from_be_bytes(*length)) else {
        return Ok(None);
    };
    if received.starts_with(&TLS_ALERT) {
        let cause = "the server expects TLS; use a URL that starts with zookeeper+tls://, or a port without TLS";
        return Err(io::Error::other(cause));
    }
    let length = usize::try_from(length).ok().filter(|length| *length <= MESSAGE_BYTES_MAX).ok_or_else(|| {
        io::Error::other(format!("the server sent a message of {length} bytes; is this address a ZooKeeper server?"))
    })?;
    if received.len() < LENGTH_BYTES + length {
        received.reserve(LENGTH_BYTES + length - received.len());
        return Ok(None);
    }
    received.advance(LENGTH_BYTES);
    Ok(Some(received.split_to(length).freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_from_any_parts() {
        let bytes = [&[0, 0, 0, 3][..], b"abc", &[0, 0, 0, 0], &[0, 0, 0, 1], b"d"].concat();
        for size in 1..bytes.len() {
            let (mut received, mut messages) = (BytesMut::new(), Vec::new());
            for part in bytes.chunks(size) {
                received.extend_from_slice(part);
                while let Some(message) = take_message(&mut received).unwrap() {
                    messages.push(message);
                }
            }
            assert_eq!(messages, [&b"abc"[..], b"", b"d"], "parts of {size} bytes");
        }
    }

    #[test]
    fn message_with_an_impossible_length_is_an_error() {
        for length in [-1, i32::MAX, i32::from_be_bytes(*b"HTTP")] {
            let error = take_message(&mut BytesMut::from(&length.to_be_bytes()[..])).unwrap_err();
            assert!(error.to_string().contains("is this address a ZooKeeper server?"), "{error}");
        }
        let error = take_message(&mut BytesMut::from(&[21, 3, 3, 0, 2, 2, 10][..])).unwrap_err();
        assert!(error.to_string().contains("zookeeper+tls://"), "{error}");
    }
}
