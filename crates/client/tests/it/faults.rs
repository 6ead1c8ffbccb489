//! Tests with lost responses, overloaded servers, and servers that are not Reveille.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reveille_client::{Client, Error, ListBy, Options, Order, ScheduleState, Time, TryStreamExt as _};

use crate::support::{ADMIN_KEY, TEST_TIMEOUT, World, client, later, losing, on_real, once_and_gone, scripted};

fn problem(status: u16, code: &str, headers: &str) -> String {
    let body = format!(r#"{{"type":"urn:x","title":"","status":{status},"code":"{code}","detail":"d"}}"#);
    format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/problem+json\r\n{headers}content-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    )
}

const CANCELLED: &str = "HTTP/1.1 200 OK\r\ncontent-length: 22\r\nconnection: close\r\n\r\n{\"result\":\"cancelled\"}";

#[test]
fn client_creates_only_one_schedule_although_responses_are_lost() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let unlucky = client(losing(&runtime, world.address, 3).await, ADMIN_KEY);
        let created = unlucky.create(&later()).await.unwrap();
        let read = world.client().get(&created.id).await.unwrap();
        assert_eq!((read.state, read.revision, created.created_at), (ScheduleState::Active, 0, read.created_at));
        let all: Vec<_> = world.client().schedules(&ListBy::All, Order::Oldest).try_collect().await.unwrap();
        assert_eq!(all.len(), 1, "the request was sent four times");

        // If the caller sets the id, the client cannot find out which request created the schedule: the first attempt
        // of this client or a request of another client. The client therefore returns an error, and the caller must
        // read the schedule.
        let unlucky = client(losing(&runtime, world.address, 1).await, ADMIN_KEY);
        let error = unlucky.create(&later().id("own")).await.unwrap_err();
        assert!(error.is_outcome_unknown() && error.is_retryable(), "{error:?}");
        assert_eq!(unlucky.get("own").await.unwrap().revision, 0);

        let unlucky = client(losing(&runtime, world.address, 2).await, ADMIN_KEY);
        assert!(unlucky.put("put", &later()).await.unwrap().schedule.revision > 0, "the client sends a PUT again");
        world.stop().await;
    });
}

#[test]
fn client_waits_for_the_time_in_the_retry_after_header() {
    on_real(async |runtime| {
        let busy = problem(429, "rate_limited", "retry-after: 1\r\n");
        let (address, asked) = scripted(&runtime, &[&busy, CANCELLED]).await;
        let start = runtime.monotonic();
        client(address, "a.b").cancel("any").await.unwrap();
        assert!(runtime.monotonic().since(start) >= Duration::from_secs(1));
        assert_eq!(asked.load(Ordering::Relaxed), 2);

        // The server requests a longer wait than the deadline allows, so the client does not repeat the request.
        let busy = problem(503, "store_unavailable", "retry-after: 3600\r\n");
        let (address, asked) = scripted(&runtime, &[&busy, CANCELLED]).await;
        let error = client(address, "a.b").cancel("any").await.unwrap_err();
        assert_eq!((error.code(), asked.load(Ordering::Relaxed)), (Some("store_unavailable"), 1));
        assert!(error.is_retryable());

        // A proxy may set `Retry-After` to a date.
        let date = "retry-after: Fri, 01 Jan 1999 00:00:00 GMT\r\n";
        let (address, _) = scripted(&runtime, &[&problem(503, "store_unavailable", date), CANCELLED]).await;
        client(address, "a.b").cancel("any").await.unwrap();
    });
}

