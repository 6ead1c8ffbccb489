//! Receiver of callbacks for tests, which records all callbacks.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use test_servers::http::Connection;

use crate::{TIMEOUT, now_millis};

/// Callback that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Hit {
    pub(crate) at_millis: u64,
    /// Id of the run, from the header `webhook-id`.
    pub(crate) run: String,
    pub(crate) schedule: String,
    pub(crate) attempt: String,
    pub(crate) traceparent: String,
    pub(crate) authorization: String,
    pub(crate) body: String,
    /// Bytes of the body, which are not necessarily UTF-8.
    pub(crate) bytes: Vec<u8>,
    /// Request line.
    pub(crate) line: String,
    /// All headers of the callback, with names in lower case.
    pub(crate) headers: Vec<(String, String)>,
}

#[derive(Default)]
struct State {
    hits: Vec<Hit>,
    /// `true` while the receiver delays its responses.
    is_held: bool,
}

/// Receiver of callbacks that listens until the test process ends.
#[derive(Clone)]
pub(crate) struct Receiver {
    address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
    /// Body of each response.
    answer: &'static str,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        Receiver::start_on(TcpListener::bind("127.0.0.1:0").expect("a port is free"))
    }

    pub(crate) fn start_on(listener: TcpListener) -> Self {
        Receiver::start_with(listener, "")
    }

    /// Starts a receiver that responds to each callback with the body `answer`.
    pub(crate) fn start_with(listener: TcpListener, answer: &'static str) -> Self {
        let address = listener.local_addr().expect("a bound listener has an address");
        let receiver = Receiver { address, state: Arc::default(), answer };
        let accepting = receiver.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let receiver = accepting.clone();
                thread::spawn(move || receiver.serve(stream));
            }
        });
        receiver
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// Delays the responses to all callbacks until [`Receiver::release`].
    pub(crate) fn hold(&self) {
        self.state.0.lock().unwrap().is_held = true;
    }

    pub(crate) fn release(&self) {
        self.state.0.lock().unwrap().is_held = false;
        self.state.1.notify_all();
    }

    pub(crate) fn hits(&self) -> Vec<Hit> {
        self.state.0.lock().unwrap().hits.clone()
    }

    /// Waits until `is_enough` returns `true` for the callbacks that have arrived.
    pub(crate) fn wait(&self, is_enough: impl Fn(&[Hit]) -> bool) -> Vec<Hit> {
        let deadline = Instant::now() + TIMEOUT;
        let (state, changed) = &*self.state;
        let mut state = state.lock().unwrap();
        while !is_enough(&state.hits) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the expected callbacks did not arrive, only {} others", state.hits.len());
            state = changed.wait_timeout(state, left).unwrap().0;
        }
        state.hits.clone()
    }

    fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut connection = Connection::new(stream).ok()?;
        loop {
            let request = connection.read().ok()?;
            let header = |name: &str| request.header(name).unwrap_or_default().to_owned();
            let hit = Hit {
                at_millis: now_millis(),
                run: header("webhook-id"),
                schedule: header("reveille-schedule-id"),
                attempt: header("reveille-attempt"),
                traceparent: header("traceparent"),
                authorization: header("authorization"),
                body: request.text(),
                bytes: request.body,
                line: request.first_line,
                headers: request.headers,
            };
            let (state, changed) = &*self.state;
            let mut state = state.lock().unwrap();
            state.hits.push(hit);
            changed.notify_all();
            drop(changed.wait_while(state, |state| state.is_held).unwrap());
            let answer = self.answer;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", answer.len());
            connection.write(&[head.as_bytes(), answer.as_bytes()].concat()).ok()?;
        }
    }
}
