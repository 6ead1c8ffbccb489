//! Tests of excerpts of responses: the setting of a tenant, and the fields of attempts.

use std::sync::Arc;

use domain::limits::EXCERPT_BYTES_MAX;
use domain::{AttemptResult, Secret};
use futures_util::future::{BoxFuture, FutureExt, ready};
use runtime::Runtime;
use scheduler::{Deliver, Delivered, Delivery};
use serde_json::{Value, json};
use server::Options;
use store::encryption::Place;
use store::{Keyring, StoreKey};

use crate::support::{FOREIGN_KEY, KEY, OPERATOR_KEY, World};

const TENANT: &str = "/v1/tenants/tenant-1";
const ON: &str = r#"{"excerpts":true}"#;
const OFF: &str = r#"{"excerpts":false}"#;

/// Target that answers 500 with the body whose bytes the payload lists. The excerpt is encrypted if the target has a
/// keyring. The attempt with the number 2 has the excerpt of another attempt.
struct Listed {
    runtime: Runtime,
    keyring: Option<Arc<Keyring>>,
}

impl Deliver for Listed {
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'static, Option<Delivered>> {
        let mut bytes: Vec<u8> = serde_json::from_slice(&delivery.schedule.spec.payload).unwrap();
        bytes.truncate(EXCERPT_BYTES_MAX);
        let plain = Secret::from(bytes);
        let run = delivery.occurrence.run_id();
        let attempt = if delivery.attempt == 2 { 7 } else { delivery.attempt };
        let place = Place::Excerpt { tenant: delivery.tenant.id, run: &run, attempt };
        let excerpt = match &self.keyring {
            Some(keyring) => keyring.encrypt(&self.runtime, place, &plain),
            None => plain,
        };
        let excerpt = delivery.tenant.excerpts.then_some(excerpt);
        ready(Some(Delivered { result: AttemptResult::Answered(500), retry_after: None, excerpt })).boxed()
    }
}

async fn start(keyring: Option<Arc<Keyring>>) -> World {
    let runtime = Runtime::real();
    let options = Options { keyring: keyring.clone().unwrap_or_default(), ..Options::default() };
    World::start_on(runtime.clone(), Arc::new(Listed { runtime, keyring }), options).await
}

async fn set(world: &World, key: &str, body: &str) -> u16 {
    world.send_as(key, "PATCH", TENANT, body).await.status
}

/// Creates a schedule whose target answers with `bytes`.
async fn create(world: &World, id: &str, bytes: &[u8], attempts_max: usize) {
    let schedule = json!({
        "id": id, "at": world.runtime.now().to_string(), "payload": bytes,
        "retry": { "attempts_max": attempts_max, "backoff": "1ms", "backoff_max": "1ms" },
        "target": { "http": { "url": "http://127.0.0.1:9/" } },
    });
    let created = world.send("POST", "/v1/schedules", &schedule.to_string()).await;
    assert_eq!(created.status, 201, "{}", created.body);
}

/// Fires a schedule whose target answers with `bytes`, and returns the attempts of its run.
async fn attempts(world: &World, id: &str, bytes: &[u8], attempts_max: usize) -> Vec<Value> {
    create(world, id, bytes, attempts_max).await;
    loop {
        let runs = world.send("GET", &format!("/v1/schedules/{id}/runs"), "").await.json();
        if runs["runs"][0]["state"] == "failed" {
            let run = world.send("GET", &format!("/v1/runs/{}", runs["runs"][0]["id"].as_str().unwrap()), "").await;
            assert_eq!(run.json(), runs["runs"][0], "the page and the run contain the same excerpts");
            return runs["runs"][0]["attempts"].as_array().unwrap().clone();
        }
        tokio::task::yield_now().await;
    }
}

/// Returns the field of the excerpt of one attempt, and its value.
fn shown(attempt: &Value) -> Option<(&'static str, String)> {
    let fields = ["excerpt", "excerpt_base64"].map(|name| (name, attempt.get(name)));
    let mut present = fields.into_iter().filter_map(|(name, value)| Some((name, value?.as_str()?.to_owned())));
    let first = present.next();
    assert_eq!(present.next(), None, "an attempt has at most one of the fields");
    first
}

