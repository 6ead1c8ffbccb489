//! Receiver of all callbacks. It logs each callback before it responds. Some of its responses are slow, and some are
//! failures.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use test_servers::http::{Connection, Message};

use super::instant;
use super::log::{Callback, Log, now_millis};
use super::random::Random;

const SLOW_PERCENT: u64 = 10;
const SLOW_MS: (u64, u64) = (100, 500);
const FAILED_PERCENT: u64 = 2;

/// Receiver that listens until the process ends.
#[derive(Clone)]
pub(super) struct Receiver {
    pub(super) address: SocketAddr,
    inner: Arc<Inner>,
}

struct Inner {
    log: Log,
    random: Mutex<Random>,
    count: AtomicU64,
    /// Number of malformed callbacks, and the first malformed callback. The receiver does not log malformed callbacks.
    unexpected: Mutex<(u64, Option<String>)>,
}

impl Receiver {
    pub(super) fn start(at: Ipv4Addr, log: Log, random: Random) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((at, 0)).context("cannot open a port for the receiver of callbacks")?;
        let inner =
            Inner { log, random: Mutex::new(random), count: AtomicU64::new(0), unexpected: Mutex::new((0, None)) };
        let receiver = Receiver { address: listener.local_addr()?, inner: Arc::new(inner) };
        let accepting = receiver.clone();
        thread::spawn(move || {
            for stream in listener.incoming().filter_map(Result::ok) {
                let receiver = accepting.clone();
                thread::spawn(move || receiver.serve(stream));
            }
        });
        Ok(receiver)
    }

    pub(super) fn count(&self) -> u64 {
        self.inner.count.load(Ordering::Relaxed)
    }

    pub(super) fn unexpected(&self) -> (u64, Option<String>) {
        self.inner.unexpected.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Serves a connection until the connection ends.
    fn serve(&self, stream: TcpStream) -> Option<()> {
        let from = stream.peer_addr().ok()?.ip().to_string();
        let mut connection = Connection::new(stream).ok()?;
        loop {
            let message = connection.read().ok()?;
            let arrived_ms = now_millis();
            let (status, wait_ms) = self.draw();
            match callback(&message, &from, arrived_ms, (status, wait_ms)) {
                Some(callback) => self.inner.log.write(&callback),
                None => {
                    let mut unexpected = self.inner.unexpected.lock().unwrap_or_else(PoisonError::into_inner);
                    unexpected.0 += 1;
                    unexpected.1.get_or_insert_with(|| format!("{message:?}"));
                }
            }
            self.inner.count.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(wait_ms));
            let response = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
            connection.write(response.as_bytes()).ok()?;
        }
    }

    fn draw(&self) -> (u16, u64) {
        let mut random = self.inner.random.lock().unwrap_or_else(PoisonError::into_inner);
        let wait_ms = if random.percent(SLOW_PERCENT) { random.between(SLOW_MS.0, SLOW_MS.1) } else { 0 };
        (if random.percent(FAILED_PERCENT) { 500 } else { 200 }, wait_ms)
    }
}

fn callback(message: &Message, from: &str, arrived_ms: u64, answer: (u16, u64)) -> Option<Callback> {
    let body = message.json();
    let number = |name: &str| message.header(name)?.parse::<u64>().ok();
    let nominal_ms = instant::parse(message.header("reveille-scheduled-at")?)?;
    Some(Callback {
        token: body["token"].as_str()?.to_owned(),
        version: u32::try_from(body["version"].as_u64()?).ok()?,
        arrived_ms,
        started_ms: nominal_ms + number("reveille-lateness-ms")?,
        nominal_ms,
        run: message.header("webhook-id")?.to_owned(),
        schedule: message.header("reveille-schedule-id")?.to_owned(),
        attempt: u32::try_from(number("reveille-attempt")?).ok()?,
        term: number("reveille-term")?,
        from: from.to_owned(),
        answered_with: answer.0,
        answered_after_ms: answer.1,
        is_record: false,
    })
}
