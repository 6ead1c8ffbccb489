//! Lines whose connections, parents and tasks fail.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join;
use tokio_util::sync::CancellationToken;

use super::*;
use coordination::recipes::{
    Bag, BagChange, Barrier, DoubleBarrier, Group, LeaderQueue, Leading, RoleMatch, RwLock, Semaphore,
};

pub(super) async fn waits_of_all_kinds_go_on_over_a_connection_that_was_lost(subject: &dyn Subject) {
    let (one, other) = (Peer::open(subject).await, Peer::open(subject).await);
    let rw = |peer: &Peer<'_>| RwLock::new(&peer.client, path("/rw"), Acl::Open);
    let pool = |peer: &Peer<'_>| Semaphore::new(&peer.client, &path("/pool"), 1, Acl::Open).expect("a short path");
    let queue = |peer: &Peer<'_>| LeaderQueue::new(&peer.client, &path("/queue"), Acl::Open).expect("a short path");
    let roles = |peer: &Peer<'_>| RoleMatch::new(&peer.client, &path("/roles"), Acl::Open).expect("a short path");
    let gate = |peer: &Peer<'_>| Barrier::new(&peer.client, path("/gate"), Acl::Open);
    let double =
        |peer: &Peer<'_>| DoubleBarrier::new(&peer.client, path("/double"), 2, Acl::Open).expect("a short path");
    let bag = |peer: &Peer<'_>| Bag::new(&peer.client, &path("/bag"), Acl::Open).expect("a short path");

    let reading = rw(&other).read().await.expect("it can be had");
    let lease = pool(&other).acquire().await.expect("it can be had");
    let first = queue(&other).join(Bytes::new()).await.expect("the queue is open");
    gate(&other).close().await.expect("it is open to all");
    one.tree().await.sync().await.expect("the engine answers");
    let session = one.tree().await.session().id();
    let (ours, leases, line, work, gates, doubles) =
        (rw(&one), pool(&one), queue(&one), roles(&one), gate(&one), double(&one));
    let (who, mut listener) = (Bytes::from_static(b"ann"), bag(&one).listen().await.expect("the bag is open"));
    let mut writing = ours.write().boxed();
    let mut leasing = leases.acquire().boxed();
    let mut leading = line.join(Bytes::new()).await.expect("the queue is open").lead().boxed();
    let mut applying = work.apply(&who).boxed();
    let mut passing = gates.passed().boxed();
    let mut entering = doubles.enter().boxed();
    until(subject, "it waits everywhere", async || {
        let waits = (&mut writing).now_or_never().is_none()
            & (&mut leasing).now_or_never().is_none()
            & (&mut leading).now_or_never().is_none()
            & (&mut applying).now_or_never().is_none()
            & (&mut passing).now_or_never().is_none()
            & (&mut entering).now_or_never().is_none();
        assert!(waits, "nothing of it can be had yet");
        let places =
            [("/rw", 2), ("/pool/leases", 2), ("/queue/candidate", 2), ("/roles/queue/candidate", 1), ("/double", 1)];
        let mut all_stand = true;
        for (at, count) in places {
            all_stand &= other.standing(at).await.len() == count;
        }
        all_stand
    })
    .await;
    a_moment(subject).await;
    one.process.cut(true);
    // All that it waits for happens while it cannot hear of it.
    reading.release().await;
    lease.release().await;
    first.leave().await;
    let job = roles(&other).jobs().add(Bytes::new()).await.expect("the bag is open");
    gate(&other).open().await.expect("it is open to all");
    let theirs = double(&other);
    let item = bag(&other).add(Bytes::new()).await.expect("the bag is open");
    one.process.cut(false);
    let all = async {
        assert!(writing.await.expect("it can be had").is_valid());
        assert!(leasing.await.expect("it can be had").is_valid());
        assert!(leading.await.expect("it stands there").is_valid());
        assert_eq!(applying.await.expect("it is open to all").job, job);
        passing.await.expect("its session lives");
        assert_eq!(listener.next().await, BagChange::Added(item));
        let (entered, _theirs) = join(entering, theirs.enter()).await;
        drop(entered.expect("its session lives"));
    };
    within(subject, "it has all that it waited for", all).await;
    assert_eq!(one.tree().await.session().id(), session, "it is the same session");
}

