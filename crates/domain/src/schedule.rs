//! Schedules, and their user-defined contents.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use bytes::Bytes;

use crate::recurrence::When;
use crate::retry::RetryPolicy;
use crate::{Incarnation, PollerId, Revision, ScheduleId, Secret, TargetKey, TenantId, Timestamp};

/// Schedule in the form in which the store contains it.
#[derive(Clone, PartialEq, Debug)]
pub struct Schedule {
    pub tenant: TenantId,
    pub id: ScheduleId,
    pub incarnation: Incarnation,
    /// Poller of the schedule. A schedule never changes its poller. The poller's shard is the schedule's home shard.
    pub poller: PollerId,
    pub revision: Revision,
    pub status: Status,
    pub created_at: Timestamp,
    /// Instant at which a user last created, replaced or patched the schedule. The schedule's cancellation and its end
    /// do not change this instant.
    pub updated_at: Timestamp,
    /// Nominal instant of the occurrence that has a due row. `None` if the schedule is ended or cancelled.
    pub next: Option<Timestamp>,
    pub spec: Spec,
}

impl Schedule {
    #[must_use]
    pub fn edition(&self) -> ScheduleVersion {
        ScheduleVersion { incarnation: self.incarnation, revision: self.revision }
    }

    #[must_use]
    pub fn seen(&self) -> Precondition {
        Precondition { edition: self.edition(), next: self.next }
    }
}

/// Version of a schedule's contents. Each change by a user and each cancellation changes the version. An occurrence of
/// a recurring schedule and the end of a schedule do not change it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ScheduleVersion {
    pub incarnation: Incarnation,
    pub revision: Revision,
}

impl ScheduleVersion {
    /// Returns the public, opaque form of the version: 26 digits in Crockford's base 32, a `-`, and the revision.
    #[must_use]
    pub fn name(&self) -> String {
        let mut text = String::with_capacity(32);
        crate::id::base32(self.incarnation.0, &mut text);
        text.push('-');
        text.push_str(&self.revision.0.to_string());
        text
    }

    /// Parses the public form of a version. Returns `None` for any text that [`ScheduleVersion::name`] never returns.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (incarnation, revision) = name.split_once('-')?;
        let incarnation = Incarnation(crate::id::parse_base32(incarnation)?);
        let edition = ScheduleVersion { incarnation, revision: Revision(revision.parse().ok()?) };
        // Each version has only one public form, so the revisions `+7` and `007` are invalid.
        (edition.name() == name).then_some(edition)
    }
}

/// Precondition from an earlier read of a schedule. While the precondition holds, the schedule's contents, state and
/// next occurrence are the same as in that read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Precondition {
    pub edition: ScheduleVersion,
    pub next: Option<Timestamp>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    Active,
    /// The schedule has no further occurrence.
    Ended,
    Cancelled,
}

/// User-defined part of a schedule.
#[derive(Clone, PartialEq, Debug)]
pub struct Spec {
    pub when: When,
    pub target: Target,
    /// Body of the callback. It has exactly the bytes of `payload` in the user's request for the schedule. It is empty
    /// if this request had no payload.
    pub payload: Bytes,
    pub labels: BTreeMap<String, String>,
    pub retry: RetryPolicy,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    Http(HttpTarget),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpTarget {
    /// URL with the scheme `http` or `https` and a host. The server checks the URL when a user creates or changes the
    /// schedule.
    pub url: String,
    pub method: String,
    /// Headers of the callback in the order of the user's request, with lower-case names. The list contains no header
    /// that Reveille sets itself and no hop-by-hop header. Header values may be credentials.
    pub headers: Vec<(String, Secret)>,
    /// Time limit of one attempt, from the start of the connection to the end of the response.
    pub timeout: Duration,
}

impl Target {
    /// Returns the key under which the scheduler counts the attempts to this target. It is a hash of scheme, host and
    /// port.
    #[must_use]
    pub fn key(&self) -> TargetKey {
        TargetKey(crate::id::fnv1a(self.origin().as_bytes()))
    }

