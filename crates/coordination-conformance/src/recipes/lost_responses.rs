//! Cases in which the engine executes a request and the process does not receive the response.

use super::*;
use coordination::recipes::{Group, LeaderQueue, RoleMatch};
use coordination::tree::CreateMode;

/// Opens a process that receives all responses up to the response to its first request of the kind `asked`. The process
/// receives no response to later requests.
async fn cut_responses_after<'a>(subject: &'a dyn Subject, asked: &'static str) -> Peer<'a> {
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

/// Creates and deletes a node as the process `peer`, and then drops all later responses to this process. The two
/// changes are necessary because a process sends some requests only once per connection, together with its first
/// changes. The process `peer` receives the responses to those requests before the test drops responses.
async fn cut_responses(peer: &Peer<'_>) {
    let (tree, at) = (peer.tree().await, path("/before"));
    tree.create(&at, Bytes::new(), CreateMode::Ephemeral, Acl::Open)
        .await
        .expect("every session may create nodes in the root");
    tree.delete(&at, Expected::Any).await.expect("the node exists");
    peer.process.cut_answers();
}

pub(super) async fn a4_place_with_a_lost_response_is_found(subject: &dyn Subject) {
    let (one, holder) = (Peer::open(subject).await, Peer::open(subject).await);
    let queue = |peer: &Peer<'_>| {
        LeaderQueue::new(&peer.client, &path("/queue"), Acl::Open).expect("the path is within the length limit")
    };
    // Part 1 uses a lock. The name of a place in the queue of a lock contains a GUID.
    let (held, session) = (holder.acquired().await, one.tree().await.session().id());
    cut_responses(&one).await;
    let lock = one.lock();
    let acquiring = faults::behind_others(&holder, &lock, 2).await;
    let made = holder.line("/locks/one").await;
    one.process.cut(false);
    let taking_turns = async {
        short_wait(subject).await;
        held.release().await;
    };
    let both = futures_util::future::join(acquiring, taking_turns);
    let acquired =
        within(subject, "the waiting process acquires the lock", both).await.0.expect("the acquisition succeeds");
    let left = holder.line("/locks/one").await;
    assert!(
        left.len() == 1 && made.contains(&left[0]),
        "the process keeps the place that it created, although the response was lost; places before: {made:?}, \
         places after: {left:?}"
    );
    acquired.release().await;
    // Part 2 uses a leader queue. The name of a place in a leader queue contains no GUID.
    let first = queue(&holder).join(Bytes::new()).await.expect("every session may access the queue");
    cut_responses(&one).await;
    let queue = queue(&one);
    let mut joining = queue.join(Bytes::new()).boxed();
    until(subject, "the engine creates the place in the queue", async || {
        assert!((&mut joining).now_or_never().is_none(), "the process receives no response");
        holder.line("/queue/candidate").await.len() == 2
    })
    .await;
    one.process.cut(false);
    let second = within(subject, "the process joins", joining).await.expect("the session is open");
    assert_eq!(holder.line("/queue/candidate").await.len(), 2, "the process has only one place in the queue");
    first.leave().await;
    within(subject, "the process leads", second.lead()).await.expect("the place exists").release().await;
    assert_eq!(one.tree().await.session().id(), session, "the process keeps its session");
    until(subject, "the waiting line is empty", async || holder.line("/queue/candidate").await.is_empty()).await;
}

pub(super) async fn a4_abandoned_place_without_a_response_is_removed(subject: &dyn Subject) {
    let (one, holder) = (Peer::open(subject).await, Peer::open(subject).await);
    let held = holder.acquired().await;
    let session = one.tree().await.session().id();
    cut_responses(&one).await;
    let lock = one.lock();
    drop(faults::behind_others(&holder, &lock, 2).await);
    short_wait(subject).await;
    assert_eq!(holder.line("/locks/one").await.len(), 2, "the engine has not received the removal request yet");
    one.process.cut(false);
    until(subject, "the process removes its place from the waiting line", async || {
        holder.line("/locks/one").await.len() == 1
    })
    .await;
    assert!(held.is_valid());
    assert_eq!(one.tree().await.session().id(), session, "the session continues");
    held.release().await;
    one.acquired().await.release().await;
}

pub(super) async fn a4_member_with_a_lost_response_is_found(subject: &dyn Subject) {
    let (one, other) = (Peer::open(subject).await, Peer::open(subject).await);
    let group = |peer: &Peer<'_>| Group::new(&peer.client, path("/groups/one"), Acl::Open);
    let bob = group(&other).join("bob", Bytes::new()).expect("the member's name is valid");
    within(subject, "the member's node exists", bob.present()).await.expect("every session may access the group");
    let tree = one.tree().await;
    cut_responses(&one).await;
    let ann = group(&one).join("ann", Bytes::from_static(b"here")).expect("the member's name is valid");
    until(subject, "the node exists", async || other.line("/groups/one").await == ["ann", "bob"]).await;
    let made = other.tree().await.exists(&path("/groups/one/ann")).await.expect("the engine responds");
    one.process.cut(false);
    within(subject, "the member reports that it is present", ann.present())
        .await
        .expect("every session may access the group");
    let found = other.tree().await.exists(&path("/groups/one/ann")).await.expect("the engine responds");
    assert_eq!(
        found.map(|stat| stat.created),
        made.map(|stat| stat.created),
        "the member finds the node that it created"
    );
    assert_eq!(one.tree().await.session().id(), tree.session().id());
    drop(ann);
    until(subject, "the process deletes its node", async || other.line("/groups/one").await == ["bob"]).await;
}

pub(super) async fn a4_job_with_a_lost_response_is_obtained(subject: &dyn Subject) {
    // An applicant for a job first reads the job and then takes it. The test drops all responses after the response to
    // the read.
    let (one, other) = (cut_responses_after(subject, "get").await, Peer::open(subject).await);
    let roles = |peer: &Peer<'_>| {
        RoleMatch::new(&peer.client, &path("/roles"), Acl::Open).expect("the path is within the length limit")
    };
    let job = roles(&other).jobs().add(Bytes::from_static(b"sweep")).await.expect("every session may access the bag");
    let (ours, who) = (roles(&one), Bytes::from_static(b"ann"));
    let mut applying = ours.apply(&who).boxed();
    until(subject, "the job is assigned to the process", async || {
        assert!((&mut applying).now_or_never().is_none(), "the process receives no response");
        roles(&other).assignments().await.is_ok_and(|assignments| assignments.contains_key(&job))
    })
    .await;
    one.process.cut(false);
    let role = within(subject, "the application completes", applying).await.expect("every session may access the node");
    assert_eq!(role.job, job);
    assert!(role.held.is_valid());
    other.tree().await.multi(role.held.fence()).await.expect("the fence is valid");
    role.held.release().await;
}
