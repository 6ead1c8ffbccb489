//! Cases about the recipe for roles, which assigns jobs to processes.

use std::collections::BTreeMap;

use super::*;
use coordination::recipes::{Assignment, Role, RoleMatch, Timestamp};
use coordination::tree::CreateMode;

fn roles(peer: &Peer<'_>) -> RoleMatch {
    RoleMatch::new(&peer.client, &path("/roles"), Acl::Open).expect("the path is within the length limit")
}

async fn add_job(peer: &Peer<'_>, what: &'static str) -> Sequence {
    roles(peer).jobs().add(Bytes::from_static(what.as_bytes())).await.expect("every session may access the bag")
}

async fn hired(peer: &Peer<'_>, who: &'static str) -> Role {
    let who = Bytes::from_static(who.as_bytes());
    within(peer.subject, "the process has a job", roles(peer).apply(&who))
        .await
        .expect("every session may access the nodes of the recipe")
}

/// Returns each assigned job with the data of its holder.
async fn assigned(peer: &Peer<'_>) -> BTreeMap<i32, Bytes> {
    peer.tree().await.sync().await.expect("the engine responds");
    let assignments = roles(peer).assignments().await.expect("every session may access the nodes of the recipe");
    assignments.into_iter().map(|(job, assignment)| (job.0, assignment.holder)).collect()
}

pub(super) async fn each_job_has_one_holder_and_each_holder_one_job(subject: &dyn Subject) {
    let peers = [Peer::open(subject).await, Peer::open(subject).await, Peer::open(subject).await];
    let (first, second) = (add_job(&peers[0], "sweep").await, add_job(&peers[1], "mop").await);
    let (one, two) = (hired(&peers[0], "ann").await, hired(&peers[1], "bob").await);
    assert_eq!((one.job, &one.description[..]), (first, &b"sweep"[..]));
    assert_eq!((two.job, &two.description[..]), (second, &b"mop"[..]));
    assert!(one.held.is_valid() && two.held.is_valid());
    let who = Bytes::from_static(b"cyd");
    let waiting = roles(&peers[2]);
    let mut applying = waiting.apply(&who).boxed();
    until(subject, "the third process waits in line", async || {
        assert!((&mut applying).now_or_never().is_none(), "no job is free");
        peers[0].line("/roles/queue/candidate").await.len() == 1
    })
    .await;
    assert_eq!(assigned(&peers[0]).await, BTreeMap::from([(0, "ann".into()), (1, "bob".into())]));
    // When the holder releases its job, the next process in the queue gets the job.
    let term = one.held.term();
    one.held.release().await;
    let third = within(subject, "the third process has the job", applying)
        .await
        .expect("every session may access the nodes of the recipe");
    assert!(third.job == first && third.held.term() > term);
    assert_eq!(assigned(&peers[0]).await, BTreeMap::from([(0, "cyd".into()), (1, "bob".into())]));
    let line = async || peers[0].line("/roles/queue/candidate").await.is_empty();
    until(subject, "no process waits in line for a job", line).await;
    third.held.release().await;
    two.held.release().await;
}

pub(super) async fn waiting_applicant_gets_a_job_that_is_later_withdrawn(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let who = Bytes::from_static(b"ann");
    let waiting = roles(&one);
    let mut applying = waiting.apply(&who).boxed();
    until(subject, "the process waits in line", async || {
        assert!((&mut applying).now_or_never().is_none(), "no job exists");
        two.line("/roles/queue/candidate").await.len() == 1
    })
    .await;
    let job = add_job(&two, "sweep").await;
    let role = within(subject, "the process has the job", applying)
        .await
        .expect("every session may access the nodes of the recipe");
    assert_eq!(role.job, job);
    assert_eq!(roles(&two).jobs().remove(job).await, Ok(true));
    within(subject, "the guard becomes invalid when another process removes the job", role.held.cancelled()).await;
    assert!(!role.held.is_valid());
    role.held.release().await;
    assert_eq!(assigned(&two).await, BTreeMap::new());
    let next = add_job(&two, "mop").await;
    let role = hired(&one, "ann").await;
    assert_eq!(role.job, next);
}

