//! HTTP/2 connection with its own task. One connection carries all callbacks to a target.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Buf as _;
use http::Request;
use http_body::Body as _;
use hyper::client::conn::http2::{Builder, SendRequest};
use runtime::{Runtime, TaskHandle};

use crate::Body;
use crate::connect::Stream;
use crate::failure::{ExchangeError, Failure, describe};
use crate::response::TargetResponse;

const ANSWER_HEAD_BYTES_MAX: u32 = 64 * 1024;

/// HTTP/2 connection. A drop of this value ends the task that drives an idle connection.
pub(crate) struct Http2 {
    sender: SendRequest<Body>,
    task: TaskHandle,
    /// Counter of the exchanges in flight: each exchange owns a clone.
    in_use: Arc<()>,
}

/// Part of the connection that an exchange needs.
pub(crate) struct Sender {
    sender: SendRequest<Body>,
    in_use: Arc<()>,
}

impl Http2 {
    pub(crate) async fn start(runtime: &Runtime, stream: Stream) -> Result<Http2, Failure> {
        let mut builder = Builder::new(Executor(runtime.clone()));
        builder.max_header_list_size(ANSWER_HEAD_BYTES_MAX);
        let handshake = builder.handshake(stream).await;
        let (sender, connection) = handshake.map_err(|error| describe(&error))?;
        let task = runtime.spawn("callback-http2", async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "HTTP/2 connection to a target ended");
            }
        });
        Ok(Http2 { sender, task, in_use: Arc::new(()) })
    }

    pub(crate) fn sender(&self) -> Option<Sender> {
        (!self.sender.is_closed()).then(|| Sender { sender: self.sender.clone(), in_use: self.in_use.clone() })
    }

    pub(crate) fn owns(&self, sender: &Sender) -> bool {
        Arc::ptr_eq(&self.in_use, &sender.in_use)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    pub(crate) fn is_idle(&self) -> bool {
        Arc::strong_count(&self.in_use) == 1
    }
}

impl Drop for Http2 {
    fn drop(&mut self) {
        // An exchange in flight keeps a replaced connection open. Close only an idle connection.
        if self.is_idle() {
            (self.task.abort)();
        }
    }
}

/// Works like [`crate::http1::Http1::exchange`], but resets the stream of a body that is longer than
/// `body_bytes_max`.
pub(crate) async fn exchange(
    sender: &mut Sender,
    request: Request<Body>,
    body_bytes_max: usize,
) -> Result<TargetResponse, ExchangeError> {
    let (mut head, mut body) = sender.sender.try_send_request(request).await?.into_parts();
    let response = TargetResponse::new(head.status, &mut head.headers);
    let mut left = body_bytes_max;
    while !body.is_end_stream() {
        let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        let Some(frame) = frame.await.transpose()? else { break };
        let bytes = frame.data_ref().map_or(0, |data| data.remaining());
        match left.checked_sub(bytes) {
            Some(rest) => left = rest,
            None => break,
        }
    }
    Ok(response)
}

/// Spawns hyper's helper tasks. They end with their connection.
#[derive(Clone)]
struct Executor(Runtime);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Executor {
    fn execute(&self, future: F) {
        drop(self.0.spawn("callback-http2-stream", future));
    }
}
