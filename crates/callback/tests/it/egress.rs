//! Tests of the egress policy, which decides to which addresses callbacks may go, regardless of the spelling of an
//! address in a URL. The tests use the system's resolver.

use std::sync::Arc;

use callback::{HttpDeliver, Options};
use domain::egress::Class;
use domain::{AttemptResult, Egress, Tenant};
use futures_util::FutureExt;
use scheduler::{Delivered, Delivery};

use crate::support::{Listening, OK, deliverer, delivery, loopback, sent, target};

fn of_tenant(egress: &Egress, url: String) -> Delivery {
    let created = delivery(target(url), b"1");
    Delivery { tenant: Arc::new(Tenant { egress: egress.clone(), ..(*created.tenant).clone() }), ..created }
}

async fn attempt(deliverer: &HttpDeliver, egress: &Egress, url: String) -> Delivered {
    sent(deliverer, of_tenant(egress, url)).await
}

fn reason(delivered: &Delivered) -> &str {
    match &delivered.result {
        AttemptResult::Unreachable(reason) => reason,
        other => panic!("the target was not rejected: {other:?}"),
    }
}

fn is_rejected(delivered: &Delivered) -> bool {
    matches!(&delivered.result, AttemptResult::Unreachable(reason) if reason.starts_with("egress_refused: "))
}

/// Spellings of loopback addresses that a URL parser, a resolver or `inet_aton` might accept.
const SPELLINGS: &[&str] = &[
    "127.0.0.1",
    "localhost",
    "LOCALHOST",
    "127.1",
    "127.0.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0X7F.0.0.1",
    "0177.0.0.1",
    "017700000001",
    "0177.0.0x1",
    "00000177.1",
    "127.0.0.1.",
    "localhost.",
    "127.1.",
    "127.000.000.001",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b:1::7f00:1]",
    "[2002:7f00:1::]",
    "[::ffff:0:7f00:1]",
    "[::]",
    "0.0.0.0",
    "0",
    "0x0",
    "127.255.255.254",
    "%31%32%37.0.0.1",
    "\u{ff11}\u{ff12}\u{ff17}.0.0.1",
    "127\u{3002}0\u{3002}0\u{3002}1",
    "\u{24db}ocalhost",
    "[::1%25lo]",
    "[fe80::1%25lo]",
    "[::ffff:7f.0.0.1]",
    "127.0.0.1#@example.org",
    "example.org@127.0.0.1",
];

#[tokio::test]
async fn no_spelling_of_a_loopback_address_bypasses_the_egress_policy() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    // The policy `others` allows every class of addresses except loopback.
    let others = Egress { allow: [Class::Private, Class::LinkLocal, Class::Shared].into(), ..Egress::default() };
    let mut rejected = 0;
    for spelling in SPELLINGS {
        for egress in [&Egress::default(), &others] {
            let delivered = attempt(&deliverer, egress, format!("http://{spelling}:{}/", listening.port())).await;
            rejected += usize::from(is_rejected(&delivered));
            // The policy does not cause every failure. Some spellings are not valid in a URL, and the resolver does not
            // know some names.
            assert!(!reason(&delivered).contains("127.") && !reason(&delivered).contains("::"), "{delivered:?}");
        }
    }
    assert!(listening.accept().now_or_never().is_none(), "the client never connected");
    assert_eq!(deliverer.connections().opened, 0);
    assert!(rejected >= 2 * 20, "the guard rejects most of them: {rejected}");
}

#[tokio::test]
async fn allowed_loopback_address_is_reachable_in_every_spelling() {
    let listening = Listening::start().await;
    for spelling in ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.1", "0177.0.0.1", "[::ffff:127.0.0.1]"] {
        let url = format!("http://{spelling}:{}/", listening.port());
        // Each spelling needs a new client, because a client would reuse the connection that it opened for an earlier
        // spelling.
        let (deliverer, loopback) = (deliverer(Options::default()), loopback());
        let (delivered, _served) = tokio::join!(attempt(&deliverer, &loopback, url), listening.serve(OK));
        assert!(delivered.result.is_success(), "{spelling}: {delivered:?}");
    }
}

