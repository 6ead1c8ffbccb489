//! What the commands say to the person who runs them, on standard output. The service's own events go to the log.

use std::io::{self, Write};

/// Writes `text` and a line's end. A reader that has gone away (`| head`) ends nothing.
///
/// # Errors
/// If standard output cannot be written.
pub fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
