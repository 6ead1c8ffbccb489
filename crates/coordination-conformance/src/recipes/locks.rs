//! Cases about locks and their guards.

use super::*;
use coordination::tree::{CreateMode, Op};

pub(super) async fn lock_has_one_holder_in_the_order_of_the_requests(subject: &dyn Subject) {
    let mut peers = Vec::new();
    for _ in 0..4 {
        peers.push(Peer::open(subject).await);
    }
    let first = peers[0].acquired().await;
    let mut waiting: Vec<_> = Vec::new();
    for (at, peer) in peers.iter().enumerate().skip(1) {
        let lock = peer.lock();
        let mut acquiring = async move { (at, lock.acquire().await) }.boxed();
        // The test waits until the place of this process exists before the next process requests the lock.
        until(subject, "the place", async || {
            assert!((&mut acquiring).now_or_never().is_none(), "another process holds the lock");
            peers[0].line("/locks/one").await.len() == at + 1
        })
        .await;
        waiting.push(acquiring);
    }
    let (mut holder, mut terms) = (first, Vec::new());
    while !waiting.is_empty() {
        terms.push(holder.term());
        assert!(holder.is_valid());
        holder.release().await;
        let ((at, held), _, rest) = within(subject, "the next holder", futures_util::future::select_all(waiting)).await;
        assert_eq!(at, 4 - rest.len() - 1, "the processes acquire the lock in the order of their requests");
        (holder, waiting) = (held.expect("the acquisition succeeds"), rest);
    }
    terms.push(holder.term());
    assert!(terms.is_sorted_by(|one, next| one < next), "terms rise: {terms:?}");
    holder.release().await;
    until(subject, "the waiting line is empty", async || peers[0].line("/locks/one").await.is_empty()).await;
}

pub(super) async fn bounded_acquisitions_end_without_the_lock(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let attempt = async |peer: &Peer| {
        let attempt = within(subject, "the attempt ends", async { peer.lock().try_acquire().await }).await;
        attempt.expect("the engine responds")
    };
    let held = attempt(&one).await.expect("the lock is free");
    assert!(held.is_valid());
    assert!(attempt(&two).await.is_none(), "another process holds the lock");
    assert_eq!(one.line("/locks/one").await.len(), 1, "the attempt left no place");
    let limit = Duration::from_millis(200);
    let timed = two.lock().acquire_timeout(limit).await.expect("the engine responds");
    assert!(timed.is_none(), "another process holds the lock");
    let first = held.term();
    held.release().await;
    // The abandoned place of the bounded acquisition may exist for a moment.
    let limit = Duration::from_secs(30);
    let second = two.lock().acquire_timeout(limit).await.expect("the engine responds").expect("the lock is free");
    assert!(second.term() > first);
    second.release().await;
    two.client.close().await.expect("the engine responds");
}

pub(super) async fn dropped_guard_releases_the_lock(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let held = one.acquired().await;
    let over = held.token();
    drop(held);
    assert!(over.is_cancelled(), "the token of a dropped guard is cancelled");
    two.acquired().await.release().await;
    one.client.close().await.expect("the engine responds");
}

pub(super) async fn release_without_a_response_ends_in_time_and_continues_in_the_background(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let (released, dropped) = (one.acquired().await, Lock::new(&one.client, path("/locks/other"), Acl::Open));
    let dropped = within(subject, "the other lock", dropped.acquire()).await.expect("the acquisition succeeds");
    one.process.cut(true);
    let began = subject.runtime().monotonic();
    drop(dropped);
    released.release().await;
    let waited = subject.runtime().monotonic().since(began);
    assert!(waited < LONG / 4, "the release waited for {waited:?}, although the engine did not respond");
    let began = subject.runtime().monotonic();
    let closed = one.client.close().await;
    let waited = subject.runtime().monotonic().since(began);
    assert!(matches!(closed, Err(TreeError::Disconnected(_))), "{closed:?}");
    assert!(waited < LONG / 4, "the close waited for {waited:?}, although the engine did not respond");
    one.process.cut(false);
    // The session has not ended, so the background has removed the nodes.
    for lock in ["/locks/one", "/locks/other"] {
        until(subject, "the background removes the node", async || two.line(lock).await.is_empty()).await;
    }
    let waited = subject.runtime().monotonic().since(began);
    assert!(waited < LONG * 4 / 5, "the nodes remained for {waited:?}");
}

