//! Queues, read-write locks and semaphores: lines in which not only the first has its turn.

use futures_util::future::BoxFuture;

use super::*;
use coordination::recipes::{Candidacy, LeaderQueue, Position, RwLock, Semaphore};

/// Who asks, and has a place in the line.
async fn standing<'a, T>(peer: &Peer<'_>, at: &str, count: usize, mut asking: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
    until(peer.subject, "it stands in line", async || {
        assert!((&mut asking).now_or_never().is_none(), "its turn has not come");
        peer.standing(at).await.len() == count
    })
    .await;
    asking
}

fn queue(peer: &Peer<'_>) -> LeaderQueue {
    LeaderQueue::new(&peer.client, &path("/queue"), Acl::Open).expect("the path is short")
}

async fn joined(peer: &Peer<'_>, data: &'static str) -> Candidacy {
    let joined = within(peer.subject, "it joins", queue(peer).join(Bytes::from_static(data.as_bytes()))).await;
    joined.expect("the queue is open")
}

async fn stands(subject: &dyn Subject, candidacy: &Candidacy, at: Position) {
    let mut position = candidacy.position();
    let stands = position.wait_for(|known| *known == at);
    within(subject, &format!("it stands at {at:?}"), stands).await.expect("it is told for as long as it stands");
}

pub(super) async fn a_queue_is_led_in_the_order_of_joining(subject: &dyn Subject) {
    let (one, two, three) = (Peer::open(subject).await, Peer::open(subject).await, Peer::open(subject).await);
    let (first, second, third) = (joined(&one, "1").await, joined(&two, "2").await, joined(&three, "3").await);
    let names = one.standing("/queue/candidate").await;
    assert_eq!(names, ["candidate0000000000", "candidate0000000001", "candidate0000000002"], "Petting Zoo's names");
    let seen = queue(&two).candidates().await.expect("it is open");
    assert!(seen.iter().map(|node| &node.data[..]).eq([b"1", b"2", b"3"]), "{seen:?}");
    stands(subject, &first, Position::Front).await;
    stands(subject, &second, Position::Queued(1)).await;
    stands(subject, &third, Position::Queued(2)).await;
    let led = within(subject, "the first leads", first.lead()).await.expect("it can lead");
    second.leave().await;
    stands(subject, &third, Position::Queued(1)).await;
    let term = led.term();
    led.release().await;
    stands(subject, &third, Position::Front).await;
    let next = within(subject, "the third leads", third.lead()).await.expect("it can lead");
    assert!(next.term() > term);
    next.release().await;
    until(subject, "nobody stands in line", async || one.standing("/queue/candidate").await.is_empty()).await;
}

pub(super) async fn a_candidate_whose_node_is_taken_away_is_out(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let (first, second) = (joined(&one, "").await, joined(&two, "").await);
    stands(subject, &second, Position::Queued(1)).await;
    let places = one.standing("/queue/candidate").await;
    let tree = one.tree().await;
    for place in &places {
        let place = path(&format!("/queue/candidate/{place}"));
        tree.delete(&place, Expected::Any).await.expect("it is open to all");
    }
    stands(subject, &second, Position::Out).await;
    assert_eq!(within(subject, "it is told", second.lead()).await.err(), Some(TreeError::NoNode));
    assert_eq!(within(subject, "it is told", first.lead()).await.err(), Some(TreeError::NoNode));
}

pub(super) async fn spare_capacity_is_told(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let mut spare = queue(&two).spare();
    within(subject, "nobody is there", spare.until(|spare| *spare == Some(0))).await;
    let first = joined(&one, "").await;
    let (second, third) = (joined(&one, "").await, joined(&two, "").await);
    within(subject, "two could take over", spare.until(|spare| *spare == Some(2))).await;
    drop(first);
    within(subject, "one could take over", spare.until(|spare| *spare == Some(1))).await;
    second.leave().await;
    third.leave().await;
    within(subject, "nobody is there", spare.until(|spare| *spare == Some(0))).await;
}