#[tokio::test]
async fn admin_switches_excerpts_which_are_off_by_default() {
    let world = start(None).await;
    let body = b"out of paper";
    assert_eq!(shown(&attempts(&world, "default", body, 1).await[0]), None);
    assert_eq!(world.send("GET", TENANT, "").await.json()["excerpts"], json!(false));

    assert_eq!(set(&world, KEY, ON).await, 200);
    assert_eq!(world.send("GET", TENANT, "").await.json()["excerpts"], json!(true));
    assert_eq!(shown(&attempts(&world, "on", body, 1).await[0]), Some(("excerpt", "out of paper".to_owned())));

    for off in [OFF, r#"{"excerpts":null}"#] {
        assert_eq!(set(&world, KEY, off).await, 200);
        let id = format!("off{}", off.len());
        assert_eq!(shown(&attempts(&world, &id, body, 1).await[0]), None);
        assert_eq!(set(&world, OPERATOR_KEY, ON).await, 200);
    }
    let old = world.send("GET", "/v1/schedules/on/runs", "").await.json();
    assert_eq!(old["runs"][0]["attempts"][0]["excerpt"], "out of paper", "the switch keeps stored excerpts");
    let audit = world.send("GET", &format!("{TENANT}/audit"), "").await.body;
    assert!(audit.contains("excerpts false -> true") && audit.contains("excerpts true -> false"), "{audit}");
    world.stop().await;
}

#[tokio::test]
async fn only_admins_and_operators_may_switch_excerpts() {
    let world = start(None).await;
    let mut keys = Vec::new();
    for role in ["reader", "writer"] {
        let created = world.send("POST", &format!("{TENANT}/keys"), &json!({ "role": role }).to_string()).await;
        keys.push(created.text("/secret"));
    }
    for key in &keys {
        assert_eq!(set(&world, key, ON).await, 403);
    }
    assert_eq!(set(&world, FOREIGN_KEY, ON).await, 404);
    for more in [
        "{}",
        r#"{"quotas":{}}"#,
        r#"{"excerpts":true,"quotas":{"pending_max":7}}"#,
        r#"{"excerpts":true,"ceilings":{"pending_max":7}}"#,
        r#"{"excerpts":true,"egress":{"allow":[]}}"#,
        r#"{"excerpts":true,"egress":null}"#,
    ] {
        let rejected = world.send_as(KEY, "PATCH", TENANT, more).await;
        assert_eq!((rejected.status, rejected.text("/code").as_str()), (403, "role_forbidden"), "{more}");
    }
    for wrong in [r#"{"excerpts":"on"}"#, r#"{"excerpts":1}"#, r#"{"excerpt":true}"#] {
        assert_eq!(set(&world, KEY, wrong).await, 422, "{wrong}");
    }
    assert_eq!(world.send("GET", TENANT, "").await.json()["excerpts"], json!(false));

    assert_eq!(set(&world, KEY, ON).await, 200);
    attempts(&world, "read", b"for readers", 1).await;
    for key in &keys {
        let runs = world.send_as(key, "GET", "/v1/schedules/read/runs", "").await;
        assert_eq!(runs.json()["runs"][0]["attempts"][0]["excerpt"], "for readers");
    }
    for (key, status) in [(FOREIGN_KEY, 404), (OPERATOR_KEY, 403), ("ours.wrong", 401)] {
        let runs = world.send_as(key, "GET", "/v1/schedules/read/runs", "").await;
        assert!(runs.status == status && !runs.body.contains("for readers"), "{}", runs.body);
    }
    world.stop().await;
}