pub(super) async fn dropped_acquisition_leaves_no_node(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let held = one.acquired().await;
    // The test drops the acquisition at different times: before the session is open, while the process creates its
    // place, and while the process waits for the lock.
    for micros in [0, 1, 100, 1_000, 3_000, 10_000, 50_000] {
        let lock = two.lock();
        let given_up = subject.runtime().timeout(Duration::from_micros(micros), lock.acquire()).await;
        assert!(given_up.is_none(), "another process holds the lock");
    }
    until(subject, "the waiting line contains only the holder's place", async || {
        one.line("/locks/one").await.len() == 1
    })
    .await;
    assert!(held.is_valid());
    held.release().await;
    two.acquired().await.release().await;
}

pub(super) async fn guard_ends_when_its_node_is_deleted(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let held = one.acquired().await;
    let [name] = &two.line("/locks/one").await[..] else { panic!("the waiting line contains only the holder's place") };
    let place = path(&format!("/locks/one/{name}"));
    two.tree().await.delete(&place, Expected::Any).await.expect("every session may access the node");
    within(subject, "the guard ends", held.cancelled()).await;
    assert!(!held.is_valid());
    two.acquired().await.release().await;
    held.release().await;
}

pub(super) async fn fence_rejects_late_writes(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let (tree, account) = (one.tree().await, path("/account"));
    tree.create(&account, Bytes::new(), CreateMode::Persistent, Acl::Open)
        .await
        .expect("every session may create nodes in the root");
    let held = one.acquired().await;
    let write = |text: &'static str| Op::Set { path: account.clone(), data: text.into(), expected: Expected::Any };
    let fence = held.fence();
    tree.multi([fence.clone(), vec![write("in time")]].concat()).await.expect("the process holds the lock");
    held.release().await;
    let second = two.acquired().await;
    let late = tree.multi([fence, vec![write("late")]].concat()).await;
    assert_eq!(late, Err(TreeError::Multi { at: 0, source: Box::new(TreeError::NoNode) }));
    two.tree().await.multi([second.fence(), vec![write("second")]].concat()).await.expect("the process holds the lock");
    second.release().await;
    assert_eq!(tree.get(&account).await.expect("the node exists").data, "second");
}

pub(super) async fn a2_terms_rise_across_deletions_of_the_path(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    let mut terms = Vec::new();
    for _ in 0..3 {
        let held = peer.acquired().await;
        terms.push(held.term());
        held.release().await;
        let tree = peer.tree().await;
        for at in ["/locks/one", "/locks"] {
            // The deletion may fail, because the engine itself may already have deleted the node.
            drop(tree.delete(&path(at), Expected::Any).await);
        }
    }
    assert!(terms.is_sorted_by(|one, next| one < next), "{terms:?}");
}

pub(super) async fn unauthenticated_sessions_cannot_interfere(subject: &dyn Subject) {
    let credentials = vec![Credentials { name: "alice".to_owned(), password: "of the looking-glass".to_owned() }];
    let one = Peer::open_with(subject, SessionOptions { timeout: LONG, credentials }).await;
    let unauthenticated = Peer::open(subject).await;
    let selector = LeaderSelector::new(&one.client, path("/closed"), Candidate::new("alice"));
    let held =
        within(subject, "the leadership", selector.lead()).await.expect("the session of the candidate has credentials");
    let names = one.line("/closed").await;
    let place = path(&format!("/closed/{}", names[0]));
    let tree = unauthenticated.tree().await;
    tree.sync().await.expect("the engine responds");
    let created = tree.create(&path("/closed/lock-"), Bytes::new(), CreateMode::EphemeralSequential, Acl::Open).await;
    assert_eq!(created, Err(TreeError::Forbidden));
    assert_eq!(tree.set(&place, Bytes::new(), Expected::Any).await, Err(TreeError::Forbidden));
    assert_eq!(tree.delete(&place, Expected::Any).await, Err(TreeError::Forbidden));
    assert_eq!(tree.children(&path("/closed")).await, Err(TreeError::Forbidden));
    let other = LeaderSelector::new(&unauthenticated.client, path("/closed"), Candidate::new("x"));
    assert_eq!(within(subject, "the rejection", other.lead()).await.err(), Some(TreeError::Forbidden));
    assert!(held.is_valid());
    held.release().await;
}

pub(super) async fn closed_lock_is_rejected_without_credentials(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    let lock = Lock::new(&peer.client, path("/closed"), Acl::Creator);
    assert_eq!(within(subject, "the rejection", lock.acquire()).await.err(), Some(TreeError::InvalidAcl));
}

