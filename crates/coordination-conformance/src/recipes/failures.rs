//! Cases in which a connection fails, a parent node disappears, or a task fails.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join;
use tokio_util::sync::CancellationToken;

use super::*;
use coordination::recipes::{
    Bag, BagChange, Barrier, DoubleBarrier, Group, LeaderQueue, Leading, RoleMatch, RwLock, Semaphore,
};

pub(super) async fn all_kinds_of_waits_continue_after_a_lost_connection(subject: &dyn Subject) {
    let (one, other) = (Peer::open(subject).await, Peer::open(subject).await);
    let rw = |peer: &Peer<'_>| RwLock::new(&peer.client, path("/rw"), Acl::Open);
    let pool = |peer: &Peer<'_>| {
        Semaphore::new(&peer.client, &path("/pool"), 1, Acl::Open).expect("the path is within the length limit")
    };
    let queue = |peer: &Peer<'_>| {
        LeaderQueue::new(&peer.client, &path("/queue"), Acl::Open).expect("the path is within the length limit")
    };
    let roles = |peer: &Peer<'_>| {
        RoleMatch::new(&peer.client, &path("/roles"), Acl::Open).expect("the path is within the length limit")
    };
    let gate = |peer: &Peer<'_>| Barrier::new(&peer.client, path("/gate"), Acl::Open);
    let double = |peer: &Peer<'_>| {
        DoubleBarrier::new(&peer.client, path("/double"), 2, Acl::Open).expect("the path is within the length limit")
    };
    let bag = |peer: &Peer<'_>| {
        Bag::new(&peer.client, &path("/bag"), Acl::Open).expect("the path is within the length limit")
    };

    let reading = rw(&other).read().await.expect("the acquisition succeeds");
    let lease = pool(&other).acquire().await.expect("the acquisition succeeds");
    let first = queue(&other).join(Bytes::new()).await.expect("every session may access the queue");
    gate(&other).close().await.expect("every session may access the node");
    one.tree().await.sync().await.expect("the engine responds");
    let session = one.tree().await.session().id();
    let (ours, leases, line, work, gates, doubles) =
        (rw(&one), pool(&one), queue(&one), roles(&one), gate(&one), double(&one));
    let (who, mut listener) =
        (Bytes::from_static(b"ann"), bag(&one).listen().await.expect("every session may access the bag"));
    let mut writing = ours.write().boxed();
    let mut leasing = leases.acquire().boxed();
    let mut leading = line.join(Bytes::new()).await.expect("every session may access the queue").lead().boxed();
    let mut applying = work.apply(&who).boxed();
    let mut passing = gates.passed().boxed();
    let mut entering = doubles.enter().boxed();
    until(subject, "the process waits in a call of each recipe", async || {
        let waits = (&mut writing).now_or_never().is_none()
            & (&mut leasing).now_or_never().is_none()
            & (&mut leading).now_or_never().is_none()
            & (&mut applying).now_or_never().is_none()
            & (&mut passing).now_or_never().is_none()
            & (&mut entering).now_or_never().is_none();
        assert!(waits, "each call of a recipe still waits");
        let places =
            [("/rw", 2), ("/pool/leases", 2), ("/queue/candidate", 2), ("/roles/queue/candidate", 1), ("/double", 1)];
        let mut all_stand = true;
        for (at, count) in places {
            all_stand &= other.line(at).await.len() == count;
        }
        all_stand
    })
    .await;
    short_wait(subject).await;
    one.process.cut(true);
    // All events that the process waits for happen while the process is cut off.
    reading.release().await;
    lease.release().await;
    first.leave().await;
    let job = roles(&other).jobs().add(Bytes::new()).await.expect("every session may access the bag");
    gate(&other).open().await.expect("every session may access the node");
    let theirs = double(&other);
    let item = bag(&other).add(Bytes::new()).await.expect("every session may access the bag");
    one.process.cut(false);
    let all = async {
        assert!(writing.await.expect("the acquisition succeeds").is_valid());
        assert!(leasing.await.expect("the acquisition succeeds").is_valid());
        assert!(leading.await.expect("the place exists").is_valid());
        assert_eq!(applying.await.expect("every session may access the node").job, job);
        passing.await.expect("the session is open");
        assert_eq!(listener.next().await, BagChange::Added(item));
        let (entered, _theirs) = join(entering, theirs.enter()).await;
        drop(entered.expect("the session is open"));
    };
    within(subject, "all waits end", all).await;
    assert_eq!(one.tree().await.session().id(), session, "the process keeps its session");
}

