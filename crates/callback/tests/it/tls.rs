//! Tests of TLS, and of HTTP/2, which the client and the target negotiate in the TLS handshake.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callback::{HttpDeliver, Options};
use domain::limits::EXCERPT_BYTES_MAX;
use domain::{AttemptResult, HttpTarget, Tenant};
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use runtime::{Runtime, TaskHandle};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use scheduler::{Delivered, Delivery};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use crate::connections::receive_pending;
use crate::support::{Listening, OK, Peer, deliverer, delivery, sent, target};

struct Identity {
    certificate: CertificateDer<'static>,
    acceptor: TlsAcceptor,
}

fn identity(host: &str, protocol: &[u8]) -> Identity {
    let created = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
    let certificate = created.cert.der().clone();
    let key = PrivateKeyDer::try_from(created.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    config.alpn_protocols = vec![protocol.to_vec()];
    Identity { certificate, acceptor: TlsAcceptor::from(Arc::new(config)) }
}

fn trusting(identity: &Identity) -> HttpDeliver {
    deliverer(Options { extra_roots: vec![identity.certificate.clone()], ..Options::default() })
}

async fn attempt(deliverer: &HttpDeliver, listening: &Listening, payload: &[u8]) -> Delivered {
    let url = format!("https://localhost:{}/hook?of=test", listening.port());
    sent(deliverer, delivery(target(url), payload)).await
}

async fn attempt_with_excerpt(deliverer: &HttpDeliver, listening: &Listening, payload: &[u8]) -> Delivered {
    let url = format!("https://localhost:{}/hook?of=test", listening.port());
    let delivery = delivery(target(url), payload);
    let tenant = Arc::new(Tenant { excerpts: true, ..(*delivery.tenant).clone() });
    sent(deliverer, Delivery { tenant, ..delivery }).await
}

#[tokio::test]
async fn client_calls_a_target_that_has_a_trusted_tls_certificate() {
    let identity = identity("localhost", b"http/1.1");
    let listening = Listening::start().await;
    let deliverer = trusting(&identity);
    let serve = async {
        let stream = identity.acceptor.accept(listening.accept_stream().await).await.unwrap();
        let mut peer = Peer::new(stream);
        let received = peer.request().await;
        peer.send(OK).await;
        (peer, received)
    };
    let (delivered, (mut peer, received)) = tokio::join!(attempt(&deliverer, &listening, b"1"), serve);
    assert_eq!(delivered.result, AttemptResult::Answered(200));
    assert_eq!(received.body, b"1");
    let serve_again = async {
        peer.request().await;
        peer.send(OK).await;
    };
    let (delivered, ()) = tokio::join!(attempt(&deliverer, &listening, b"2"), serve_again);
    assert_eq!(delivered.result, AttemptResult::Answered(200));
    assert_eq!(deliverer.connections().opened, 1);
}

async fn rejection_reason(identity: &Identity, deliverer: &HttpDeliver) -> String {
    let listening = Listening::start().await;
    let serve = async { identity.acceptor.accept(listening.accept_stream().await).await.is_err() };
    let (delivered, failed) = tokio::join!(attempt(deliverer, &listening, b"1"), serve);
    assert!(failed);
    let AttemptResult::Unreachable(reason) = delivered.result else { panic!("{delivered:?}") };
    reason
}

#[tokio::test]
async fn client_rejects_an_untrusted_or_mismatched_certificate() {
    let stranger = identity("localhost", b"http/1.1");
    let reason = rejection_reason(&stranger, &deliverer(Options::default())).await;
    assert_eq!(reason, "TLS: invalid peer certificate: UnknownIssuer");
    let other = identity("elsewhere.example", b"http/1.1");
    let reason = rejection_reason(&other, &trusting(&other)).await;
    assert!(reason.starts_with("TLS: invalid peer certificate: certificate not valid for name"), "{reason}");
}

#[tokio::test]
async fn client_creation_fails_if_an_extra_root_certificate_is_invalid() {
    let options = Options { extra_roots: vec![CertificateDer::from(vec![1, 2, 3])], ..Options::default() };
    let Err(error) = HttpDeliver::new(&Runtime::real(), options) else {
        panic!("the invalid certificate was accepted")
    };
    assert_eq!(error.to_string(), "cannot parse extra certificate authority 0 (counted from 0)");
}

#[derive(Clone)]
struct Executor(Runtime);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Executor {
    fn execute(&self, future: F) {
        drop(self.0.spawn("server", future));
    }
}

/// Runs an HTTP/2 target that responds to each request with 200 and as many bytes as the request's body states. It
/// sends the task of each accepted connection to `connections`.
async fn serve_http2(identity: &Identity, listening: &Listening, connections: &mpsc::UnboundedSender<TaskHandle>) {
    serve_slow_http2(identity, listening, connections, None, Duration::ZERO).await;
}

/// Works like [`serve_http2`], but permits `streams_max` streams per connection and waits before each response.
async fn serve_slow_http2(
    identity: &Identity,
    listening: &Listening,
    connections: &mpsc::UnboundedSender<TaskHandle>,
    streams_max: Option<u32>,
    wait: Duration,
) {
    loop {
        let stream = identity.acceptor.accept(listening.accept_stream().await).await.unwrap();
        let answer = hyper::service::service_fn(move |request: Request<Incoming>| async move {
            Runtime::real().sleep(wait).await;
            let (head, body) = request.into_parts();
            assert_eq!(head.uri.path_and_query().unwrap(), "/hook?of=test");
            assert!(head.uri.authority().unwrap().as_str().starts_with("localhost:"));
            assert_eq!(head.headers.get("host"), None);
            assert!(head.headers.contains_key("webhook-signature"));
            let body = body.collect().await.unwrap().to_bytes();
            let len = std::str::from_utf8(&body).unwrap().trim().parse().unwrap();
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(vec![b'z'; len]))))
        });
        let executor = Executor(Runtime::real());
        let mut serve = hyper::server::conn::http2::Builder::new(executor.clone());
        serve.max_concurrent_streams(streams_max);
        let connection = serve.serve_connection(TokioIo::new(stream), answer);
        let task = executor.0.spawn("connection", async move { drop(connection.await) });
        connections.send(task).unwrap();
    }
}

