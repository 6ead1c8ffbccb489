//! The receiver of all callbacks: it writes each down, then answers it. Some of its answers are slow, some are failures.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use test_servers::http::{Connection, Message};

use super::chance::Chance;
use super::instant;
use super::log::{Callback, Log, now_millis};

const SLOW_PERCENT: u64 = 10;
const SLOW_MS: (u64, u64) = (100, 500);
const FAILED_PERCENT: u64 = 2;

/// It listens until the process ends.
#[derive(Clone)]
pub(super) struct Receiver {
    pub(super) address: SocketAddr,
    inner: Arc<Inner>,
}

struct Inner {
    log: Log,
    chance: Mutex<Chance>,
    count: AtomicU64,
    /// Callbacks that are not what was asked for, and so are in no log: how many, and the first.
    strange: Mutex<(u64, Option<String>)>,
}

impl Receiver {
    pub(super) fn start(at: Ipv4Addr, log: Log, chance: Chance) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((at, 0)).context("the receiver has no port")?;
        let inner = Inner { log, chance: Mutex::new(chance), count: AtomicU64::new(0), strange: Mutex::new((0, None)) };
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

    pub(super) fn strange(&self) -> (u64, Option<String>) {
        self.inner.strange.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Until the connection ends.
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
                    let mut strange = self.inner.strange.lock().unwrap_or_else(PoisonError::into_inner);
                    strange.0 += 1;
                    strange.1.get_or_insert_with(|| format!("{message:?}"));
                }
            }
            self.inner.count.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(wait_ms));
            let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
            connection.write(answer.as_bytes()).ok()?;
        }
    }

    fn draw(&self) -> (u16, u64) {
        let mut chance = self.inner.chance.lock().unwrap_or_else(PoisonError::into_inner);
        let wait_ms = if chance.percent(SLOW_PERCENT) { chance.between(SLOW_MS.0, SLOW_MS.1) } else { 0 };
        (if chance.percent(FAILED_PERCENT) { 500 } else { 200 }, wait_ms)
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
    })
}
