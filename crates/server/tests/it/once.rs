//! POST with an `Idempotency-Key`.

use std::sync::Arc;

use domain::ShardId;
use domain::id::SHARDS;
use futures_util::future::join_all;
use store::{Cursor, Store};

use crate::support::{FOREIGN_KEY, KEY, Response, World, body};

const POST: &str = "/v1/schedules";

async fn post(world: &World, key: &str, sent: &str) -> Response {
    world.send_if("POST", POST, &[("idempotency-key", key)], sent).await
}

/// Returns the parts of a response that stay the same when the client repeats the request.
fn visible_parts(response: &Response) -> (u16, String, Option<String>, Option<String>) {
    let header = |name: &str| response.header(name).map(str::to_owned);
    (response.status, response.body.clone(), header("location"), header("etag"))
}

fn is_replayed(response: &Response) -> bool {
    response.header("idempotent-replayed") == Some("true")
}

#[tokio::test]
async fn server_returns_the_first_response_to_a_repeated_request() {
    let world = World::start().await;
    let sent = r#"{"every":"1h","target":{"http":{"url":"http://127.0.0.1:9/200"}}}"#;
    let first = post(&world, "key-1", sent).await;
    assert_eq!((first.status, is_replayed(&first)), (201, false));
    for key in ["key-1", "\"key-1\""] {
        let again = post(&world, key, sent).await;
        assert_eq!(visible_parts(&again), visible_parts(&first));
        assert!(is_replayed(&again));
    }
    let other = post(&world, "key-2", sent).await;
    assert_ne!(other.text("/id"), first.text("/id"), "another key creates another schedule");
    let path = first.header("location").unwrap();

    // Later changes of the schedule do not change the response to a repeated request.
    world.send("PATCH", path, r#"{"cron":"0 7 * * *"}"#).await;
    assert_eq!(visible_parts(&post(&world, "key-1", sent).await), visible_parts(&first));
    world.send("DELETE", path, "").await;
    assert_eq!(visible_parts(&post(&world, "key-1", sent).await), visible_parts(&first));
    let now = world.send("GET", path, "").await;
    assert_eq!(
        (now.text("/state"), now.text("/revision")),
        ("cancelled".to_owned(), "2".to_owned()),
        "the schedule stays cancelled"
    );
    world.stop().await;
}

#[tokio::test]
async fn server_accepts_a_repeated_request_whose_instant_is_now_too_old() {
    let world = World::start().await;
    let soon = domain::Timestamp::from_millis(world.runtime.now().as_millis() - 59_700).to_string();
    let sent = body("").replace("2035-01-02T03:04:05Z", &soon).replace("/hook", "/200");
    let first = post(&world, "key-1", &sent).await;
    assert_eq!(first.status, 201, "{}", first.body);
    while world.send("POST", POST, &sent).await.status != 422 {
        world.runtime.sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(
        visible_parts(&post(&world, "key-1", &sent).await),
        visible_parts(&first),
        "the instant is too far in the past by now"
    );
    world.stop().await;
}

#[tokio::test]
async fn server_rejects_another_body_with_a_used_idempotency_key() {
    let world = World::start().await;
    let first = post(&world, "key-1", &body("")).await;
    for other in [body(r#","labels":{}"#), body(" "), "{}".to_owned(), "no JSON".to_owned(), String::new()] {
        let rejected = post(&world, "key-1", &other).await;
        assert_eq!((rejected.status, rejected.text("/code")), (422, "idempotency_key_reused".to_owned()), "{other}");
    }
    assert_eq!(world.send("GET", first.header("location").unwrap(), "").await.text("/revision"), "0");
    // A client can use the idempotency key of a rejected request again.
    assert_eq!(post(&world, "key-2", "{}").await.text("/code"), "invalid_schedule");
    assert_eq!(post(&world, "key-2", &body("")).await.status, 201);
    world.stop().await;
}

#[tokio::test]
async fn requests_that_share_an_idempotency_key_create_one_schedule() {
    let world = World::start().await;
    for round in 0..5 {
        let (key, sent) = (format!("key-{round}"), body(""));
        let responses = join_all((0..10).map(|_| post(&world, &key, &sent))).await;
        assert!(
            responses.iter().all(|response| visible_parts(response) == visible_parts(&responses[0])),
            "{responses:?}"
        );
        assert_eq!(responses.iter().filter(|response| !is_replayed(response)).count(), 1);

        let bodies: Vec<String> = (0..10).map(|number| body(&format!(r#","labels":{{"n":"{number}"}}"#))).collect();
        let key = format!("other-{round}");
        let responses = join_all(bodies.iter().map(|sent| post(&world, &key, sent))).await;
        let mut statuses: Vec<u16> = responses.iter().map(|response| response.status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [201, 422, 422, 422, 422, 422, 422, 422, 422, 422]);
    }
    world.stop().await;
}

#[tokio::test]
async fn server_with_a_full_disk_still_answers_a_repeated_request() {
    let world = World::start().await;
    let first = post(&world, "key-1", &body("")).await;
    let path = first.header("location").unwrap();
    world.store.set_health(store::Health::Full);
    assert_eq!(visible_parts(&post(&world, "key-1", &body("")).await), visible_parts(&first));
    let put = world.send_if("PUT", path, &[("if-none-match", "*")], &body("")).await;
    assert_eq!(put.text("/code"), "precondition_failed", "the schedule exists");
    assert_eq!(world.send("POST", POST, &body("")).await.status, 507);
    world.stop().await;
}

#[tokio::test]
async fn dry_run_of_a_repeated_request_shows_the_original_schedule() {
    let world = World::start().await;
    let sent = r#"{"every":"1h","target":{"http":{"url":"http://127.0.0.1:9/200"}},"labels":{"a":"1"}}"#;
    let first = post(&world, "key-1", sent).await;
    let path = first.header("location").unwrap();
    world.send("PATCH", path, r#"{"labels":{"a":"2"}}"#).await;
    let before = world.send("GET", path, "").await;
    let shards: Arc<[ShardId]> = (0..SHARDS).map(ShardId).collect();
    let (_, cursor) = world.store.insert_log(shards.clone(), Cursor::default(), 1_000).await.unwrap();

    let dry = world.send_if("POST", "/v1/schedules?dry_run=true", &[("idempotency-key", "key-1")], sent).await;
    assert_eq!((dry.status, dry.text("/dry_run"), dry.text("/status")), (200, "true".to_owned(), "201".to_owned()));
    assert_eq!((dry.header("location"), dry.header("etag"), is_replayed(&dry)), (None, None, false));
    assert_eq!((dry.text("/schedule/id"), dry.text("/schedule/next")), (first.text("/id"), first.text("/next")));
    assert_eq!((dry.text("/schedule/revision"), dry.text("/schedule/labels/a")), ("0".to_owned(), "1".to_owned()));
    let put = format!("{path}?dry_run=true");
    assert_eq!(world.send_if("PUT", &put, &[("if-none-match", "*")], sent).await.text("/code"), "precondition_failed");
    assert_eq!(world.store.insert_log(shards, cursor, 1_000).await.unwrap().0, []);
    assert_eq!(world.send("GET", path, "").await.body, before.body);
    world.stop().await;
}

#[tokio::test]
async fn tenants_have_separate_idempotency_keys() {
    let world = World::start().await;
    let first = post(&world, "key-1", &body("")).await;
    let headers =
        format!("authorization: Bearer {FOREIGN_KEY}\r\ncontent-type: application/json\r\nidempotency-key: key-1\r\n");
    let sent = body(r#","labels":{}"#);
    let foreign = world.connect().await.request("POST", POST, &headers, sent.as_bytes()).await;
    assert_eq!((foreign.status, is_replayed(&foreign)), (201, false));
    assert_ne!(foreign.text("/id"), first.text("/id"));
    world.stop().await;
}

#[tokio::test]
async fn server_rejects_invalid_idempotency_key() {
    let world = World::start().await;
    for bad in ["", "\"", "a b", "\"\"", "é", &*"x".repeat(256), &*"x".repeat(12_000)] {
        let rejected = post(&world, bad, &body("")).await;
        assert_eq!((rejected.status, rejected.text("/code")), (400, "invalid_parameter".to_owned()), "{bad:.20}");
        assert_eq!(rejected.text("/errors/0/parameter"), "Idempotency-Key");
    }
    let twice = world.send_if("POST", POST, &[("idempotency-key", "a"), ("idempotency-key", "a")], &body("")).await;
    assert_eq!(twice.text("/errors/0/code"), "invalid_idempotency_key");
    let named = post(&world, "key-1", &body(r#","id":"invoice-7""#)).await;
    assert_eq!(named.errors(), [("/id".to_owned(), "conflicting_fields".to_owned())]);
    assert_eq!(world.send("GET", "/v1/schedules/invoice-7", "").await.status, 404);

    let dry = world.send_if("POST", "/v1/schedules?dry_run=true", &[("idempotency-key", "key-1")], &body("")).await;
    assert_eq!(dry.text("/status"), "201");
    let first = post(&world, "key-1", &body("")).await;
    assert_eq!((first.status, is_replayed(&first)), (201, false), "a dry run does not use the key up");
    assert_eq!(dry.text("/schedule/id"), first.text("/id"));
    let unauthorized = world.send_as(&KEY.replace('.', ".x"), "POST", POST, &body("")).await;
    assert_eq!(unauthorized.status, 401);
    world.stop().await;
}
