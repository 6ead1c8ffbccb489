//! Egress rules: the kinds of network addresses, and the addresses that a tenant's callbacks may reach.
//!
//! A tenant chooses the target of a callback, and a machine inside the operator's network calls the target. Without
//! rules, a tenant could reach destinations that only this machine can reach: cloud metadata, databases, or the
//! operator's computer. Therefore callbacks may reach only public addresses, unless the tenant's policy allows other
//! addresses.
//!
//! Invariants: callbacks reach an address that is not public only if the policy allows this address. Some IPv6
//! addresses contain an IPv4 address (RFC 4038, 6052, 3056, 4380). Callbacks may reach such an IPv6 address only if the
//! policy allows both the IPv6 address and the IPv4 address. This module does not check host names. The code that
//! resolves a name must check each resolved address.
//!
//! The tables follow IANA's special-purpose registries for IPv4 and IPv6 (RFC 6890 and its updates).
//!
//! docs/decisions/0074-check-resolved-addresses.md gives the reasons for the design.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use http::Uri;

use crate::TopicPattern;

/// Error code of a URL that the policy rejects. The error text of a rejected attempt starts with the same code.
pub const EGRESS_REJECTED: &str = "egress_refused";

/// Maximum number of networks in a policy. The egress check compares the address of each connection with all networks.
pub const NETWORKS_MAX: usize = 32;

/// Maximum number of topic patterns in a policy.
pub const TOPICS_MAX: usize = 32;

/// Policy that states which destinations a tenant's callbacks may reach in addition to public addresses.
/// [`Egress::default`] allows no other destinations.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Egress {
    pub allow: BTreeSet<Class>,
    /// Allowed networks, at most [`NETWORKS_MAX`]. Only this list can allow an address that is neither public nor in a
    /// class. A network allows the address of a metadata service only if the network consists of this one address.
    pub allow_networks: Vec<Network>,
    /// Restricts callbacks to `https`.
    pub forbid_http: bool,
    /// Topics of the message bus to which callbacks may be sent, at most [`TOPICS_MAX`] patterns. Without a pattern, callbacks
    /// reach no topic.
    pub allow_topics: Vec<TopicPattern>,
}

/// Class of addresses that are not public. A policy may allow all addresses of a class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// Addresses of the machine that makes the callback: 127.0.0.0/8 and ::1.
    Loopback,
    /// Private addresses (RFC 1918) and unique local addresses (RFC 4193).
    Private,
    /// Link-local addresses: 169.254.0.0/16 and fe80::/10.
    LinkLocal,
    /// Addresses behind a carrier's NAT (RFC 6598): 100.64.0.0/10.
    Shared,
}

impl Class {
    pub const ALL: [Class; 4] = [Class::Loopback, Class::Private, Class::LinkLocal, Class::Shared];

    /// Returns the name of the class in policies.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Class::Loopback => "loopback",
            Class::Private => "private",
            Class::LinkLocal => "link_local",
            Class::Shared => "shared",
        }
    }
}

impl FromStr for Class {
    type Err = UnknownClass;

    fn from_str(text: &str) -> Result<Self, UnknownClass> {
        Class::ALL.into_iter().find(|class| class.name() == text).ok_or(UnknownClass)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown address class; use loopback, private, link_local or shared")]
pub struct UnknownClass;

/// Network, which consists of all addresses with the same prefix, for example `10.1.0.0/16`. A text without a prefix
/// length denotes a single address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Network {
    address: IpAddr,
    length: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("text is not a network; use a form such as 10.1.0.0/16 or 2001:db8::/32")]
    Syntax,
    #[error("the address has nonzero bits after the prefix; use the first address of the network")]
    HostBits,
}

