//! Tests of the SDK calls for single schedules and their runs.

use std::time::Duration;

use reveille_client::api::{self, CancelResult};
use reveille_client::{
    Error, ListBy, Order, RunQuery, SchedulePatch, ScheduleRequest, ScheduleState, Time, TryStreamExt as _,
};
use serde_json::json;

use crate::support::{ADMIN_KEY, World, client, later, on_real};

#[test]
fn client_creates_reads_replaces_and_cancels_a_schedule() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let client = world.client();
        let request = ScheduleRequest::cron("0 9 * * MON-FRI", "http://127.0.0.1:9/report")
            .zone("Europe/Berlin")
            .payload(&json!({"b": 1, "a": "ü\n"}))
            .unwrap()
            .label("team", "billing")
            .header("x-team", "billing")
            .retry(3, Duration::from_secs(2));
        // 2030-01-01T00:00:00Z is a Tuesday.
        let preview = client.preview(&request, 2, Some(Time(1_893_456_000_000))).await.unwrap();
        let local: Vec<&str> = preview.occurrences.iter().map(|occurrence| occurrence.local.as_str()).collect();
        assert_eq!(local, ["2030-01-01T09:00:00.000+01:00", "2030-01-02T09:00:00.000+01:00"]);
        let created = client.create(&request).await.unwrap();
        assert_eq!((created.state, created.revision), (ScheduleState::Active, 0));
        let read = client.get(&created.id).await.unwrap();
        assert_eq!(read.cron.as_deref(), Some("0 9 * * MON-FRI"));
        assert_eq!(read.zone.as_deref(), Some("Europe/Berlin"));
        assert_eq!(read.payload.as_ref().unwrap().get(), r#"{"a":"ü\n","b":1}"#);
        assert_eq!(read.labels["team"], "billing");
        let target = read.target.http().unwrap();
        assert!(target.headers.contains_key("x-team"));
        assert_eq!((read.retry.attempts_max, read.retry.backoff.as_str()), (3, "2s"));

        let put = client.put(&created.id, &later()).await.unwrap();
        assert_eq!((put.created, put.schedule.revision), (false, 1));
        assert!(client.put("chosen-id", &later()).await.unwrap().created);
        assert_eq!(client.cancel(&created.id).await.unwrap().result, CancelResult::Cancelled);
        assert_eq!(client.get(&created.id).await.unwrap().state, ScheduleState::Cancelled);
        world.stop().await;
    });
}

#[test]
fn client_moves_a_schedule_between_a_url_and_topics() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let client = world.client();
        let request = later().to_topic("orders").header("x-team", "billing").timeout(Duration::from_secs(3));
        let created = client.create(&request).await.unwrap();
        let target = async || client.get(&created.id).await.unwrap().target;
        let bus = target().await.bus().cloned().unwrap();
        assert_eq!((bus.topic.as_str(), bus.key, bus.timeout.as_str()), ("orders", None, "3s"));
        assert!(bus.headers.contains_key("x-team"));
        assert!(target().await.http().is_none());

        client.update(&created.id, &SchedulePatch::new().url("https://example.org/hook")).await.unwrap();
        assert_eq!(target().await.http().map(|http| http.headers.len()), Some(0));
        client.update(&created.id, &SchedulePatch::new().topic("orders-eu")).await.unwrap();
        assert_eq!(target().await.bus().map(|bus| bus.topic.clone()).as_deref(), Some("orders-eu"));
        let error = client.create(&later().to_topic("payments")).await.unwrap_err();
        assert_eq!(error.field_errors()[0].code, "egress_refused");
        world.stop().await;
    });
}

