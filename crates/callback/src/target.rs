//! Parts of a request that are the same for every callback to a target. The client prepares them once and caches them.

use std::sync::Arc;

use domain::target::origin;
use domain::validate::is_header_reserved;
use domain::{Egress, HttpTarget, TenantId};
use http::uri::Scheme;
use http::{HeaderName, HeaderValue, Method, Uri, header};

use crate::cache::Cache;
use crate::pool::{Authority, Pool};

/// Maximum number of prepared targets in the cache.
const TARGETS_KEPT: usize = 2_048;

const NO_HOST: &str = "the URL has no host; write a URL such as https://hooks.example/path";

/// Parsed and checked target, with its connections, from which the client builds requests.
pub(crate) struct Prepared {
    source: HttpTarget,
    pub(crate) authority: Arc<Authority>,
    pub(crate) method: Method,
    /// Full URL, which HTTP/2 requires.
    pub(crate) uri: Uri,
    /// Path and query, which HTTP/1.1 requires.
    pub(crate) path: Uri,
    pub(crate) host: HeaderValue,
    /// The user's headers, and the default headers that the user did not set.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum TargetError {
    #[error("invalid target URL: {0}")]
    Url(&'static str),
    #[error("invalid target method")]
    Method,
    #[error("invalid name or value of target header number {0} (counted from 0)")]
    Header(usize),
}

pub(crate) struct Targets(Cache<Prepared>);

impl Targets {
    pub(crate) fn new() -> Self {
        Targets(Cache::new(TARGETS_KEPT))
    }

    /// Returns `target` in its prepared form, for one tenant and one egress policy. The cache keeps this form for later
    /// attempts.
    pub(crate) fn prepare(
        &self,
        target: &HttpTarget,
        tenant: TenantId,
        egress: &Egress,
        pool: &Pool,
    ) -> Result<Arc<Prepared>, TargetError> {
        let key = (tenant, &target.url, &target.method, &target.headers, egress);
        let fits = |prepared: &Prepared| {
            prepared.source.url == target.url
                && prepared.source.method == target.method
                && prepared.source.headers == target.headers
                && prepared.authority.tenant == tenant
                && *prepared.authority.egress == *egress
        };
        self.0.get(key, fits, || prepare(target, tenant, egress, pool))
    }
}

fn prepare(target: &HttpTarget, tenant: TenantId, egress: &Egress, pool: &Pool) -> Result<Prepared, TargetError> {
    let (uri, connect_to, host) = parse_url(&target.url)?;
    let path =
        uri.path_and_query().cloned().ok_or(TargetError::Url("the URL has no path; add a path such as /hook"))?;
    let method = Method::from_bytes(target.method.as_bytes()).map_err(|_| TargetError::Method)?;
    if method == Method::CONNECT {
        return Err(TargetError::Method);
    }
    Ok(Prepared {
        source: target.clone(),
        authority: pool.authority(tenant, &connect_to, egress),
        method,
        uri,
        path: Uri::from(path),
        host,
        headers: headers(target)?,
    })
}

/// Returns three values: the full URL with a non-empty path, the URL to which the client connects, and the value of the
/// `host` header.
fn parse_url(url: &str) -> Result<(Uri, Uri, HeaderValue), TargetError> {
    let uri: Uri = url.parse().map_err(|_| TargetError::Url("not a URL"))?;
    let scheme = match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS => scheme.clone(),
        _ => {
            return Err(TargetError::Url(
                "the scheme is neither http nor https; start the URL with http:// or https://",
            ));
        }
    };
    let authority = uri.authority().ok_or(TargetError::Url(NO_HOST))?;
    if authority.as_str().contains('@') {
        return Err(TargetError::Url(
            "the URL contains a user name; remove it and send an authorization header instead",
        ));
    }
    if authority.host().is_empty() {
        return Err(TargetError::Url(NO_HOST));
    }
    if authority.port_u16().is_none() && authority.as_str().len() > authority.host().len() {
        return Err(TargetError::Url("the port is not a number from 0 to 65535"));
    }
    let host = HeaderValue::from_str(authority.as_str())
        .map_err(|_| TargetError::Url("the host contains a character that the `host` header cannot contain"))?;
    let connect_to = format!("{}/", origin(url))
        .parse()
        .map_err(|_| TargetError::Url("the host is neither a valid name nor a valid IP address"))?;
    // The URL `http://host?query` has an empty path. The path in an HTTP/1.1 request line and in the HTTP/2 field
    // `:path` must not be empty.
    let path = match uri.query() {
        Some(query) => format!("{}?{query}", uri.path()),
        None => uri.path().to_owned(),
    };
    let uri = Uri::builder().scheme(scheme).authority(authority.clone()).path_and_query(path).build();
    Ok((
        uri.map_err(|_| TargetError::Url("the path or the query contains a character that a URL cannot contain"))?,
        connect_to,
        host,
    ))
}

fn headers(target: &HttpTarget) -> Result<Vec<(HeaderName, HeaderValue)>, TargetError> {
    let mut headers = Vec::with_capacity(target.headers.len() + 2);
    for (number, (name, value)) in target.headers.iter().enumerate() {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| TargetError::Header(number))?;
        if is_header_reserved(name.as_str()) {
            continue; // The name became reserved after the schedule's creation, so the client omits the header.
        }
        // `from_bytes` rejects line ends and other control characters, so one header cannot become two.
        let value = value.plain().and_then(|value| HeaderValue::from_bytes(value).ok());
        let mut value = value.ok_or(TargetError::Header(number))?;
        value.set_sensitive(true); // `Debug` hides sensitive header values, and HPACK does not index them.
        headers.push((name, value));
    }
    let has = |name| headers.iter().any(|(present, _)| present == name);
    let content_type =
        (!has(header::CONTENT_TYPE)).then(|| (header::CONTENT_TYPE, HeaderValue::from_static("application/json")));
    let user_agent = (!has(header::USER_AGENT))
        .then(|| (header::USER_AGENT, HeaderValue::from_static(concat!("reveille/", env!("CARGO_PKG_VERSION")))));
    headers.extend(content_type.into_iter().chain(user_agent));
    Ok(headers)
}

#[cfg(test)]
mod tests;
