use serde_json::Value;

use crate::support::{FOREIGN_KEY, KEY, OPERATOR_KEY, Response, World};

async fn create_schedule(world: &World, id: &str, at: &str, labels: &str) {
    let body = format!(
        r#"{{"id":"{id}","at":"{at}","labels":{labels},"payload":{{"id":"{id}"}},"target":{{"http":{{"url":"http://127.0.0.1:9/204"}}}}}}"#
    );
    let created = world.send("POST", "/v1/schedules", &body).await;
    assert_eq!(created.status, 201, "{}", created.body);
}

async fn list(world: &World, query: &str) -> Response {
    world.send("GET", &format!("/v1/schedules?{query}"), "").await
}

fn ids(response: &Response) -> Vec<String> {
    assert_eq!(response.status, 200, "{}", response.body);
    let page = response.json();
    let schedules = page["schedules"].as_array().unwrap();
    schedules.iter().map(|schedule| schedule["id"].as_str().unwrap().to_owned()).collect()
}

/// Returns the schedule ids of all pages.
async fn all(world: &World, query: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut token = String::new();
    loop {
        let response = list(world, &format!("{query}{token}")).await;
        found.extend(ids(&response));
        match response.json()["next_page_token"].as_str() {
            Some(next) => token = format!("&page_token={next}"),
            None => return found,
        }
    }
}

