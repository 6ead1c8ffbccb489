//! Leaders that die, are cut off, or have no answer.

use futures_util::future::BoxFuture;

use super::*;
use coordination::tree::CreateMode;

/// An acquisition that has its place, the second one.
async fn behind<'a>(holder: &Peer<'_>, lock: &'a Lock) -> BoxFuture<'a, Result<Held, TreeError>> {
    behind_others(holder, lock, 2).await
}

/// As [`behind`], where so many nodes are then.
pub(super) async fn behind_others<'a>(
    holder: &Peer<'_>,
    lock: &'a Lock,
    count: usize,
) -> BoxFuture<'a, Result<Held, TreeError>> {
    let mut waiting = lock.acquire().boxed();
    until(holder.subject, "it stands in line", async || {
        assert!((&mut waiting).now_or_never().is_none(), "somebody else holds it");
        holder.standing("/locks/one").await.len() == count
    })
    .await;
    waiting
}

pub(super) async fn a1_a3_a_dead_leader_knows_before_the_next_one_leads(subject: &dyn Subject) {
    let (dying, next) = (Peer::open_short(subject).await, Peer::open(subject).await);
    for trust in [Trust::UntilSuspended, Trust::UntilLost] {
        let lock = dying.lock().with_trust(trust);
        let held = within(subject, "the lock", lock.acquire()).await.expect("it can be had");
        dying.process.cut(true);
        let other = next.lock();
        let successor = within(subject, "the next holder", other.acquire()).await.expect("it can be had");
        assert!(!held.is_valid(), "{trust:?}: two hold it");
        within(subject, "it is told", held.cancelled()).await;
        assert!(successor.term() > held.term());
        dying.process.cut(false);
        // What it still says of its old place harms nobody.
        held.release().await;
        assert!(successor.is_valid());
        successor.release().await;
    }
}

pub(super) async fn a4_a_lost_answer_leaves_no_place_behind(subject: &dyn Subject) {
    let (one, holder) = (Peer::open(subject).await, Peer::open(subject).await);
    one.acquired().await.release().await;
    for round in 0..6 {
        let held = holder.acquired().await;
        let lock = one.lock();
        let mut acquiring = lock.acquire().boxed();
        // Cut somewhere in the middle: its place was made, or not, and the answer is lost.
        let waited = subject.runtime().timeout(Duration::from_micros(400 * round), &mut acquiring).await;
        assert!(waited.is_none(), "somebody else holds it");
        one.process.cut(true);
        let waited = subject.runtime().timeout(Duration::from_millis(50), &mut acquiring).await;
        assert!(waited.is_none(), "somebody else holds it");
        one.process.cut(false);
        let giving = async {
            until(subject, "one place beside the holder's", async || holder.standing("/locks/one").await.len() == 2)
                .await;
            held.release().await;
        };
        let both = futures_util::future::join(acquiring, giving);
        let (acquired, ()) = within(subject, "it has its turn", both).await;
        let acquired = acquired.expect("it can be had");
        assert_eq!(holder.standing("/locks/one").await.len(), 1, "nothing else was left behind");
        acquired.release().await;
    }
    until(subject, "nobody stands in line", async || holder.standing("/locks/one").await.is_empty()).await;
}

pub(super) async fn a6_who_lost_its_session_waits_with_another(subject: &dyn Subject) {
    let (holder, waiter) = (Peer::open(subject).await, Peer::open_short(subject).await);
    let held = holder.acquired().await;
    let session = waiter.tree().await.session().clone();
    let lock = waiter.lock();
    let waiting = behind(&holder, &lock).await;
    waiter.process.cut(true);
    let lost = async {
        session.lost().await;
        waiter.process.cut(false);
    };
    let both = futures_util::future::select(waiting, lost.boxed());
    let futures_util::future::Either::Right(((), waiting)) = within(subject, "its session is lost", both).await else {
        panic!("somebody else holds it")
    };
    let waiting = async {
        let giving = async {
            until(subject, "it stands in line again", async || holder.standing("/locks/one").await.len() == 2).await;
            held.release().await;
        };
        futures_util::future::join(waiting, giving).await.0
    };
    let acquired = within(subject, "it has its turn", waiting).await.expect("it can be had");
    assert_ne!(waiter.tree().await.session().id(), session.id());
    acquired.release().await;
}

pub(super) async fn a_wait_goes_on_over_a_connection_that_was_lost(subject: &dyn Subject) {
    let (holder, waiter) = (Peer::open(subject).await, Peer::open(subject).await);
    let held = holder.acquired().await;
    let session = waiter.tree().await.session().id();
    let lock = waiter.lock();
    let waiting = behind(&holder, &lock).await;
    waiter.process.cut(true);
    // What it waits for happens while it cannot hear of it.
    held.release().await;
    a_moment(subject).await;
    waiter.process.cut(false);
    let acquired = within(subject, "it has its turn", waiting).await.expect("it can be had");
    assert_eq!(waiter.tree().await.session().id(), session, "it is the same session");
    assert_eq!(holder.standing("/locks/one").await.len(), 1);
    acquired.release().await;
    let tree = holder.tree().await;
    tree.create(&path("/after"), Bytes::new(), CreateMode::Persistent, Acl::Open).await.expect("the root is open");
}

pub(super) async fn a_short_cut_ends_what_is_trusted_until_suspended_and_nothing_else(subject: &dyn Subject) {
    let options = SessionOptions { timeout: Duration::from_secs(8), credentials: Vec::new() };
    let peer = Peer::open_with(subject, options).await;
    let lock = |at: &str, trust| Lock::new(&peer.client, path(at), Acl::Open).with_trust(trust);
    let (wary, firm) = (lock("/wary", Trust::UntilSuspended), lock("/firm", Trust::UntilLost));
    let wary = within(subject, "the lock", wary.acquire()).await.expect("it can be had");
    let firm = within(subject, "the lock", firm.acquire()).await.expect("it can be had");
    let mut state = peer.tree().await.session().state();
    peer.process.cut(true);
    within(subject, "it is over", wary.cancelled()).await;
    assert!(!wary.is_valid() && firm.is_valid());
    peer.process.cut(false);
    let connected = state.wait_for(|state| *state == SessionState::Connected);
    within(subject, "it is connected again", connected).await.expect("the session lives");
    assert!(!wary.is_valid() && firm.is_valid(), "what is over stays so");
    wary.release().await;
    firm.release().await;
}

pub(super) async fn who_starts_before_its_engine_waits_for_it(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    peer.process.cut(true);
    assert!(matches!(peer.client.connect(Duration::ZERO).await, Err(TreeError::Disconnected(_))));
    let mending = async {
        a_moment(subject).await;
        peer.process.cut(false);
    };
    let both = futures_util::future::join(peer.client.connect(LIMIT), mending);
    assert_eq!(within(subject, "it opens a session", both).await.0, Ok(()));
}