impl Network {
    const fn v4(a: u8, b: u8, c: u8, d: u8, length: u8) -> Self {
        Network { address: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), length }
    }

    const fn v6(head: [u16; 4], length: u8) -> Self {
        let [a, b, c, d] = head;
        Network { address: IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)), length }
    }

    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                first_bits(u128::from(network.to_bits() ^ address.to_bits()) << 96, self.length) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                first_bits(network.to_bits() ^ address.to_bits(), self.length) == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }

    fn is_one_address(self) -> bool {
        self.length == bits(self.address)
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn first_bits(address: u128, count: u8) -> u128 {
    address.checked_shr(128 - u32::from(count)).unwrap_or(0)
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let address: IpAddr = address.parse().map_err(|_| NetworkError::Syntax)?;
        if address.to_canonical() != address {
            return Err(NetworkError::Syntax); // The text of an IPv4-mapped address must use its IPv4 form.
        }
        let length = match length {
            None => bits(address),
            Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => {
                digits.parse().ok().filter(|length| *length <= bits(address)).ok_or(NetworkError::Syntax)?
            }
            Some(_) => return Err(NetworkError::Syntax),
        };
        let all = match address {
            IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
            IpAddr::V6(address) => address.to_bits(),
        };
        if all.checked_shl(u32::from(length)).unwrap_or(0) != 0 {
            return Err(NetworkError::HostBits);
        }
        Ok(Network { address, length })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// Kind of an address, from the point of view of the machine that makes a callback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Public,
    Of(Class),
    /// Address of a cloud's metadata service, which gives credentials to every client inside the cloud's network.
    Metadata,
    /// Address that is unassigned, or that a standard reserves for documentation, benchmarks, multicast, broadcast or
    /// future use.
    Reserved,
    /// Address whose packets a gateway forwards to the given IPv4 address.
    Translated(Ipv4Addr),
}

/// Addresses of the metadata services of the large clouds. Most clouds use the first of these addresses. Without this
/// table, the addresses would count as link-local, private, shared or public.
const METADATA: [IpAddr; 8] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)), // metadata service of AWS for credentials of containers
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)), // metadata service of AWS for identities of pods
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)), // metadata service of Alibaba
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)), // metadata service of Azure
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)), // metadata service of AWS
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)), // metadata service of AWS for identities of pods
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)), // metadata service of Google
];

const RESERVED_V4: [Network; 9] = [
    Network::v4(0, 0, 0, 0, 8),
    Network::v4(192, 0, 0, 0, 24),
    Network::v4(192, 0, 2, 0, 24),
    Network::v4(192, 88, 99, 0, 24), // relays for 6to4
    Network::v4(198, 18, 0, 0, 15),
    Network::v4(198, 51, 100, 0, 24),
    Network::v4(203, 0, 113, 0, 24),
    Network::v4(224, 0, 0, 0, 4),
    Network::v4(240, 0, 0, 0, 4), // this network includes the broadcast address
];

/// Global unicast addresses. An IPv6 address outside this network is reserved, unless it belongs to a class or contains
/// an IPv4 address.
const GLOBAL_V6: Network = Network::v6([0x2000, 0, 0, 0], 3);

const RESERVED_V6: [Network; 3] = [
    Network::v6([0x2001, 0, 0, 0], 23), // addresses for special protocols and for benchmarks
    Network::v6([0x2001, 0xdb8, 0, 0], 32),
    Network::v6([0x3fff, 0, 0, 0], 20),
];

const CLASSES: [(Network, Class); 9] = [
    (Network::v4(127, 0, 0, 0, 8), Class::Loopback),
    (Network { address: IpAddr::V6(Ipv6Addr::LOCALHOST), length: 128 }, Class::Loopback),
    (Network::v4(10, 0, 0, 0, 8), Class::Private),
    (Network::v4(172, 16, 0, 0, 12), Class::Private),
    (Network::v4(192, 168, 0, 0, 16), Class::Private),
    (Network::v6([0xfc00, 0, 0, 0], 7), Class::Private),
    (Network::v4(169, 254, 0, 0, 16), Class::LinkLocal),
    (Network::v6([0xfe80, 0, 0, 0], 10), Class::LinkLocal),
    (Network::v4(100, 64, 0, 0, 10), Class::Shared),
];

impl Kind {
    /// Classifies an address. An IPv4-mapped address (::ffff:0:0/96) has the kind of its IPv4 address, because the
    /// kernel connects to the IPv4 address.
    #[must_use]
    pub fn of(address: IpAddr) -> Kind {
        let address = address.to_canonical();
        if METADATA.contains(&address) {
            return Kind::Metadata;
        }
        if let Some((_, class)) = CLASSES.iter().find(|(network, _)| network.contains(address)) {
            return Kind::Of(*class);
        }
        match address {
            IpAddr::V4(_) if RESERVED_V4.iter().any(|network| network.contains(address)) => Kind::Reserved,
            IpAddr::V4(_) => Kind::Public,
            IpAddr::V6(v6) => Kind::of_v6(v6),
        }
    }