#[test]
fn client_lists_all_matching_schedules_in_the_requested_order() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let client = world.client();
        for number in 0..120 {
            let request = later().id(format!("n{number}")).label("team & all", ["a=b", "c"][number % 2]);
            client.create(&request).await.unwrap();
        }
        client.cancel("n7").await.unwrap();
        let count = async |by| {
            let ids: std::collections::BTreeSet<String> =
                client.schedules(&by, Order::Oldest).map_ok(|schedule| schedule.id).try_collect().await.unwrap();
            ids.len()
        };
        assert_eq!(count(ListBy::All).await, 120);
        assert_eq!(count(ListBy::State(ScheduleState::Active)).await, 119);
        assert_eq!(count(ListBy::State(ScheduleState::Cancelled)).await, 1);
        assert_eq!(count(ListBy::State(ScheduleState::Ended)).await, 0);
        let (name, value) = ("team & all".to_owned(), "a=b".to_owned());
        assert_eq!(count(ListBy::Label { name, value }).await, 60);
        let next = client.get("n0").await.unwrap().next.unwrap();
        let due = |from| ListBy::Due { from, until: next + Duration::from_secs(60) };
        assert_eq!(count(due(next)).await, 119);
        assert_eq!(count(due(next + Duration::from_millis(1))).await, 0);
        let in_order = async |by: ListBy, order| {
            let ids = client.schedules(&by, order).map_ok(|schedule| schedule.id);
            ids.try_collect::<Vec<String>>().await.unwrap()
        };
        for by in [ListBy::All, ListBy::State(ScheduleState::Active)] {
            let mut newest = in_order(by.clone(), Order::Newest).await;
            newest.reverse();
            assert_eq!(newest, in_order(by, Order::Oldest).await);
        }
        for by in [ListBy::All, ListBy::State(ScheduleState::Active)] {
            let mut sorted = in_order(by.clone(), Order::Oldest).await;
            sorted.sort();
            assert_eq!(in_order(by, Order::Id).await, sorted);
        }
        let (name, value) = ("team & all".to_owned(), "c".to_owned());
        let rejected = client.schedules(&ListBy::Label { name, value }, Order::Id).try_next().await.unwrap_err();
        assert_eq!(rejected.code(), Some("invalid_parameter"));
        let rejected = client.schedules(&due(next), Order::Newest).try_next().await.unwrap_err();
        assert_eq!(rejected.code(), Some("invalid_parameter"));
        assert_eq!(client.count_schedules().await.unwrap().active, 119);
        let page = client.schedule_page(&ListBy::All, Order::Newest, 7, None).await.unwrap();
        assert!(page.schedules.len() == 7 && page.next_page_token.is_some());
        world.stop().await;
    });
}

#[test]
fn rejection_contains_a_code_a_request_id_and_all_field_errors() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let client = world.client();
        let request = ScheduleRequest::cron("1 fortnight", "mailto:me").zone("Mars/Olympus");
        let error = client.create(&request).await.unwrap_err();
        assert_eq!((error.code(), error.status()), (Some("invalid_schedule"), Some(422)));
        assert!(error.request_id().is_some() && !error.is_retryable() && !error.is_outcome_unknown());
        let pointers: Vec<_> = error.field_errors().iter().filter_map(|error| error.pointer.as_deref()).collect();
        assert!(pointers.contains(&"/cron") && pointers.contains(&"/target/http/url"), "{pointers:?}");

        let known = later().id("known");
        client.create(&known).await.unwrap();
        assert_eq!(client.create(&known).await.unwrap_err().code(), Some("schedule_exists"));
        assert_eq!(client.get("unknown").await.unwrap_err().code(), Some("schedule_not_found"));
        assert_eq!(world.client_as("admins.wrong").get("known").await.unwrap_err().code(), Some("invalid_credentials"));
        world.stop().await;
    });
}

#[test]
fn client_escapes_schedule_id_as_one_path_segment() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let client = world.client();
        client.put("known", &later()).await.unwrap();
        for id in ["../schedules/known", "known/runs", "known?limit=1", "known#a", ".", "..", "%6bnown", "ü", "a b\r\n"]
        {
            let error = client.get(id).await.unwrap_err();
            assert!(matches!(error.status(), Some(400 | 404)), "{id:?}: {error:?}");
            assert!(matches!(error, Error::Rejected(_)), "{id:?}: {error:?}");
            assert!(client.runs(id).try_next().await.is_err(), "{id:?}");
        }
        world.stop().await;
    });
}

#[test]
fn client_returns_the_time_of_the_server() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let earliest = runtime.now().as_millis() / 1_000 * 1_000;
        let time = world.client().server_time().await.unwrap().unwrap();
        assert!((earliest..=runtime.now().as_millis()).contains(&time.0), "{time} is the time in whole seconds");
        world.stop().await;
    });
}

