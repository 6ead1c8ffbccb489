//! Parts of a target's response that the scheduler uses.

use std::time::{Duration, UNIX_EPOCH};

use domain::limits::EXCERPT_BYTES_MAX;
use domain::{Secret, Timestamp};
use http::{HeaderMap, HeaderValue, StatusCode, header};

#[derive(Debug)]
pub(crate) struct TargetResponse {
    pub(crate) status: StatusCode,
    /// Unparsed value of the header `Retry-After`. `None` if the response has a 2xx status or does not contain the
    /// header.
    retry_after: Option<HeaderValue>,
}

impl TargetResponse {
    pub(crate) fn new(status: StatusCode, headers: &mut HeaderMap) -> Self {
        let retry_after = if status.is_success() { None } else { headers.remove(header::RETRY_AFTER) };
        TargetResponse { status, retry_after }
    }

    /// Returns the wait that the target requests with `Retry-After`, which contains seconds or a date (RFC 9110,
    /// 10.2.3). A past date means a wait of zero. Returns `None` if the header is missing or contains any other text.
    pub(crate) fn retry_after(&self, now: impl FnOnce() -> Timestamp) -> Option<Duration> {
        let text = self.retry_after.as_ref()?.to_str().ok()?.trim();
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
        }
        let until = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
        let until = Timestamp::from_millis(i64::try_from(until.as_millis()).ok()?);
        Some(until.since(now()))
    }
}

/// First bytes of the body of a response, for the record of the attempt. The client reads no byte for the excerpt: it
/// copies bytes that it reads anyway, so that it can use the connection again. The excerpt contains the bytes as they
/// arrive, without the coding of the transfer and with the coding of the content.
#[derive(Default)]
pub(crate) struct Excerpt {
    /// Number of bytes that the excerpt still lacks; 0 if the tenant wants no excerpts.
    missing: usize,
    bytes: Vec<u8>,
}

impl Excerpt {
    pub(crate) fn new(is_wanted: bool) -> Self {
        Excerpt { missing: if is_wanted { EXCERPT_BYTES_MAX } else { 0 }, bytes: Vec::new() }
    }

    /// Adds the next bytes of the body.
    pub(crate) fn add(&mut self, data: &[u8]) {
        let added = data.len().min(self.missing);
        self.missing -= added;
        self.bytes.extend_from_slice(&data[..added]);
    }

    /// Returns the excerpt, or `None` if no byte arrived.
    pub(crate) fn into_secret(self) -> Option<Secret> {
        (!self.bytes.is_empty()).then(|| self.bytes.into())
    }
}

/// Time for which the target keeps this connection open for the next request, if the response states it
/// (`Keep-Alive: timeout=5`).
pub(crate) fn keep_alive(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("keep-alive")?.to_str().ok()?;
    let (_, seconds) =
        text.split(',').filter_map(|part| part.trim().split_once('=')).find(|(name, _)| *name == "timeout")?;
    Some(Duration::from_secs(seconds.trim().parse().ok()?))
}

#[cfg(test)]
mod tests;
