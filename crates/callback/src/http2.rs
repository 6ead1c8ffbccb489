//! HTTP/2 connection with its own task. It carries as many callbacks at a time as its target permits.
//!
//! This module uses `h2` instead of hyper's client, because hyper accepts more requests than the target permits and
//! queues them. The timeout of a queued callback would start before the client sends the callback
//! (docs/decisions/0195-wait-for-a-connection-before-the-timeout-starts.md).

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderValue, Request, header};
use hyper_util::rt::TokioIo;
use runtime::{Runtime, TaskHandle};
use tokio::sync::{Notify, oneshot};

use crate::connect::Stream;
use crate::failure::{ExchangeError, Failure, describe};
use crate::response::{Excerpt, TargetResponse};

const ANSWER_HEAD_BYTES_MAX: u32 = 64 * 1024;

/// HTTP/2 connection. If the connection is idle, a drop of this value ends the task that drives the connection.
pub(crate) struct Http2 {
    sender: SendRequest<Bytes>,
    task: TaskHandle,
    /// Number of exchanges (requests with their responses) in flight on this connection.
    in_use: Arc<AtomicUsize>,
    /// Wakes the attempts that wait for a stream.
    changed: Arc<Notify>,
}

/// Permit for one exchange on a connection.
pub(crate) struct StreamPermit {
    sender: SendRequest<Bytes>,
    in_use: Arc<AtomicUsize>,
    changed: Arc<Notify>,
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.in_use.fetch_sub(1, Ordering::Relaxed);
        self.changed.notify_one();
    }
}

impl Http2 {
    /// Waits until the target has stated how many concurrent streams it permits, and returns the connection. The
    /// connection notifies `changed` when a stream becomes free.
    pub(crate) async fn start(runtime: &Runtime, stream: Stream, changed: Arc<Notify>) -> Result<Http2, Failure> {
        let mut builder = Builder::new();
        // The client starts no request before it has received the target's first SETTINGS frame.
        builder.enable_push(false).max_header_list_size(ANSWER_HEAD_BYTES_MAX).initial_max_send_streams(0);
        let handshake = builder.handshake(TokioIo::new(stream)).await;
        let (sender, mut connection) = handshake.map_err(|error| describe(&error))?;
        let (ready, became_ready) = oneshot::channel();
        let (mut ready, mut permitted, wakes) = (Some(ready), 0, changed.clone());
        let task = runtime.spawn("callback-http2", async move {
            let end = poll_fn(|context| {
                let end = Pin::new(&mut connection).poll(context);
                let permits = connection.max_concurrent_send_streams();
                if permits > permitted {
                    ready.take().map(|ready| ready.send(()));
                    wakes.notify_waiters();
                }
                permitted = permits;
                end
            });
            if let Err(error) = end.await {
                tracing::debug!(%error, "HTTP/2 connection to a target failed");
            }
            wakes.notify_waiters();
        });
        let connection = Http2 { sender, task, in_use: Arc::default(), changed };
        became_ready.await.map_err(|_| Failure::Broken("connection closed".to_owned()))?;
        Ok(connection)
    }

    /// Returns a permit, or `None` if the target permits no further stream now.
    pub(crate) fn permit(&self) -> Option<StreamPermit> {
        // No two calls for one connection run at the same time, because the caller holds the authority's lock or has
        // just created the connection.
        if self.in_use.load(Ordering::Relaxed) >= self.sender.current_max_send_streams() {
            return None;
        }
        self.in_use.fetch_add(1, Ordering::Relaxed);
        let (sender, in_use, changed) = (self.sender.clone(), self.in_use.clone(), self.changed.clone());
        Some(StreamPermit { sender, in_use, changed })
    }

    /// Returns true if the connection accepts no further request.
    pub(crate) fn is_closed(&self) -> bool {
        let ready = self.sender.clone().poll_ready(&mut Context::from_waker(Waker::noop()));
        matches!(ready, Poll::Ready(Err(_)))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_use.load(Ordering::Relaxed) == 0
    }
}

impl Drop for Http2 {
    fn drop(&mut self) {
        // Attempts may still use this connection after the pool has dropped it. This code therefore closes the
        // connection only if it is idle.
        if self.is_idle() {
            (self.task.abort)();
        }
    }
}

/// Works like [`crate::http1::Http1::exchange`], but resets the stream of a response that is longer than
/// `body_bytes_max`.
pub(crate) async fn exchange(
    permit: &mut StreamPermit,
    mut head: Request<()>,
    body: Bytes,
    body_bytes_max: usize,
    excerpt: &mut Excerpt,
) -> Result<TargetResponse, ExchangeError> {
    head.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    let (response, mut sender) = permit
        .sender
        .send_request(head, body.is_empty())
        .map_err(|error| ExchangeError { error: error.into(), is_unsent: true })?;
    let send = async {
        // The code ignores an error of `send_all`, because a target that rejects the body states the reason in its
        // response.
        let _rejected = send_all(&mut sender, body).await;
        pending::<Infallible>().await
    };
    tokio::select! {
        response = receive(response, body_bytes_max, excerpt) => Ok(response?),
        never = send => match never {},
    }
}

async fn send_all(stream: &mut SendStream<Bytes>, mut body: Bytes) -> Result<(), h2::Error> {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let Some(capacity) = poll_fn(|context| stream.poll_capacity(context)).await.transpose()? else { break };
        let part = body.split_to(capacity.min(body.len()));
        stream.send_data(part, body.is_empty())?;
    }
    Ok(())
}

async fn receive(
    response: ResponseFuture,
    body_bytes_max: usize,
    excerpt: &mut Excerpt,
) -> Result<TargetResponse, h2::Error> {
    let (mut head, mut body) = response.await?.into_parts();
    let response = TargetResponse::new(head.status, &mut head.headers);
    drain(&mut body, body_bytes_max, excerpt).await?;
    Ok(response)
}

async fn drain(body: &mut RecvStream, body_bytes_max: usize, excerpt: &mut Excerpt) -> Result<(), h2::Error> {
    let mut left = body_bytes_max;
    while let Some(data) = body.data().await.transpose()? {
        excerpt.add(&data);
        match left.checked_sub(data.len()) {
            Some(rest) => left = rest,
            None => break,
        }
        body.flow_control().release_capacity(data.len())?;
    }
    Ok(())
}