#[test]
fn client_lists_dead_letters_in_pages_and_redrives_each_only_once() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let client = world.client();
        // No process listens on port 9, so the only attempt of the run fails.
        let at = Time(runtime.now().as_millis());
        for number in 0..5 {
            let doomed = ScheduleRequest::at(at, "http://127.0.0.1:9/")
                .id(format!("doomed-{number}"))
                .retry(1, Duration::from_secs(1));
            client.create(&doomed).await.unwrap();
        }
        let dead = loop {
            let dead: Vec<_> = client.dead_letters().try_collect().await.unwrap();
            if dead.len() == 5 {
                break dead;
            }
            runtime.sleep(Duration::from_millis(10)).await;
        };
        let page = client.dead_letters_page(2, None).await.unwrap();
        let next = client.dead_letters_page(2, page.next_page_token.as_deref()).await.unwrap();
        let ids: Vec<_> = page.runs.iter().chain(&next.runs).map(|run| &run.id).collect();
        assert_eq!(ids, dead.iter().take(4).map(|run| &run.id).collect::<Vec<_>>());

        let query = RunQuery { from: Some(at), state: Some(api::RunState::Failed), ..RunQuery::default() };
        let listed: Vec<_> = client.list_runs(&query).try_collect().await.unwrap();
        let ids = |runs: &[api::Run]| runs.iter().map(|run| run.id.clone()).collect::<std::collections::BTreeSet<_>>();
        assert_eq!((listed.len(), ids(&listed)), (5, ids(&dead)));
        let page = client.list_runs_page(&query, 2, None).await.unwrap();
        assert_eq!((&page.runs[..], page.unreadable), (&listed[..2], 0));
        let without_range = RunQuery { from: None, ..query.clone() };
        let token = page.next_page_token.as_deref();
        assert_eq!(client.list_runs_page(&without_range, 2, token).await.unwrap().runs, listed[2..4]);
        let late = RunQuery { late_by: Some(Duration::from_secs(3_600)), ..query };
        assert_eq!(client.list_runs_page(&late, 2, None).await.unwrap().runs, []);
        let no_range = client.list_runs_page(&RunQuery::default(), 2, None).await.unwrap_err();
        assert_eq!(no_range.code(), Some("invalid_parameter"));

        let run = client.runs("doomed-3").try_next().await.unwrap().unwrap();
        assert_eq!((run.state, run.attempts.len()), (api::RunState::Failed, 1));
        assert_eq!(client.run(&run.id).await.unwrap(), run);
        assert_eq!(client.run("nonsense").await.unwrap_err().code(), Some("run_not_found"));
        let redriven = client.redrive(&run.id).await.unwrap();
        assert_ne!(redriven.run_id, run.id);
        assert_eq!(client.redrive(&run.id).await.unwrap_err().code(), Some("not_dead_letter"));
        assert_eq!(client.redrive("nonsense").await.unwrap_err().code(), Some("run_not_found"));
        world.stop().await;
    });
}

#[test]
fn api_key_appears_in_no_debug_text_and_no_error() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let secret = ADMIN_KEY.split_once('.').unwrap().1;
        let client = client(world.address, ADMIN_KEY);
        let error = client.get("unknown").await.unwrap_err();
        let setup =
            reveille_client::Client::new("ftp://me:password@host", ADMIN_KEY, reveille_client::Options::default());
        let setup = setup.unwrap_err();
        let texts = format!("{client:?} {error:?} {error} {setup:?} {setup}");
        assert!(!texts.contains(secret) && !texts.contains("password"), "{texts}");
        world.stop().await;
    });
}

#[test]
fn client_rejects_invalid_url_or_key_before_any_request() {
    let new = |url: &str, key: &str| reveille_client::Client::new(url, key, reveille_client::Options::default());
    for url in ["", "host", "host:8080", "ftp://host", "http://", "http://me@host", "http://host?a=b", "http://a b"] {
        assert!(new(url, ADMIN_KEY).is_err(), "{url:?}");
    }
    for key in ["", "word", "a.b\nc", "a.ü"] {
        assert!(new("http://host", key).is_err(), "{key:?}");
    }
    assert_eq!(new(" https://host/base/ ", " a.b\n").unwrap().url(), "https://host/base");
}
