//! What happens in the midst of an acquisition: after the engine has said how the line stands, and before anything comes of it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join;

use super::*;
use coordination::Elector as _;
use coordination::recipes::{Form, LeaderQueue, TreeElector};

/// What happens once, as soon as the line was looked at.
#[derive(Default)]
struct Moment {
    event: Mutex<Option<BoxFuture<'static, ()>>>,
    is_over: AtomicBool,
}

impl Moment {
    fn set(&self, event: impl Future<Output = ()> + Send + 'static) {
        self.is_over.store(false, Ordering::Release);
        *self.event.lock().expect("nothing panics in here") = Some(event.boxed());
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    async fn after(self: Arc<Self>, what: &'static str) {
        if what != "children" {
            return;
        }
        let event = self.event.lock().expect("nothing panics in here").take();
        if let Some(event) = event {
            event.await;
            self.is_over.store(true, Ordering::Release);
        }
    }
}

async fn open_with(subject: &dyn Subject, timeout: Duration) -> (Peer<'_>, Arc<Moment>) {
    let moment = Arc::<Moment>::default();
    let hooked = moment.clone();
    (Peer::open_between(subject, timeout, move |what| hooked.clone().after(what).boxed()).await, moment)
}

pub(super) async fn an_event_in_the_midst_of_an_acquisition_is_not_missed(subject: &dyn Subject) {
    let ((waiter, moment), holder) = (open_with(subject, LONG).await, Peer::open(subject).await);
    // The one before it goes: there is nothing to watch any more.
    let held = holder.acquired().await;
    moment.set(held.release());
    let acquired = waiter.acquired().await;
    assert!(moment.is_over() && acquired.is_valid());
    acquired.release().await;
    // Its own place is taken away: it has to have another.
    let (held, operator) = (holder.acquired().await, holder.tree().await);
    let taken = operator.clone();
    moment.set(async move {
        let names = taken.children(&path("/locks/one")).await.expect("it is there").names;
        let last = names.iter().max_by_key(|name| Sequence::of(name)).expect("two stand there");
        taken.delete(&path(&format!("/locks/one/{last}")), Expected::Any).await.expect("it is open to all");
    });
    let lock = waiter.lock();
    let mut acquiring = lock.acquire().boxed();
    let mut was_seen = false;
    until(subject, "it has another place", async || {
        assert!((&mut acquiring).now_or_never().is_none(), "somebody else holds it");
        was_seen |= moment.is_over();
        was_seen && holder.standing("/locks/one").await.len() == 2
    })
    .await;
    held.release().await;
    let acquired = within(subject, "it has its turn", acquiring).await.expect("it can be had");
    assert!(acquired.is_valid());
    assert_eq!(holder.standing("/locks/one").await.len(), 1);
    acquired.release().await;
}

pub(super) async fn a_suspension_in_the_midst_of_an_acquisition_gives_nothing_that_is_over(subject: &dyn Subject) {
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
        let early = meanwhile(subject, &mut acquiring, "its connection is lost", async || moment.is_over()).await;
        let held = match trust {
            Trust::UntilSuspended => {
                assert!(early.is_none(), "it would be over at once");
                a_moment(subject).await;
                assert!((&mut acquiring).now_or_never().is_none(), "it would be over at once");
                peer.process.cut(false);
                within(subject, "the lock", acquiring).await
            }
            Trust::UntilLost => {
                let held = match early {
                    Some(held) => held,
                    None => within(subject, "the lock", acquiring).await,
                };
                assert!(moment.is_over(), "it was had before");
                peer.process.cut(false);
                held
            }
        };
        let held = held.expect("it can be had");
        becomes(subject, &*tree, SessionState::Connected).await;
        a_moment(subject).await;
        assert!(held.is_valid(), "{trust:?}: it is over");
        assert_eq!(peer.tree().await.session().id(), tree.session().id());
        held.release().await;
    }
}

pub(super) async fn a_session_that_ends_in_the_midst_of_an_acquisition_gives_nothing(subject: &dyn Subject) {
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
        let held = within(subject, "the lock", both).await.0.expect("it can be had");
        assert!(held.is_valid(), "{trust:?}: it is of a session that has ended");
        assert_ne!(peer.tree().await.session().id(), session.id());
        assert_eq!(other.standing("/locks/one").await.len(), 1, "what the other session had is gone before");
        held.release().await;
        let gone = async || other.standing("/locks/one").await.is_empty();
        until(subject, "nobody stands in line", gone).await;
    }
}

