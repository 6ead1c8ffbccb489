//! Connection to the witness. `xtask/src/chaos/recipes/board.rs` describes the lines.

use std::io::{self, Write as _};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};

use rustix::time::{ClockId, clock_gettime};

pub(crate) struct Witness(Mutex<TcpStream>);

impl Witness {
    pub(crate) fn connect(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Witness(Mutex::new(stream)))
    }

    /// Writes whole lines. The witness is in another process of this machine, so the write takes little time.
    pub(crate) fn write(&self, lines: &str) {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stream.write_all(lines.as_bytes()).expect("the witness lives longer than this process");
    }
}

/// Returns the time of the machine's monotonic clock, which all processes share, in nanoseconds.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