#[tokio::test]
async fn excerpt_is_text_only_if_it_is_safe_text() {
    let world = start(None).await;
    assert_eq!(set(&world, KEY, ON).await, 200);
    let cut = [vec![b'a'; EXCERPT_BYTES_MAX - 1], "\u{20ac}uro".as_bytes().to_vec()].concat();
    let cut_text = "a".repeat(EXCERPT_BYTES_MAX - 1);
    let texts: [(&str, &[u8], &str); 4] = [
        ("lines", b"one\ttwo\r\n\"three\"\\", "one\ttwo\r\n\"three\"\\"),
        ("unicode", "h\u{e4}\u{1f512}\u{202e}".as_bytes(), "h\u{e4}\u{1f512}\u{202e}"),
        ("cut", &cut, &cut_text),
        ("script", b"<script>alert(1)</script>", "<script>alert(1)</script>"),
    ];
    for (id, bytes, text) in texts {
        assert_eq!(shown(&attempts(&world, id, bytes, 1).await[0]), Some(("excerpt", text.to_owned())), "{id}");
    }
    for (id, bytes, base64) in [
        ("escape", b"\x1b[2J".as_slice(), "G1sySg=="),
        ("nul", b"a\0", "YQA="),
        ("delete", b"\x7f", "fw=="),
        ("c1", "\u{9b}2J".as_bytes(), "wpsySg=="),
        ("latin", b"\xe4", "5A=="),
        ("short-cut", b"a\xe2\x82", "YeKC"),
        ("gzip", b"\x1f\x8b\x08\x00", "H4sIAA=="),
    ] {
        let found = shown(&attempts(&world, id, bytes, 1).await[0]);
        assert_eq!(found, Some(("excerpt_base64", base64.to_owned())), "{id}");
    }
    assert_eq!(shown(&attempts(&world, "empty", b"", 1).await[0]), Some(("excerpt", String::new())));
    world.stop().await;
}

#[tokio::test]
async fn excerpt_of_another_attempt_is_not_shown() {
    let (key, _) = StoreKey::generate(&Runtime::real());
    let world = start(Some(Arc::new(Keyring::new(vec![key])))).await;
    assert_eq!(set(&world, KEY, ON).await, 200);
    let attempts = attempts(&world, "moved", b"secret", 3).await;
    let secret = Some(("excerpt", "secret".to_owned()));
    assert_eq!(attempts.iter().map(shown).collect::<Vec<_>>(), [secret.clone(), None, secret]);
    world.stop().await;
}

/// Number of runs whose excerpts do not fit on one page.
const RUNS: u64 = 80;

#[tokio::test]
async fn page_with_long_excerpts_ends_early_and_loses_no_run() {
    let world = start(None).await;
    assert_eq!(set(&world, KEY, ON).await, 200);
    let body = vec![b'"'; EXCERPT_BYTES_MAX];
    for number in 0..RUNS {
        create(&world, &format!("long{number}"), &body, 16).await;
    }
    while world.send("GET", "/v1/schedules:count", "").await.json()["ended"] != RUNS {
        tokio::task::yield_now().await;
    }
    let run = world.send("GET", "/v1/schedules/long0/runs", "").await.json();
    let excerpts = run["runs"][0]["attempts"].as_array().unwrap().iter().map(|one| one["excerpt"].as_str().unwrap());
    assert_eq!(excerpts.map(str::len).collect::<Vec<_>>(), [EXCERPT_BYTES_MAX; domain::limits::ATTEMPTS_KEPT]);
    for list in ["/v1/runs?from=2000-01-01T00:00:00Z&limit=1000", "/v1/runs?dead_letter=true&limit=1000"] {
        let (mut ids, mut pages, mut token) = (Vec::new(), 0, String::new());
        loop {
            let page = world.send("GET", &format!("{list}{token}"), "").await;
            assert!(page.status == 200 && page.body.len() < 4 << 20, "{} bytes", page.body.len());
            let page = page.json();
            ids.extend(page["runs"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()));
            pages += 1;
            let Some(next) = page["next_page_token"].as_str() else { break };
            token = format!("&page_token={next}");
        }
        let count = ids.len() as u64;
        ids.sort();
        ids.dedup();
        assert_eq!((count, ids.len() as u64), (RUNS, RUNS), "{list}");
        assert!(pages >= 2, "{list}: {pages} pages");
    }
    world.stop().await;
}