pub(super) async fn two_losses_of_a_connection_in_a_row_are_as_one(subject: &dyn Subject) {
    let options = SessionOptions { timeout: Duration::from_secs(8), credentials: Vec::new() };
    let (holder, waiter) = (Peer::open(subject).await, Peer::open_with(subject, options).await);
    let tree = waiter.tree().await;
    let firm = Lock::new(&waiter.client, path("/firm"), Acl::Open).with_trust(Trust::UntilLost);
    let firm = within(subject, "the lock", firm.acquire()).await.expect("it can be had");
    for is_noticed in [true, false] {
        let held = holder.acquired().await;
        let lock = waiter.lock();
        let waiting = faults::behind_others(&holder, &lock, 2).await;
        let losing = async {
            waiter.process.cut(true);
            if is_noticed {
                becomes(subject, &*tree, SessionState::Suspended).await;
            }
            waiter.process.cut(false);
            if is_noticed {
                becomes(subject, &*tree, SessionState::Connected).await;
            }
            waiter.process.cut(true);
            held.release().await;
            if is_noticed {
                becomes(subject, &*tree, SessionState::Suspended).await;
            }
            waiter.process.cut(false);
        };
        let both = join(waiting, losing);
        let acquired = within(subject, "it has its turn", both).await.0.expect("it can be had");
        becomes(subject, &*tree, SessionState::Connected).await;
        a_moment(subject).await;
        assert!(firm.is_valid(), "the session went on");
        assert_eq!(waiter.tree().await.session().id(), tree.session().id());
        assert_eq!(holder.standing("/locks/one").await.len(), 1);
        acquired.release().await;
        until(subject, "nobody stands in line", async || holder.standing("/locks/one").await.is_empty()).await;
    }
    firm.release().await;
}

/// What the engine has not ended yet though it has ended here, as a process that looks for its own name in the line would take for its own.
pub(super) async fn a_place_of_an_earlier_session_is_anothers(subject: &dyn Subject) {
    let other = Peer::open(subject).await;
    let peer = Peer::open_short(subject).await;
    let queue = LeaderQueue::new(&peer.client, &path("/queue"), Acl::Open).expect("a short path");
    let electors = [Form::Polling, Form::Watching].map(|form| {
        let group = path(&format!("/nodes-{form:?}"));
        (TreeElector::new(&peer.client, group.clone(), form, Acl::Open), group)
    });
    let lease = Duration::from_millis(200);
    let early = peer.acquired().await;
    let first = queue.join(Bytes::new()).await.expect("the queue is open");
    for (elector, _) in &electors {
        let leads = async || elector.is_leader("one", lease).await.is_ok_and(|leadership| leadership.leads);
        until(subject, "it leads", leads).await;
    }
    let (session, engine) = (peer.tree().await.session().clone(), other.tree().await);
    let all_are_new = async |at: &NodePath| {
        engine.sync().await.expect("the engine answers");
        for name in engine.children(at).await.map_or_else(|_| Vec::new(), |children| children.names) {
            let place = at.join(&name).expect("a name");
            let stat = engine.exists(&place).await.expect("the engine answers");
            assert!(stat.is_none_or(|stat| stat.owner != Some(session.id())), "{place} is of the session before");
        }
    };
    peer.process.cut(true);
    within(subject, "its session is lost", session.lost()).await;
    peer.process.cut(false);
    // All at once, as soon as it can.
    let locking = async {
        let held = peer.acquired().await;
        all_are_new(&path("/locks/one")).await;
        held
    };
    let queueing = async {
        let candidacy = queue.join(Bytes::new()).await.expect("the queue is open");
        let held = candidacy.lead().await.expect("its session lives");
        all_are_new(&path("/queue/candidate")).await;
        held
    };
    let electing = async {
        for (elector, group) in &electors {
            let leads = async || elector.is_leader("one", lease).await.is_ok_and(|leadership| leadership.leads);
            until(subject, "it leads", leads).await;
            all_are_new(group).await;
        }
    };
    let all = Box::pin(futures_util::future::join3(locking, queueing, electing));
    let (held, led, ()) = within(subject, "it holds and leads again", all).await;
    assert!(held.is_valid() && led.is_valid());
    drop((first, early));
    a_moment(subject).await;
    assert!(held.is_valid() && led.is_valid(), "what is said of the earlier places harms nobody");
}
