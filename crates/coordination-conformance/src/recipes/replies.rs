//! What was done for a process that never heard of it.

use super::*;
use coordination::recipes::{Group, LeaderQueue, RoleMatch};
use coordination::tree::CreateMode;

/// A process whose next request of `asked` is followed by no answer any more. (What it asks for before has one.)
async fn deaf_after<'a>(subject: &'a dyn Subject, asked: &'static str) -> Peer<'a> {
    let process = subject.process().await;
    let cut = process.clone();
    let hook = move |what: &'static str| {
        if what == asked {
            cut.cut_answers();
        }
        futures_util::future::ready(()).boxed()
    };
    let options = SessionOptions { timeout: LONG, credentials: Vec::new() };
    Peer::of(subject, process.clone(), Arc::new(Counted::with_hook(process, hook)), options)
}

/// From here on it hears nothing. What an engine does once for a connection is done before.
async fn deafen(peer: &Peer<'_>) {
    let (tree, at) = (peer.tree().await, path("/before"));
    tree.create(&at, Bytes::new(), CreateMode::Ephemeral, Acl::Open).await.expect("the root is open");
    tree.delete(&at, Expected::Any).await.expect("it is there");
    peer.process.cut_answers();
}

pub(super) async fn a4_a_place_whose_making_was_not_answered_is_found(subject: &dyn Subject) {
    let (one, holder) = (Peer::open(subject).await, Peer::open(subject).await);
    let queue = |peer: &Peer<'_>| LeaderQueue::new(&peer.client, &path("/queue"), Acl::Open).expect("a short path");
    // With a mark in its name.
    let (held, session) = (holder.acquired().await, one.tree().await.session().id());
    deafen(&one).await;
    let lock = one.lock();
    let acquiring = faults::behind_others(&holder, &lock, 2).await;
    let made = holder.standing("/locks/one").await;
    one.process.cut(false);
    let taking_turns = async {
        a_moment(subject).await;
        held.release().await;
    };
    let both = futures_util::future::join(acquiring, taking_turns);
    let acquired = within(subject, "it has its turn", both).await.0.expect("it can be had");
    let left = holder.standing("/locks/one").await;
    assert!(left.len() == 1 && made.contains(&left[0]), "it has the place that it did not hear of: {made:?}, {left:?}");
    acquired.release().await;
    // And without.
    let first = queue(&holder).join(Bytes::new()).await.expect("the queue is open");
    deafen(&one).await;
    let queue = queue(&one);
    let mut joining = queue.join(Bytes::new()).boxed();
    until(subject, "its place is made", async || {
        assert!((&mut joining).now_or_never().is_none(), "it hears nothing");
        holder.standing("/queue/candidate").await.len() == 2
    })
    .await;
    one.process.cut(false);
    let second = within(subject, "it joins", joining).await.expect("its session lives");
    assert_eq!(holder.standing("/queue/candidate").await.len(), 2, "it has joined once");
    first.leave().await;
    within(subject, "it leads", second.lead()).await.expect("it stands there").release().await;
    assert_eq!(one.tree().await.session().id(), session, "all of that in one session");
    until(subject, "nobody stands there", async || holder.standing("/queue/candidate").await.is_empty()).await;
}

pub(super) async fn a4_a_place_that_was_given_up_before_its_answer_is_taken_away(subject: &dyn Subject) {
    let (one, holder) = (Peer::open(subject).await, Peer::open(subject).await);
    let held = holder.acquired().await;
    let session = one.tree().await.session().id();
    deafen(&one).await;
    let lock = one.lock();
    drop(faults::behind_others(&holder, &lock, 2).await);
    a_moment(subject).await;
    assert_eq!(holder.standing("/locks/one").await.len(), 2, "nobody can know of it yet");
    one.process.cut(false);
    until(subject, "it is taken away", async || holder.standing("/locks/one").await.len() == 1).await;
    assert!(held.is_valid());
    assert_eq!(one.tree().await.session().id(), session, "its session goes on");
    held.release().await;
    one.acquired().await.release().await;
}

pub(super) async fn a4_what_stands_for_a_process_is_found_though_its_making_was_not_answered(subject: &dyn Subject) {
    let (one, other) = (Peer::open(subject).await, Peer::open(subject).await);
    let group = |peer: &Peer<'_>| Group::new(&peer.client, path("/groups/one"), Acl::Open);
    let bob = group(&other).join("bob", Bytes::new()).expect("a name");
    within(subject, "it is seen", bob.present()).await.expect("the group is open");
    let tree = one.tree().await;
    deafen(&one).await;
    let ann = group(&one).join("ann", Bytes::from_static(b"here")).expect("a name");
    until(subject, "it is there", async || other.standing("/groups/one").await == ["ann", "bob"]).await;
    let made = other.tree().await.exists(&path("/groups/one/ann")).await.expect("the engine answers");
    one.process.cut(false);
    within(subject, "it knows that it is seen", ann.present()).await.expect("the group is open");
    let found = other.tree().await.exists(&path("/groups/one/ann")).await.expect("the engine answers");
    assert_eq!(found.map(|stat| stat.created), made.map(|stat| stat.created), "it is the same one");
    assert_eq!(one.tree().await.session().id(), tree.session().id());
    drop(ann);
    until(subject, "it goes", async || other.standing("/groups/one").await == ["bob"]).await;
}

pub(super) async fn a4_a_job_that_was_taken_without_an_answer_is_had(subject: &dyn Subject) {
    // The job is read, and then taken.
    let (one, other) = (deaf_after(subject, "get").await, Peer::open(subject).await);
    let roles = |peer: &Peer<'_>| RoleMatch::new(&peer.client, &path("/roles"), Acl::Open).expect("a short path");
    let job = roles(&other).jobs().add(Bytes::from_static(b"sweep")).await.expect("the bag is open");
    let (ours, who) = (roles(&one), Bytes::from_static(b"ann"));
    let mut applying = ours.apply(&who).boxed();
    until(subject, "it has the job", async || {
        assert!((&mut applying).now_or_never().is_none(), "it hears nothing");
        roles(&other).assignments().await.is_ok_and(|assignments| assignments.contains_key(&job))
    })
    .await;
    one.process.cut(false);
    let role = within(subject, "it knows that it has the job", applying).await.expect("it is open to all");
    assert_eq!(role.job, job);
    assert!(role.held.is_valid());
    other.tree().await.multi(role.held.fence()).await.expect("its fence stands");
    role.held.release().await;
}