pub(super) async fn foreign_names_in_a_line_are_ignored(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let tree = one.tree().await;
    let others = ["readme", "lock-", "x-lock-12", "ffffffff__lock__0000000000", "lock-99999999999"];
    let others = others.map(|name| format!("/locks/one/{name}"));
    for at in ["/locks", "/locks/one"].into_iter().chain(others.iter().map(String::as_str)) {
        let created = tree.create(&path(at), Bytes::new(), CreateMode::Persistent, Acl::Open).await;
        created.expect("the parent exists");
    }
    let held = one.acquired().await;
    let lock = two.lock();
    let mut waiting = faults::behind_others(&one, &lock, 7).await;
    assert!((&mut waiting).now_or_never().is_none());
    held.release().await;
    within(subject, "the lock", waiting).await.expect("the acquisition succeeds").release().await;
    assert_eq!(one.line("/locks/one").await.len(), 5, "foreign nodes remain");
}

pub(super) async fn waiting_process_rejoins_a_deleted_line(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let operator = Peer::open(subject).await;
    let held = one.acquired().await;
    let lock = two.lock();
    let waiting = faults::behind_others(&one, &lock, 2).await;
    let tree = operator.tree().await;
    for name in operator.line("/locks/one").await {
        tree.delete(&path(&format!("/locks/one/{name}")), Expected::Any)
            .await
            .expect("every session may access the node");
    }
    // The deletion of `/locks/one` fails if the waiting process has already created a new place below this node.
    drop(tree.delete(&path("/locks/one"), Expected::Any).await);
    within(subject, "the guard ends", held.cancelled()).await;
    let term = held.term();
    let next =
        within(subject, "the waiting process acquires the lock", waiting).await.expect("the acquisition succeeds");
    assert!(next.term() > term);
    next.release().await;
}

pub(super) async fn late_release_does_not_end_a_later_guard(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let first = one.acquired().await;
    one.process.cut(true);
    // The process has no connection, so it cannot remove its place before it reconnects.
    drop(first);
    let lock = one.lock();
    let mut again = lock.acquire().boxed();
    assert!((&mut again).now_or_never().is_none(), "the connection is cut");
    one.process.cut(false);
    let second = within(subject, "the lock again", again).await.expect("the acquisition succeeds");
    for _ in 0..4 {
        short_wait(subject).await;
    }
    assert!(second.is_valid());
    assert_eq!(two.line("/locks/one").await.len(), 1);
    second.release().await;
    two.acquired().await.release().await;
}

/// Returns the number of requests that a hand-over causes while `waiting` processes wait for the lock.
async fn requests_of_a_hand_over(subject: &dyn Subject, waiting: usize) -> u64 {
    let counted = Arc::new(Counted::new(subject.process().await));
    let options = SessionOptions { timeout: LONG, credentials: Vec::new() };
    let client = Client::new(&subject.runtime(), counted.clone(), options);
    let lock = Lock::new(&client, path(&format!("/of-{waiting}")), Acl::Open);
    let held = within(subject, "the lock", lock.acquire()).await.expect("the acquisition succeeds");
    let mut all: Vec<_> = (0..waiting).map(|_| lock.acquire().boxed()).collect();
    let mut idle_rounds = 0;
    until(subject, "all processes wait", async || {
        let before = counted.requests();
        assert!(all.iter_mut().all(|one| one.now_or_never().is_none()), "another process holds the lock");
        short_wait(subject).await;
        // A busy engine may need several rounds to respond. One round without a new request therefore does not prove
        // that all processes wait.
        idle_rounds = if counted.requests() == before { idle_rounds + 1 } else { 0 };
        idle_rounds == 20
    })
    .await;
    let before = counted.requests();
    held.release().await;
    let (next, _, rest) = within(subject, "the next holder", futures_util::future::select_all(all)).await;
    // The count includes later requests of the new holder, and requests of processes that the hand-over woke
    // unnecessarily.
    let mut rest: Vec<_> = rest.into_iter().collect();
    for _ in 0..4 {
        short_wait(subject).await;
        assert!(rest.iter_mut().all(|one| one.now_or_never().is_none()), "another process holds the lock");
    }
    let requests = counted.requests() - before;
    next.expect("the acquisition succeeds").release().await;
    requests
}

pub(super) async fn a5_requests_of_a_hand_over_do_not_depend_on_waiters(subject: &dyn Subject) {
    for waiting in [2, 24] {
        let requests = requests_of_a_hand_over(subject, waiting).await;
        assert!(
            requests <= 6,
            "a hand-over caused {requests} requests while {waiting} processes waited; at most 6 are acceptable"
        );
    }
}
