//! Cases about barriers and counters.

use futures_util::future::join_all;

use super::*;
use coordination::recipes::{Barrier, Counter, DoubleBarrier};

pub(super) async fn closed_barrier_blocks_until_it_is_opened(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let barrier = |peer: &Peer<'_>| Barrier::new(&peer.client, path("/gates/one"), Acl::Open);
    let (ours, theirs) = (barrier(&one), barrier(&two));
    assert_eq!(within(subject, "the barrier is open at first", theirs.passed()).await, Ok(()));
    ours.close().await.expect("the open ACL permits every session to access the node");
    ours.close().await.expect("a second call to close the barrier has no effect");
    two.tree().await.sync().await.expect("the engine responds");
    let mut passing = theirs.passed().boxed();
    short_wait(subject).await;
    assert!((&mut passing).now_or_never().is_none(), "the process does not pass the closed barrier");
    ours.open().await.expect("the open ACL permits every session to access the node");
    assert_eq!(within(subject, "the process passes the barrier", passing).await, Ok(()));
    ours.open().await.expect("a second call to open the barrier has no effect");
}

pub(super) async fn double_barrier_synchronizes_entering_and_leaving(subject: &dyn Subject) {
    const COUNT: usize = 3;
    let mut peers = Vec::new();
    for _ in 0..COUNT {
        peers.push(Peer::open(subject).await);
    }
    let log = std::sync::Mutex::new(Vec::new());
    let note = |what: &'static str| log.lock().expect("no code panics while it holds this mutex").push(what);
    let work = async |(at, peer): (usize, &Peer<'_>)| {
        let barrier = DoubleBarrier::new(&peer.client, path("/double"), COUNT, Acl::Open)
            .expect("the path is within the length limit");
        for _ in 0..2 {
            subject.runtime().sleep(Duration::from_millis(7) * u32::try_from(at).unwrap_or(0)).await;
            note("arrives");
            let entered = barrier.enter().await.expect("the session is open");
            note("works");
            note("leaves");
            entered.leave().await.expect("the session is open");
            note("left");
        }
    };
    within(subject, "all rounds end", join_all(peers.iter().enumerate().map(work))).await;
    let log = log.into_inner().expect("no code panics while it holds this mutex");
    let first = |what: &str| log.iter().position(|note| *note == what).expect("the log contains the event");
    let nth = |what: &str, n: usize| {
        log.iter().enumerate().filter(|(_, note)| **note == what).nth(n).expect("the log contains the event").0
    };
    assert!(nth("arrives", COUNT - 1) < first("works"), "no process works before all processes have arrived: {log:?}");
    assert!(
        nth("leaves", COUNT - 1) < first("left"),
        "no process has left before all processes start to leave: {log:?}"
    );
    assert!(
        nth("arrives", 2 * COUNT - 1) < nth("works", COUNT),
        "no process works in the second round before all processes have arrived: {log:?}"
    );
    assert_eq!(peers[0].line("/double").await, [""; 0], "no node remains");
}

pub(super) async fn slow_leaver_does_not_block_the_next_round(subject: &dyn Subject) {
    let peers = [Peer::open(subject).await, Peer::open(subject).await];
    let barrier = |peer: &Peer<'_>| {
        DoubleBarrier::new(&peer.client, path("/double"), 2, Acl::Open).expect("the path is within the length limit")
    };
    let (fast, slow) = (barrier(&peers[0]), barrier(&peers[1]));
    let both = futures_util::future::join(fast.enter(), slow.enter());
    let (first, second) = within(subject, "both enter", both).await;
    let (first, second) = (first.expect("the session is open"), second.expect("the session is open"));
    // The slow process deletes its node. The fast process enters the barrier again before the slow process checks the
    // other nodes.
    let mut leaving = second.leave().boxed();
    until(subject, "the slow process deletes its node", async || {
        let is_out = (&mut leaving).now_or_never().is_some();
        assert!(!is_out, "the fast process has not left the barrier");
        peers[0].line("/double").await.len() == 2
    })
    .await;
    within(subject, "the fast process leaves the barrier", first.leave()).await.expect("the session is open");
    let mut again = fast.enter().boxed();
    until(subject, "the fast process creates its node for the second round", async || {
        assert!((&mut again).now_or_never().is_none(), "the slow process has not entered the barrier again");
        peers[0].line("/double").await.len() == 1
    })
    .await;
    within(subject, "the slow process leaves the barrier", leaving).await.expect("the session is open");
    let both = futures_util::future::join(again, slow.enter());
    let (first, second) = within(subject, "both enter again", both).await;
    drop((first.expect("the session is open"), second.expect("the session is open")));
}

