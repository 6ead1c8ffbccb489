//! Barriers and counters.

use futures_util::future::join_all;

use super::*;
use coordination::recipes::{Barrier, Counter, DoubleBarrier};

pub(super) async fn a_barrier_holds_until_it_is_opened(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let barrier = |peer: &Peer<'_>| Barrier::new(&peer.client, path("/gates/one"), Acl::Open);
    let (ours, theirs) = (barrier(&one), barrier(&two));
    assert_eq!(within(subject, "it is open at first", theirs.passed()).await, Ok(()));
    ours.close().await.expect("it is open to all");
    ours.close().await.expect("closing again is harmless");
    two.tree().await.sync().await.expect("the engine answers");
    let mut passing = theirs.passed().boxed();
    a_moment(subject).await;
    assert!((&mut passing).now_or_never().is_none(), "it is closed");
    ours.open().await.expect("it is open to all");
    assert_eq!(within(subject, "it passes", passing).await, Ok(()));
    ours.open().await.expect("opening again is harmless");
}

pub(super) async fn all_enter_and_leave_together(subject: &dyn Subject) {
    const COUNT: usize = 3;
    let mut peers = Vec::new();
    for _ in 0..COUNT {
        peers.push(Peer::open(subject).await);
    }
    let log = std::sync::Mutex::new(Vec::new());
    let note = |what: &'static str| log.lock().expect("nothing panics in here").push(what);
    let work = async |(at, peer): (usize, &Peer<'_>)| {
        let barrier = DoubleBarrier::new(&peer.client, path("/double"), COUNT, Acl::Open).expect("a short path");
        for _ in 0..2 {
            subject.runtime().sleep(Duration::from_millis(7) * u32::try_from(at).unwrap_or(0)).await;
            note("comes");
            let entered = barrier.enter().await.expect("its session lives");
            note("works");
            note("goes");
            entered.leave().await.expect("its session lives");
            note("is out");
        }
    };
    within(subject, "all have come and gone", join_all(peers.iter().enumerate().map(work))).await;
    let log = log.into_inner().expect("nothing panics in here");
    let first = |what: &str| log.iter().position(|note| *note == what).expect("it was noted");
    let nth = |what: &str, n: usize| {
        log.iter().enumerate().filter(|(_, note)| **note == what).nth(n).expect("it was noted").0
    };
    assert!(nth("comes", COUNT - 1) < first("works"), "none works before all have come: {log:?}");
    assert!(nth("goes", COUNT - 1) < first("is out"), "none is out before all go: {log:?}");
    assert!(nth("comes", 2 * COUNT - 1) < nth("works", COUNT), "nor the second time: {log:?}");
    assert_eq!(peers[0].standing("/double").await, [""; 0], "nothing is left behind");
}

pub(super) async fn who_is_slow_to_leave_holds_no_later_round_up(subject: &dyn Subject) {
    let peers = [Peer::open(subject).await, Peer::open(subject).await];
    let barrier =
        |peer: &Peer<'_>| DoubleBarrier::new(&peer.client, path("/double"), 2, Acl::Open).expect("a short path");
    let (fast, slow) = (barrier(&peers[0]), barrier(&peers[1]));
    let both = futures_util::future::join(fast.enter(), slow.enter());
    let (first, second) = within(subject, "both enter", both).await;
    let (first, second) = (first.expect("its session lives"), second.expect("its session lives"));
    // Its node goes, and it does not look what became of the others' until they have come again.
    let mut leaving = second.leave().boxed();
    until(subject, "it goes", async || {
        let is_out = (&mut leaving).now_or_never().is_some();
        assert!(!is_out, "the other is inside");
        peers[0].standing("/double").await.len() == 2
    })
    .await;
    within(subject, "the other leaves", first.leave()).await.expect("its session lives");
    let mut again = fast.enter().boxed();
    until(subject, "it has come again", async || {
        assert!((&mut again).now_or_never().is_none(), "it is alone");
        peers[0].standing("/double").await.len() == 1
    })
    .await;
    within(subject, "the slow one leaves", leaving).await.expect("its session lives");
    let both = futures_util::future::join(again, slow.enter());
    let (first, second) = within(subject, "both enter again", both).await;
    drop((first.expect("its session lives"), second.expect("its session lives")));
}

pub(super) async fn what_an_earlier_round_left_lets_nobody_in(subject: &dyn Subject) {
    let peers = [Peer::open(subject).await, Peer::open(subject).await];
    let barrier =
        |peer: &Peer<'_>| DoubleBarrier::new(&peer.client, path("/double"), 2, Acl::Open).expect("a short path");
    let (one, two) = (barrier(&peers[0]), barrier(&peers[1]));
    let both = futures_util::future::join(one.enter(), two.enter());
    drop(within(subject, "both enter", both).await);
    let left = async || peers[0].standing("/double").await == ["ready"];
    until(subject, "both have died, so to speak", left).await;
    let mut entering = one.enter().boxed();
    for _ in 0..3 {
        a_moment(subject).await;
        assert!((&mut entering).now_or_never().is_none(), "it is alone");
    }
    let both = futures_util::future::join(entering, two.enter());
    let (first, second) = within(subject, "both enter", both).await;
    let both = (first.expect("its session lives"), second.expect("its session lives"));
    let both = futures_util::future::join(both.0.leave(), both.1.leave());
    assert_eq!(within(subject, "both leave", both).await, (Ok(()), Ok(())));
    assert!(DoubleBarrier::new(&peers[0].client, path("/double"), 0, Acl::Open).is_err());
}

pub(super) async fn every_increment_is_counted(subject: &dyn Subject) {
    const EACH: i64 = 20;
    let peers = [Peer::open(subject).await, Peer::open(subject).await, Peer::open(subject).await];
    let counter = |peer: &Peer<'_>| Counter::new(&peer.client, path("/counts/one"), Acl::Open);
    assert_eq!(counter(&peers[0]).get().await, Ok(0));
    let work = async |peer: &Peer<'_>| {
        let mut last = 0;
        for _ in 0..EACH {
            let sum = counter(peer).add(1).await.expect("the engine answers");
            assert!(sum > last, "sums rise");
            last = sum;
        }
    };
    within(subject, "all have counted", join_all(peers.iter().map(work))).await;
    assert_eq!(counter(&peers[1]).get().await, Ok(3 * EACH));
    assert_eq!(counter(&peers[2]).add(-61).await, Ok(-1));
    let node = peers[0].tree().await.get(&path("/counts/one")).await.expect("it is there");
    assert_eq!(node.data[..], [0xff; 8], "eight bytes, as Curator writes them");
}

pub(super) async fn what_is_no_counter_is_told(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    let tree = peer.tree().await;
    let made = tree.create(
        &path("/other"),
        Bytes::from_static(b"text"),
        coordination::tree::CreateMode::Persistent,
        Acl::Open,
    );
    made.await.expect("the root is open");
    let counter = Counter::new(&peer.client, path("/other"), Acl::Open);
    assert!(matches!(counter.add(1).await, Err(TreeError::Invalid(_))));
    assert!(matches!(counter.get().await, Err(TreeError::Invalid(_))));
}
