//! Display of the progress of a long command on standard error.

use std::io::{self, IsTerminal as _, Write as _};
use std::pin::pin;
use std::time::Duration;

use runtime::{Monotonic, Runtime};
use tokio::select;

use crate::cli::show::escaped;

/// Minimum time between two updates. It is short enough for a user to see the progress.
const PERIOD: Duration = Duration::from_millis(100);

/// Line on standard error that each update overwrites. If standard error is not a terminal, the updates write nothing.
pub(crate) struct Progress {
    runtime: Runtime,
    written_at: Option<Monotonic>,
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn new(runtime: &Runtime) -> Self {
        Progress { runtime: runtime.clone(), written_at: None, is_terminal: io::stderr().is_terminal() }
    }

    /// Awaits `work`, which reports no progress. Until `work` completes, the function shows `name` and the elapsed
    /// seconds.
    pub(crate) async fn during<T>(&mut self, name: &str, work: impl Future<Output = T>) -> T {
        let runtime = self.runtime.clone();
        let begin = runtime.monotonic();
        let mut work = pin!(work);
        loop {
            self.update(|| format!("{name}: {} s", runtime.monotonic().since(begin).as_secs()));
            select! {
                biased;
                done = &mut work => return done,
                () = runtime.sleep(PERIOD) => {}
            }
        }
    }

    /// Replaces the line on standard error by `text` if at least [`PERIOD`] has passed since the last update. Escapes
    /// control characters.
    pub(crate) fn update(&mut self, text: impl FnOnce() -> String) {
        if !self.is_terminal {
            return;
        }
        let now = self.runtime.monotonic();
        if self.written_at.is_none_or(|at| now.since(at) >= PERIOD) {
            self.written_at = Some(now);
            let text = escaped(&text());
            // The control function EL of ECMA-48 erases the rest of the previous text. If standard error is closed, the
            // text is lost.
            let _unwritten = write!(io::stderr(), "\r{text}\u{1b}[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.written_at.is_some() {
            let _unwritten = write!(io::stderr(), "\r\u{1b}[K");
        }
    }
}
