//! An HTTP/1.1 connection without its own task: the attempt that uses it drives it.
//!
//! hyper requires that a connection's future is polled together with the request's. Most clients spawn a task per
//! connection for that, so each callback wakes one task from the other and back. Here one task does both
//! (docs/decisions/0070 has the measurement). Between attempts the connection is not polled. A connection that its
//! target has closed is therefore detected when an attempt takes it, or by the sweep.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Buf as _;
use http::Request;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};

use crate::Body;
use crate::connect::Stream;
use crate::failure::{ExchangeError, Failure, describe};
use crate::response::{TargetResponse, keep_alive};

/// Largest status line and headers of a response. A longer head is rejected.
const ANSWER_HEAD_BYTES_MAX: usize = 64 * 1024;

pub(crate) struct Http1 {
    sender: SendRequest<Body>,
    connection: Connection<Stream, Body>,
    /// True if the connection must not be used again: its future has ended, or a response was not read completely.
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

    /// Returns whether the connection can take a request now. Detects a connection that the target has closed.
    pub(crate) fn is_ready(&mut self, context: &mut Context<'_>) -> bool {
        self.drive(context);
        !self.ended && self.sender.is_ready()
    }

    /// Sends `request` and reads the response, with at most `body_bytes_max` of its body. If this future is
    /// dropped early, or ends with an error or a longer body, the connection is no longer ready.
    // Not an `async fn`: that would store `request` in every attempt's future, in addition to hyper's own copy.
    pub(crate) fn exchange(
        &mut self,
        request: Request<Body>,
        body_bytes_max: usize,
    ) -> impl Future<Output = Result<TargetResponse, ExchangeError>> {
        let response = self.sender.try_send_request(request);
        async move {
            let (mut head, body) = self.drive_until(response).await?.into_parts();
            self.keep_alive = keep_alive(&head.headers);
            let response = TargetResponse::new(head.status, &mut head.headers);
            drop(head);
            self.drain(body, body_bytes_max).await?;
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

    async fn drain(&mut self, mut body: Incoming, body_bytes_max: usize) -> Result<(), hyper::Error> {
        let mut left = body_bytes_max;
        while !body.is_end_stream() {
            let frame = poll_fn(|context| {
                // First the body requests more data, then the connection reads it, then the body returns it.
                if let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(context) {
                    return Poll::Ready(frame);
                }
                self.drive(context);
                Pin::new(&mut body).poll_frame(context)
            });
            let Some(frame) = frame.await.transpose()? else { break };
            let bytes = frame.data_ref().map_or(0, |data| data.remaining());
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => {
                    // The unread rest would be taken for the next response.
                    self.ended = true;
                    break;
                }
            }
        }
        Ok(())
    }

    fn drive(&mut self, context: &mut Context<'_>) {
        // The request receives the connection's error as well.
        self.ended = self.ended || Pin::new(&mut self.connection).poll(context).is_ready();
    }
}
