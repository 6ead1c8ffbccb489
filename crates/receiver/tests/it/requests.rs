//! Tests of a receiver that verifies signatures, with requests from Reveille and from unauthenticated senders.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::post;
use reveille_receiver::{Callback, Failed, Options, Transaction, Verifier, verified};
use tokio::io::AsyncWriteExt as _;

use crate::support::{KEY, Sent, answer_to, listen, on_real, secret, verifier};

/// Returns routes whose handler responds with the callback's id and body, and counts its calls in `calls`.
fn echo(verifier: Verifier, calls: &Arc<AtomicU32>) -> Router {
    let calls = calls.clone();
    let handler = async move |callback: Callback, body: String| {
        calls.fetch_add(1, Ordering::Relaxed);
        format!("{} {body}", callback.id)
    };
    Router::new().route("/", post(handler)).route_layer(from_fn_with_state(verifier, verified))
}

#[test]
fn only_verified_callback_reaches_the_handler() {
    on_real(async |runtime| {
        let calls = Arc::default();
        let address = listen(&runtime, echo(verifier(), &calls)).await;
        let good = Sent::new(&runtime, "run", r#"{"order":17}"#);
        assert_eq!(good.to(address).await, (200, r#"run {"order":17}"#.to_owned()));

        let mut tampered = Sent::new(&runtime, "run", r#"{"order":17}"#);
        tampered.body[9] = b'9';
        let (status, text) = tampered.to(address).await;
        assert_eq!(status, 401);
        assert!(text.contains("secrets"), "{text}");
        let mut old = Sent::new(&runtime, "run", "1");
        let then = runtime.now().as_millis() / 1000 - 600;
        old.headers[1].1 = then.to_string();
        old.headers[2].1 = callback::sign(&KEY, "run", then, b"1");
        assert_eq!(old.to(address).await.0, 401);
        let bare = Sent { headers: Vec::new(), body: b"1".to_vec() };
        let (status, text) = bare.to(address).await;
        assert_eq!(status, 400);
        assert!(text.contains("webhook-id"), "{text}");
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn receiver_rejects_body_over_the_limit() {
    on_real(async |runtime| {
        let calls = Arc::default();
        let options = Options { body_bytes_max: 1_000, ..Options::default() };
        let verifier = Verifier::new(secret(&KEY).parse().unwrap(), options);
        let address = listen(&runtime, echo(verifier, &calls)).await;
        let of = |length: usize| Sent::new(&runtime, "run", &format!("{:length$}", 1));
        assert_eq!(of(1_000).to(address).await.0, 200);
        let (status, text) = of(1_001).to(address).await;
        assert_eq!((status, text.as_str()), (413, "the request's body exceeds the limit of 1000 bytes"));

        // This chunked body has no declared length and does not end.
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
        let chunk = format!("400\r\n{}\r\n", " ".repeat(0x400));
        while stream.write_all(chunk.as_bytes()).await.is_ok() {}
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn receiver_rejects_incomplete_body_after_the_timeout() {
    on_real(async |runtime| {
        let calls = Arc::default();
        let options = Options { body_timeout: Duration::from_millis(50), ..Options::default() };
        let verifier = Verifier::new(secret(&KEY).parse().unwrap(), options);
        let address = listen(&runtime, echo(verifier, &calls)).await;
        let mut request = Sent::new(&runtime, "run", "[1, 2]").text();
        request.truncate(request.len() - 1);
        assert_eq!(
            answer_to(address, &request).await,
            (408, "the request's body did not arrive within 50ms".to_owned())
        );
        assert_eq!(calls.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn route_without_middleware_responds_with_500() {
    on_real(async |runtime| {
        let callback = listen(&runtime, Router::new().route("/", post(async |_: Callback| ()))).await;
        let transaction = Router::new().route("/", post(async |_: Transaction| ()));
        let transaction = listen(&runtime, transaction.route_layer(from_fn_with_state(verifier(), verified))).await;
        for address in [callback, transaction] {
            let (status, text) = Sent::new(&runtime, "run", "1").to(address).await;
            assert_eq!(status, 500);
            assert!(text.contains("middleware"), "{text}");
        }
    });
}

#[test]
fn response_does_not_contain_the_handlers_error() {
    on_real(async |runtime| {
        let handler = async || -> Result<(), Failed> { Err("the password is hunter2".into()) };
        let routes = Router::new().route("/", post(handler)).route_layer(from_fn_with_state(verifier(), verified));
        let (status, text) = Sent::new(&runtime, "run", "1").to(listen(&runtime, routes).await).await;
        assert_eq!(status, 500);
        assert!(!text.contains("hunter2"), "{text}");
    });
}
