//! Reasons why an attempt received no response. Tenants read these texts, so they contain no secrets, headers or
//! addresses.

use std::error::Error;
use std::io;

use domain::{EGRESS_REJECTED, EgressRejection, NOT_RESOLVED, TLS_FAILED};
use http::Request;

use crate::Body;
use crate::guard::LookupFailed;

#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    Broken(String),
    TimedOut,
    /// The deadline for sending the callback passed before the client sent the first byte.
    NotSent,
}

/// Error of a request that received no response on its connection.
pub(crate) struct ExchangeError {
    pub(crate) error: Box<dyn Error + Send + Sync>,
    /// True if the connection accepted no byte of the request.
    pub(crate) is_unsent: bool,
}

impl From<hyper::client::conn::TrySendError<Request<Body>>> for ExchangeError {
    fn from(mut failed: hyper::client::conn::TrySendError<Request<Body>>) -> Self {
        let is_unsent = failed.take_message().is_some();
        ExchangeError { error: failed.into_error().into(), is_unsent }
    }
}

impl From<hyper::Error> for ExchangeError {
    fn from(error: hyper::Error) -> Self {
        ExchangeError { error: error.into(), is_unsent: false }
    }
}

impl From<h2::Error> for ExchangeError {
    fn from(error: h2::Error) -> Self {
        ExchangeError { error: error.into(), is_unsent: false }
    }
}

/// Returns the failure of an attempt whose target the egress policy rejects.
pub(crate) fn egress_rejected(refusal: EgressRejection) -> Failure {
    Failure::Broken(format!("{EGRESS_REJECTED}: {refusal}"))
}

/// Returns a failure that names the first known error among `error` and its sources.
pub(crate) fn describe(error: &(dyn Error + 'static)) -> Failure {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(found) = name(error) {
            return found;
        }
        // If an `io::Error` wraps another error, `get_ref` returns the wrapped error, but `source` returns only the
        // source of the wrapped error.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    broken("the request failed")
}

fn name(error: &(dyn Error + 'static)) -> Option<Failure> {
    match error.downcast_ref::<LookupFailed>() {
        Some(LookupFailed::Unresolved(_)) => return Some(broken(NOT_RESOLVED)),
        Some(LookupFailed::Forbidden(refusal)) => return Some(egress_rejected(*refusal)),
        None => {}
    }
    if let Some(tls) = error.downcast_ref::<rustls::Error>() {
        return Some(Failure::Broken(format!("{TLS_FAILED}{}", shortened(&tls.to_string()))));
    }
    if let Some(io) = error.downcast_ref::<io::Error>() {
        return name_io(io);
    }
    if let Some(hyper) = error.downcast_ref::<hyper::Error>() {
        return name_hyper(hyper);
    }
    error.downcast_ref::<h2::Error>().and_then(name_h2)
}

fn name_io(error: &io::Error) -> Option<Failure> {
    // `ErrorKind` has no variants for the errors ENFILE (23) and EMFILE (24), which mean that no file descriptor is
    // free.
    if let Some(23 | 24) = error.raw_os_error() {
        return Some(broken("no file descriptor is free: raise the limit on open files (ulimit -n)"));
    }
    let text = match error.kind() {
        io::ErrorKind::TimedOut => return Some(Failure::TimedOut),
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::ConnectionReset => "connection reset",
        io::ErrorKind::ConnectionAborted => "connection aborted",
        io::ErrorKind::BrokenPipe => "connection closed before the request was complete",
        io::ErrorKind::HostUnreachable => "host unreachable",
        io::ErrorKind::NetworkUnreachable => "network unreachable",
        io::ErrorKind::AddrNotAvailable => "no local address or port is free for the connection",
        io::ErrorKind::UnexpectedEof => "connection closed before the response was complete",
        _ => return None,
    };
    Some(broken(text))
}

fn name_hyper(error: &hyper::Error) -> Option<Failure> {
    let text = if error.is_incomplete_message() {
        "connection closed before the response was complete"
    } else if error.is_parse_too_large() {
        "the response's head is too large"
    } else if error.is_parse() {
        "the response is not HTTP"
    } else {
        return None;
    };
    Some(broken(text))
}

fn name_h2(error: &h2::Error) -> Option<Failure> {
    if let Some(io) = error.get_io() {
        return name_io(io);
    }
    let text = if error.is_go_away() {
        "the target closed the HTTP/2 connection"
    } else if error.is_reset() {
        "the target reset the HTTP/2 stream"
    } else {
        return None;
    };
    Some(broken(text))
}

fn broken(text: &str) -> Failure {
    Failure::Broken(text.to_owned())
}

/// Returns the first characters of the text, up to about 200 bytes. Spaces replace control characters.
fn shortened(text: &str) -> String {
    text.char_indices().take_while(|(at, _)| *at < 200).map(|(_, c)| if c.is_control() { ' ' } else { c }).collect()
}