/// Addresses of every class that is neither public nor loopback. The list contains several spellings of some addresses.
const ELSEWHERE: &[&str] = &[
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "167772161",
    "0xa.1",
    "012.0.0.1",
    "169.254.169.254",
    "2852039166",
    "0xa9fea9fe",
    "[fd00:ec2::254]",
    "[::ffff:169.254.169.254]",
    "100.64.0.1",
    "100.100.100.200",
    "224.0.0.1",
    "255.255.255.255",
    "192.0.2.1",
    "198.18.0.1",
    "240.0.0.1",
    "[fe80::1]",
    "[fc00::1]",
    "[ff02::1]",
    "[2001:db8::1]",
    "[2002:a9fe:a9fe::1]",
    "[64:ff9b::a9fe:a9fe]",
    "[2001:0:4136:e378:8000:63bf:5601:5601]",
];

#[tokio::test]
async fn egress_policy_rejects_non_public_addresses_by_default() {
    let deliverer = deliverer(Options::default());
    for host in ELSEWHERE {
        for scheme in ["http", "https"] {
            let delivered = attempt(&deliverer, &loopback(), format!("{scheme}://{host}/")).await;
            // TLS does not accept a number as a server name, so the attempt fails before the client resolves the host.
            let is_no_name = scheme == "https" && reason(&delivered) == "the request failed";
            assert!(is_rejected(&delivered) || is_no_name, "{scheme}://{host}/: {delivered:?}");
        }
    }
    assert_eq!(deliverer.connections().opened, 0);
    let classes = Egress { allow: Class::ALL.into(), ..Egress::default() };
    for host in ["169.254.169.254", "2852039166", "[fd00:ec2::254]", "100.100.100.200"] {
        let delivered = attempt(&deliverer, &classes, format!("http://{host}/")).await;
        assert!(is_rejected(&delivered), "no class contains metadata addresses: {host}: {delivered:?}");
    }
    let expected = "egress_refused: the host is at a metadata service's address, which the tenant's policy does not allow; \
                    an operator can change the policy";
    assert_eq!(reason(&attempt(&deliverer, &classes, "http://0xa9fea9fe/".to_owned()).await), expected);
}

#[tokio::test]
async fn explicitly_allowed_network_is_reachable() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let named = |network: &str| Egress { allow_networks: vec![network.parse().unwrap()], ..Egress::default() };
    for (network, is_allowed) in [("127.0.0.0/31", true), ("127.0.0.1", true), ("127.0.0.2/31", false), ("::/0", false)]
    {
        let egress = named(network);
        let attempt = attempt(&deliverer, &egress, listening.url());
        if is_allowed {
            assert!(tokio::join!(attempt, listening.serve(OK)).0.result.is_success(), "{network}");
        } else {
            assert!(is_rejected(&attempt.await), "{network}");
        }
    }
}

#[tokio::test]
async fn client_makes_no_http_call_if_the_policy_allows_only_https() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let strict = Egress { forbid_http: true, ..loopback() };
    let delivered = attempt(&deliverer, &strict, listening.url()).await;
    assert_eq!(reason(&delivered), "egress_refused: the tenant's policy allows only https targets");
    let (delivered, ()) =
        tokio::join!(attempt(&deliverer, &strict, format!("https://127.0.0.1:{}/", listening.port())), async {
            drop(listening.accept_stream().await)
        });
    assert!(!is_rejected(&delivered), "{delivered:?}");
}

#[tokio::test]
async fn callbacks_under_different_egress_policies_share_no_connection() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let free = loopback();
    let (delivered, (mut peer, _)) = tokio::join!(attempt(&deliverer, &free, listening.url()), listening.serve(OK));
    assert!(delivered.result.is_success());
    assert_eq!(deliverer.connections().idle, 1);
    // A stricter policy may belong to another tenant, or to the same tenant after a change of its policy.
    for stricter in [Egress::default(), Egress { forbid_http: true, ..loopback() }] {
        assert!(is_rejected(&attempt(&deliverer, &stricter, listening.url()).await), "{stricter:?}");
    }
    // A third policy also allows the target. Under this policy, the client opens another connection.
    let wider = Egress { allow: [Class::Loopback, Class::Private].into(), ..Egress::default() };
    let (delivered, _served) = tokio::join!(attempt(&deliverer, &wider, listening.url()), listening.serve(OK));
    assert!(delivered.result.is_success());
    assert_eq!(deliverer.connections().opened, 2);
    // Under the first policy, the client still uses the first connection.
    let serve = async {
        peer.request().await;
        peer.send(OK).await;
    };
    let (delivered, ()) = tokio::join!(attempt(&deliverer, &free, listening.url()), serve);
    assert!(delivered.result.is_success());
    assert_eq!(deliverer.connections().opened, 2);
}
