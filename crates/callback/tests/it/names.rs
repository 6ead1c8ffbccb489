//! Tests of the resolution of host names, with a DNS server whose answers the test controls.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use callback::{HttpDeliver, Options};
use domain::{AttemptResult, Egress, HttpTarget, Tenant};
use futures_util::FutureExt;
use futures_util::future::join_all;
use runtime::{Runtime, TaskSet};
use scheduler::Delivery;
use tokio::net::UdpSocket;

use crate::support::{Listening, OK, deliverer, delivery, of_tenant, sent, target};

/// DNS server that answers questions for `fast.test` with 127.0.0.1, and ignores all other questions.
struct NameServer {
    address: SocketAddr,
    /// Number of questions that the server has received for each name and record type.
    questions: Arc<Mutex<BTreeMap<(String, u16), usize>>>,
    _task: TaskSet,
}

/// Type of a record with an IPv4 address.
const A: u16 = 1;

impl NameServer {
    async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let questions: Arc<Mutex<BTreeMap<(String, u16), usize>>> = Arc::default();
        let task = TaskSet::new(&Runtime::real());
        let seen = questions.clone();
        task.spawn("name-server", async move {
            let mut buffer = [0; 1_500];
            loop {
                let (len, peer) = socket.recv_from(&mut buffer).await.unwrap();
                let (question, name, kind) = question(&buffer[..len]);
                *seen.lock().unwrap().entry((name.clone(), kind)).or_default() += 1;
                if name == "fast.test" {
                    socket.send_to(&response(question, kind), peer).await.unwrap();
                }
            }
        });
        NameServer { address, questions, _task: task }
    }

    fn deliverer(&self) -> HttpDeliver {
        deliverer(Options { name_servers: vec![self.address], ..Options::default() })
    }

    fn names(&self) -> BTreeSet<String> {
        self.questions.lock().unwrap().keys().map(|(name, _)| name.clone()).collect()
    }
}

/// Returns three parts of a DNS query: the bytes of its header and question, the name in lower case, and the record
/// type.
fn question(message: &[u8]) -> (&[u8], String, u16) {
    let (mut at, mut labels) = (12, Vec::new());
    while message[at] > 0 {
        let len = usize::from(message[at]);
        labels.push(String::from_utf8(message[at + 1..=at + len].to_ascii_lowercase()).unwrap());
        at += 1 + len;
    }
    let kind = u16::from_be_bytes([message[at + 1], message[at + 2]]);
    (&message[..at + 5], labels.join("."), kind)
}

/// Returns a response with the address 127.0.0.1, or without a record if the question is not for an IPv4 address.
fn response(question: &[u8], kind: u16) -> Vec<u8> {
    let mut message = question.to_vec();
    message[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(kind == A), 0, 0, 0, 0]);
    if kind == A {
        // The record has the name of the question, the type A, the class IN, a time to live of 60 s, and an address of
        // 4 bytes.
        message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
    }
    message
}

fn to(url: String) -> Delivery {
    delivery(HttpTarget { timeout: Duration::from_secs(2), ..target(url) }, b"1")
}

#[tokio::test]
async fn slow_name_lookups_of_one_tenant_do_not_delay_another_tenant() {
    let (names, listening) = (NameServer::start().await, Listening::start().await);
    let deliverer = names.deliverer();
    let runtime = Runtime::real();
    let slow = (0..300).map(|number| sent(&deliverer, of_tenant(1, to(format!("http://slow-{number}.test/")))));
    let mut slow = std::pin::pin!(join_all(slow));
    tokio::select! {
        _ = &mut slow => panic!("the server answers no question for these names"),
        () = runtime.sleep(Duration::from_millis(300)) => {}
    }
    assert_eq!(names.names().len(), 32, "the lookups of one tenant at a time");
    let started = runtime.monotonic();
    let fast = of_tenant(2, to(format!("http://fast.test:{}/", listening.port())));
    let fast = async { tokio::join!(sent(&deliverer, fast), listening.serve(OK)).0 };
    tokio::select! {
        _ = &mut slow => panic!("the slow names are still unresolved"),
        delivered = fast => assert!(delivered.result.is_success(), "{delivered:?}"),
    }
    let took = runtime.monotonic().since(started);
    assert!(took < Duration::from_millis(500), "{took:?}");
    let slow = slow.await;
    assert!(slow.iter().all(|delivered| !delivered.result.is_success()));
}

#[tokio::test]
async fn resolver_sends_one_dns_query_for_several_connections_to_a_name() {
    let (names, listening) = (NameServer::start().await, Listening::start().await);
    let deliverer = names.deliverer();
    let url = format!("http://fast.test:{}/", listening.port());
    for tenant in 1..=3 {
        let one = of_tenant(tenant, to(url.clone()));
        let (delivered, _served) = tokio::join!(sent(&deliverer, one), listening.serve(OK));
        assert!(delivered.result.is_success(), "{delivered:?}");
    }
    assert_eq!(names.questions.lock().unwrap()[&("fast.test".to_owned(), A)], 1);
}

#[tokio::test]
async fn egress_policy_rejects_name_that_resolves_to_a_forbidden_address() {
    let (names, listening) = (NameServer::start().await, Listening::start().await);
    let deliverer = names.deliverer();
    let mut strict = to(format!("http://fast.test:{}/", listening.port()));
    strict.tenant = Arc::new(Tenant { egress: Egress::default(), ..(*strict.tenant).clone() });
    let delivered = sent(&deliverer, strict).await;
    let AttemptResult::Unreachable(reason) = &delivered.result else { panic!("{delivered:?}") };
    assert!(reason.starts_with("egress_refused: "), "{reason}");
    assert!(listening.accept().now_or_never().is_none(), "the client never connected");
}