pub(super) async fn job_of_a_dead_holder_is_reassigned(subject: &dyn Subject) {
    let (dying, next) = (Peer::open_short(subject).await, Peer::open(subject).await);
    let job = add_job(&next, "sweep").await;
    let role = hired(&dying, "dying").await;
    dying.process.cut(true);
    let second = hired(&next, "next").await;
    assert!(!role.held.is_valid(), "the guard of the dead holder is invalid before another process gets the job");
    assert_eq!(second.job, job);
    assert_eq!(assigned(&next).await, BTreeMap::from([(job.0, "next".into())]));
}

pub(super) async fn dropped_application_leaves_no_holder(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    for micros in [0, 100, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000] {
        let job = add_job(&two, "sweep").await;
        let (roles_of_one, who) = (roles(&one), Bytes::from_static(b"ann"));
        let applied = subject.runtime().timeout(Duration::from_micros(micros), roles_of_one.apply(&who)).await;
        drop(applied);
        until(subject, "no process has the job", async || assigned(&two).await.is_empty()).await;
        let role = hired(&two, "bob").await;
        assert_eq!(role.job, job);
        assert_eq!(roles(&two).jobs().remove(job).await, Ok(true));
        role.held.release().await;
    }
}

pub(super) async fn fence_of_a_job_is_valid_only_for_its_holder(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let (tree, account) = (one.tree().await, path("/account"));
    let created = tree.create(&account, Bytes::new(), CreateMode::Persistent, Acl::Open).await;
    created.expect("every session may create nodes in the root");
    let write = |fence: Vec<coordination::tree::Op>, text: &'static str| {
        let write = coordination::tree::Op::Set { path: account.clone(), data: text.into(), expected: Expected::Any };
        [fence, vec![write]].concat()
    };
    let job = add_job(&two, "sweep").await;
    let first = hired(&one, "ann").await;
    let fence = first.held.fence();
    tree.multi(write(fence.clone(), "in time")).await.expect("the process has the job");
    first.held.release().await;
    assert!(tree.multi(write(fence.clone(), "late")).await.is_err(), "no process has the job");
    let second = hired(&two, "bob").await;
    assert!(tree.multi(write(fence, "late")).await.is_err(), "another process has the job");
    let fence = second.held.fence();
    two.tree().await.multi(write(fence.clone(), "second")).await.expect("the process has the job");
    assert_eq!(roles(&one).jobs().remove(job).await, Ok(true));
    assert!(two.tree().await.multi(write(fence, "withdrawn")).await.is_err(), "another process has removed the job");
    assert_eq!(two.tree().await.get(&account).await.expect("the node exists").data, "second");
}

/// Returns the time by the engine's clock. The time is that of the creation of a node, like the time at which a holder
/// takes a job.
async fn engine_now(peer: &Peer<'_>) -> Timestamp {
    let (tree, mark) = (peer.tree().await, path("/mark"));
    let created = tree.create(&mark, Bytes::new(), CreateMode::PersistentSequential, Acl::Open).await;
    created.expect("every session may create nodes in the root").stat.created_at
}

pub(super) async fn job_is_held_since_its_holder_took_it(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let assignment = async |job: Sequence| -> Assignment {
        two.tree().await.sync().await.expect("the engine responds");
        let all = roles(&two).assignments().await.expect("every session may access the nodes of the recipe");
        all[&job].clone()
    };
    let job = add_job(&two, "sweep").await;
    short_wait(subject).await;
    let before = engine_now(&two).await;
    let first = hired(&one, "ann").await;
    let after = engine_now(&two).await;
    let of_first = assignment(job).await;
    assert_eq!((&of_first.holder[..], of_first.term), (&b"ann"[..], first.held.term()));
    assert!(before <= of_first.since && of_first.since <= after, "{before} <= {} <= {after}", of_first.since);

    // Other processes add, take, release and remove another job.
    short_wait(subject).await;
    let other = add_job(&two, "mop").await;
    hired(&two, "bob").await.held.release().await;
    assert_eq!(roles(&two).jobs().remove(other).await, Ok(true));
    assert_eq!(assignment(job).await, of_first, "changes of another job do not change the assignment");

    // Another process takes the job over.
    let given_up = engine_now(&two).await;
    first.held.release().await;
    let second = hired(&two, "cyd").await;
    let of_second = assignment(job).await;
    assert_eq!((&of_second.holder[..], of_second.term), (&b"cyd"[..], second.held.term()));
    let now = engine_now(&two).await;
    assert!(given_up <= of_second.since && of_second.since <= now, "{given_up} <= {} <= {now}", of_second.since);
    assert!(of_second.since > of_first.since && of_second.term > of_first.term);
}
