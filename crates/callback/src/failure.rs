//! Why an attempt got no answer, in words that a tenant may read: no secrets, no headers, no addresses.

use std::error::Error;
use std::io;

use domain::{EGRESS_REFUSED, EgressRefusal};
use http::Request;

use crate::Body;
use crate::guard::LookupFailed;

#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    Broken(String),
    TimedOut,
    /// The right to send it ended before its first byte.
    NotSent,
}

/// A request that got no answer on its connection.
pub(crate) struct Refused {
    pub(crate) error: hyper::Error,
    /// Not a byte of it was handed to the connection.
    pub(crate) is_unsent: bool,
}

impl From<hyper::client::conn::TrySendError<Request<Body>>> for Refused {
    fn from(mut refused: hyper::client::conn::TrySendError<Request<Body>>) -> Self {
        let is_unsent = refused.take_message().is_some();
        Refused { error: refused.into_error(), is_unsent }
    }
}

impl From<hyper::Error> for Refused {
    fn from(error: hyper::Error) -> Self {
        Refused { error, is_unsent: false }
    }
}

/// The target may not be called.
pub(crate) fn refused(refusal: EgressRefusal) -> Failure {
    Failure::Broken(format!("{EGRESS_REFUSED}: {refusal}"))
}

/// The first cause in `error`'s chain that has a name of its own.
pub(crate) fn describe(error: &(dyn Error + 'static)) -> Failure {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(found) = name(error) {
            return found;
        }
        // An `io::Error` made of another error tells that one by `get_ref`; its `source` is the one below.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    broken("the exchange failed")
}

fn name(error: &(dyn Error + 'static)) -> Option<Failure> {
    match error.downcast_ref::<LookupFailed>() {
        Some(LookupFailed::Unresolved(_)) => return Some(broken("the host's name could not be resolved")),
        Some(LookupFailed::Refused(refusal)) => return Some(refused(*refusal)),
        None => {}
    }
    if let Some(tls) = error.downcast_ref::<rustls::Error>() {
        return Some(Failure::Broken(format!("TLS: {}", shortened(&tls.to_string()))));
    }
    if let Some(io) = error.downcast_ref::<io::Error>() {
        return name_io(io);
    }
    if let Some(hyper) = error.downcast_ref::<hyper::Error>() {
        return name_hyper(hyper);
    }
    None
}

fn name_io(error: &io::Error) -> Option<Failure> {
    // ENFILE and EMFILE, which have no kind of their own.
    if let Some(23 | 24) = error.raw_os_error() {
        return Some(broken("no file descriptor is free: raise the limit on open files (ulimit -n)"));
    }
    let text = match error.kind() {
        io::ErrorKind::TimedOut => return Some(Failure::TimedOut),
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::ConnectionReset => "connection reset",
        io::ErrorKind::ConnectionAborted => "connection aborted",
        io::ErrorKind::BrokenPipe => "connection closed while the request was being sent",
        io::ErrorKind::HostUnreachable => "host unreachable",
        io::ErrorKind::NetworkUnreachable => "network unreachable",
        io::ErrorKind::AddrNotAvailable => "no local address or port is free for the connection",
        io::ErrorKind::UnexpectedEof => "connection closed before the answer was complete",
        _ => return None,
    };
    Some(broken(text))
}

fn name_hyper(error: &hyper::Error) -> Option<Failure> {
    let text = if error.is_incomplete_message() {
        "connection closed before the answer was complete"
    } else if error.is_parse_too_large() {
        "the head of the answer is too large"
    } else if error.is_parse() {
        "the answer is not HTTP"
    } else {
        return None;
    };
    Some(broken(text))
}

fn broken(text: &str) -> Failure {
    Failure::Broken(text.to_owned())
}

/// The first 200 bytes or a little less, at a character's end, without control characters.
fn shortened(text: &str) -> String {
    text.char_indices().take_while(|(at, _)| *at < 200).map(|(_, c)| if c.is_control() { ' ' } else { c }).collect()
}