/// Checks that the queue of candidates becomes stable after faults: the processes stop creating and removing places in
/// the queue.
pub(super) async fn line_becomes_stable_after_faults(subject: &dyn Subject) {
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
            .map(|ended| ended.expect("the process leads"))
    });
    let running = futures_util::future::join_all(running);
    let faults = async {
        let all_stand = async || watcher.line("/leaders/one").await.len() == COUNT;
        until(subject, "all processes wait in line", all_stand).await;
        for round in 0..3 {
            let mut lost = Vec::new();
            for peer in &peers {
                lost.push(peer.tree().await.session().clone());
                peer.process.cut(true);
            }
            if round == 2 {
                for session in &lost {
                    within(subject, "the session is lost", session.lost()).await;
                }
            }
            peers.iter().for_each(|peer| peer.process.cut(false));
            short_wait(subject).await;
        }
        // The stat of the parent node counts each creation and each deletion of a place in the queue.
        let (mut last, mut since) = (None, subject.runtime().monotonic());
        until(subject, "the waiting line no longer changes", async || {
            short_wait(subject).await;
            let names = watcher.line("/leaders/one").await;
            let stat = watcher.tree().await.exists(&path("/leaders/one")).await.expect("the engine responds");
            let now = stat.map(|stat| (stat.created, stat.children_version));
            if last != Some(now) || names.len() != COUNT {
                (last, since) = (Some(now), subject.runtime().monotonic());
            }
            // Three seconds are longer than the backoff of a process, and longer than the engine needs to end a
            // session.
            subject.runtime().monotonic().since(since) > Duration::from_secs(3)
        })
        .await;
        stop.cancel();
    };
    join(running, faults).await;
}

pub(super) async fn repeatedly_deleted_parent_blocks_no_process(subject: &dyn Subject) {
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
                // The deletion of a parent node fails while a process has a place below it.
                drop(cleaner.delete(&path(at), Expected::Any).await);
            }
        };
        cleaning.boxed()
    })
    .await;
    // During the next ten requests of process `two`, the cleaner deletes each parent node that the process has just
    // created.
    left.store(10, Ordering::Release);
    two.acquired().await.release().await;
    left.store(10, Ordering::Release);
    let queue = LeaderQueue::new(&two.client, &path("/queue"), Acl::Open).expect("the path is within the length limit");
    let joined = within(subject, "the process joins", queue.join(Bytes::new())).await;
    joined.expect("the parent stays").leave().await;
    left.store(0, Ordering::Release);

    let working = async |peer: &Peer<'_>| {
        let mut terms = Vec::new();
        for _ in 0..ROUNDS {
            let held = peer.lock().acquire().await.expect("the acquisition succeeds");
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
            () = cleaning => unreachable!("the loop that deletes the parent nodes never ends"),
        }
    };
    let (ones, twos) = within(subject, "all rounds end", worked).await;
    for terms in [ones, twos] {
        assert!(terms.is_sorted_by(|one, next| one < next), "{terms:?}");
    }
}

pub(super) async fn unused_parent_is_deleted(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    one.acquired().await.release().await;
    let tree = two.tree().await;
    until(subject, "the engine or a process has deleted the parent node of the lock", async || {
        tree.sync().await.expect("the engine responds");
        tree.exists(&path("/locks")).await == Ok(None)
    })
    .await;
    two.acquired().await.release().await;
}

