//! Output of commands for people, on standard output. Events of the service go to the log instead.

use std::io::{self, Write};

/// Writes `text` and a line end. A closed pipe, as after `| head`, is not an error.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
