//! Witness of the claims: a listener to which all processes of the test send lines. It rejects claims with old terms.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::time::{ClockId, clock_gettime};

use super::board::Board;

pub(super) struct Witness {
    pub(super) address: SocketAddr,
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    board: Board,
    /// Copy of all lines.
    log: File,
    failures: Vec<String>,
}

impl Witness {
    /// Starts a witness that also writes all lines to a new file. Its threads end with this process.
    ///
    /// # Errors
    /// Returns an error if no port is free, or if the file exists.
    pub(super) fn start(log: &Path) -> anyhow::Result<Witness> {
        let log = File::create_new(log).with_context(|| format!("cannot create {}", log.display()))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let state = Mutex::new(State { board: Board::default(), log, failures: Vec::new() });
        let inner = Arc::new(Inner { state, changed: Condvar::new() });
        let listening = inner.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let inner = listening.clone();
                thread::spawn(move || inner.read(stream));
            }
        });
        Ok(Witness { address, inner })
    }

    /// Waits until `find` returns a value, at most for `limit`. Returns `None` after the limit.
    pub(super) fn wait<T>(&self, limit: Duration, mut find: impl FnMut(&Board) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + limit;
        let mut state = self.inner.lock();
        loop {
            if let Some(found) = find(&state.board) {
                return Some(found);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            let waited = self.inner.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Calls a function with the claims so far.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Board) -> T) -> T {
        look(&self.inner.lock().board)
    }

    /// Ends all claims of a process that was killed. The process itself reports no end.
    pub(super) fn end_killed(&self, name: &str) {
        self.inner.lock().board.end_killed(name, now());
        self.inner.changed.notify_all();
    }

    /// Returns the malformed lines.
    pub(super) fn failures(&self) -> Vec<String> {
        self.inner.lock().failures.clone()
    }
}

/// Returns the time of the clock that all processes share, in nanoseconds.
pub(super) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads lines until the end of a connection. A process that is killed may leave an incomplete last line.
    fn read(&self, stream: TcpStream) {
        let (mut reader, mut line) = (BufReader::new(stream), String::new());
        while reader.read_line(&mut line).is_ok() && line.ends_with('\n') {
            let mut state = self.lock();
            if let Err(error) = state.log.write_all(line.as_bytes()) {
                state.failures.push(format!("cannot write the log of the witness: {error}"));
            }
            if let Err(error) = state.board.add(line.trim_end()) {
                state.failures.push(format!("{error:#}"));
            }
            drop(state);
            self.changed.notify_all();
            line.clear();
        }
    }
}
