//! Locks, and what holding means.

use super::*;
use coordination::tree::{CreateMode, Op};

pub(super) async fn one_holds_at_a_time_in_the_order_of_asking(subject: &dyn Subject) {
    let mut peers = Vec::new();
    for _ in 0..4 {
        peers.push(Peer::open(subject).await);
    }
    let first = peers[0].acquired().await;
    let mut waiting: Vec<_> = Vec::new();
    for (at, peer) in peers.iter().enumerate().skip(1) {
        let lock = peer.lock();
        let mut acquiring = async move { (at, lock.acquire().await) }.boxed();
        // Its place is made before the next asks.
        until(subject, "its place", async || {
            assert!((&mut acquiring).now_or_never().is_none(), "somebody else holds it");
            peers[0].standing("/locks/one").await.len() == at + 1
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
        assert_eq!(at, 4 - rest.len() - 1, "the next is the one that asked first");
        (holder, waiting) = (held.expect("it can be had"), rest);
    }
    terms.push(holder.term());
    assert!(terms.is_sorted_by(|one, next| one < next), "terms rise: {terms:?}");
    holder.release().await;
    until(subject, "nobody stands in line", async || peers[0].standing("/locks/one").await.is_empty()).await;
}

pub(super) async fn what_is_dropped_is_given_back(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let held = one.acquired().await;
    let over = held.token();
    drop(held);
    assert!(over.is_cancelled(), "it is given back");
    two.acquired().await.release().await;
    one.client.close().await.expect("the engine answers");
}

pub(super) async fn an_acquisition_that_is_dropped_leaves_no_node(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let held = one.acquired().await;
    // Given up at any moment: before its session is there, while its place is made, and while it waits.
    for micros in [0, 1, 100, 1_000, 3_000, 10_000, 50_000] {
        let lock = two.lock();
        let given_up = subject.runtime().timeout(Duration::from_micros(micros), lock.acquire()).await;
        assert!(given_up.is_none(), "somebody else holds it");
    }
    until(subject, "one stands in line", async || one.standing("/locks/one").await.len() == 1).await;
    assert!(held.is_valid());
    held.release().await;
    two.acquired().await.release().await;
}

pub(super) async fn a_hold_is_over_when_its_node_is_taken_away(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let held = one.acquired().await;
    let [name] = &two.standing("/locks/one").await[..] else { panic!("one stands in line") };
    let place = path(&format!("/locks/one/{name}"));
    two.tree().await.delete(&place, Expected::Any).await.expect("it is open to all");
    within(subject, "the hold is over", held.cancelled()).await;
    assert!(!held.is_valid());
    two.acquired().await.release().await;
    held.release().await;
}

pub(super) async fn a_fence_lets_nothing_through_that_comes_late(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let (tree, account) = (one.tree().await, path("/account"));
    tree.create(&account, Bytes::new(), CreateMode::Persistent, Acl::Open).await.expect("the root is open");
    let held = one.acquired().await;
    let write = |text: &'static str| Op::Set { path: account.clone(), data: text.into(), expected: Expected::Any };
    let fence = held.fence();
    tree.multi([fence.clone(), vec![write("in time")]].concat()).await.expect("it is held");
    held.release().await;
    let second = two.acquired().await;
    let late = tree.multi([fence, vec![write("late")]].concat()).await;
    assert_eq!(late, Err(TreeError::Multi { at: 0, source: Box::new(TreeError::NoNode) }));
    two.tree().await.multi([second.fence(), vec![write("second")]].concat()).await.expect("it is held");
    second.release().await;
    assert_eq!(tree.get(&account).await.expect("it is there").data, "second");
}

pub(super) async fn a2_terms_rise_though_the_path_is_made_anew(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    let mut terms = Vec::new();
    for _ in 0..3 {
        let held = peer.acquired().await;
        terms.push(held.term());
        held.release().await;
        let tree = peer.tree().await;
        for at in ["/locks/one", "/locks"] {
            // The engine may have taken it away itself.
            drop(tree.delete(&path(at), Expected::Any).await);
        }
    }
    assert!(terms.is_sorted_by(|one, next| one < next), "{terms:?}");
}

pub(super) async fn strangers_have_no_hand_in_it(subject: &dyn Subject) {
    let credentials = vec![Credentials { name: "alice".to_owned(), password: "of the looking-glass".to_owned() }];
    let one = Peer::open_with(subject, SessionOptions { timeout: LONG, credentials }).await;
    let stranger = Peer::open(subject).await;
    let selector = LeaderSelector::new(&one.client, path("/closed"), Candidate::new("alice"));
    let held = within(subject, "the leadership", selector.lead()).await.expect("she gave credentials");
    let names = one.standing("/closed").await;
    let place = path(&format!("/closed/{}", names[0]));
    let tree = stranger.tree().await;
    tree.sync().await.expect("the engine answers");
    let made = tree.create(&path("/closed/lock-"), Bytes::new(), CreateMode::EphemeralSequential, Acl::Open).await;
    assert_eq!(made, Err(TreeError::Forbidden));
    assert_eq!(tree.set(&place, Bytes::new(), Expected::Any).await, Err(TreeError::Forbidden));
    assert_eq!(tree.delete(&place, Expected::Any).await, Err(TreeError::Forbidden));
    assert_eq!(tree.children(&path("/closed")).await, Err(TreeError::Forbidden));
    let other =
        LeaderSelector::new(&stranger.client, path("/closed"), Candidate { acl: Acl::Open, ..Candidate::new("x") });
    assert_eq!(within(subject, "a refusal", other.lead()).await.err(), Some(TreeError::Forbidden));
    assert!(held.is_valid());
    held.release().await;
}

pub(super) async fn without_credentials_a_closed_lock_is_refused(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    let lock = Lock::new(&peer.client, path("/closed"), Acl::Creator);
    assert_eq!(within(subject, "a refusal", lock.acquire()).await.err(), Some(TreeError::InvalidAcl));
}

pub(super) async fn names_of_others_in_a_line_are_passed_over(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let tree = one.tree().await;
    let others = ["readme", "lock-", "x-lock-12", "ffffffff__lock__0000000000", "lock-99999999999"];
    let others = others.map(|name| format!("/locks/one/{name}"));
    for at in ["/locks", "/locks/one"].into_iter().chain(others.iter().map(String::as_str)) {
        let made = tree.create(&path(at), Bytes::new(), CreateMode::Persistent, Acl::Open).await;
        made.expect("its parent is there");
    }
    let held = one.acquired().await;
    let lock = two.lock();
    let mut waiting = faults::behind_others(&one, &lock, 7).await;
    assert!((&mut waiting).now_or_never().is_none());
    held.release().await;
    within(subject, "the lock", waiting).await.expect("it can be had").release().await;
    assert_eq!(one.standing("/locks/one").await.len(), 5, "what others made stays");
}

pub(super) async fn who_waits_does_so_again_when_the_line_is_taken_away(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let operator = Peer::open(subject).await;
    let held = one.acquired().await;
    let lock = two.lock();
    let waiting = faults::behind_others(&one, &lock, 2).await;
    let tree = operator.tree().await;
    for name in operator.standing("/locks/one").await {
        tree.delete(&path(&format!("/locks/one/{name}")), Expected::Any).await.expect("it is open to all");
    }
    // Unless somebody stands in it again.
    drop(tree.delete(&path("/locks/one"), Expected::Any).await);
    within(subject, "the hold is over", held.cancelled()).await;
    let term = held.term();
    let next = within(subject, "the other holds it", waiting).await.expect("it can be had");
    assert!(next.term() > term);
    next.release().await;
}

pub(super) async fn a_late_release_takes_away_no_later_hold(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let first = one.acquired().await;
    one.process.cut(true);
    // Its removal waits for the connection.
    drop(first);
    let lock = one.lock();
    let mut again = lock.acquire().boxed();
    assert!((&mut again).now_or_never().is_none(), "nothing gets through");
    one.process.cut(false);
    let second = within(subject, "the lock again", again).await.expect("it can be had");
    for _ in 0..4 {
        a_moment(subject).await;
    }
    assert!(second.is_valid());
    assert_eq!(two.standing("/locks/one").await.len(), 1);
    second.release().await;
    two.acquired().await.release().await;
}

/// What a hand-over asks of the engine while so many wait.
async fn requests_of_a_hand_over(subject: &dyn Subject, waiting: usize) -> u64 {
    let counted = Arc::new(Counted::new(subject.process().await));
    let options = SessionOptions { timeout: LONG, credentials: Vec::new() };
    let client = Client::new(&subject.runtime(), counted.clone(), options);
    let lock = Lock::new(&client, path(&format!("/of-{waiting}")), Acl::Open);
    let held = within(subject, "the lock", lock.acquire()).await.expect("it can be had");
    let mut all: Vec<_> = (0..waiting).map(|_| lock.acquire().boxed()).collect();
    let mut quiet = 0;
    until(subject, "all wait", async || {
        let before = counted.requests();
        assert!(all.iter_mut().all(|one| one.now_or_never().is_none()), "somebody else holds it");
        a_moment(subject).await;
        quiet = if counted.requests() == before { quiet + 1 } else { 0 };
        quiet == 4
    })
    .await;
    let before = counted.requests();
    held.release().await;
    let (next, _, rest) = within(subject, "the next holder", futures_util::future::select_all(all)).await;
    // What the new holder looks at besides, and who was woken without need.
    let mut rest: Vec<_> = rest.into_iter().collect();
    for _ in 0..4 {
        a_moment(subject).await;
        assert!(rest.iter_mut().all(|one| one.now_or_never().is_none()), "somebody else holds it");
    }
    let requests = counted.requests() - before;
    next.expect("it can be had").release().await;
    requests
}

pub(super) async fn a5_a_hand_over_takes_as_many_requests_however_many_wait(subject: &dyn Subject) {
    for waiting in [2, 24] {
        let requests = requests_of_a_hand_over(subject, waiting).await;
        assert!(requests <= 6, "one is woken: {requests} requests while {waiting} wait");
    }
}
