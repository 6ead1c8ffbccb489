//! Cases about races between an acquisition and other events. In most cases the event happens after the engine has
//! returned the list of the places in the queue and before the process uses this list.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join;

use super::*;
use coordination::Elector as _;
use coordination::recipes::{Form, LeaderQueue, TreeElector};
use coordination::tree::TreeError;
use runtime::Runtime;

/// Event that happens once, right after the process next reads the list of the places in a queue.
#[derive(Default)]
struct RaceEvent {
    event: Mutex<Option<BoxFuture<'static, ()>>>,
    is_over: AtomicBool,
}

impl RaceEvent {
    fn set(&self, event: impl Future<Output = ()> + Send + 'static) {
        self.is_over.store(false, Ordering::Release);
        *self.event.lock().expect("no code panics while it holds this mutex") = Some(event.boxed());
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Runs the event in a task of its own. The process may drop its read while the event happens, and the event then
    /// still happens completely.
    async fn after(self: Arc<Self>, runtime: Runtime, what: &'static str) {
        if what != "children" {
            return;
        }
        let event = self.event.lock().expect("no code panics while it holds this mutex").take();
        if let Some(event) = event {
            let happening = runtime.detached("race event", async move {
                event.await;
                self.is_over.store(true, Ordering::Release);
            });
            happening.await.expect("the event does not panic");
        }
    }
}

async fn open_with(subject: &dyn Subject, timeout: Duration) -> (Peer<'_>, Arc<RaceEvent>) {
    let moment = Arc::<RaceEvent>::default();
    let (hooked, runtime) = (moment.clone(), subject.runtime());
    let hook = move |what| hooked.clone().after(runtime.clone(), what).boxed();
    (Peer::open_between(subject, timeout, hook).await, moment)
}

pub(super) async fn event_during_an_acquisition_is_not_missed(subject: &dyn Subject) {
    let ((waiter, moment), holder) = (open_with(subject, LONG).await, Peer::open(subject).await);
    // The holder removes its place, so no place is left for the waiting process to watch.
    let held = holder.acquired().await;
    moment.set(held.release());
    let acquired = waiter.acquired().await;
    assert!(moment.is_over() && acquired.is_valid());
    acquired.release().await;
    // The operator removes the place of the waiting process, so this process must create another place.
    let (held, operator) = (holder.acquired().await, holder.tree().await);
    let taken = operator.clone();
    moment.set(async move {
        let names = taken.children(&path("/locks/one")).await.expect("the node exists").names;
        let last =
            names.iter().max_by_key(|name| Sequence::of(name)).expect("the lock's waiting line contains two places");
        taken
            .delete(&path(&format!("/locks/one/{last}")), Expected::Any)
            .await
            .expect("every session may access the node");
    });
    let lock = waiter.lock();
    let mut acquiring = lock.acquire().boxed();
    let mut has_happened = false;
    until(subject, "the waiting process creates another place in the queue", async || {
        assert!((&mut acquiring).now_or_never().is_none(), "another process holds the lock");
        has_happened |= moment.is_over();
        has_happened && holder.line("/locks/one").await.len() == 2
    })
    .await;
    held.release().await;
    let acquired =
        within(subject, "the waiting process acquires the lock", acquiring).await.expect("the acquisition succeeds");
    assert!(acquired.is_valid());
    assert_eq!(holder.line("/locks/one").await.len(), 1);
    acquired.release().await;
}

pub(super) async fn suspension_during_an_acquisition_yields_a_valid_guard(subject: &dyn Subject) {
    for trust in [Trust::UntilSuspended, Trust::UntilLost] {
        let (peer, moment) = open_with(subject, Duration::from_secs(8)).await;
        let (tree, process) = (peer.tree().await, peer.process.clone());
        let session = tree.session().clone();
        moment.set(async move {
            process.cut(true);
            drop(session.state().wait_for(|state| *state != SessionState::Connected).await);
        });
        let lock = peer.lock().with_trust(trust);
        let mut acquiring = lock.acquire().boxed();
        let early = poll_until(subject, &mut acquiring, "the connection is lost", async || moment.is_over()).await;
        let held = match trust {
            Trust::UntilSuspended => {
                assert!(early.is_none(), "the process obtains no guard while its session is suspended");
                short_wait(subject).await;
                assert!(
                    (&mut acquiring).now_or_never().is_none(),
                    "the process obtains no guard while its session is suspended"
                );
                peer.process.cut(false);
                within(subject, "the lock", acquiring).await
            }
            Trust::UntilLost => {
                let held = match early {
                    Some(held) => held,
                    None => within(subject, "the lock", acquiring).await,
                };
                assert!(moment.is_over(), "the process does not acquire the lock before it loses its connection");
                peer.process.cut(false);
                held
            }
        };
        let held = held.expect("the acquisition succeeds");
        wait_for_state(subject, &*tree, SessionState::Connected).await;
        short_wait(subject).await;
        assert!(held.is_valid(), "the guard remains valid after the suspension of its session (trust: {trust:?})");
        assert_eq!(peer.tree().await.session().id(), tree.session().id());
        held.release().await;
    }
}

pub(super) async fn session_end_during_an_acquisition_yields_a_new_place(subject: &dyn Subject) {
    let other = Peer::open(subject).await;
    for trust in [Trust::UntilSuspended, Trust::UntilLost] {
        let (peer, moment) = open_with(subject, subject.timeout()).await;
        let (session, process) = (peer.tree().await.session().clone(), peer.process.clone());
        let ending = session.clone();
        moment.set(async move {
            process.cut(true);
            ending.lost().await;
        });
        let lock = peer.lock().with_trust(trust);
        let mending = async {
            session.lost().await;
            peer.process.cut(false);
        };
        let both = join(lock.acquire(), mending);
        let held = within(subject, "the lock", both).await.0.expect("the acquisition succeeds");
        assert!(held.is_valid(), "the guard belongs to a live session (trust: {trust:?})");
        assert_ne!(peer.tree().await.session().id(), session.id());
        assert_eq!(other.line("/locks/one").await.len(), 1, "the engine has deleted the node of the ended session");
        held.release().await;
        let gone = async || other.line("/locks/one").await.is_empty();
        until(subject, "no process holds the lock or waits for it", gone).await;
    }
}

pub(super) async fn two_connection_losses_in_a_row_act_like_one(subject: &dyn Subject) {
    let options = SessionOptions { timeout: Duration::from_secs(8), credentials: Vec::new() };
    let (holder, waiter) = (Peer::open(subject).await, Peer::open_with(subject, options).await);
    let tree = waiter.tree().await;
    let firm = Lock::new(&waiter.client, path("/firm"), Acl::Open).with_trust(Trust::UntilLost);
    let firm = within(subject, "the lock", firm.acquire()).await.expect("the acquisition succeeds");
    for is_noticed in [true, false] {
        let held = holder.acquired().await;
        let lock = waiter.lock();
        let waiting = faults::behind_others(&holder, &lock, 2).await;
        let losing = async {
            waiter.process.cut(true);
            if is_noticed {
                wait_for_state(subject, &*tree, SessionState::Suspended).await;
            }
            waiter.process.cut(false);
            if is_noticed {
                wait_for_state(subject, &*tree, SessionState::Connected).await;
            }
            waiter.process.cut(true);
            held.release().await;
            if is_noticed {
                wait_for_state(subject, &*tree, SessionState::Suspended).await;
            }
            waiter.process.cut(false);
        };
        let both = join(waiting, losing);
        let acquired =
            within(subject, "the waiting process acquires the lock", both).await.0.expect("the acquisition succeeds");
        wait_for_state(subject, &*tree, SessionState::Connected).await;
        short_wait(subject).await;
        assert!(firm.is_valid(), "the session continues");
        assert_eq!(waiter.tree().await.session().id(), tree.session().id());
        assert_eq!(holder.line("/locks/one").await.len(), 1);
        acquired.release().await;
        until(subject, "no process holds the lock or waits for it", async || {
            holder.line("/locks/one").await.is_empty()
        })
        .await;
    }
    firm.release().await;
}

/// The peer's earlier session has ended according to the peer's clock, but the engine has not ended this session yet.
/// The recipes must not mistake the nodes of this session for nodes of the new session, which have the same names.
pub(super) async fn place_of_an_earlier_session_is_not_reused(subject: &dyn Subject) {
    let other = Peer::open(subject).await;
    let peer = Peer::open_short(subject).await;
    let queue =
        LeaderQueue::new(&peer.client, &path("/queue"), Acl::Open).expect("the path is within the length limit");
    let electors = [Form::Polling, Form::Watching].map(|form| {
        let group = path(&format!("/nodes-{form:?}"));
        (TreeElector::new(&peer.client, group.clone(), form, Acl::Open), group)
    });
    let lease = Duration::from_millis(200);
    let early = peer.acquired().await;
    let first = queue.join(Bytes::new()).await.expect("every session may access the queue");
    for (elector, _) in &electors {
        let leads = async || elector.is_leader("one", lease).await.is_ok_and(|leadership| leadership.leads);
        until(subject, "the process leads", leads).await;
    }
    let (session, engine) = (peer.tree().await.session().clone(), other.tree().await);
    let all_are_new = async |at: &NodePath| {
        engine.sync().await.expect("the engine responds");
        for name in engine.children(at).await.map_or_else(|_| Vec::new(), |children| children.names) {
            let place = at.join(&name).expect("the name of the child node is valid");
            let stat = engine.exists(&place).await.expect("the engine responds");
            assert!(
                stat.is_none_or(|stat| stat.owner != Some(session.id())),
                "no recipe reuses the node {place} of the ended session"
            );
        }
    };
    peer.process.cut(true);
    within(subject, "the session is lost", session.lost()).await;
    peer.process.cut(false);
    // All recipes start their acquisitions at the same time, right after the test restores the connection.
    let locking = async {
        let held = peer.acquired().await;
        all_are_new(&path("/locks/one")).await;
        held
    };
    let queueing = async {
        // The request to join may fail, because the test has cut its connection. In this case the process is not in the
        // queue and must join again.
        let mut joined = None;
        until(subject, "the process joins", async || {
            let result = joined.insert(queue.join(Bytes::new()).await);
            !matches!(result, Err(TreeError::Disconnected(_)))
        })
        .await;
        let candidacy = joined.expect("`until` has polled").expect("every session may access the queue");
        let held = candidacy.lead().await.expect("the session is open");
        all_are_new(&path("/queue/candidate")).await;
        held
    };
    let electing = async {
        for (elector, group) in &electors {
            let leads = async || elector.is_leader("one", lease).await.is_ok_and(|leadership| leadership.leads);
            until(subject, "the process leads", leads).await;
            all_are_new(group).await;
        }
    };
    let all = Box::pin(futures_util::future::join3(locking, queueing, electing));
    let (held, led, ()) = within(subject, "the process holds the lock and leads again", all).await;
    assert!(held.is_valid() && led.is_valid());
    drop((first, early));
    short_wait(subject).await;
    assert!(
        held.is_valid() && led.is_valid(),
        "dropping the guards of the ended session does not affect the new guards"
    );
}