    /// Returns the scheme, host and port of the URL, in the form that [`origin`] returns.
    #[must_use]
    pub fn origin(&self) -> String {
        let Target::Http(http) = self;
        origin(&http.url)
    }
}

/// Returns the scheme, host and port of a URL in a canonical form, such as `https://example.com:443`. All spellings of
/// the same scheme, host and port have the same canonical form. The form has lower-case letters, no dot at the end of
/// the host, IP addresses in their canonical form, and always a port. If a part of the URL is invalid, the form
/// contains this part in lower case.
#[must_use]
pub fn origin(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default().to_ascii_lowercase();
    let scheme = scheme.to_ascii_lowercase();
    let port_start = authority.rfind(':').filter(|at| !authority[*at..].contains(']')).unwrap_or(authority.len());
    let (host, port) = (&authority[..port_start], authority[port_start..].trim_start_matches(':'));
    let host = host.strip_suffix('.').unwrap_or(host);
    let address = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').and_then(|inner| inner.parse::<Ipv6Addr>().ok()).map(IpAddr::V6),
        None => ipv4(host).map(IpAddr::V4),
    };
    let host = match address.map(|address| address.to_canonical()) {
        Some(IpAddr::V4(address)) => address.to_string(),
        Some(IpAddr::V6(address)) => format!("[{address}]"),
        None => host.to_owned(),
    };
    let port = match (port, scheme.as_str()) {
        ("", "https") => "443".to_owned(),
        ("", _) => "80".to_owned(),
        (port, _) => port.parse::<u16>().map_or_else(|_| port.to_owned(), |port| port.to_string()),
    };
    format!("{scheme}://{host}:{port}")
}

/// Parses an IPv4 address as `inet_aton` and browsers do: one to four numbers in decimal, in octal after `0`, or in
/// hexadecimal after `0x`. The last number fills all remaining bytes.
fn ipv4(host: &str) -> Option<Ipv4Addr> {
    let number = |text: &str| match (text.strip_prefix("0x"), text.strip_prefix('0')) {
        (Some(""), _) | (_, Some("")) => Some(0),
        _ if text.contains('+') => None,
        (Some(hexadecimal), _) => u64::from_str_radix(hexadecimal, 16).ok(),
        (_, Some(octal)) => u64::from_str_radix(octal, 8).ok(),
        _ => text.parse().ok(),
    };
    let numbers: Vec<u64> = host.split('.').map(number).collect::<Option<_>>()?;
    let (last, leading) = numbers.split_last().filter(|(_, leading)| leading.len() < 4)?;
    let last_bits = 32 - 8 * u32::try_from(leading.len()).ok()?;
    if leading.iter().any(|byte| *byte > 255) || *last >= 1 << last_bits {
        return None;
    }
    let leading = leading.iter().enumerate().map(|(at, byte)| byte << (24 - 8 * at)).sum::<u64>();
    u32::try_from(leading + last).ok().map(Ipv4Addr::from)
}

#[cfg(test)]
mod tests {
    use super::origin;

    #[test]
    fn numeric_host_is_normalized_to_its_ip_address() {
        let host = |host: &str| origin(&format!("http://{host}/"));
        for loopback in
            ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0X7F.0.1", "0177.0.0.0x1", "127.000.000.001."]
        {
            assert_eq!(host(loopback), "http://127.0.0.1:80", "{loopback}");
        }
        assert_eq!((host("0"), host("0x")), ("http://0.0.0.0:80".to_owned(), "http://0.0.0.0:80".to_owned()));
        for name in
            ["127.0.0.256", "1.2.3.4.5", "4294967296", "08.1", "0xg", "1..2", "a.1", "+1", "0x+1", "127.0.0.1.."]
        {
            assert_eq!(host(name), format!("http://{}:80", name.strip_suffix('.').unwrap_or(name)), "{name}");
        }
    }

    #[test]
    fn all_spellings_of_an_origin_have_the_same_canonical_form() {
        let spellings = [
            (
                "https://example.com:443",
                &["https://example.com/a", "HTTPS://Example.COM.:0443?q", "https://example.com:#f"],
            ),
            (
                "http://example.com:80",
                &["http://example.com", "http://example.com:80/https://x", "http://EXAMPLE.com.:00080"],
            ),
            (
                "http://[2001:db8::1]:8080",
                &["http://[2001:DB8::1]:8080", "http://[2001:db8:0:0::1]:08080/", "http://[2001:db8::1]:8080?a:b"],
            ),
            ("http://10.0.0.1:80", &["http://10.0.0.1/", "http://[::ffff:10.0.0.1]/", "http://[::FFFF:a00:1]:80"]),
        ];
        for (expected, spellings) in spellings {
            for spelling in spellings {
                assert_eq!(origin(spelling), expected, "{spelling}");
            }
        }
        assert_ne!(origin("http://example.com"), origin("https://example.com"));
        assert_ne!(origin("http://example.com:81"), origin("http://example.com"));
    }
}