#[test]
fn client_calls_the_on_retry_function_before_each_wait() {
    static WAITS: AtomicUsize = AtomicUsize::new(0);
    on_real(async |runtime| {
        let busy = problem(429, "rate_limited", "retry-after: 1\r\n");
        let (address, _) = scripted(&runtime, &[&busy, CANCELLED]).await;
        let on_retry = |error: &Error, wait: Duration| {
            assert_eq!(error.code(), Some("rate_limited"));
            assert!(wait >= Duration::from_secs(1));
            WAITS.fetch_add(1, Ordering::Relaxed);
        };
        let options = Options { on_retry: Some(on_retry), ..Options::default() };
        Client::new(&format!("http://{address}"), "a.b", options).unwrap().cancel("any").await.unwrap();
        assert_eq!(WAITS.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn client_never_repeats_the_creation_of_a_signing_secret() {
    on_real(async |runtime| {
        let broken = "HTTP/1.1 201 Created\r\ncontent-length: 999\r\n\r\n{";
        let (address, asked) = scripted(&runtime, &[broken, broken]).await;
        let error = client(address, "a.b").create_signing_secret("shop").await.unwrap_err();
        assert!(matches!(error, Error::Broken { .. }), "{error:?}");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn call_without_response_ends_within_the_deadline() {
    on_real(async |runtime| {
        let (address, asked) = scripted(&runtime, &[]).await;
        let limit = Duration::from_millis(100);
        let options = Options { attempt_timeout: limit, deadline: 3 * limit, ..Options::default() };
        let hurried = Client::new(&format!("http://{address}"), "a.b", options).unwrap();
        let ended = runtime.timeout(TEST_TIMEOUT, hurried.get("any")).await.expect("the call ends");
        assert!(matches!(ended.unwrap_err(), Error::TimedOut { .. }));
        assert!(asked.load(Ordering::Relaxed) >= 2, "the client sent the request again");

        let options = Options { attempts_max: 2, ..Options::default() };
        let unreachable = Client::new("http://127.0.0.1:9", "a.b", options).unwrap();
        let error = unreachable.create(&later()).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }) && !error.is_outcome_unknown(), "{error:?}");
        assert!(error.to_string().contains("http://127.0.0.1:9"), "{error}");
    });
}

#[test]
fn client_reports_unknown_outcome_if_retry_cannot_connect() {
    on_real(async |runtime| {
        let options = Options { attempts_max: 3, ..Options::default() };
        let address = once_and_gone(&runtime).await;
        let client = Client::new(&format!("http://{address}"), "a.b", options).unwrap();
        let error = client.put("any", &later()).await.unwrap_err();
        assert!(matches!(error, Error::Broken { .. }) && error.is_outcome_unknown(), "{error:?}");
    });
}

#[test]
fn error_quotes_the_response_of_a_server_other_than_reveille() {
    on_real(async |runtime| {
        let html = "HTTP/1.1 404 Not Found\r\ncontent-type: text/html\r\ncontent-length: 15\r\n\r\n<h1>nginx</h1>!";
        let (address, _) = scripted(&runtime, &[html]).await;
        let error = client(address, "a.b").get("any").await.unwrap_err();
        assert!(error.to_string().contains("nginx") && error.status() == Some(404), "{error}");

        let moved = "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
        let (address, _) = scripted(&runtime, &[moved]).await;
        assert_eq!(client(address, "a.b").get("any").await.unwrap_err().status(), Some(302), "no redirect followed");

        let words = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
        let (address, _) = scripted(&runtime, &[words]).await;
        let error = client(address, "a.b").get("any").await.unwrap_err();
        assert!(matches!(error, Error::Unreadable { .. }), "{error:?}");

        let endless = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(5_000));
        let (address, _) = scripted(&runtime, &[&endless]).await;
        let options = Options { answer_bytes_max: 4_096, ..Options::default() };
        let error = Client::new(&format!("http://{address}"), "a.b", options).unwrap().get("any").await.unwrap_err();
        assert!(matches!(error, Error::TooLarge { bytes_max: 4_096 }), "{error:?}");
    });
}

#[test]
fn conversion_of_a_system_time_rounds_up_to_whole_milliseconds() {
    let instant = std::time::SystemTime::UNIX_EPOCH + Duration::from_nanos(1_000_001);
    assert_eq!(Time::from(instant), Time(2));
    assert_eq!(Time(5) + Duration::from_secs(1), Time(1_005));
}
