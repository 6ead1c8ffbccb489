//! Cases in which a leader or a waiting process dies, loses its connection, or misses a response.

use futures_util::future::BoxFuture;

use super::*;
use coordination::tree::CreateMode;

/// Starts an acquisition of the lock. Waits until the queue of the lock contains two places: the place of the holder
/// and the place of the new acquisition.
async fn behind<'a>(holder: &Peer<'_>, lock: &'a Lock) -> BoxFuture<'a, Result<Held, TreeError>> {
    behind_others(holder, lock, 2).await
}

/// Works like [`behind`], but waits until the queue of the lock contains `count` places.
pub(super) async fn behind_others<'a>(
    holder: &Peer<'_>,
    lock: &'a Lock,
    count: usize,
) -> BoxFuture<'a, Result<Held, TreeError>> {
    let mut waiting = lock.acquire().boxed();
    until(holder.subject, "the process waits in line", async || {
        assert!((&mut waiting).now_or_never().is_none(), "another process holds the lock");
        holder.line("/locks/one").await.len() == count
    })
    .await;
    waiting
}

pub(super) async fn a1_a3_guard_of_a_dead_leader_ends_before_the_next_leads(subject: &dyn Subject) {
    let (dying, next) = (Peer::open_short(subject).await, Peer::open(subject).await);
    for trust in [Trust::UntilSuspended, Trust::UntilLost] {
        let lock = dying.lock().with_trust(trust);
        let held = within(subject, "the lock", lock.acquire()).await.expect("the acquisition succeeds");
        dying.process.cut(true);
        let other = next.lock();
        let successor = within(subject, "the next holder", other.acquire()).await.expect("the acquisition succeeds");
        assert!(!held.is_valid(), "the old guard is invalid once the next process holds the lock (trust: {trust:?})");
        within(subject, "the old guard reports its end", held.cancelled()).await;
        assert!(successor.term() > held.term());
        dying.process.cut(false);
        // The dead leader's late release of its old place has no effect.
        held.release().await;
        assert!(successor.is_valid());
        successor.release().await;
    }
}

pub(super) async fn a4_lost_response_leaves_no_extra_place(subject: &dyn Subject) {
    let (one, holder) = (Peer::open(subject).await, Peer::open(subject).await);
    one.acquired().await.release().await;
    for round in 0..6 {
        let held = holder.acquired().await;
        let lock = one.lock();
        let mut acquiring = lock.acquire().boxed();
        // The test cuts the connection while the process creates its place. The place may then exist although the
        // process receives no response.
        let waited = subject.runtime().timeout(Duration::from_micros(400 * round), &mut acquiring).await;
        assert!(waited.is_none(), "another process holds the lock");
        one.process.cut(true);
        let waited = subject.runtime().timeout(Duration::from_millis(50), &mut acquiring).await;
        assert!(waited.is_none(), "another process holds the lock");
        one.process.cut(false);
        let giving = async {
            until(subject, "the waiting line has one place in addition to the holder's place", async || {
                holder.line("/locks/one").await.len() == 2
            })
            .await;
            held.release().await;
        };
        let both = futures_util::future::join(acquiring, giving);
        let (acquired, ()) = within(subject, "the waiting process acquires the lock", both).await;
        let acquired = acquired.expect("the acquisition succeeds");
        assert_eq!(
            holder.line("/locks/one").await.len(),
            1,
            "the waiting line contains only the place of the new holder"
        );
        acquired.release().await;
    }
    until(subject, "the waiting line is empty", async || holder.line("/locks/one").await.is_empty()).await;
}

pub(super) async fn a6_waiting_process_continues_after_a_lost_session(subject: &dyn Subject) {
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
    let futures_util::future::Either::Right(((), waiting)) = within(subject, "the session is lost", both).await else {
        panic!("another process holds the lock")
    };
    let waiting = async {
        let giving = async {
            until(subject, "the process waits in line again", async || holder.line("/locks/one").await.len() == 2)
                .await;
            held.release().await;
        };
        futures_util::future::join(waiting, giving).await.0
    };
    let acquired =
        within(subject, "the waiting process acquires the lock", waiting).await.expect("the acquisition succeeds");
    assert_ne!(waiter.tree().await.session().id(), session.id());
    acquired.release().await;
}

pub(super) async fn wait_continues_after_a_lost_connection(subject: &dyn Subject) {
    let (holder, waiter) = (Peer::open(subject).await, Peer::open(subject).await);
    let held = holder.acquired().await;
    let session = waiter.tree().await.session().id();
    let lock = waiter.lock();
    let waiting = behind(&holder, &lock).await;
    waiter.process.cut(true);
    // The event that the process waits for happens while the process is cut off.
    held.release().await;
    short_wait(subject).await;
    waiter.process.cut(false);
    let acquired =
        within(subject, "the waiting process acquires the lock", waiting).await.expect("the acquisition succeeds");
    assert_eq!(waiter.tree().await.session().id(), session, "the process keeps its session");
    assert_eq!(holder.line("/locks/one").await.len(), 1);
    acquired.release().await;
    let tree = holder.tree().await;
    tree.create(&path("/after"), Bytes::new(), CreateMode::Persistent, Acl::Open)
        .await
        .expect("every session may create nodes in the root");
}

pub(super) async fn short_cut_ends_only_guards_trusted_until_suspended(subject: &dyn Subject) {
    let options = SessionOptions { timeout: Duration::from_secs(8), credentials: Vec::new() };
    let peer = Peer::open_with(subject, options).await;
    let lock = |at: &str, trust| Lock::new(&peer.client, path(at), Acl::Open).with_trust(trust);
    let (wary, firm) = (lock("/wary", Trust::UntilSuspended), lock("/firm", Trust::UntilLost));
    let wary = within(subject, "the lock", wary.acquire()).await.expect("the acquisition succeeds");
    let firm = within(subject, "the lock", firm.acquire()).await.expect("the acquisition succeeds");
    let mut state = peer.tree().await.session().state();
    peer.process.cut(true);
    within(subject, "the guard ends", wary.cancelled()).await;
    assert!(!wary.is_valid() && firm.is_valid());
    peer.process.cut(false);
    let connected = state.wait_for(|state| *state == SessionState::Connected);
    within(subject, "the session is connected again", connected).await.expect("the session is open");
    assert!(!wary.is_valid() && firm.is_valid(), "a guard that has ended does not become valid again");
    wary.release().await;
    firm.release().await;
}

pub(super) async fn client_waits_for_an_engine_that_starts_later(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    peer.process.cut(true);
    assert!(matches!(peer.client.connect(Duration::ZERO).await, Err(TreeError::Disconnected(_))));
    let mending = async {
        short_wait(subject).await;
        peer.process.cut(false);
    };
    let both = futures_util::future::join(peer.client.connect(LIMIT), mending);
    assert_eq!(within(subject, "the client opens a session", both).await.0, Ok(()));
}