pub(super) async fn leftover_ready_node_does_not_open_the_barrier(subject: &dyn Subject) {
    let peers = [Peer::open(subject).await, Peer::open(subject).await];
    let barrier = |peer: &Peer<'_>| {
        DoubleBarrier::new(&peer.client, path("/double"), 2, Acl::Open).expect("the path is within the length limit")
    };
    let (one, two) = (barrier(&peers[0]), barrier(&peers[1]));
    let both = futures_util::future::join(one.enter(), two.enter());
    drop(within(subject, "both enter", both).await);
    let left = async || peers[0].line("/double").await == ["ready"];
    until(subject, "only the node `ready` remains in the barrier", left).await;
    let mut entering = one.enter().boxed();
    for _ in 0..3 {
        short_wait(subject).await;
        assert!((&mut entering).now_or_never().is_none(), "the other process has not entered the barrier");
    }
    let both = futures_util::future::join(entering, two.enter());
    let (first, second) = within(subject, "both enter", both).await;
    let both = (first.expect("the session is open"), second.expect("the session is open"));
    let both = futures_util::future::join(both.0.leave(), both.1.leave());
    assert_eq!(within(subject, "both leave", both).await, (Ok(()), Ok(())));
    assert!(DoubleBarrier::new(&peers[0].client, path("/double"), 0, Acl::Open).is_err());
}

pub(super) async fn concurrent_increments_are_all_counted(subject: &dyn Subject) {
    const EACH: i64 = 20;
    let peers = [Peer::open(subject).await, Peer::open(subject).await, Peer::open(subject).await];
    let counter = |peer: &Peer<'_>| Counter::new(&peer.client, path("/counts/one"), Acl::Open);
    assert_eq!(counter(&peers[0]).get().await, Ok(0));
    let work = async |peer: &Peer<'_>| {
        let mut last = 0;
        for _ in 0..EACH {
            let sum = counter(peer).add(1).await.expect("the engine responds");
            assert!(sum > last, "sums rise");
            last = sum;
        }
    };
    within(subject, "the processes finish all increments", join_all(peers.iter().map(work))).await;
    assert_eq!(counter(&peers[1]).get().await, Ok(3 * EACH));
    assert_eq!(counter(&peers[2]).add(-61).await, Ok(-1));
    let tree = peers[0].tree().await;
    tree.sync().await.expect("the engine responds");
    let node = tree.get(&path("/counts/one")).await.expect("the node exists");
    assert_eq!(node.data[..], [0xff; 8], "the counter's value has eight bytes, as in Curator");
}

pub(super) async fn node_that_is_not_a_counter_is_reported(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    let tree = peer.tree().await;
    let created = tree.create(
        &path("/other"),
        Bytes::from_static(b"text"),
        coordination::tree::CreateMode::Persistent,
        Acl::Open,
    );
    created.await.expect("every session may create nodes in the root");
    let counter = Counter::new(&peer.client, path("/other"), Acl::Open);
    assert!(matches!(counter.add(1).await, Err(TreeError::Invalid(_))));
    assert!(matches!(counter.get().await, Err(TreeError::Invalid(_))));
}