    fn of_v6(v6: Ipv6Addr) -> Kind {
        let address = IpAddr::V6(v6);
        let [s0, s1, s2, s3, s4, s5, s6, s7] = v6.segments();
        let embedded =
            |high: u16, low: u16| Kind::Translated(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)));
        match [s0, s1, s2, s3, s4, s5] {
            // These two patterns match the unspecified address and IPv4-compatible addresses (RFC 4291, 2.5.5.1).
            [0, 0, 0, 0, 0, 0] if s6 == 0 => Kind::Reserved,
            [0, 0, 0, 0, 0, 0] => embedded(s6, s7),
            // These prefixes belong to stateless translation (RFC 2765), NAT64 (RFC 6052), and local NAT64 (RFC 8215).
            [0, 0, 0, 0, 0xffff, 0] | [0x64, 0xff9b, 0, 0, 0, 0] | [0x64, 0xff9b, 1, ..] => embedded(s6, s7),
            // These prefixes belong to 6to4 (RFC 3056) and Teredo (RFC 4380). Teredo inverts the bits of the client's
            // address.
            [0x2002, ..] => embedded(s1, s2),
            [0x2001, 0, ..] => embedded(!s6, !s7),
            _ if !GLOBAL_V6.contains(address) => Kind::Reserved,
            _ if RESERVED_V6.iter().any(|network| network.contains(address)) => Kind::Reserved,
            _ => Kind::Public,
        }
    }
}

/// Reason why the policy rejects a target. It contains no address, because the tenant must not learn the address of a
/// host name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EgressRejection {
    #[error("the tenant's policy allows only https targets")]
    Http,
    #[error(
        "the host is at a {0} address, which the tenant's policy does not allow; an operator can change the policy"
    )]
    Address(&'static str),
    #[error("the tenant's policy does not list the topic; an operator can add it to `allow_topics`")]
    Topic,
}

impl Egress {
    /// Checks whether the policy allows callbacks to one address.
    ///
    /// # Errors
    /// Returns an error if `address` is not public and the policy does not allow it.
    pub fn check(&self, address: IpAddr) -> Result<(), EgressRejection> {
        let address = address.to_canonical();
        let (is_allowed, kind) = match Kind::of(address) {
            Kind::Public => return Ok(()),
            Kind::Of(class) => (self.allow.contains(&class) || self.lists(address), kind_name(class)),
            Kind::Reserved => (self.lists(address), "reserved"),
            Kind::Metadata => {
                let is_named = |network: &Network| network.is_one_address() && network.contains(address);
                (self.allow_networks.iter().any(is_named), "metadata service's")
            }
            Kind::Translated(inner) => {
                self.check(IpAddr::V4(inner))?;
                (self.lists(address), "translated")
            }
        };
        if is_allowed { Ok(()) } else { Err(EgressRejection::Address(kind)) }
    }

    fn lists(&self, address: IpAddr) -> bool {
        self.allow_networks.iter().any(|network| network.contains(address))
    }

    /// Checks whether the policy allows records in a topic.
    ///
    /// # Errors
    /// Returns an error if no pattern of the policy lists the topic, or if the topic is internal.
    pub fn check_topic(&self, topic: &str) -> Result<(), EgressRejection> {
        let is_listed = self.allow_topics.iter().any(|pattern| pattern.matches(topic));
        if is_listed { Ok(()) } else { Err(EgressRejection::Topic) }
    }

    /// Checks a URL without name resolution. It checks the scheme, and also the host if the host is an address.
    ///
    /// # Errors
    /// Returns an error if the policy rejects the URL's scheme or the address in the URL.
    pub fn check_url(&self, url: &Uri) -> Result<(), EgressRejection> {
        if self.forbid_http && url.scheme_str() == Some("http") {
            return Err(EgressRejection::Http);
        }
        let host = url.host().unwrap_or_default();
        match host.trim_start_matches('[').trim_end_matches(']').parse() {
            Ok(address) => self.check(address),
            Err(_) => Ok(()),
        }
    }
}

fn kind_name(class: Class) -> &'static str {
    match class {
        Class::LinkLocal => "link-local",
        other => other.name(),
    }
}

#[cfg(test)]
mod tests;
