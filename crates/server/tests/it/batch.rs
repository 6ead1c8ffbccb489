use std::time::Duration;

use serde_json::Value;
use server::Options;

use crate::support::{Answer, KEY, World, body};

fn lines(answer: &Answer) -> Vec<Value> {
    answer.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn each_line_is_answered_in_order_and_a_bad_one_hurts_no_other() {
    let world = World::start().await;
    let batch = [
        body(r#","id":"a""#),
        "{".to_owned(),
        body(r#","id":"b""#),
        String::new(),
        body(r#","id":"a""#),
        body(r#","labels":7"#),
        body(r#","id":"c""#),
    ];
    let answer = world.send("POST", "/v1/schedules:batch", &batch.join("\n")).await;
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    let told: Vec<_> = lines(&answer)
        .iter()
        .map(|line| {
            let what = line.pointer("/schedule/id").or(line.pointer("/problem/code")).unwrap();
            (line["line"].as_u64().unwrap(), line["status"].as_u64().unwrap(), what.as_str().unwrap().to_owned())
        })
        .collect();
    let told: Vec<_> = told.iter().map(|(line, status, what)| (*line, *status, what.as_str())).collect();
    assert_eq!(
        told,
        [
            (1, 201, "a"),
            (2, 400, "malformed_json"),
            (3, 201, "b"),
            (5, 409, "schedule_exists"),
            (6, 422, "invalid_schedule"),
            (7, 201, "c"),
        ]
    );
    for id in ["a", "b", "c"] {
        assert_eq!(world.send("GET", &format!("/v1/schedules/{id}"), "").await.status, 200);
    }
    world.stop().await;
}

#[tokio::test]
async fn a_long_batch_is_answered_line_by_line() {
    let world = World::start().await;
    let batch: String = (0..5_000).map(|n| body(&format!(r#","id":"n{n}""#)) + "\n").collect();
    let answer = world.send("POST", "/v1/schedules:batch", &batch).await;
    let lines = lines(&answer);
    assert_eq!(lines.len(), 5_000);
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(line["line"].as_u64(), Some(number as u64 + 1));
        assert_eq!(line.pointer("/schedule/id").and_then(Value::as_str), Some(format!("n{number}").as_str()));
    }
    world.stop().await;
}

#[tokio::test]
async fn a_line_is_answered_before_the_next_is_sent() {
    let world = World::start().await;
    let mut connection = world.connect().await;
    let head = format!(
        "POST /v1/schedules:batch HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {KEY}\r\n\
         content-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    connection.write(head.as_bytes()).await;
    for round in 1..=3 {
        let line = body("") + "\n";
        connection.write(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes()).await;
        if round == 1 {
            connection.http.read_head().await.unwrap();
        }
        let result: Value = serde_json::from_slice(&connection.http.read_chunk().await.unwrap()).unwrap();
        assert_eq!((result["line"].as_u64(), result["status"].as_u64()), (Some(round), Some(201)));
    }
    connection.write(b"0\r\n\r\n").await;
    assert!(connection.http.read_chunk().await.unwrap().is_empty());
    drop(connection);
    world.stop().await;
}

#[tokio::test]
async fn a_line_that_is_too_long_is_refused_and_the_next_is_taken() {
    let world = World::start_with(Options { body_bytes_max: 4_096, ..Options::default() }).await;
    let long = body(&format!(r#","labels":{{"a":"{}"}}"#, "x".repeat(300_000)));
    let batch = [body(""), long.clone(), body(""), long].join("\n");
    let answer = world.send("POST", "/v1/schedules:batch", &batch).await;
    let statuses: Vec<_> = lines(&answer).iter().map(|line| line["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 413, 201, 413]);
    world.stop().await;
}

#[tokio::test]
async fn a_batch_of_too_many_lines_is_stopped_where_it_is() {
    let world = World::start_with(Options { batch_lines_max: 3, ..Options::default() }).await;
    let batch: String = (0..10).map(|_| body("") + "\n").collect();
    let answer = world.send("POST", "/v1/schedules:batch", &batch).await;
    let lines = lines(&answer);
    let statuses: Vec<_> = lines.iter().map(|line| line["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 201, 201, 413]);
    assert_eq!(lines[3].pointer("/problem/code").and_then(Value::as_str), Some("batch_too_long"));
    assert_eq!(lines[3]["line"], 4, "the first that was not taken");
    world.stop().await;
}

#[tokio::test]
async fn server_reads_on_after_it_refused_the_rest_of_a_batch() {
    let world = World::start_with(Options { batch_lines_max: 3, ..Options::default() }).await;
    let mut connection = world.connect().await;
    let line = body("") + "\n";
    let batch = line.repeat(10);
    let length = batch.len() + line.len() * 1_000;
    let head = format!(
        "POST /v1/schedules:batch HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {KEY}\r\n\
         content-type: application/x-ndjson\r\ncontent-length: {length}\r\n\r\n{batch}"
    );
    connection.write(head.as_bytes()).await;
    connection.http.read_head().await.unwrap();
    let first = connection.http.read_chunk().await.unwrap();
    assert!(String::from_utf8_lossy(&first).contains("batch_too_long"), "{first:?}");
    world.runtime.sleep(Duration::from_millis(100)).await;
    for _ in 0..1_000 {
        connection.write(line.as_bytes()).await;
    }
    assert!(connection.http.read_chunk().await.unwrap().is_empty(), "that was the last line");
    let headers = format!("authorization: bearer {KEY}\r\n");
    assert_eq!(connection.request("POST", "/v1/schedules", &headers, body("").as_bytes()).await.status, 201);
    drop(connection);
    world.stop().await;
}

#[tokio::test]
async fn a_batch_ends_with_its_key() {
    let world = World::start().await;
    for is_revoked in [true, false] {
        let soon = world.runtime.now() + Duration::from_millis(500);
        let expires_at = if is_revoked { String::new() } else { format!(r#","expires_at":"{soon}""#) };
        let asked = format!(r#"{{"role":"writer"{expires_at}}}"#);
        let made = world.send("POST", "/v1/tenants/tenant-1/keys", &asked).await;
        let (key, id) = (made.text("/secret"), made.text("/id"));
        let mut connection = world.connect().await;
        let head = format!(
            "POST /v1/schedules:batch HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key}\r\n\
             content-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        connection.write(head.as_bytes()).await;
        let line = body("") + "\n";
        let chunk = format!("{:x}\r\n{line}\r\n", line.len());
        let mut number = 0;
        'batch: loop {
            connection.write(chunk.as_bytes()).await;
            if number == 0 {
                connection.http.read_head().await.unwrap();
            }
            // The last line that is taken, and what ends the batch, may come together.
            for result in
                serde_json::Deserializer::from_slice(&connection.http.read_chunk().await.unwrap()).into_iter::<Value>()
            {
                let result = result.unwrap();
                number += 1;
                assert_eq!(result["line"], number);
                if result["status"] != 201 {
                    assert_eq!(result["problem"]["code"], "invalid_credentials");
                    assert!(number > 1, "the key was good");
                    break 'batch;
                }
                assert!(!is_revoked || number == 1, "the key is gone");
                assert!(number < 1_000, "the key has expired");
            }
            if is_revoked {
                let revoked = world.send("DELETE", &format!("/v1/tenants/tenant-1/keys/{id}"), "").await;
                assert!(revoked.status < 300, "{}", revoked.body);
            } else {
                world.runtime.sleep(Duration::from_millis(20)).await;
            }
        }
        assert!(connection.http.read_chunk().await.unwrap().is_empty(), "that was the last line");
    }
    world.stop().await;
}

#[tokio::test]
async fn a_batch_that_stops_coming_is_ended_with_what_came() {
    let options = Options { body_timeout: Duration::from_millis(50), ..Options::default() };
    let world = World::start_with(options).await;
    let mut connection = world.connect().await;
    let line = body("") + "\n";
    let head = format!(
        "POST /v1/schedules:batch HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {KEY}\r\ncontent-length: 100000\r\n\r\n{line}"
    );
    connection.write(head.as_bytes()).await;
    let answer = connection.answer().await;
    let statuses: Vec<_> = lines(&answer).iter().map(|line| line["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 408]);
    drop(connection);
    world.stop().await;
}

#[tokio::test]
async fn a_full_disk_is_told_on_each_line() {
    let world = World::start().await;
    world.store.set_health(store::Health::Full);
    let answer = world.send("POST", "/v1/schedules:batch", &[body(""), body("")].join("\n")).await;
    let statuses: Vec<_> = lines(&answer).iter().map(|line| line["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [507, 507]);
    world.stop().await;
}
