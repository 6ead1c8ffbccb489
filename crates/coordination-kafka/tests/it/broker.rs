//! Tests of leaders without contact to a real broker.

use std::sync::Arc;
use std::time::Duration;

use bus::{Admin as _, Bus as _};
use bus_kafka::{KafkaBus, KafkaUrl};
use coordination::tree::NodePath;
use coordination::{Elector, KnownLeader, Leader, Leadership};
use coordination_connect::Options;
use coordination_kafka::{LEASE_SHORTEST, elector};
use runtime::Runtime;
use test_servers::kafka::shared;

pub(crate) fn on_real(test: impl AsyncFnOnce(Runtime)) {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    tokio.block_on(async { test(Runtime::real()).await });
}

/// Opens an elector of the shared broker.
pub(crate) async fn open(runtime: &Runtime, group: &str, lease: Duration) -> Arc<dyn Elector> {
    let url = format!("kafka://{}", shared().addresses());
    let group = NodePath::new(group).unwrap();
    elector(runtime, &url, &group, lease, None, &Options::default()).await.unwrap()
}

/// Calls the elector until it responds. The first group of a broker takes seconds.
pub(crate) async fn is_leader(runtime: &Runtime, elector: &dyn Elector, replica: &str, lease: Duration) -> Leadership {
    for _ in 0..20 {
        match elector.is_leader(replica, lease).await {
            Ok(leadership) => return leadership,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        runtime.sleep(Duration::from_millis(50)).await;
    }
    panic!("the elector does not respond to {replica}");
}

#[test]
fn leader_without_contact_ends_before_the_next_one_begins() {
    on_real(async |runtime| {
        let group = format!("/{:x}/cut", runtime.random());
        let door = tokio::task::block_in_place(|| shared().door());
        let (url, lease) = (format!("kafka://{}", door.address()), LEASE_SHORTEST);
        let path = NodePath::new(&group).unwrap();
        let first = elector(&runtime, &url, &path, lease, None, &Options::default()).await.unwrap();
        let second = open(&runtime, &group, lease).await;
        let led = is_leader(&runtime, &*first, "a", lease).await;
        assert!(led.leads);
        assert!(!is_leader(&runtime, &*second, "b", lease).await.leads);
        let mut followed = second.follow_leader().await.unwrap();
        let known = |id: &str, term| KnownLeader { leader: Some(Leader { id: id.to_owned(), term }), is_current: true };
        followed.until(|now| *now == known("a", led.term)).await;
        door.cut(true);
        let cut = runtime.monotonic();
        // The leader calls the elector again and again, and notes the end of the last granted lease.
        let leading = async {
            let mut ends = cut;
            loop {
                let called = runtime.monotonic();
                match first.is_leader("a", lease).await {
                    Ok(leadership) => {
                        assert_eq!(leadership, led);
                        ends = called + lease;
                    }
                    Err(error) => {
                        assert!(error.is_retryable(), "{error}");
                        return ends;
                    }
                }
                runtime.sleep(Duration::from_millis(50)).await;
            }
        };
        let following = async {
            loop {
                let next = second.is_leader("b", lease).await;
                let now = runtime.monotonic();
                match next {
                    Ok(next) if next.leads => return (now, next.term),
                    Ok(_) => {}
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
                assert!(now.since(cut) < lease * 10, "no replica leads {:?} after the cut", now.since(cut));
                runtime.sleep(Duration::from_millis(50)).await;
            }
        };
        let (ends, (began, term)) = tokio::join!(leading, following);
        assert!(ends < began, "the next leader began {:?} before the end of a lease", ends.since(began));
        assert!(term > led.term);
        // The session ends after twice the lease.
        let took = began.since(cut);
        assert!(took < lease * 4, "the next leader began {took:?} after the cut");
        door.cut(false);
        assert!(followed.until(|now| *now == known("b", term)).await.leader.is_some());
    });
}

#[test]
fn commit_of_the_group_names_the_leader() {
    on_real(async |runtime| {
        let group = format!("{:x}/named", runtime.random());
        let elector = open(&runtime, &format!("/{group}"), LEASE_SHORTEST).await;
        let led = is_leader(&runtime, &*elector, "höst 7", LEASE_SHORTEST).await;
        let url = KafkaUrl::parse(&format!("kafka://{}", shared().addresses())).unwrap();
        let bus = KafkaBus::open(runtime, url).await.unwrap();
        let name = format!("reveille-elector.{}", group.replace('/', "."));
        let described = bus.describe_group(&name).await.unwrap();
        let [member] = &described.members[..] else { panic!("{described:?}") };
        assert!(member.name.starts_with("höst 7#"), "{member:?}");
        let committed: Vec<_> = described.committed.values().collect();
        assert_eq!((committed[0].offset.0, &committed[0].metadata), (led.term.0, &member.name));
        assert_eq!(bus.describe_topic(&name.parse().unwrap()).await.unwrap().offsets.len(), 1);
        elector.resign("höst 7").await.unwrap();
        assert_eq!(bus.describe_group(&name).await.unwrap().members, []);
    });
}
