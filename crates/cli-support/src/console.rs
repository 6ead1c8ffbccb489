//! Lines that commands print to standard output for people. The service writes its events to the log instead.

use std::io::{self, Write};

/// Writes `text` and a line end. The function returns no error if the reader closes the pipe, as `| head` does.
///
/// # Errors
/// Returns an error if the write to standard output fails for another reason.
pub fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