pub(super) async fn panicking_task_releases_its_leadership(subject: &dyn Subject) {
    let (one, two, stop) = (Peer::open(subject).await, Peer::open(subject).await, CancellationToken::new());
    let (first, second) = (one.selector("one"), two.selector("two"));
    for _ in 0..2 {
        let failing = first.run(&stop, async |_: Leading| {
            assert_eq!(1, 2, "intended panic");
        });
        let failed = std::panic::AssertUnwindSafe(failing).catch_unwind();
        assert!(within(subject, "the task fails", failed).await.is_err());
        let next =
            within(subject, "the next leads", second.lead()).await.expect("the candidate acquires the leadership");
        next.release().await;
    }
}

pub(super) async fn aborted_task_is_followed_by_the_next(subject: &dyn Subject) {
    const ROUNDS: usize = 3;
    let (one, operator, stop) = (Peer::open(subject).await, Peer::open(subject).await, CancellationToken::new());
    let (selector, led) = (one.selector("one"), std::sync::Mutex::new(Vec::new()));
    let running = selector.run(&stop, async |leading: Leading| {
        led.lock().expect("no code panics while it holds this mutex").push(leading.term);
        // The task ignores the end of its leadership.
        std::future::pending::<()>().await;
    });
    let tree = operator.tree().await;
    let disturbing = async {
        for round in 1..=ROUNDS {
            until(subject, "the process leads", async || {
                led.lock().expect("no code panics while it holds this mutex").len() == round
            })
            .await;
            for name in operator.line("/leaders/one").await {
                drop(tree.delete(&path(&format!("/leaders/one/{name}")), Expected::Any).await);
            }
        }
        until(subject, "the process leads again", async || {
            led.lock().expect("no code panics while it holds this mutex").len() > ROUNDS
        })
        .await;
        stop.cancel();
    };
    let (ended, ()) = within(subject, "the selector ends", join(running, disturbing)).await;
    assert_eq!(ended, Ok(()));
    let led = led.into_inner().expect("no code panics while it holds this mutex");
    assert!(led.is_sorted_by(|one, next| one < next), "{led:?}");
}

/// Detects callbacks that run under a mutex or on the task that reports session states. Such callbacks would deadlock
/// in this case.
pub(super) async fn a8_task_can_use_the_client_that_runs_it(subject: &dyn Subject) {
    // A long session survives a pause of the engine. Otherwise the process could lead a third time.
    let (peer, stop) = (Peer::open(subject).await, CancellationToken::new());
    let (selector, other) = (peer.selector("one"), Peer::open(subject).await);
    let work = async |when: &str| {
        let tree = peer.tree().await;
        let at = path(&format!("/made-{when}"));
        tree.create(&at, Bytes::new(), coordination::tree::CreateMode::Persistent, Acl::Open)
            .await
            .expect("every session may create nodes in the root");
        peer.acquired().await.release().await;
        let group = Group::new(&peer.client, path("/groups/one"), Acl::Open);
        let presence = group.join(when, Bytes::new()).expect("the member's name is valid");
        presence.present().await.expect("every session may access the group");
        let mut members = group.follow().await.expect("every session may access the group");
        members.until(|now| now.members.contains_key(when)).await;
        assert_eq!(selector.participants().await.map(|all| all.len()), Ok(1));
    };
    let rounds = AtomicUsize::new(0);
    let running = selector.run(&stop, async |leading: Leading| {
        if rounds.fetch_add(1, Ordering::Relaxed) == 0 {
            work("while-it-leads").await;
            for name in other.line("/leaders/one").await {
                drop(other.tree().await.delete(&path(&format!("/leaders/one/{name}")), Expected::Any).await);
            }
            leading.over.cancelled().await;
            peer.acquired().await.release().await;
        } else {
            work("again").await;
            stop.cancel();
            // The task may also use the client during its grace period.
            peer.acquired().await.release().await;
        }
    });
    assert_eq!(within(subject, "the task ends", running).await, Ok(()));
    assert_eq!(rounds.into_inner(), 2);
}
