//! A receiver of callbacks that remembers every one.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use crate::{PATIENCE, now_millis};

/// A callback that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Hit {
    pub(crate) at_millis: u64,
    /// `webhook-id`: the run.
    pub(crate) run: String,
    pub(crate) schedule: String,
    pub(crate) attempt: String,
    pub(crate) traceparent: String,
    pub(crate) authorization: String,
    pub(crate) body: String,
    /// Of the body, which may be no text.
    pub(crate) bytes: Vec<u8>,
    /// The first of the request.
    pub(crate) line: String,
}

#[derive(Default)]
struct State {
    hits: Vec<Hit>,
    /// Answers wait.
    is_held: bool,
}

/// It listens until the test process ends.
#[derive(Clone)]
pub(crate) struct Receiver {
    address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let address = listener.local_addr().expect("it listens");
        let receiver = Receiver { address, state: Arc::default() };
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

    /// From now on callbacks are taken and not answered, until [`Receiver::release`].
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

    /// Waits until `is_enough` of what has arrived.
    pub(crate) fn wait(&self, is_enough: impl Fn(&[Hit]) -> bool) -> Vec<Hit> {
        let deadline = Instant::now() + PATIENCE;
        let (state, changed) = &*self.state;
        let mut state = state.lock().unwrap();
        while !is_enough(&state.hits) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{} callbacks came, and not those that were waited for", state.hits.len());
            state = changed.wait_timeout(state, left).unwrap().0;
        }
        state.hits.clone()
    }

    fn serve(&self, stream: TcpStream) -> Option<()> {
        stream.set_nodelay(true).ok()?;
        let mut stream = BufReader::new(stream);
        loop {
            let (line, headers, bytes) = read_request(&mut stream).ok()?;
            let header = |name: &str| headers.get(name).cloned().unwrap_or_default();
            let hit = Hit {
                at_millis: now_millis(),
                run: header("webhook-id"),
                schedule: header("reveille-schedule-id"),
                attempt: header("reveille-attempt"),
                traceparent: header("traceparent"),
                authorization: header("authorization"),
                body: String::from_utf8_lossy(&bytes).into_owned(),
                bytes,
                line,
            };
            let (state, changed) = &*self.state;
            let mut state = state.lock().unwrap();
            state.hits.push(hit);
            changed.notify_all();
            drop(changed.wait_while(state, |state| state.is_held).unwrap());
            stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
        }
    }
}

fn read_request(stream: &mut BufReader<TcpStream>) -> io::Result<(String, BTreeMap<String, String>, Vec<u8>)> {
    let mut first = String::new();
    stream.read_line(&mut first)?;
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match line.trim_end() {
            "" => break,
            line => {
                if let Some((name, value)) = line.split_once(": ") {
                    headers.insert(name.to_ascii_lowercase(), value.to_owned());
                }
            }
        }
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok((first.trim_end().to_owned(), headers, body))
}
