//! Cases about queues, read-write locks and semaphores. Several readers may hold a read-write lock at the same time,
//! and several processes may hold leases of one semaphore.

use futures_util::future::BoxFuture;

use super::*;
use coordination::recipes::{Candidacy, LeaderQueue, Position, RwLock, Semaphore};

/// Polls the request until the queue has `count` places, including the place of this request. Returns the request.
async fn waiting_in_line<'a, T>(
    peer: &Peer<'_>,
    at: &str,
    count: usize,
    mut request: BoxFuture<'a, T>,
) -> BoxFuture<'a, T> {
    until(peer.subject, "the process waits in line", async || {
        assert!((&mut request).now_or_never().is_none(), "the process waits for its turn");
        peer.line(at).await.len() == count
    })
    .await;
    request
}

fn queue(peer: &Peer<'_>) -> LeaderQueue {
    LeaderQueue::new(&peer.client, &path("/queue"), Acl::Open).expect("the path is within the length limit")
}

async fn joined(peer: &Peer<'_>, data: &'static str) -> Candidacy {
    let joined = within(peer.subject, "the process joins", queue(peer).join(Bytes::from_static(data.as_bytes()))).await;
    joined.expect("every session may access the queue")
}

async fn wait_for_position(subject: &dyn Subject, candidacy: &Candidacy, at: Position) {
    let mut position = candidacy.follow().await;
    let reached = position.until(|known| *known == at);
    within(subject, &format!("the candidate's position is {at:?}"), reached).await;
}

pub(super) async fn queue_is_led_in_the_order_of_joining(subject: &dyn Subject) {
    let (one, two, three) = (Peer::open(subject).await, Peer::open(subject).await, Peer::open(subject).await);
    let (first, second, third) = (joined(&one, "1").await, joined(&two, "2").await, joined(&three, "3").await);
    let names = one.line("/queue/candidate").await;
    assert_eq!(names, ["candidate0000000000", "candidate0000000001", "candidate0000000002"], "Petting Zoo's names");
    let seen = queue(&two).candidates().await.expect("every session may access the queue");
    assert!(seen.iter().map(|node| &node.data[..]).eq([b"1", b"2", b"3"]), "{seen:?}");
    wait_for_position(subject, &first, Position::Front).await;
    wait_for_position(subject, &second, Position::Queued(1)).await;
    wait_for_position(subject, &third, Position::Queued(2)).await;
    let led = within(subject, "the first leads", first.lead()).await.expect("the candidate acquires the leadership");
    second.leave().await;
    wait_for_position(subject, &third, Position::Queued(1)).await;
    let term = led.term();
    led.release().await;
    wait_for_position(subject, &third, Position::Front).await;
    let next = within(subject, "the third leads", third.lead()).await.expect("the candidate acquires the leadership");
    assert!(next.term() > term);
    next.release().await;
    until(subject, "the waiting line is empty", async || one.line("/queue/candidate").await.is_empty()).await;
}

pub(super) async fn candidate_with_a_deleted_node_is_out(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let (first, second) = (joined(&one, "").await, joined(&two, "").await);
    wait_for_position(subject, &second, Position::Queued(1)).await;
    let places = one.line("/queue/candidate").await;
    let tree = one.tree().await;
    for place in &places {
        let place = path(&format!("/queue/candidate/{place}"));
        tree.delete(&place, Expected::Any).await.expect("every session may access the node");
    }
    wait_for_position(subject, &second, Position::Out).await;
    assert_eq!(
        within(subject, "the call `lead` of the second candidate returns", second.lead()).await.err(),
        Some(TreeError::NoNode)
    );
    assert_eq!(
        within(subject, "the call `lead` of the first candidate returns", first.lead()).await.err(),
        Some(TreeError::NoNode)
    );
}

pub(super) async fn spare_capacity_is_reported(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let mut spare = queue(&two).follow_spare().await.expect("every session may access the queue");
    within(subject, "the queue has no spare candidates", spare.until(|spare| *spare == 0)).await;
    let first = joined(&one, "").await;
    let (second, third) = (joined(&one, "").await, joined(&two, "").await);
    within(subject, "the queue has two spare candidates behind the leader", spare.until(|spare| *spare == 2)).await;
    drop(first);
    within(subject, "the queue has one spare candidate behind the leader", spare.until(|spare| *spare == 1)).await;
    second.leave().await;
    third.leave().await;
    within(subject, "the queue has no spare candidates", spare.until(|spare| *spare == 0)).await;
}