#[tokio::test]
async fn concurrent_http2_callbacks_share_one_connection() {
    let identity = identity("localhost", b"h2");
    let listening = Listening::start().await;
    let deliverer = trusting(&identity);
    let (accepting, mut accepted) = mpsc::unbounded_channel::<TaskHandle>();
    let attempts = async {
        let together = join_all((0..50).map(|_| attempt(&deliverer, &listening, b"3"))).await;
        assert!(together.iter().all(|delivered| delivered.result == AttemptResult::Answered(200)), "{together:?}");
        assert!(together.iter().all(|delivered| delivered.excerpt.is_none()), "excerpts are off");
        // The client cuts off a response that exceeds the limit, and the connection stays usable.
        let delivered = attempt(&deliverer, &listening, b"1000000").await;
        assert_eq!(delivered.result, AttemptResult::Answered(200));
        assert!(attempt(&deliverer, &listening, b"3").await.result.is_success());
        for (len, excerpt) in [(b"3".as_slice(), 3), (b"70000", EXCERPT_BYTES_MAX), (b"0", 0)] {
            let delivered = attempt_with_excerpt(&deliverer, &listening, len).await;
            assert_eq!(delivered.result, AttemptResult::Answered(200));
            let expected = (excerpt > 0).then(|| vec![b'z'; excerpt].into());
            assert!(delivered.excerpt == expected, "{len:?}: the excerpt has another length");
        }
    };
    tokio::select! {
        biased;
        () = attempts => {}
        () = serve_http2(&identity, &listening, &accepting) => {}
    }
    assert!(accepted.try_recv().is_ok() && accepted.try_recv().is_err(), "the target accepts exactly one connection");
    assert_eq!(deliverer.connections().opened, 1);
}

#[tokio::test]
async fn client_opens_another_connection_if_no_http2_stream_is_free() {
    let identity = identity("localhost", b"h2");
    let listening = Listening::start().await;
    let deliverer = trusting(&identity);
    let (accepting, _accepted) = mpsc::unbounded_channel::<TaskHandle>();
    let attempts = async {
        let url = format!("https://localhost:{}/hook?of=test", listening.port());
        let short = HttpTarget { timeout: Duration::from_millis(1_500), ..target(url) };
        let one = || sent(&deliverer, delivery(short.clone(), b"3"));
        let together = join_all((0..60).map(|_| one())).await;
        assert!(together.iter().all(|delivered| delivered.result == AttemptResult::Answered(200)), "{together:?}");
        assert_eq!(deliverer.connections().opened, 6);
        // The connections are free again, so the client reuses them.
        let together = join_all((0..60).map(|_| one())).await;
        assert!(together.iter().all(|delivered| delivered.result == AttemptResult::Answered(200)), "{together:?}");
        assert_eq!(deliverer.connections().opened, 6);
    };
    tokio::select! {
        biased;
        () = attempts => {}
        () = serve_slow_http2(&identity, &listening, &accepting, Some(10), Duration::from_secs(1)) => {}
    }
}