pub(super) async fn a4_a_lost_answer_leaves_no_candidate_behind(subject: &dyn Subject) {
    let (one, other) = (Peer::open(subject).await, Peer::open(subject).await);
    let kept = joined(&one, "kept").await;
    let others = joined(&other, "others").await;
    for round in 0..6 {
        let queue = queue(&one);
        let mut joining = queue.join(Bytes::from_static(b"joining")).boxed();
        let early = subject.runtime().timeout(Duration::from_micros(300 * round), &mut joining).await;
        one.process.cut(true);
        let early = match early {
            None => subject.runtime().timeout(Duration::from_millis(50), &mut joining).await,
            early => early,
        };
        one.process.cut(false);
        let joined = match early {
            Some(joined) => joined,
            None => within(subject, "it joins", joining).await,
        };
        let joined = joined.expect("its session lives");
        assert_eq!(other.standing("/queue/candidate").await.len(), 3, "nothing else was made");
        joined.leave().await;
        until(subject, "it left", async || other.standing("/queue/candidate").await.len() == 2).await;
    }
    stands(subject, &kept, Position::Front).await;
    stands(subject, &others, Position::Queued(1)).await;
}

pub(super) async fn readers_share_and_a_writer_is_alone(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let lock = |peer: &Peer<'_>| RwLock::new(&peer.client, path("/rw"), Acl::Open);
    let (ours, theirs) = (lock(&one), lock(&two));
    let first = within(subject, "a reader", ours.read()).await.expect("it can be had");
    let second = within(subject, "a reader beside it", theirs.read()).await.expect("it can be had");
    let writing = standing(&one, "/rw", 3, ours.write().boxed()).await;
    // Behind the writer, or it would starve.
    let mut reading = standing(&one, "/rw", 4, theirs.read().boxed()).await;
    let mut writing = writing;
    first.release().await;
    a_moment(subject).await;
    assert!((&mut writing).now_or_never().is_none() && second.is_valid(), "one still reads");
    second.release().await;
    let writer = within(subject, "the writer", writing).await.expect("it can be had");
    a_moment(subject).await;
    assert!((&mut reading).now_or_never().is_none(), "somebody writes");
    writer.release().await;
    let reader = within(subject, "the reader behind it", reading).await.expect("it can be had");
    let names = one.standing("/rw").await;
    assert!(names.len() == 1 && names[0].contains("-__READ__"), "Curator's names: {names:?}");
    reader.release().await;
}

pub(super) async fn a_semaphore_has_so_many_leases(subject: &dyn Subject) {
    let peers = [Peer::open(subject).await, Peer::open(subject).await, Peer::open(subject).await];
    let semaphore = |peer: &Peer<'_>| Semaphore::new(&peer.client, &path("/pool"), 2, Acl::Open).expect("a short path");
    let of = [semaphore(&peers[0]), semaphore(&peers[1]), semaphore(&peers[2])];
    let first = within(subject, "a lease", of[0].acquire()).await.expect("it can be had");
    let second = within(subject, "a lease", of[1].acquire()).await.expect("it can be had");
    let mut third = standing(&peers[0], "/pool/leases", 3, of[2].acquire().boxed()).await;
    let fourth = standing(&peers[0], "/pool/locks", 2, of[0].acquire().boxed()).await;
    assert!((&mut third).now_or_never().is_none() && first.is_valid() && second.is_valid());
    // Not the one that was had first.
    second.release().await;
    let third = within(subject, "the next lease", third).await.expect("it can be had");
    let mut fourth = standing(&peers[0], "/pool/leases", 3, fourth).await;
    assert!((&mut fourth).now_or_never().is_none(), "two are had");
    first.release().await;
    let fourth = within(subject, "the last lease", fourth).await.expect("it can be had");
    third.release().await;
    fourth.release().await;
    until(subject, "all was given back", async || peers[0].standing("/pool/leases").await.is_empty()).await;
    assert!(Semaphore::new(&peers[0].client, &path("/pool"), 0, Acl::Open).is_err());
}
