use cli_support::receiver::{Options, Receiver, Sink};

use super::*;

/// Receiver's sink that counts the requests that arrive.
#[derive(Default)]
struct Count(AtomicU64);

impl Sink for Count {
    fn arrived(&self, _at_micros: i64, _head: &httparse::Request<'_, '_>, _body: &[u8]) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Exchange that accepts every response except the responses to the listed request numbers.
struct Post {
    not_accepted: &'static [u64],
}

impl Exchange for Post {
    fn write(&self, index: u64, out: &mut Vec<u8>) {
        let body = index.to_string();
        let head = format!("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n", body.len());
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(body.as_bytes());
    }

    fn accept(&self, index: u64, status: u16, _body: &[u8]) -> bool {
        status == 200 && !self.not_accepted.contains(&index)
    }
}

/// Runs a plan against a server that takes the time `answer_after` for each response. Returns the report and the number
/// of requests that arrived at the server.
fn outcome(pace: Pace, connections: usize, requests_max: u64, answer_after: Duration, post: Post) -> (LoadReport, u64) {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    tokio.block_on(async {
        let runtime = Runtime::real();
        let count = Arc::new(Count::default());
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let receiver = Receiver::start(&runtime, any_port, Options { answer_after }, count.clone()).await.unwrap();
        let duration = match pace {
            Pace::Closed => Duration::from_secs(60),
            Pace::Open { .. } => Duration::from_millis(100),
        };
        let plan = Plan { address: receiver.address, connections, pace, duration, requests_max };
        let outcome = run(&runtime, plan, Arc::new(post)).await.unwrap();
        (outcome, count.0.load(Ordering::Relaxed))
    })
}

#[test]
fn open_loop_load_generator_measures_latency_from_the_due_instant() {
    let pace = Pace::Open { per_second: 100.0 };
    let (outcome, arrived) = outcome(pace, 1, u64::MAX, Duration::from_millis(40), Post { not_accepted: &[] });
    assert_eq!((outcome.accepted, outcome.failed(), arrived), (10, 0, 10));
    // The server takes 40 ms to respond to each of the ten requests, which use one connection. The last request is due
    // after 90 ms, but its response arrives only after 400 ms.
    assert!(outcome.latency.max() >= 300_000, "{} us", outcome.latency.max());
    assert!(outcome.elapsed >= Duration::from_millis(390), "{:?}", outcome.elapsed);
}

#[test]
fn closed_loop_load_generator_sends_and_counts_each_request_once() {
    let post = Post { not_accepted: &[3, 700] };
    let (outcome, arrived) = outcome(Pace::Closed, 8, 1_000, Duration::ZERO, post);
    assert_eq!((outcome.accepted, outcome.rejected[&200], outcome.broken, outcome.unsent), (998, 2, 0, 0));
    assert_eq!((arrived, outcome.latency.len()), (1_000, 1_000));
}