#[tokio::test]
async fn listing_accepts_one_filter_and_returns_full_schedules() {
    let world = World::start().await;
    create_schedule(&world, "a", "2031-01-01T12:00:00Z", r#"{"team":"blue & green","x=y":"z"}"#).await;
    create_schedule(&world, "b", "2031-01-01T06:00:00Z", r#"{"team":"red"}"#).await;
    create_schedule(&world, "c", "2031-01-02T11:59:59.999Z", r#"{"team":"blue & green"}"#).await;
    create_schedule(&world, "d", "2031-01-02T12:00:00Z", "{}").await;
    assert_eq!(world.send("DELETE", "/v1/schedules/b", "").await.status, 200);

    let mut listed = list(&world, "limit=1000").await.json();
    assert_eq!(listed["next_page_token"], Value::Null);
    let first = listed["schedules"][0].take();
    let read = world.send("GET", &format!("/v1/schedules/{}", first["id"].as_str().unwrap()), "").await.json();
    assert_eq!(first, read);

    let sorted = |mut ids: Vec<String>| {
        ids.sort();
        ids
    };
    for limit in ["", "&limit=1", "&limit=2"] {
        assert_eq!(sorted(all(&world, limit).await), ["a", "b", "c", "d"]);
        assert_eq!(sorted(all(&world, &format!("state=active{limit}")).await), ["a", "c", "d"]);
        assert_eq!(all(&world, &format!("state=cancelled{limit}")).await, ["b"]);
        assert_eq!(sorted(all(&world, &format!("label=team=blue+%26%20green{limit}")).await), ["a", "c"]);
        let due = format!("due_from=2031-01-01T12:00:00Z&due_until=2031-01-02T13:00:00%2B01:00{limit}");
        assert_eq!(all(&world, &due).await, ["a", "c"], "the start is inclusive, the end exclusive");
    }
    for (filter, count) in [("", 4), ("state=active", 3), ("state=cancelled", 1), ("label=team=blue+%26%20green", 2)] {
        for limit in ["", "&limit=1", "&limit=2"] {
            let oldest = all(&world, &format!("{filter}&order=oldest{limit}")).await;
            let mut newest = all(&world, &format!("{filter}&order=newest{limit}")).await;
            assert_eq!(oldest, all(&world, &format!("{filter}{limit}")).await, "the oldest are first by default");
            newest.reverse();
            assert_eq!((newest, oldest.len()), (oldest, count), "{filter}{limit}");
        }
    }
    assert_eq!(all(&world, "state=ended").await, [""; 0]);
    assert_eq!(all(&world, "label=team=blue").await, [""; 0]);
    world.stop().await;
}

#[tokio::test]
async fn listing_in_order_of_ids_contains_chosen_and_server_made_ids() {
    let world = World::start().await;
    let mut expected = Vec::new();
    for id in ["a-1", "S-x", "_x", "sale-1", "s0", "s01m00000000000000000000000", "z"] {
        create_schedule(&world, id, "2031-01-01T12:00:00Z", "{}").await;
        let body = r#"{"at":"2031-01-01T12:00:00Z","target":{"http":{"url":"http://127.0.0.1:9/204"}}}"#;
        let created = world.send("POST", "/v1/schedules", body).await;
        expected.extend([id.to_owned(), created.text("/id")]);
    }
    expected.sort();
    for limit in ["", "&limit=1", "&limit=2", "&limit=5"] {
        assert_eq!(all(&world, &format!("order=id{limit}")).await, expected, "{limit}");
    }
    for id in ["S-x", &*expected[4], "z"] {
        assert_eq!(world.send("DELETE", &format!("/v1/schedules/{id}"), "").await.status, 200);
    }
    let is_cancelled = |id: &&String| [&*expected[4], "S-x", "z"].contains(&id.as_str());
    let (cancelled, active): (Vec<_>, Vec<_>) = expected.iter().partition(is_cancelled);
    for limit in ["", "&limit=1", "&limit=2"] {
        assert_eq!(all(&world, &format!("order=id&state=active{limit}")).await.iter().collect::<Vec<_>>(), active);
        assert_eq!(
            all(&world, &format!("order=id&state=cancelled{limit}")).await.iter().collect::<Vec<_>>(),
            cancelled
        );
    }
    assert_eq!(all(&world, "order=id&state=ended").await, [""; 0]);
    world.stop().await;
}

#[tokio::test]
async fn rejection_of_a_query_contains_error_code_and_parameter() {
    let world = World::start().await;
    create_schedule(&world, "a", "2031-01-01T12:00:00Z", r#"{"team":"blue"}"#).await;
    create_schedule(&world, "b", "2031-01-01T12:00:00Z", r#"{"team":"blue"}"#).await;
    let token = list(&world, "limit=1").await.json()["next_page_token"].as_str().unwrap().to_owned();
    let of_other = format!("state=active&page_token={token}");
    let of_other_order = format!("order=newest&page_token={token}");
    let not_by_id = format!("order=id&page_token={token}");
    let by_id = list(&world, "order=id&limit=1").await.json()["next_page_token"].as_str().unwrap().to_owned();
    let [not_oldest, of_other_state] = ["", "state=active&order=id&"].map(|query| format!("{query}page_token={by_id}"));
    let day = "due_from=2031-01-01T00:00:00Z&due_until=2031-01-02T00:00:00";
    for (query, code, parameter) in [
        ("state=active&label=team=blue", "conflicting_parameters", "query"),
        ("label=a=b&due_from=2031-01-01T00:00:00Z", "conflicting_parameters", "query"),
        ("label=a=b&label=c=d", "conflicting_parameters", "label"),
        ("state=paused", "out_of_range", "state"),
        ("label=team", "invalid_label", "label"),
        ("label==x", "invalid_label", "label"),
        ("label=%ff=x", "wrong_type", "label"),
        ("due_from=2031-01-01T00:00:00Z", "missing_parameter", "due_until"),
        ("due_until=2031-01-01T00:00:00Z", "missing_parameter", "due_from"),
        (&format!("{day}.001Z"), "out_of_range", "due_until"),
        (&format!("{day}-00:00:01"), "out_of_range", "due_until"),
        ("due_from=2031-01-02T00:00:00Z&due_until=2031-01-01T00:00:00Z", "out_of_range", "due_until"),
        ("due_from=yesterday&due_until=2031-01-01T00:00:00Z", "invalid_time", "due_from"),
        ("limit=0", "out_of_range", "limit"),
        ("limit=1001", "out_of_range", "limit"),
        ("page_token=x", "invalid_token", "page_token"),
        (&of_other, "invalid_token", "page_token"),
        (&of_other_order, "invalid_token", "page_token"),
        (&not_by_id, "invalid_token", "page_token"),
        (&not_oldest, "invalid_token", "page_token"),
        (&of_other_state, "invalid_token", "page_token"),
        ("order=up", "out_of_range", "order"),
        ("order=newest&order=newest", "conflicting_parameters", "order"),
        (&format!("{day}Z&order=newest"), "conflicting_parameters", "order"),
        (&format!("{day}Z&order=id"), "conflicting_parameters", "order"),
        ("label=team=blue&order=id", "conflicting_parameters", "order"),
        ("page=2", "unknown_parameter", "page"),
    ] {
        let response = list(&world, query).await;
        assert_eq!(response.status, 400, "{query}: {}", response.body);
        let problem = response.json();
        let error = &problem["errors"][0];
        assert_eq!((&error["code"], &error["parameter"]), (&code.into(), &parameter.into()), "{query}: {problem}");
    }
    let whole_day = format!("{day}Z");
    assert_eq!(list(&world, &whole_day).await.status, 200);
    world.stop().await;
}

#[tokio::test]
async fn server_counts_the_schedules_of_a_tenant_in_each_state() {
    let world = World::start().await;
    let count = async |key| world.send_as(key, "GET", "/v1/schedules:count", "").await.body;
    let nothing = r#"{"active":0,"ended":0,"cancelled":0}"#;
    assert_eq!(count(KEY).await, nothing);
    for id in ["a", "b", "c"] {
        create_schedule(&world, id, "2031-01-01T12:00:00Z", "{}").await;
    }
    assert_eq!(world.send("DELETE", "/v1/schedules/b", "").await.status, 200);
    assert_eq!(count(KEY).await, r#"{"active":2,"ended":0,"cancelled":1}"#);
    assert_eq!(count(FOREIGN_KEY).await, nothing);
    assert_eq!(world.send("GET", "/v1/schedules%3Acount", "").await.status, 200);
    assert_eq!(world.send("GET", "/v1/schedules:count?state=active", "").await.text("/code"), "invalid_parameter");
    world.stop().await;
}

#[tokio::test]
async fn page_token_reveals_nothing_about_another_tenant() {
    let world = World::start().await;
    for id in ["a", "b"] {
        create_schedule(&world, id, "2031-01-01T12:00:00Z", r#"{"team":"blue"}"#).await;
    }
    let due = "due_from=2031-01-01T00:00:00Z&due_until=2031-01-02T00:00:00Z";
    for query in ["", "order=newest", "order=id", "state=active", "label=team=blue", due] {
        let token = list(&world, &format!("{query}&limit=1")).await.json()["next_page_token"].clone();
        let path = format!("/v1/schedules?{query}&page_token={}", token.as_str().unwrap());
        let theirs = world.send_as(FOREIGN_KEY, "GET", &path, "").await;
        assert_eq!(ids(&theirs), [""; 0], "{query}");
        assert_eq!(ids(&world.send("GET", &path, "").await).len(), 1, "{query}");
    }
    assert_eq!(world.send_as(OPERATOR_KEY, "GET", "/v1/schedules", "").await.status, 403);
    assert_eq!(world.send_as("ours.wrong", "GET", "/v1/schedules", "").await.status, 401);
    world.stop().await;
}

#[tokio::test]
async fn server_limits_the_bytes_of_a_page() {
    let world = World::start().await;
    let padding = "x".repeat(60_000);
    for number in 0..100 {
        let body = format!(
            r#"{{"id":"n{number}","at":"2031-01-01T12:00:00Z","payload":"{padding}","target":{{"http":{{"url":"http://127.0.0.1:9/204"}}}}}}"#
        );
        assert_eq!(world.send("POST", "/v1/schedules", &body).await.status, 201);
    }
    let first = list(&world, "limit=1000").await;
    assert!((4 << 20..5 << 20).contains(&first.body.len()), "{} bytes", first.body.len());
    assert_eq!(all(&world, "limit=1000").await.len(), 100);
    world.stop().await;
}
