//! Tests of batches.

use futures_util::stream::{StreamExt as _, iter};
use reveille_client::{Error, TryStreamExt as _};
use serde_json::value::RawValue;

use crate::support::{World, later, on_real, scripted};

#[test]
fn client_receives_batch_results_in_order_while_it_sends_requests() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let client = world.client();
        let (requests, sent) = tokio::sync::mpsc::channel(1);
        let sent = futures_util::stream::unfold(sent, async |mut sent| sent.recv().await.map(|next| (next, sent)));
        let mut results = client.create_many(sent);
        for number in 1..=3 {
            requests.send(later().id(format!("line-{number}"))).await.unwrap();
            let result = results.try_next().await.unwrap().expect("a result arrives before the next request is sent");
            assert_eq!((result.line, result.status), (number, 201));
            assert_eq!(result.schedule.unwrap().id, format!("line-{number}"));
        }
        drop(requests);
        assert!(results.try_next().await.unwrap().is_none());
        world.stop().await;
    });
}

#[test]
fn invalid_batch_line_does_not_affect_other_lines() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let client = world.client();
        let request = |number: u32| {
            let mut request = later().id(format!("line-{number}"));
            // The payload has several lines, like the content of a formatted file.
            request.payload = Some(RawValue::from_string("{\n  \"a\": 1\n}".to_owned()).unwrap());
            if number == 7 { request.zone("Mars/Olympus") } else { request }
        };
        let results: Vec<_> = client.create_many(iter(0..3_000).map(request)).try_collect().await.unwrap();
        assert_eq!(results.len(), 3_000);
        for (at, result) in results.iter().enumerate() {
            let expected = if at == 7 { 422 } else { 201 };
            assert_eq!((usize::try_from(result.line).unwrap(), result.status), (at + 1, expected));
        }
        assert_eq!(results[7].problem.as_ref().unwrap().code, "invalid_schedule");
        assert_eq!(client.get("line-8").await.unwrap().payload.unwrap().get(), "{   \"a\": 1 }");
        world.stop().await;
    });
}

#[test]
fn client_reports_a_rejected_batch_or_a_truncated_batch_response() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let unauthenticated = world.client_as("unknown.key");
        let error = unauthenticated.create_many(iter([later()])).try_next().await.unwrap_err();
        assert_eq!(error.code(), Some("invalid_credentials"));
        world.stop().await;

        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
        let answer = format!("{head}5\r\n{{\"lin\r\n");
        let (address, _) = scripted(&runtime, &[&answer]).await;
        let error = crate::support::client(address, "a.b").create_many(iter([later()])).try_next().await.unwrap_err();
        assert!(matches!(error, Error::Broken { .. }), "{error:?}");
    });
}