/// Nobody makes places and takes them away for ever.
pub(super) async fn a_line_comes_to_rest_after_trouble(subject: &dyn Subject) {
    const COUNT: usize = 3;
    let (watcher, stop) = (Peer::open(subject).await, CancellationToken::new());
    let mut peers = Vec::new();
    for _ in 0..COUNT {
        peers.push(Peer::open_short(subject).await);
    }
    let selectors: Vec<_> = peers.iter().map(|peer| peer.selector("one")).collect();
    let running = selectors.iter().map(|selector| {
        selector
            .run(&stop, async |leading: Leading| leading.over.cancelled().await)
            .map(|ended| ended.expect("it leads"))
    });
    let running = futures_util::future::join_all(running);
    let trouble = async {
        let all_stand = async || watcher.standing("/leaders/one").await.len() == COUNT;
        until(subject, "all stand in line", all_stand).await;
        for round in 0..3 {
            let mut lost = Vec::new();
            for peer in &peers {
                lost.push(peer.tree().await.session().clone());
                peer.process.cut(true);
            }
            if round == 2 {
                for session in &lost {
                    within(subject, "its session is lost", session.lost()).await;
                }
            }
            peers.iter().for_each(|peer| peer.process.cut(false));
            a_moment(subject).await;
        }
        // What was made, and what went: both are counted.
        let (mut last, mut since) = (None, subject.runtime().monotonic());
        until(subject, "nobody makes a place or takes one away", async || {
            a_moment(subject).await;
            let names = watcher.standing("/leaders/one").await;
            let stat = watcher.tree().await.exists(&path("/leaders/one")).await.expect("the engine answers");
            let now = stat.map(|stat| (stat.created, stat.children_version));
            if last != Some(now) || names.len() != COUNT {
                (last, since) = (Some(now), subject.runtime().monotonic());
            }
            // Longer than any pause of theirs, and than a session's end.
            subject.runtime().monotonic().since(since) > Duration::from_secs(3)
        })
        .await;
        stop.cancel();
    };
    join(running, trouble).await;
}

pub(super) async fn a_parent_that_is_taken_away_again_and_again_stops_nobody(subject: &dyn Subject) {
    const ROUNDS: usize = 15;
    const PARENTS: [&str; 4] = ["/locks/one", "/locks", "/queue/candidate", "/queue"];
    let (one, operator) = (Peer::open(subject).await, Peer::open(subject).await);
    let (tree, left) = (operator.tree().await, Arc::new(AtomicUsize::new(0)));
    let (cleaner, to_go) = (tree.clone(), left.clone());
    let two = Peer::open_between(subject, LONG, move |what| {
        let (cleaner, to_go) = (cleaner.clone(), to_go.clone());
        let cleaning = async move {
            let is_asked = to_go.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok();
            for at in PARENTS.into_iter().filter(|_| is_asked && what == "create") {
                // Unless somebody stands there.
                drop(cleaner.delete(&path(at), Expected::Any).await);
            }
        };
        cleaning.boxed()
    })
    .await;
    // Each of its first requests finds that what it has just made is gone.
    left.store(10, Ordering::Release);
    two.acquired().await.release().await;
    left.store(10, Ordering::Release);
    let queue = LeaderQueue::new(&two.client, &path("/queue"), Acl::Open).expect("a short path");
    let joined = within(subject, "it joins", queue.join(Bytes::new())).await;
    joined.expect("its parent comes to stay").leave().await;
    left.store(0, Ordering::Release);

    let working = async |peer: &Peer<'_>| {
        let mut terms = Vec::new();
        for _ in 0..ROUNDS {
            let held = peer.lock().acquire().await.expect("it can be had");
            terms.push(held.term());
            held.release().await;
        }
        terms
    };
    let cleaning = async {
        loop {
            for at in PARENTS {
                drop(tree.delete(&path(at), Expected::Any).await);
            }
            subject.runtime().sleep(Duration::from_millis(1)).await;
        }
    };
    let worked = async {
        tokio::select! {
            biased;
            worked = join(working(&one), working(&two)) => worked,
            () = cleaning => unreachable!("nobody ends that"),
        }
    };
    let (ones, twos) = within(subject, "all have had it", worked).await;
    for terms in [ones, twos] {
        assert!(terms.is_sorted_by(|one, next| one < next), "{terms:?}");
    }
}

