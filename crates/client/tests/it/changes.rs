//! Tests of merge patches and conditional changes.

use std::time::Duration;

use reveille_client::{Condition, SchedulePatch, ScheduleRequest, ScheduleState, Tag};
use serde_json::json;

use crate::support::{ADMIN_KEY, World, client, later, losing, on_real};

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn patch_changes_only_the_fields_that_it_names() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let client = world.client();
        let request = later().payload(&json!({"a": 1, "b": 2})).unwrap().label("team", "red").label("old", "yes");
        client
            .put("one", &request.header("x-a", "1").header("x-b", "2").retry(3, Duration::from_secs(2)))
            .await
            .unwrap();
        let patch = SchedulePatch::new()
            .cron("0 9 * * 1")
            .zone("Europe/Berlin")
            .label("team", "blue")
            .without_label("old")
            .without_header("x-a")
            .timeout(Duration::from_secs(3))
            .payload(&json!({"b": 3}))
            .unwrap();
        let updated = client.update("one", &patch).await.unwrap();
        assert_eq!((updated.schedule.revision, updated.schedule.state), (1, ScheduleState::Active));
        let read = client.get("one").await.unwrap();
        assert_eq!(
            (read.at, read.cron.as_deref(), read.zone.as_deref()),
            (None, Some("0 9 * * 1"), Some("Europe/Berlin"))
        );
        assert_eq!(read.labels.into_iter().collect::<Vec<_>>(), [("team".to_owned(), "blue".to_owned())]);
        assert_eq!(read.payload.unwrap().get(), r#"{"a":1,"b":3}"#);
        assert_eq!((read.retry.attempts_max, read.retry.backoff.as_str()), (3, "2s"));
        let target = read.target.http().unwrap();
        assert_eq!(
            (target.headers.keys().map(String::as_str).collect::<Vec<_>>(), target.timeout.as_str()),
            (vec!["x-b"], "3s")
        );
        client.update("one", &SchedulePatch::new().without_payload()).await.unwrap();
        assert!(client.get("one").await.unwrap().payload.is_none());
        assert_eq!(client.update("two", &patch).await.unwrap_err().code(), Some("schedule_not_found"));
        client.cancel("one").await.unwrap();
        assert_eq!(client.update("one", &patch).await.unwrap_err().code(), Some("schedule_over"));
        world.stop().await;
    });
}

#[test]
fn server_rejects_a_change_whose_precondition_does_not_hold() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let client = world.client();
        let code = |error: reveille_client::Error| error.code().unwrap_or_default().to_owned();
        let created = client.put_if("one", &later(), &Condition::Absent).await.unwrap();
        let absent = client.put_if("one", &later(), &Condition::Absent).await.unwrap_err();
        assert_eq!(code(absent), "precondition_failed");
        let (_, tag) = client.get_tagged("one").await.unwrap();
        assert_eq!(created.tag, tag);
        let seen = Condition::Is(tag.unwrap());
        let moved = client.update_if("one", &SchedulePatch::new().every(HOUR), &seen).await.unwrap();
        let mine = SchedulePatch::new().every(2 * HOUR);
        assert_eq!(code(client.update_if("one", &mine, &seen).await.unwrap_err()), "precondition_failed");
        assert_eq!(code(client.put_if("one", &later(), &seen).await.unwrap_err()), "precondition_failed");
        assert_eq!(code(client.cancel_if("one", &seen).await.unwrap_err()), "precondition_failed");
        assert_eq!(client.get("one").await.unwrap().every.as_deref(), Some("1h"));
        let seen = Condition::Is(moved.tag.unwrap());
        let put = client.put_if("one", &later(), &seen).await.unwrap();
        client.update_if("one", &mine, &Condition::Exists).await.unwrap();
        assert_eq!(
            code(client.cancel_if("one", &Condition::Is(put.tag.unwrap())).await.unwrap_err()),
            "precondition_failed"
        );
        client.cancel_if("one", &Condition::Exists).await.unwrap();
        assert_eq!(code(client.update_if("two", &mine, &Condition::Exists).await.unwrap_err()), "schedule_not_found");
        world.stop().await;
    });
}

#[test]
fn client_repeats_only_unconditional_changes_after_a_lost_response() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        world.client().put("one", &later()).await.unwrap();
        let unlucky = client(losing(&runtime, world.address, 2).await, ADMIN_KEY);
        let updated = unlucky.update("one", &SchedulePatch::new().label("a", "b")).await.unwrap();
        assert!(updated.schedule.revision > 1, "the client sends the request again");
        let unlucky = client(losing(&runtime, world.address, 1).await, ADMIN_KEY);
        let seen = Condition::Is(updated.tag.unwrap());
        let error = unlucky.update_if("one", &SchedulePatch::new().label("a", "c"), &seen).await.unwrap_err();
        assert!(error.is_outcome_unknown(), "{error:?}");
        assert_eq!(world.client().get("one").await.unwrap().labels["a"], "c");
        world.stop().await;
    });
}

#[test]
fn dry_run_returns_the_result_and_changes_nothing() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let client = world.client();
        let dry = client.dry_run(&ScheduleRequest::every(HOUR, "http://127.0.0.1:9/")).await.unwrap();
        assert_eq!((dry.status, dry.upcoming.len(), dry.upcoming.first()), (201, 5, dry.schedule.next.as_ref()));
        assert_eq!(client.get(&dry.schedule.id).await.unwrap_err().code(), Some("schedule_not_found"));
        assert_eq!(client.dry_run_put("one", &later()).await.unwrap().status, 201);
        client.put("one", &later()).await.unwrap();
        assert_eq!(client.dry_run_put("one", &later()).await.unwrap().status, 200);
        let dry = client.dry_run_update("one", &SchedulePatch::new().every(2 * HOUR)).await.unwrap();
        assert_eq!((dry.schedule.every.as_deref(), dry.schedule.revision), (Some("2h"), 1));
        assert_eq!(client.get("one").await.unwrap().revision, 0);
        assert_eq!(client.dry_run(&later().id("one")).await.unwrap_err().code(), Some("schedule_exists"));
        world.stop().await;
    });
}

#[test]
fn etag_parser_accepts_only_quoted_text() {
    assert_eq!(r#" "a1" "#.parse::<Tag>().unwrap().to_string(), r#""a1""#);
    for text in ["", "a", "\"", "W/\"a\"", "\"a\"b\"", "\"a b\"", "\"ü\"", "*"] {
        assert!(text.parse::<Tag>().is_err(), "{text:?}");
    }
}
