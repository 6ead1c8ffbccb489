//! TLS connection from a peer, with requests in HTTP/1.1.
//!
//! Invariants: the service receives a request only after a TLS handshake in which the peer presented the certificate of
//! a member. A connection ends when the listener's authorities have changed, or when it is too old. After a change of the
//! authorities, the service receives a request only if the listener still trusts the peer's certificate.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request, header};
use hyper::body::Incoming;
use listener::{Activity, IdleTimeout, Slot};
use membership::MemberId;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::identity::id_of;
use crate::service::Service;
use crate::{HEAD_BYTES_MAX, causes};

const HEADERS_MAX: usize = 32;

/// Time for which the listener reads from a rejected peer, so that the peer can read the reason. If the listener closed
/// the connection before it had read all bytes, the kernel would reset the connection, and the reason would be lost.
const LINGER: Duration = Duration::from_millis(200);

/// Serves the requests of a connection until the peer closes the connection, the idle timeout passes, or the listener
/// stops.
pub(crate) async fn serve(service: Arc<Service>, stream: TcpStream, slot: Slot) {
    let parts = &service.parts;
    let generation = parts.identity.generation();
    let Some((stream, to)) = parts.shutdown.drain.run_until_cancelled(handshake(&service, stream)).await.flatten()
    else {
        return;
    };
    slot.trust();
    let certificates = stream.get_ref().1.peer_certificates().map(<[CertificateDer<'_>]>::to_vec).unwrap_or_default();
    let certificates: Arc<[CertificateDer<'static>]> = certificates.into();
    let (read_timeout, idle_timeout) = (parts.options.read_timeout, parts.options.idle_timeout);
    let opened_at = parts.runtime.monotonic();
    let respond = |request: Request<Incoming>, activity: Arc<Activity>| {
        let service = service.clone();
        let certificates = certificates.clone();
        async move {
            activity.set_idle_timeout(idle_timeout);
            let identity = &service.parts.identity;
            let mut response = if identity.generation() == generation || identity.trusts(&certificates) {
                service.respond(to, request).await
            } else {
                service.reject_untrusted()
            };
            let age = service.parts.runtime.monotonic().since(opened_at);
            if age > service.parts.options.connection_age_max || identity.generation() != generation {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
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

/// Performs the TLS handshake. Returns the stream, and the id of the session to which the peer wants to connect. Returns
/// `None` if the handshake fails.
async fn handshake(service: &Service, mut stream: TcpStream) -> Option<(TlsStream<TcpStream>, MemberId)> {
    let parts = &service.parts;
    let address = stream.peer_addr().map_or_else(|_| String::new(), |address| address.to_string());
    let acceptor = TlsAcceptor::from(parts.identity.server_config(parts.is_me.clone()));
    let accepting = async {
        let accepted = acceptor.accept(stream).into_fallible().await;
        match accepted {
            Ok(secured) => {
                let to = secured.get_ref().1.server_name().and_then(id_of)?;
                return Some((secured, to));
            }
            Err((error, rejected)) => {
                match causes(&error).find_map(|cause| cause.downcast_ref()) {
                    Some(error) => parts.identity.report(&address, error),
                    None => tracing::debug!(address, %error, "TLS handshake with a peer failed"),
                }
                stream = rejected;
            }
        }
        // The peer may have closed the connection already.
        let _ignored = stream.shutdown().await;
        let rest = async { while matches!(stream.read(&mut [0; 1_024]).await, Ok(1..)) {} };
        let _timed_out = parts.runtime.timeout(LINGER, rest).await;
        None
    };
    let accepted = parts.runtime.timeout(parts.options.read_timeout, accepting).await;
    if accepted.is_none() {
        tracing::debug!("TLS handshake with a peer timed out");
    }
    accepted.flatten()
}