pub(super) async fn a4_lost_response_leaves_no_extra_candidate(subject: &dyn Subject) {
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
            None => within(subject, "the process joins", joining).await,
        };
        let joined = joined.expect("the session is open");
        assert_eq!(
            other.line("/queue/candidate").await.len(),
            3,
            "the process has created only one node for the new candidate"
        );
        joined.leave().await;
        until(subject, "the candidate has left the queue", async || other.line("/queue/candidate").await.len() == 2)
            .await;
    }
    wait_for_position(subject, &kept, Position::Front).await;
    wait_for_position(subject, &others, Position::Queued(1)).await;
}

pub(super) async fn readers_share_the_lock_and_writers_exclude_others(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let lock = |peer: &Peer<'_>| RwLock::new(&peer.client, path("/rw"), Acl::Open);
    let (ours, theirs) = (lock(&one), lock(&two));
    let first = within(subject, "a reader", ours.read()).await.expect("the acquisition succeeds");
    let second = within(subject, "a second reader", theirs.read()).await.expect("the acquisition succeeds");
    let writing = waiting_in_line(&one, "/rw", 3, ours.write().boxed()).await;
    // A reader behind the waiting writer must wait for the writer. Otherwise new readers could delay the writer
    // forever.
    let mut reading = waiting_in_line(&one, "/rw", 4, theirs.read().boxed()).await;
    let mut writing = writing;
    first.release().await;
    short_wait(subject).await;
    assert!((&mut writing).now_or_never().is_none() && second.is_valid(), "one reader still holds the lock");
    second.release().await;
    let writer = within(subject, "the writer", writing).await.expect("the acquisition succeeds");
    short_wait(subject).await;
    assert!((&mut reading).now_or_never().is_none(), "the writer holds the lock");
    writer.release().await;
    let reader = within(subject, "the reader behind the writer acquires the lock", reading)
        .await
        .expect("the acquisition succeeds");
    let names = one.line("/rw").await;
    assert!(names.len() == 1 && names[0].contains("-__READ__"), "Curator's names: {names:?}");
    reader.release().await;
}

pub(super) async fn semaphore_limits_the_number_of_leases(subject: &dyn Subject) {
    let peers = [Peer::open(subject).await, Peer::open(subject).await, Peer::open(subject).await];
    let semaphore = |peer: &Peer<'_>| {
        Semaphore::new(&peer.client, &path("/pool"), 2, Acl::Open).expect("the path is within the length limit")
    };
    let of = [semaphore(&peers[0]), semaphore(&peers[1]), semaphore(&peers[2])];
    let first = within(subject, "a lease", of[0].acquire()).await.expect("the acquisition succeeds");
    let second = within(subject, "a lease", of[1].acquire()).await.expect("the acquisition succeeds");
    let mut third = waiting_in_line(&peers[0], "/pool/leases", 3, of[2].acquire().boxed()).await;
    let fourth = waiting_in_line(&peers[0], "/pool/locks", 2, of[0].acquire().boxed()).await;
    assert!((&mut third).now_or_never().is_none() && first.is_valid() && second.is_valid());
    // The holders may release their leases in any order.
    second.release().await;
    let third = within(subject, "the next lease", third).await.expect("the acquisition succeeds");
    let mut fourth = waiting_in_line(&peers[0], "/pool/leases", 3, fourth).await;
    assert!((&mut fourth).now_or_never().is_none(), "two processes hold both leases of the semaphore");
    first.release().await;
    let fourth = within(subject, "the last lease", fourth).await.expect("the acquisition succeeds");
    third.release().await;
    fourth.release().await;
    until(subject, "no process holds a lease or waits for one", async || {
        peers[0].line("/pool/leases").await.is_empty()
    })
    .await;
    assert!(Semaphore::new(&peers[0].client, &path("/pool"), 0, Acl::Open).is_err());
}
