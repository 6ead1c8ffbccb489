//! What of a callback is the same for every callback of a target, made once.

use std::sync::Arc;

use domain::validate::is_header_reserved;
use domain::{Egress, HttpTarget};
use http::uri::Scheme;
use http::{HeaderName, HeaderValue, Method, Uri, header};

use crate::cache::Cache;
use crate::pool::{Authority, Pool};

/// Prepared targets that stay while they are in use; at most twice as many are kept.
const TARGETS_KEPT: usize = 1_024;

/// A target, ready to be sent to.
pub(crate) struct Prepared {
    of: HttpTarget,
    pub(crate) authority: Arc<Authority>,
    pub(crate) method: Method,
    /// In full, as HTTP/2 wants it.
    pub(crate) uri: Uri,
    /// Path and query, as HTTP/1.1 wants it.
    pub(crate) path: Uri,
    pub(crate) host: HeaderValue,
    /// The user's headers, and those that every callback has unless its user set them.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum TargetError {
    #[error("the target's URL cannot be used: {0}")]
    Url(&'static str),
    #[error("the target's method cannot be used")]
    Method,
    #[error("the target's header number {0} (from 0) cannot be sent")]
    Header(usize),
}

pub(crate) struct Targets(Cache<Prepared>);

impl Targets {
    pub(crate) fn new() -> Self {
        Targets(Cache::new(TARGETS_KEPT))
    }

    /// Of a tenant that may call what `egress` allows.
    pub(crate) fn prepare(
        &self,
        target: &HttpTarget,
        egress: &Egress,
        pool: &Pool,
    ) -> Result<Arc<Prepared>, TargetError> {
        let key = (&target.url, &target.method, &target.headers, egress);
        let fits = |prepared: &Prepared| {
            prepared.of.url == target.url
                && prepared.of.method == target.method
                && prepared.of.headers == target.headers
                && *prepared.authority.egress == *egress
        };
        self.0.get(key, fits, || prepare(target, egress, pool))
    }
}

fn prepare(target: &HttpTarget, egress: &Egress, pool: &Pool) -> Result<Prepared, TargetError> {
    let (uri, connect_to, host) = parse_url(&target.url)?;
    let path = uri.path_and_query().cloned().ok_or(TargetError::Url("it has no path"))?;
    let method = Method::from_bytes(target.method.as_bytes()).map_err(|_| TargetError::Method)?;
    if method == Method::CONNECT {
        return Err(TargetError::Method);
    }
    Ok(Prepared {
        of: target.clone(),
        authority: pool.authority(&connect_to, egress),
        method,
        uri,
        path: Uri::from(path),
        host,
        headers: headers(target)?,
    })
}

/// The URL, with a path; where to connect for it; and its `host` header.
fn parse_url(url: &str) -> Result<(Uri, Uri, HeaderValue), TargetError> {
    let uri: Uri = url.parse().map_err(|_| TargetError::Url("it is not one"))?;
    let scheme = match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS => scheme.clone(),
        _ => return Err(TargetError::Url("its scheme is neither http nor https")),
    };
    let authority = uri.authority().ok_or(TargetError::Url("it names no host"))?;
    if authority.as_str().contains('@') {
        return Err(TargetError::Url("it holds a user name; send an authorization header instead"));
    }
    if authority.host().is_empty() {
        return Err(TargetError::Url("it names no host"));
    }
    let port = match (authority.port_u16(), authority.as_str().len() > authority.host().len()) {
        (Some(port), _) => port,
        (None, true) => return Err(TargetError::Url("its port is not a number up to 65535")),
        (None, false) => {
            if scheme == Scheme::HTTPS {
                443
            } else {
                80
            }
        }
    };
    let host = HeaderValue::from_str(authority.as_str()).map_err(|_| TargetError::Url("its host cannot be sent"))?;
    let place = format!("{}:{port}", authority.host().to_ascii_lowercase());
    let connect_to = Uri::builder().scheme(scheme.clone()).authority(place).path_and_query("/").build();
    let connect_to = connect_to.map_err(|_| TargetError::Url("its host cannot be used"))?;
    // `http://host?query` has an empty path, which no request line and no `:path` may have.
    let path = match uri.query() {
        Some(query) => format!("{}?{query}", uri.path()),
        None => uri.path().to_owned(),
    };
    let uri = Uri::builder().scheme(scheme).authority(authority.clone()).path_and_query(path).build();
    Ok((uri.map_err(|_| TargetError::Url("its path cannot be used"))?, connect_to, host))
}

fn headers(target: &HttpTarget) -> Result<Vec<(HeaderName, HeaderValue)>, TargetError> {
    let mut headers = Vec::with_capacity(target.headers.len() + 2);
    for (number, (name, value)) in target.headers.iter().enumerate() {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| TargetError::Header(number))?;
        if is_header_reserved(name.as_str()) {
            continue; // It was stored before it was reserved.
        }
        // Refuses line ends and other control characters, so one header cannot become two.
        let value = value.plain().and_then(|value| HeaderValue::from_bytes(value).ok());
        let mut value = value.ok_or(TargetError::Header(number))?;
        value.set_sensitive(true); // No `Debug` of it shows it, and HPACK does not index it.
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
