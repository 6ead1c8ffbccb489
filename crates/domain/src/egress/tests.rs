use super::*;

/// Returns a policy with no class, one policy for each single class, and a policy with all classes.
fn policies() -> Vec<Egress> {
    let mut policies: Vec<Egress> =
        Class::ALL.into_iter().map(|class| Egress { allow: [class].into(), ..Egress::default() }).collect();
    policies.push(Egress::default());
    policies.push(Egress { allow: Class::ALL.into(), ..Egress::default() });
    policies
}

fn with_networks(networks: &[&str]) -> Egress {
    Egress { allow_networks: networks.iter().map(|text| text.parse().unwrap()).collect(), ..Egress::default() }
}

fn kind(text: &str) -> Kind {
    Kind::of(text.parse().unwrap())
}

const PUBLIC: &[&str] = &[
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.0.1.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2606:4700::1111",
    "2a00:1450::1",
    "2003::1",
    "2001:200::1",
    "::ffff:8.8.8.8",
];

const CLASSED: &[(Class, &[&str])] = &[
    (Class::Loopback, &["127.0.0.1", "127.0.0.0", "127.255.255.255", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1"]),
    (
        Class::Private,
        &[
            "10.0.0.0",
            "10.255.255.255",
            "172.16.0.0",
            "172.31.255.255",
            "192.168.0.1",
            "192.168.255.255",
            "fc00::1",
            "fdff::1",
            "::ffff:10.0.0.1",
        ],
    ),
    (Class::LinkLocal, &["169.254.0.1", "169.254.255.255", "fe80::1", "febf::1", "::ffff:169.254.1.1"]),
    (Class::Shared, &["100.64.0.0", "100.127.255.255", "::ffff:100.64.0.1"]),
];

const METADATA: &[&str] = &[
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "168.63.129.16",
    "fd00:ec2::254",
    "fd20:ce::254",
    "::ffff:169.254.169.254",
];

const RESERVED: &[&str] = &[
    "0.0.0.0",
    "0.1.2.3",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::ffff:0.0.0.0",
    "2001:db8::1",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:1ff::1",
    "3fff::1",
    "3fff:fff::1",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "100::1",
    "5f00::1",
    "4000::1",
    "1fff::1",
    "fe00::1",
    "64:ff9b:2::1",
    "::1:0:0:1",
];

/// Returns IPv6 addresses of all kinds that contain the given IPv4 address.
fn translations(inner: &str) -> Vec<String> {
    let [a, b, c, d] = inner.parse::<Ipv4Addr>().unwrap().octets();
    let hex = format!("{a:02x}{b:02x}:{c:02x}{d:02x}");
    let inverted = format!("{:02x}{:02x}:{:02x}{:02x}", !a, !b, !c, !d);
    vec![
        format!("::{hex}"),
        format!("::ffff:0:{hex}"),
        format!("64:ff9b::{hex}"),
        format!("64:ff9b:1::{hex}"),
        format!("64:ff9b:1:7:8:9:{hex}"),
        format!("2002:{hex}::1"),
        format!("2001:0:4136:e378:8000:63bf:{inverted}"),
    ]
}

#[test]
fn every_policy_allows_public_addresses() {
    for address in PUBLIC {
        assert_eq!(kind(address), Kind::Public, "{address}");
        for policy in policies() {
            assert_eq!(policy.check(address.parse().unwrap()), Ok(()), "{address}");
        }
    }
}

#[test]
fn special_address_is_allowed_only_if_the_policy_names_its_class() {
    for (class, addresses) in CLASSED {
        for address in *addresses {
            assert_eq!(kind(address), Kind::Of(*class), "{address}");
            for policy in policies() {
                let is_allowed = policy.check(address.parse().unwrap()).is_ok();
                assert_eq!(is_allowed, policy.allow.contains(class), "{address} {policy:?}");
            }
        }
    }
}

#[test]
fn no_address_class_contains_a_metadata_or_reserved_address() {
    for (addresses, expected) in [(METADATA, Kind::Metadata), (RESERVED, Kind::Reserved)] {
        for address in addresses {
            assert_eq!(kind(address), expected, "{address}");
            for policy in policies() {
                assert!(policy.check(address.parse().unwrap()).is_err(), "{address} {policy:?}");
            }
        }
    }
    let wide = with_networks(&["0.0.0.0/0", "::/0", "169.254.0.0/16", "169.254.169.254/31"]);
    for address in METADATA {
        assert!(
            wide.check(address.parse().unwrap()).is_err(),
            "{address}: only a network of this single address allows it"
        );
    }
    let named = with_networks(&["169.254.169.254", "fd00:ec2::254/128"]);
    assert_eq!(named.check("169.254.169.254".parse().unwrap()), Ok(()));
    assert_eq!(named.check("fd00:ec2::254".parse().unwrap()), Ok(()));
    assert!(named.check("169.254.169.253".parse().unwrap()).is_err());
}

#[test]
fn egress_policy_checks_the_ipv4_address_inside_an_ipv6_address() {
    for inner in ["8.8.8.8", "127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1"] {
        for outer in translations(inner) {
            assert_eq!(kind(&outer), Kind::Translated(inner.parse().unwrap()), "{outer}");
            for policy in policies() {
                assert!(policy.check(outer.parse().unwrap()).is_err(), "{outer} {policy:?}");
            }
            // A policy that allows all IPv6 addresses does not allow a non-public IPv4 address inside an IPv6 address.
            let named = with_networks(&["::/0"]);
            assert_eq!(named.check(outer.parse().unwrap()).is_ok(), inner == "8.8.8.8", "{outer}");
        }
    }
    assert_eq!(with_networks(&["64:ff9b::/96", "10.0.0.0/8"]).check("64:ff9b::a00:1".parse().unwrap()), Ok(()));
}

#[test]
fn network_in_an_egress_policy_allows_only_its_own_addresses() {
    let policy = with_networks(&["10.1.0.0/16", "192.0.2.7", "fd12:3456::/32"]);
    for address in ["10.1.0.0", "10.1.255.255", "192.0.2.7", "::ffff:10.1.2.3", "fd12:3456:ffff::1"] {
        assert_eq!(policy.check(address.parse().unwrap()), Ok(()), "{address}");
    }
    for address in ["10.0.255.255", "10.2.0.0", "192.0.2.6", "192.0.2.8", "fd12:3457::1", "::a01:203"] {
        assert!(policy.check(address.parse().unwrap()).is_err(), "{address}");
    }
}

#[test]
fn network_parser_rejects_abbreviated_and_invalid_networks() {
    for text in ["10.1.0.0/16", "0.0.0.0/0", "1.2.3.4/32", "::/0", "fd00::/8", "2001:db8::1/128"] {
        assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
    }
    assert_eq!("1.2.3.4".parse::<Network>().unwrap().to_string(), "1.2.3.4/32");
    for text in [
        "",
        "/",
        "10.1/16",
        "10.1.0.0/",
        "10.1.0.0/33",
        "10.1.0.0/+8",
        "10.1.0.0/-1",
        "10.1.0.0/8/8",
        "::/129",
        "host/8",
        "::ffff:10.0.0.0/104",
        "010.0.0.0/8",
        "10.0.0.0 /8",
        "fe80::1%eth0",
        "10.0.0.0/256",
    ] {
        assert_eq!(text.parse::<Network>(), Err(NetworkError::Syntax), "{text}");
    }
    for text in ["10.1.0.1/16", "0.0.0.1/0", "::1/64"] {
        assert_eq!(text.parse::<Network>(), Err(NetworkError::HostBits), "{text}");
    }
}

#[test]
fn egress_policy_checks_a_url_without_resolving_its_host_name() {
    let judge = |policy: &Egress, url: &str| policy.check_url(&url.parse().unwrap());
    let none = Egress::default();
    for url in [
        "http://127.0.0.1/",
        "http://127.0.0.1:80/",
        "https://[::1]/",
        "http://[::ffff:10.0.0.1]:9/",
        "http://0.0.0.0/",
    ] {
        assert!(judge(&none, url).is_err(), "{url}");
    }
    // These hosts are names, a public address, and texts that only a resolver might read as addresses.
    for url in
        ["http://localhost/", "http://2130706433/", "http://0x7f.1/", "http://8.8.8.8/", "https://hooks.example/"]
    {
        assert_eq!(judge(&none, url), Ok(()), "{url}");
    }
    let strict = Egress { forbid_http: true, ..Egress::default() };
    assert_eq!(judge(&strict, "http://hooks.example/"), Err(EgressRejection::Http));
    assert_eq!(judge(&strict, "HTTP://8.8.8.8/"), Err(EgressRejection::Http));
    assert_eq!(judge(&strict, "https://hooks.example/"), Ok(()));
}

#[test]
fn parser_reads_an_address_class_from_its_name() {
    for class in Class::ALL {
        assert_eq!(class.name().parse(), Ok(class));
    }
    assert_eq!("public".parse::<Class>(), Err(UnknownClass));
}
