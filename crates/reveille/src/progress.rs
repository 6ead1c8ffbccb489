//! How far a long command is, on standard error.

use std::io::{self, IsTerminal as _, Write as _};
use std::pin::pin;
use std::time::Duration;

use runtime::{Monotonic, Runtime};
use tokio::select;

/// Between two lines: often enough to be seen to move.
const PERIOD: Duration = Duration::from_millis(100);

/// A line that is written over and over; nothing where there is nobody to watch.
pub(crate) struct Progress {
    runtime: Runtime,
    told_at: Option<Monotonic>,
    is_watched: bool,
}

impl Progress {
    pub(crate) fn new(runtime: &Runtime) -> Self {
        Progress { runtime: runtime.clone(), told_at: None, is_watched: io::stderr().is_terminal() }
    }

    /// Does what says nothing until it is done, and tells meanwhile what that is, and for how long it has been.
    pub(crate) async fn during<T>(&mut self, what: &str, work: impl Future<Output = T>) -> T {
        let runtime = self.runtime.clone();
        let begin = runtime.monotonic();
        let mut work = pin!(work);
        loop {
            self.tell(|| format!("{what}: {} s", runtime.monotonic().since(begin).as_secs()));
            select! {
                biased;
                done = &mut work => return done,
                () = runtime.sleep(PERIOD) => {}
            }
        }
    }

    /// Tells, if the last time was a while ago.
    pub(crate) fn tell(&mut self, text: impl FnOnce() -> String) {
        if !self.is_watched {
            return;
        }
        let now = self.runtime.monotonic();
        if self.told_at.is_none_or(|at| now.since(at) >= PERIOD) {
            self.told_at = Some(now);
            // The rest of the line before is erased (ECMA-48, EL). Without a standard error there is nobody to tell.
            let _nobody = write!(io::stderr(), "\r{}\u{1b}[K", text());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.told_at.is_some() {
            let _nobody = write!(io::stderr(), "\r\u{1b}[K");
        }
    }
}
