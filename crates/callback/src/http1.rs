//! HTTP/1.1 connection without its own task. The attempt that uses the connection drives it.
//!
//! hyper requires that a client polls the connection's future together with the request's future. Most clients spawn a
//! task per connection for this purpose, so each request switches between two tasks. In this module, one task polls
//! both futures (docs/decisions/0070 contains the measurement). No task polls the connection between attempts. If the
//! target closes an idle connection, the next attempt that takes the connection detects the closure, or the pool's
//! periodic check does.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Request;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};

use crate::Body;
use crate::connect::Stream;
use crate::failure::{ExchangeError, Failure, describe};
use crate::response::{Excerpt, TargetResponse, keep_alive};

/// Maximum size of a response's head (status line and headers), in bytes. The client rejects a response with a longer
/// head.
const ANSWER_HEAD_BYTES_MAX: usize = 64 * 1024;

pub(crate) struct Http1 {
    sender: SendRequest<Body>,
    connection: Connection<Stream, Body>,
    /// True if no attempt may use the connection again, because the connection's future has ended, or because the
    /// client did not read a response to its end.
    ended: bool,
    /// Time for which the target keeps this connection open, if the response states it.
    pub(crate) keep_alive: Option<Duration>,
}

impl Http1 {
    pub(crate) async fn start(stream: Stream) -> Result<Box<Http1>, Failure> {
        let handshake = Builder::new().max_buf_size(ANSWER_HEAD_BYTES_MAX).handshake(stream).await;
        let (sender, connection) = handshake.map_err(|error| describe(&error))?;
        Ok(Box::new(Http1 { sender, connection, ended: false, keep_alive: None }))
    }

    /// Returns true if the connection can take a request now. Returns false if the target has closed the connection.
    pub(crate) fn is_ready(&mut self, context: &mut Context<'_>) -> bool {
        self.drive(context);
        !self.ended && self.sender.is_ready()
    }

    /// Sends `request` and reads the response, with at most `body_bytes_max` bytes of its body. The connection takes no
    /// further request after an error, after a response with a longer body, or if the caller drops this future early.
    /// Copies the first bytes of the body to `excerpt`, also if the future ends early.
    // This is not an `async fn`, because an `async fn` would store `request` in every attempt's future, in addition to
    // hyper's copy.
    pub(crate) fn exchange(
        &mut self,
        request: Request<Body>,
        body_bytes_max: usize,
        excerpt: &mut Excerpt,
    ) -> impl Future<Output = Result<TargetResponse, ExchangeError>> {
        let response = self.sender.try_send_request(request);
        async move {
            let (mut head, body) = self.drive_until(response).await?.into_parts();
            self.keep_alive = keep_alive(&head.headers);
            let response = TargetResponse::new(head.status, &mut head.headers);
            drop(head);
            self.drain(body, body_bytes_max, excerpt).await?;
            Ok(response)
        }
    }

    fn drive_until<T>(&mut self, response: impl Future<Output = T>) -> impl Future<Output = T> {
        let mut response = Box::pin(response);
        poll_fn(move |context| {
            self.drive(context);
            response.as_mut().poll(context)
        })
    }

    async fn drain(
        &mut self,
        mut body: Incoming,
        body_bytes_max: usize,
        excerpt: &mut Excerpt,
    ) -> Result<(), hyper::Error> {
        let mut left = body_bytes_max;
        while !body.is_end_stream() {
            let frame = poll_fn(|context| {
                // The first poll of the body requests more data, the connection reads the data, and the second poll
                // returns the data.
                if let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(context) {
                    return Poll::Ready(frame);
                }
                self.drive(context);
                Pin::new(&mut body).poll_frame(context)
            });
            let Some(frame) = frame.await.transpose()? else { break };
            let data = frame.data_ref().map_or(&[][..], |data| data);
            excerpt.add(data);
            match left.checked_sub(data.len()) {
                Some(rest) => left = rest,
                None => {
                    // The next attempt on this connection would read the unread rest of this body as its response, so
                    // the connection takes no further request.
                    self.ended = true;
                    break;
                }
            }
        }
        Ok(())
    }

    fn drive(&mut self, context: &mut Context<'_>) {
        // This function ignores an error of the connection, because the request's future also returns the error.
        self.ended = self.ended || Pin::new(&mut self.connection).poll(context).is_ready();
    }
}