#[tokio::test]
async fn timeout_of_an_attempt_excludes_its_wait_for_a_shared_connection() {
    let runtime = Runtime::real();
    let identity = identity("localhost", b"h2");
    let listening = Listening::start().await;
    let deliverer = trusting(&identity);
    let (accepting, _accepted) = mpsc::unbounded_channel::<TaskHandle>();
    let url = format!("https://localhost:{}/hook?of=test", listening.port());
    let within = |millis| HttpTarget { timeout: Duration::from_millis(millis), ..target(url.clone()) };
    let attempts = async {
        // The first attempt connects. Its handshake and the target's response together take longer than the timeouts of
        // the other attempts.
        let first = sent(&deliverer, delivery(within(20_000), b"3"));
        let others = join_all((0..5).map(|_| sent(&deliverer, delivery(within(1_000), b"3"))));
        let (first, others) = tokio::join!(first, others);
        assert_eq!(first.result, AttemptResult::Answered(200));
        assert!(others.iter().all(|delivered| delivered.result == AttemptResult::Answered(200)), "{others:?}");
        assert_eq!(deliverer.connections().opened, 1);
    };
    let serve = async {
        runtime.sleep(Duration::from_millis(700)).await;
        serve_slow_http2(&identity, &listening, &accepting, None, Duration::from_millis(500)).await;
    };
    tokio::select! {
        biased;
        () = attempts => {}
        () = serve => {}
    }
}

#[tokio::test]
async fn attempts_connect_in_parallel_after_a_handshake_times_out() {
    let runtime = Runtime::real();
    let (listening, deliverer) = (Listening::start().await, deliverer(Options::default()));
    // The target accepts connections but never responds, so each handshake lasts until the attempt's timeout.
    let url = format!("https://localhost:{}/hook", listening.port());
    let short = HttpTarget { timeout: Duration::from_millis(300), ..target(url) };
    let started = runtime.monotonic();
    let ended = join_all((0..20).map(|_| sent(&deliverer, delivery(short.clone(), b"3")))).await;
    let took = runtime.monotonic().since(started);
    assert!(ended.iter().all(|delivered| delivered.result == AttemptResult::TimedOut), "{ended:?}");
    assert!(took < Duration::from_secs(3), "20 attempts took {took:?}, although each of them takes 0.3 s");
}

#[tokio::test]
async fn client_sends_large_body_over_http2() {
    let identity = identity("localhost", b"h2");
    let listening = Listening::start().await;
    let deliverer = trusting(&identity);
    let (accepting, _accepted) = mpsc::unbounded_channel::<TaskHandle>();
    // The body is larger than the flow-control window of a stream. It contains the number of bytes that the target
    // returns, and spaces.
    let body = [b"1".as_slice(), &[b' '; 300_000]].concat();
    tokio::select! {
        biased;
        delivered = attempt(&deliverer, &listening, &body) => {
            assert_eq!(delivered.result, AttemptResult::Answered(200));
        }
        () = serve_http2(&identity, &listening, &accepting) => {}
    }
}

#[tokio::test]
async fn client_replaces_http2_connection_closed_by_its_target() {
    let identity = identity("localhost", b"h2");
    let listening = Listening::start().await;
    let deliverer = trusting(&identity);
    let (accepting, mut accepted) = mpsc::unbounded_channel::<TaskHandle>();
    let attempts = async {
        for _ in 0..3 {
            assert_eq!(attempt(&deliverer, &listening, b"3").await.result, AttemptResult::Answered(200));
            let connection = accepted.recv().await.unwrap();
            (connection.abort)();
            connection.end.await;
            receive_pending(&deliverer).await;
        }
    };
    tokio::select! {
        biased;
        () = attempts => {}
        () = serve_http2(&identity, &listening, &accepting) => {}
    }
}
