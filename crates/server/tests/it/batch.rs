use std::time::Duration;

use serde_json::Value;
use server::Options;

use crate::support::{Connection, KEY, Response, World, body};

fn lines(response: &Response) -> Vec<Value> {
    response.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn batch_results_are_in_line_order_despite_an_invalid_line() {
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
    let response = world.send("POST", "/v1/schedules:batch", &batch.join("\n")).await;
    assert_eq!(response.header("content-type"), Some("application/x-ndjson"));
    let results: Vec<_> = lines(&response)
        .iter()
        .map(|line| {
            let value = line.pointer("/schedule/id").or(line.pointer("/problem/code")).unwrap();
            (line["line"].as_u64().unwrap(), line["status"].as_u64().unwrap(), value.as_str().unwrap().to_owned())
        })
        .collect();
    let results: Vec<_> = results.iter().map(|(line, status, value)| (*line, *status, value.as_str())).collect();
    assert_eq!(
        results,
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
async fn long_batch_gets_one_result_per_line() {
    let world = World::start().await;
    let batch: String = (0..5_000).map(|n| body(&format!(r#","id":"n{n}""#)) + "\n").collect();
    let response = world.send("POST", "/v1/schedules:batch", &batch).await;
    let lines = lines(&response);
    assert_eq!(lines.len(), 5_000);
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(line["line"].as_u64(), Some(number as u64 + 1));
        assert_eq!(line.pointer("/schedule/id").and_then(Value::as_str), Some(format!("n{number}").as_str()));
    }
    world.stop().await;
}

#[tokio::test]
async fn result_of_a_line_arrives_before_the_next_line_is_sent() {
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
async fn server_rejects_too_long_batch_line_and_accepts_the_next_line() {
    let world = World::start_with(Options { body_bytes_max: 4_096, ..Options::default() }).await;
    let long = body(&format!(r#","labels":{{"a":"{}"}}"#, "x".repeat(300_000)));
    let batch = [body(""), long.clone(), body(""), long].join("\n");
    let response = world.send("POST", "/v1/schedules:batch", &batch).await;
    let statuses: Vec<_> = lines(&response).iter().map(|line| line["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 413, 201, 413]);
    world.stop().await;
}

#[tokio::test]
async fn server_ends_a_batch_at_the_first_line_above_the_limit() {
    let world = World::start_with(Options { batch_lines_max: 3, ..Options::default() }).await;
    let batch: String = (0..10).map(|_| body("") + "\n").collect();
    let response = world.send("POST", "/v1/schedules:batch", &batch).await;
    let lines = lines(&response);
    let statuses: Vec<_> = lines.iter().map(|line| line["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 201, 201, 413]);
    assert_eq!(lines[3].pointer("/problem/code").and_then(Value::as_str), Some("batch_too_long"));
    assert_eq!(lines[3]["line"], 4, "the number of the first rejected line");
    world.stop().await;
}

#[tokio::test]
async fn server_reads_the_remaining_lines_of_a_rejected_batch() {
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
    // The request contains the length of its body. The server starts the response before the client sends the rest of
    // the body.
    connection.http.read_head().await.unwrap();
    let first = connection.http.read_chunk().await.unwrap();
    assert!(String::from_utf8_lossy(&first).contains("batch_too_long"), "{first:?}");
    world.runtime.sleep(Duration::from_millis(100)).await;
    for _ in 0..1_000 {
        connection.write(line.as_bytes()).await;
    }
    assert!(connection.http.read_chunk().await.unwrap().is_empty(), "there is no further line");
    let headers = format!("authorization: bearer {KEY}\r\n");
    assert_eq!(connection.request("POST", "/v1/schedules", &headers, body("").as_bytes()).await.status, 201);
    drop(connection);
    world.stop().await;
}

#[tokio::test]
async fn batch_ends_when_its_api_key_is_revoked_or_expires() {
    let world = World::start().await;
    for is_revoked in [true, false] {
        let soon = world.runtime.now() + Duration::from_millis(500);
        let expires_at = if is_revoked { String::new() } else { format!(r#","expires_at":"{soon}""#) };
        let key_request = format!(r#"{{"role":"writer"{expires_at}}}"#);
        let created = world.send("POST", "/v1/tenants/tenant-1/keys", &key_request).await;
        let (key, id) = (created.text("/secret"), created.text("/id"));
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
            // One chunk of the response may contain both the result of the last accepted line and the rejection that
            // ends the batch.
            for result in
                serde_json::Deserializer::from_slice(&connection.http.read_chunk().await.unwrap()).into_iter::<Value>()
            {
                let result = result.unwrap();
                number += 1;
                assert_eq!(result["line"], number);
                if result["status"] != 201 {
                    assert_eq!(result["problem"]["code"], "invalid_credentials");
                    assert!(number > 1, "the key was valid at first");
                    break 'batch;
                }
                assert!(!is_revoked || number == 1, "no line is accepted after the revocation");
                assert!(number < 1_000, "no line is accepted after the expiry");
            }
            if is_revoked {
                let revoked = world.send("DELETE", &format!("/v1/tenants/tenant-1/keys/{id}"), "").await;
                assert!(revoked.status < 300, "{}", revoked.body);
            } else {
                world.runtime.sleep(Duration::from_millis(20)).await;
            }
        }
        assert!(connection.http.read_chunk().await.unwrap().is_empty(), "there is no further line");
    }
    world.stop().await;
}

#[tokio::test]
async fn server_processes_the_complete_lines_of_a_stalled_batch() {
    let options = Options { body_timeout: Duration::from_millis(50), ..Options::default() };
    let world = World::start_with(options).await;
    let mut connection = world.connect().await;
    let line = body("") + "\n";
    let head = format!(
        "POST /v1/schedules:batch HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {KEY}\r\ncontent-length: 100000\r\n\r\n{line}"
    );
    connection.write(head.as_bytes()).await;
    let response = connection.response().await;
    let statuses: Vec<_> = lines(&response).iter().map(|line| line["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 408]);
    drop(connection);
    world.stop().await;
}

#[tokio::test]
async fn each_batch_line_gets_an_error_if_the_disk_is_full() {
    let world = World::start().await;
    world.store.set_health(store::Health::Full);
    let response = world.send("POST", "/v1/schedules:batch", &[body(""), body("")].join("\n")).await;
    let statuses: Vec<_> = lines(&response).iter().map(|line| line["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [507, 507]);
    world.stop().await;
}

fn head(version: &str, more: &str) -> String {
    format!(
        "POST /v1/schedules:batch HTTP/{version}\r\nhost: test\r\nauthorization: Bearer {KEY}\r\n\
         content-type: application/x-ndjson\r\n{more}\r\n"
    )
}

/// Reads the chunks of a response, and returns its lines.
async fn read_results(connection: &mut Connection) -> Vec<Value> {
    assert_eq!(connection.http.read_head().await.unwrap().status(), Some(200));
    let mut text = Vec::new();
    loop {
        let chunk = connection.http.read_chunk().await.unwrap();
        if chunk.is_empty() {
            let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            return lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
        }
        text.extend_from_slice(&chunk);
    }
}

#[tokio::test]
async fn client_may_write_a_long_batch_before_it_reads_a_result() {
    const LINES: usize = 100_000;
    let world = World::start().await;
    let batch = (body("") + "\n").repeat(LINES);
    for is_chunked in [true, false] {
        let mut connection = world.connect().await;
        let batch = if is_chunked { &*batch } else { &"x\n".repeat(LINES) };
        let length = batch.len();
        if is_chunked {
            let head = head("1.1", "transfer-encoding: chunked\r\n");
            connection.write(format!("{head}{length:x}\r\n{batch}\r\n0\r\n\r\n").as_bytes()).await;
        } else {
            let head = head("1.1", &format!("content-length: {length}\r\n"));
            connection.write((head + batch).as_bytes()).await;
        }
        let results = read_results(&mut connection).await;
        assert_eq!(results.len(), LINES);
        let status = if is_chunked { 201 } else { 400 };
        for (at, result) in results.iter().enumerate() {
            assert_eq!((result["line"].as_u64(), result["status"].as_u64()), (Some(at as u64 + 1), Some(status)));
        }
    }
    let metrics = world.send("GET", "/metrics", "").await.body;
    assert!(metrics.contains("reveille_http_batches_broken_off_total 0"), "{metrics}");
    world.stop().await;
}

#[tokio::test]
async fn server_reads_a_whole_http_1_0_batch_before_it_responds() {
    let world = World::start().await;
    let mut connection = world.connect().await;
    let line = body("") + "\n";
    let length = line.len() * 2;
    connection.write((head("1.0", &format!("content-length: {length}\r\n")) + &line).as_bytes()).await;
    let early = world.runtime.timeout(Duration::from_millis(1_500), connection.http.read_head()).await;
    assert!(early.is_none(), "a proxy would stop sending the body: {early:?}");
    connection.write(line.as_bytes()).await;
    let response = connection.response().await;
    assert_eq!(response.header("content-length"), Some(response.body.len().to_string().as_str()));
    assert_eq!(lines(&response).len(), 2);
    world.stop().await;
}

#[tokio::test]
async fn server_returns_results_while_the_client_pauses_in_a_batch() {
    let world = World::start().await;
    let mut connection = world.connect().await;
    let line = body("") + "\n";
    let length = line.len() * 2;
    connection.write((head("1.1", &format!("content-length: {length}\r\n")) + &line).as_bytes()).await;
    connection.http.read_head().await.unwrap();
    assert!(!connection.http.read_chunk().await.unwrap().is_empty());
    connection.write(line.as_bytes()).await;
    assert!(!connection.http.read_chunk().await.unwrap().is_empty());
    assert!(connection.http.read_chunk().await.unwrap().is_empty(), "there are no further results");
    drop(connection);
    world.stop().await;
}

#[tokio::test]
async fn server_ends_a_batch_if_it_cannot_store_the_unread_results() {
    let options = Options { batch_memory_max: 10_000, batch_folder: "/nonexistent".into(), ..Options::default() };
    let world = World::start_with(options).await;
    let mut connection = world.connect().await;
    let batch = (body("") + "\n").repeat(20_000);
    let head = head("1.1", &format!("content-length: {}\r\n", batch.len()));
    connection.write((head + &batch).as_bytes()).await;
    let results = read_results(&mut connection).await;
    let (last, others) = results.split_last().unwrap();
    assert!(others.len() < 20_000 && others.iter().all(|result| result["status"] == 201));
    assert_eq!((&last["status"], &last["problem"]["code"]), (&507.into(), &"storage_full".into()));
    assert_eq!(last["line"], others.len() + 1, "the results of all earlier lines arrive");
    world.stop().await;
}

#[tokio::test]
async fn batch_with_an_idempotency_key_creates_no_schedule_twice() {
    let world = World::start().await;
    let key = [("idempotency-key", "import-1"), ("content-type", "application/x-ndjson")];
    let line = |number: usize| body(&format!(r#","labels":{{"n":"{number}"}}"#)) + "\n";
    let batch: String = (0..3_000).map(line).collect();

    // The client closes the connection after it has sent half of the batch.
    let mut connection = world.connect().await;
    let head = head("1.1", &format!("idempotency-key: import-1\r\ncontent-length: {}\r\n", batch.len()));
    connection.write((head + &batch[..batch.len() / 2]).as_bytes()).await;
    while !world.send("GET", "/v1/schedules?limit=1", "").await.body.contains("\"id\"") {}
    drop(connection);
    let broken_off = "reveille_http_batches_broken_off_total 1";
    while !world.send("GET", "/metrics", "").await.body.contains(broken_off) {}

    let second = lines(&world.send_if("POST", "/v1/schedules:batch", &key, &batch).await);
    assert_eq!(second.len(), 3_000);
    assert!(second.iter().all(|result| result["status"] == 201), "{second:?}");
    let replayed = second.iter().filter(|result| result["replayed"] == true).count();
    assert!((1..3_000).contains(&replayed), "{replayed}");
    let third = lines(&world.send_if("POST", "/v1/schedules:batch", &key, &batch).await);
    for (second, third) in second.iter().zip(&third) {
        assert_eq!((&third["schedule"], &third["replayed"]), (&second["schedule"], &true.into()));
    }

    // If a line differs from the same line of the first batch with this key, the server rejects only this line.
    let others = [line(7), line(1), body(r#","id":"a""#), "{".to_owned()].join("\n");
    let others = lines(&world.send_if("POST", "/v1/schedules:batch", &key, &others.replace("\n\n", "\n")).await);
    let codes: Vec<_> = others.iter().map(|result| result["problem"]["code"].as_str().unwrap_or("-")).collect();
    assert_eq!(codes, ["idempotency_key_reused", "-", "idempotency_key_reused", "idempotency_key_reused"]);
    let new = [("idempotency-key", "import-2"), ("content-type", "application/x-ndjson")];
    let named = lines(&world.send_if("POST", "/v1/schedules:batch", &new, &body(r#","id":"a""#)).await);
    assert_eq!(named[0]["problem"]["errors"][0]["code"], "conflicting_fields");
    let count = world.send("GET", "/v1/schedules:count", "").await;
    assert_eq!(count.text("/active"), "3000");
    world.stop().await;
}
