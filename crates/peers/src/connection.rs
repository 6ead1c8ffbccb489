//! HTTP/1.1 connection from a peer.
//!
//! Invariant: if a connection carries no authenticated request, the listener closes the connection after the first
//! response, or at about the end of the read timeout.

use std::sync::Arc;

use http::{HeaderValue, Request, header};
use hyper::body::Incoming;
use listener::{Activity, IdleTimeout, Slot};
use tokio::net::TcpStream;

use crate::HEAD_BYTES_MAX;
use crate::service::Service;

const HEADERS_MAX: usize = 32;

/// Serves the requests of a connection until the peer closes the connection, the idle timeout passes, or the listener
/// stops.
pub(crate) async fn serve(service: Arc<Service>, stream: TcpStream, slot: Slot) {
    let parts = &service.parts;
    let (read_timeout, idle_timeout) = (parts.options.read_timeout, parts.options.idle_timeout);
    let respond = |request: Request<Incoming>, activity: Arc<Activity>| {
        let service = service.clone();
        async move {
            let (mut response, is_member) = service.respond(request).await;
            if is_member {
                activity.trust();
            } else {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            activity.set_idle_timeout(if is_member { idle_timeout } else { read_timeout });
            response
        }
    };
    let mut builder = listener::builder(&parts.runtime).http1_only();
    builder.http1().max_buf_size(HEAD_BYTES_MAX).max_headers(HEADERS_MAX);
    let timeout = IdleTimeout { first: read_timeout, period: idle_timeout.min(read_timeout) };
    let drain = &parts.shutdown.drain;
    if let Err(error) = listener::serve_http(&parts.runtime, &builder, stream, slot, timeout, drain, respond).await {
        tracing::debug!(%error, "peer connection ended");
    }
}
