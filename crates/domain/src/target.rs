//! Targets: the destinations of callbacks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::{Secret, TargetKey};

/// Destination of a schedule's callbacks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    Http(HttpTarget),
    Bus(BusTarget),
}

/// HTTP request as the destination of callbacks.
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

/// Topic of a message bus as the destination of callbacks. Each callback is a record with the payload as its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BusTarget {
    /// Name of the topic, with the syntax that [`crate::topic::is_name`] checks.
    pub topic: String,
    /// Key of the record. Records with the same key are in the same partition. The bus selects the partition of a record
    /// without a key.
    pub key: Option<String>,
    /// Headers of the record in the order of the user's request, with lower-case names. The list contains no header that
    /// Reveille sets itself. Header values may be credentials.
    pub headers: Vec<(String, Secret)>,
    /// Form of the record as a CloudEvent. `None` for a record that is not a CloudEvent.
    pub cloud_event: Option<CloudEvent>,
    /// Time limit of one attempt, from its start until all in-sync replicas of the partition have stored the record.
    pub timeout: Duration,
}

/// Form of a record as a CloudEvent (CloudEvents 1.0 and its Kafka protocol binding 1.0).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CloudEvent {
    pub mode: CloudEventMode,
    /// Attribute `type` of the event.
    pub kind: String,
    /// Attribute `source` of the event, a URI reference. `None` for the path of the schedule in the API.
    pub source: Option<String>,
}

/// Content mode of a CloudEvent (CloudEvents Kafka protocol binding 1.0, section 3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloudEventMode {
    /// The attributes are headers of the record, and the payload is its value.
    Binary,
    /// The value of the record is a JSON object that contains the attributes and the payload.
    Structured,
}

/// Kind of a target. A tenant has separate limits for each kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TargetKind {
    Http,
    Bus,
}

impl TargetKind {
    pub const ALL: [TargetKind; 2] = [TargetKind::Http, TargetKind::Bus];
}

/// First key of bus topics. All smaller keys belong to HTTP targets.
const BUS_KEY_MIN: u32 = 0xfff0_0000;

impl TargetKey {
    /// Returns the kind of the targets that have this key. A key that an earlier build stored for an HTTP target can belong
    /// to the kind [`TargetKind::Bus`] with a probability of 2^-12. The scheduler then applies the limits of this kind.
    #[must_use]
    pub fn kind(self) -> TargetKind {
        if self.0 < BUS_KEY_MIN { TargetKind::Http } else { TargetKind::Bus }
    }
}

impl Target {
    #[must_use]
    pub fn kind(&self) -> TargetKind {
        match self {
            Target::Http(_) => TargetKind::Http,
            Target::Bus(_) => TargetKind::Bus,
        }
    }

    /// Returns the key under which the scheduler counts the attempts to this target. It is a hash of the origin.
    #[must_use]
    pub fn key(&self) -> TargetKey {
        let hash = crate::id::fnv1a(self.origin().as_bytes());
        TargetKey(match self {
            Target::Http(_) if hash >= BUS_KEY_MIN => hash - BUS_KEY_MIN,
            Target::Http(_) => hash,
            Target::Bus(_) => hash | BUS_KEY_MIN,
        })
    }

    /// Returns the part of the target that receives its headers: the scheme, host and port of a URL in the form that
    /// [`origin`] returns, or `bus:` and the name of a topic.
    #[must_use]
    pub fn origin(&self) -> String {
        match self {
            Target::Http(http) => origin(&http.url),
            Target::Bus(bus) => format!("bus:{}", bus.topic),
        }
    }

    /// Returns the host of a URL in the form that [`canonical_host`] returns, or `None` for a topic.
    #[must_use]
    pub fn host(&self) -> Option<String> {
        match self {
            Target::Http(http) => Some(host_of(&origin(&http.url)).to_owned()),
            Target::Bus(_) => None,
        }
    }

    /// Returns the time limit of one attempt.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        match self {
            Target::Http(http) => http.timeout,
            Target::Bus(bus) => bus.timeout,
        }
    }

    /// Returns the headers with their names in lower case.
    #[must_use]
    pub fn headers(&self) -> &[(String, Secret)] {
        match self {
            Target::Http(http) => &http.headers,
            Target::Bus(bus) => &bus.headers,
        }
    }

    /// Returns the headers, which the caller may change.
    pub fn headers_mut(&mut self) -> &mut Vec<(String, Secret)> {
        match self {
            Target::Http(http) => &mut http.headers,
            Target::Bus(bus) => &mut bus.headers,
        }
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

/// Returns a host name or an IP address in the form that it has in [`origin`]. An IPv6 address may lack its brackets.
#[must_use]
pub fn canonical_host(host: &str) -> String {
    let brackets = if host.parse::<Ipv6Addr>().is_ok() { ["[", "]"] } else { ["", ""] };
    host_of(&origin(&format!("http://{}{host}{}", brackets[0], brackets[1]))).to_owned()
}

/// Returns the host in an origin that [`origin`] returned.
fn host_of(origin: &str) -> &str {
    let (_, authority) = origin.split_once("://").unwrap_or_default();
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
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
    use super::*;

    fn bus(topic: &str) -> Target {
        let timeout = Duration::from_secs(10);
        Target::Bus(BusTarget { topic: topic.to_owned(), key: None, headers: Vec::new(), cloud_event: None, timeout })
    }

    fn http(url: &str) -> Target {
        let (url, method, timeout) = (url.to_owned(), "POST".to_owned(), Duration::from_secs(10));
        Target::Http(HttpTarget { url, method, headers: Vec::new(), timeout })
    }

    #[test]
    fn key_of_a_target_determines_its_kind() {
        let mut large = 0;
        for number in 0..300_000 {
            let url = format!("https://host-{number}.example");
            assert_eq!(http(&url).key().kind(), TargetKind::Http);
            large += u32::from(crate::id::fnv1a(origin(&url).as_bytes()) >= BUS_KEY_MIN);
        }
        assert!(large > 0, "no hash of a URL is in the range of the bus");
        assert_eq!(bus("orders").key().kind(), TargetKind::Bus);
        assert_ne!(bus("orders").key(), bus("payments").key());
        assert_eq!(bus("orders").origin(), "bus:orders");
    }

    #[test]
    fn host_of_a_target_has_one_form() {
        for (url, hosts) in [
            ("https://Shop.Example.:8443/a", &["shop.example", "SHOP.EXAMPLE."][..]),
            ("http://127.1/", &["127.0.0.1", "127.1"]),
            ("http://[2001:DB8::1]:8080", &["2001:db8:0::1", "[2001:db8::1]"]),
        ] {
            for host in hosts {
                assert_eq!(http(url).host(), Some(canonical_host(host)), "{url}");
            }
        }
        assert_eq!(bus("orders").host(), None);
        assert_ne!(http("http://a.example").host(), Some(canonical_host("b.example")));
    }

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
