//! An HTTP/1.1 connection that has no task of its own: the attempt that uses it drives it.
//!
//! hyper wants a connection's future polled beside the request's, which most clients leave to a task per connection;
//! each callback then wakes one task from the other and back. Here one task does both (docs/decisions/0070 has the
//! measurement). Between attempts nobody polls, so a target that has closed is noticed when the connection is taken
//! up again, or by the sweep.

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
use crate::answer::{Answer, keep_alive};
use crate::connect::Stream;
use crate::failure::{Failure, Refused, describe};

/// Of an answer, its status line and headers; more is refused.
const ANSWER_HEAD_BYTES_MAX: usize = 64 * 1024;

pub(crate) struct Http1 {
    sender: SendRequest<Body>,
    connection: Connection<Stream, Body>,
    /// The connection's future has ended, or an answer was left half-read: no more is to be done with it.
    ended: bool,
    /// For how long the target says it keeps this open.
    pub(crate) keep_alive: Option<Duration>,
}

impl Http1 {
    pub(crate) async fn start(stream: Stream) -> Result<Box<Http1>, Failure> {
        let handshake = Builder::new().max_buf_size(ANSWER_HEAD_BYTES_MAX).handshake(stream).await;
        let (sender, connection) = handshake.map_err(|error| describe(&error))?;
        Ok(Box::new(Http1 { sender, connection, ended: false, keep_alive: None }))
    }

    /// Whether it can take a request now; notices if the target has closed it.
    pub(crate) fn is_ready(&mut self, context: &mut Context<'_>) -> bool {
        self.drive(context);
        !self.ended && self.sender.is_ready()
    }

    /// Sends `request` and reads the answer, of its body at most `body_bytes_max`. Dropped before its end, or ended
    /// by an error or a longer body, it leaves a connection that is not ready.
    // Not an `async fn`: that would keep room for `request` in every attempt's future, beside hyper's own.
    pub(crate) fn exchange(
        &mut self,
        request: Request<Body>,
        body_bytes_max: usize,
    ) -> impl Future<Output = Result<Answer, Refused>> {
        let response = self.sender.try_send_request(request);
        async move {
            let (mut head, body) = self.answered(response).await?.into_parts();
            self.keep_alive = keep_alive(&head.headers);
            let answer = Answer::new(head.status, &mut head.headers);
            drop(head);
            self.drain(body, body_bytes_max).await?;
            Ok(answer)
        }
    }

    fn answered<T>(&mut self, response: impl Future<Output = T>) -> impl Future<Output = T> {
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
                // The body says that it wants more, the connection reads, the body has it.
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
                    // What is left would be taken for the next answer.
                    self.ended = true;
                    break;
                }
            }
        }
        Ok(())
    }

    fn drive(&mut self, context: &mut Context<'_>) {
        // Its error is told to the request as well.
        self.ended = self.ended || Pin::new(&mut self.connection).poll(context).is_ready();
    }
}