pub(super) async fn a_parent_that_nobody_uses_goes(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    one.acquired().await.release().await;
    let tree = two.tree().await;
    until(subject, "what the lock stood in goes", async || {
        tree.sync().await.expect("the engine answers");
        tree.exists(&path("/locks")).await == Ok(None)
    })
    .await;
    two.acquired().await.release().await;
}

pub(super) async fn a_task_that_panics_gives_its_leadership_back(subject: &dyn Subject) {
    let (one, two, stop) = (Peer::open(subject).await, Peer::open(subject).await, CancellationToken::new());
    let (first, second) = (one.selector("one"), two.selector("two"));
    for _ in 0..2 {
        let failing = first.run(&stop, async |_: Leading| {
            assert_eq!(1, 2, "a task that fails, as this case wants it");
        });
        let failed = std::panic::AssertUnwindSafe(failing).catch_unwind();
        assert!(within(subject, "the task fails", failed).await.is_err());
        let next = within(subject, "the next leads", second.lead()).await.expect("it can lead");
        next.release().await;
    }
}

pub(super) async fn a_task_that_was_aborted_is_followed_by_the_next(subject: &dyn Subject) {
    const ROUNDS: usize = 3;
    let (one, operator, stop) = (Peer::open(subject).await, Peer::open(subject).await, CancellationToken::new());
    let (selector, led) = (one.selector("one"), std::sync::Mutex::new(Vec::new()));
    let running = selector.run(&stop, async |leading: Leading| {
        led.lock().expect("nothing panics in here").push(leading.term);
        // It does not listen.
        std::future::pending::<()>().await;
    });
    let tree = operator.tree().await;
    let disturbing = async {
        for round in 1..=ROUNDS {
            until(subject, "it leads", async || led.lock().expect("nothing panics in here").len() == round).await;
            for name in operator.standing("/leaders/one").await {
                drop(tree.delete(&path(&format!("/leaders/one/{name}")), Expected::Any).await);
            }
        }
        until(subject, "it leads again", async || led.lock().expect("nothing panics in here").len() > ROUNDS).await;
        stop.cancel();
    };
    let (ended, ()) = within(subject, "it ends", join(running, disturbing)).await;
    assert_eq!(ended, Ok(()));
    let led = led.into_inner().expect("nothing panics in here");
    assert!(led.is_sorted_by(|one, next| one < next), "{led:?}");
}

/// Where callbacks are called under a lock, or by who tells of sessions, this waits for itself.
pub(super) async fn a8_a_task_works_with_the_client_that_runs_it(subject: &dyn Subject) {
    let (peer, stop) = (Peer::open_short(subject).await, CancellationToken::new());
    let (selector, other) = (peer.selector("one"), Peer::open(subject).await);
    let work = async |when: &str| {
        let tree = peer.tree().await;
        let at = path(&format!("/made-{when}"));
        tree.create(&at, Bytes::new(), coordination::tree::CreateMode::Persistent, Acl::Open)
            .await
            .expect("the root is open");
        peer.acquired().await.release().await;
        let group = Group::new(&peer.client, path("/groups/one"), Acl::Open);
        let presence = group.join(when, Bytes::new()).expect("a name");
        presence.present().await.expect("the group is open");
        let mut members = group.members().await.expect("the group is open");
        members.until(|now| now.members.contains_key(when)).await;
        assert_eq!(selector.participants().await.map(|all| all.len()), Ok(1));
    };
    let rounds = AtomicUsize::new(0);
    let running = selector.run(&stop, async |leading: Leading| {
        if rounds.fetch_add(1, Ordering::Relaxed) == 0 {
            work("while-it-leads").await;
            for name in other.standing("/leaders/one").await {
                drop(other.tree().await.delete(&path(&format!("/leaders/one/{name}")), Expected::Any).await);
            }
            leading.over.cancelled().await;
            peer.acquired().await.release().await;
        } else {
            work("again").await;
            stop.cancel();
            // In its grace, too.
            peer.acquired().await.release().await;
        }
    });
    assert_eq!(within(subject, "its task ends", running).await, Ok(()));
    assert_eq!(rounds.into_inner(), 2);
}
