//! Cases about electors: a replica group has at most one leader, and each leader has a greater term than the leader
//! before it.

use std::sync::Arc;
use std::time::Duration;

use conformance::until;
use coordination::{Elector, ElectorError, Follower, KnownLeader, Leader, Leadership, REPLICA_LEN_MAX, Term};
use futures_util::future::{BoxFuture, join_all};
use runtime::Runtime;

/// Length of a lease that does not end while a case runs.
const LONG: Duration = Duration::from_secs(60);

/// Engine under test, which provides electors. At the start of each case, its replica groups have no replicas.
pub trait Subject: Send + Sync {
    fn runtime(&self) -> Runtime;

    /// Length of a lease that expires while a case runs. A case may wait for several leases to expire. A process that
    /// renews its lease at intervals of a quarter of this length must keep the lease, even on a busy machine.
    fn lease(&self) -> Duration {
        Duration::from_millis(300)
    }

    /// Opens an elector of the replica group `group`. Each returned elector represents another process.
    fn elector<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Arc<dyn Elector>>;
}

conformance::suite! { $ dyn Subject, elector_conformance_tests, [$crate::elector];
    self {
        one_of_several_concurrent_replicas_leads
        renewing_leader_keeps_its_term
        expired_lease_passes_to_another_replica_with_a_later_term
        leader_after_an_expired_lease_has_a_later_term
        resigning_leader_hands_over_at_once
        resigning_follower_does_not_affect_the_leader
        earlier_life_of_a_replica_counts_as_another_replica
        followers_are_the_replicas_with_a_current_lease
        departures_are_reported_only_to_the_leader
        follower_of_the_leader_sees_each_change
        groups_are_independent
        too_long_replica_name_is_rejected
    }
}

async fn electors(subject: &dyn Subject, count: usize) -> Vec<Arc<dyn Elector>> {
    let mut electors = Vec::new();
    for _ in 0..count {
        electors.push(subject.elector("jobs").await);
    }
    electors
}

fn name(at: usize) -> String {
    format!("replica-{at}")
}

async fn leads(elector: &Arc<dyn Elector>, replica: &str) -> Option<Term> {
    let Leadership { leads, term } = elector.is_leader(replica, LONG).await.expect("the engine responds");
    leads.then_some(term)
}

pub(super) async fn one_of_several_concurrent_replicas_leads(subject: &dyn Subject) {
    let electors = electors(subject, 4).await;
    let mut last = None;
    for round in 0..20 {
        let calls = electors.iter().enumerate().map(|(at, elector)| async move {
            (at, elector.is_leader(&name(at), LONG).await.expect("the engine responds"))
        });
        let results = join_all(calls).await;
        let leaders: Vec<usize> =
            results.iter().filter(|(_, leadership)| leadership.leads).map(|(at, _)| *at).collect();
        let [leader] = leaders[..] else { panic!("round {round}: {results:?}") };
        let term = results[leader].1.term;
        assert!(results.iter().all(|(_, leadership)| leadership.term <= term), "{results:?}");
        assert!(Some(term) > last, "{term:?} after {last:?}");
        last = Some(term);
        electors[leader].resign(&name(leader)).await.expect("the engine responds");
    }
}

pub(super) async fn renewing_leader_keeps_its_term(subject: &dyn Subject) {
    let short = subject.lease();
    let [a, b] = &electors(subject, 2).await[..] else { panic!("two electors") };
    let runtime = subject.runtime();
    let first = a.is_leader("a", short).await.expect("the engine responds");
    assert!(first.leads);
    for _ in 0..5 {
        runtime.sleep(short / 4).await;
        assert_eq!(a.is_leader("a", short).await, Ok(first));
        assert_eq!(b.is_leader("b", short).await, Ok(Leadership { leads: false, ..first }));
    }
}

pub(super) async fn expired_lease_passes_to_another_replica_with_a_later_term(subject: &dyn Subject) {
    let short = subject.lease();
    let [a, b] = &electors(subject, 2).await[..] else { panic!("two electors") };
    let runtime = subject.runtime();
    let mut before = (a, "a", Term(0));
    for round in 0..2 {
        let (leader, replica, term) = before;
        let called = runtime.monotonic();
        let now = leader.is_leader(replica, short).await.expect("the engine responds");
        assert!(now.leads && (now.term > term || round > 0));
        let (next, other) = if replica == "a" { (b, "b") } else { (a, "a") };
        until(&runtime, "the other leads", async || leads(next, other).await.is_some()).await;
        let kept = runtime.monotonic().since(called);
        assert!(kept >= short, "another replica led after {kept:?}, before the lease ended");
        let later = leads(next, other).await.expect("the process leads");
        assert!(later > now.term, "{later:?} after {:?}", now.term);
        assert_eq!(leads(leader, replica).await, None, "the earlier leader no longer leads");
        before = (next, other, later);
    }
}

pub(super) async fn leader_after_an_expired_lease_has_a_later_term(subject: &dyn Subject) {
    let short = subject.lease();
    let [a] = &electors(subject, 1).await[..] else { panic!("one elector") };
    let first = a.is_leader("a", short).await.expect("the engine responds");
    subject.runtime().sleep(short * 3 / 2).await;
    let second = leads(a, "a").await.expect("the only replica becomes the leader");
    assert!(
        second > first.term,
        "the replica's second term is later than its first term, although no other replica led between them"
    );
    a.resign("a").await.expect("the engine responds");
    assert!(leads(a, "a").await > Some(second));
}

pub(super) async fn resigning_leader_hands_over_at_once(subject: &dyn Subject) {
    let [a, b] = &electors(subject, 2).await[..] else { panic!("two electors") };
    let first = leads(a, "a").await.expect("the first replica that calls the elector becomes the leader");
    assert_eq!(leads(b, "b").await, None);
    a.resign("a").await.expect("the engine responds");
    let second = leads(b, "b").await.expect("the leader resigned");
    assert!(second > first);
    a.resign("a").await.expect("a second resignation has no effect");
    assert_eq!(leads(b, "b").await, Some(second));
    assert_eq!(leads(a, "a").await, None);
}

pub(super) async fn resigning_follower_does_not_affect_the_leader(subject: &dyn Subject) {
    let [a, b] = &electors(subject, 2).await[..] else { panic!("two electors") };
    let term = leads(a, "a").await;
    assert_eq!(leads(b, "b").await, None);
    b.resign("b").await.expect("the engine responds");
    // A process cannot resign for a replica of another process, even if it uses the name of that replica.
    b.resign("a").await.expect("the engine responds");
    assert_eq!(leads(b, "b").await, None);
    assert_eq!(leads(a, "a").await, term);
}

pub(super) async fn earlier_life_of_a_replica_counts_as_another_replica(subject: &dyn Subject) {
    let [earlier, later] = &electors(subject, 2).await[..] else { panic!("two electors") };
    let first = leads(earlier, "a").await.expect("the first replica that calls the elector becomes the leader");
    assert_eq!(
        leads(later, "a").await,
        None,
        "the earlier process of this replica may be running, so the later process does not lead"
    );
    assert_eq!(leads(earlier, "a").await, Some(first));
    earlier.resign("a").await.expect("the engine responds");
    assert!(leads(later, "a").await > Some(first));
}

pub(super) async fn followers_are_the_replicas_with_a_current_lease(subject: &dyn Subject) {
    let short = subject.lease();
    let [a, b] = &electors(subject, 2).await[..] else { panic!("two electors") };
    let runtime = subject.runtime();
    let follower = |replica: &str, leads| Follower { replica: replica.to_owned(), leads };
    assert_eq!(a.followers().await, Ok(Vec::new()));
    leads(b, "b").await.expect("the first replica that calls the elector becomes the leader");
    a.is_leader("a", short).await.expect("the engine responds");
    a.is_leader("c", LONG).await.expect("the engine responds");
    assert_eq!(b.followers().await, Ok(vec![follower("a", false), follower("b", true), follower("c", false)]));
    let left = Ok(vec![follower("b", true), follower("c", false)]);
    until(&runtime, "a's lease ends", async || a.followers().await == left).await;
    a.resign("c").await.expect("the engine responds");
    b.resign("b").await.expect("the engine responds");
    assert_eq!(a.followers().await, Ok(Vec::new()));
}

pub(super) async fn departures_are_reported_only_to_the_leader(subject: &dyn Subject) {
    let [a, b] = &electors(subject, 2).await[..] else { panic!("two electors") };
    let follower = |replica: &str| Follower { replica: replica.to_owned(), leads: false };
    leads(a, "a").await.expect("the first replica that calls the elector becomes the leader");
    b.is_leader("b", subject.lease()).await.expect("the engine responds");
    leads(b, "c").await;
    let known = a.followers().await.expect("the engine responds");
    assert_eq!(b.departures("c", known.clone()).await, Ok(None), "a replica that does not lead receives no departures");
    // The lease of replica `b` ends, and replica `c` resigns.
    assert_eq!(a.departures("a", known).await, Ok(Some(vec![follower("b")])));
    let known = a.followers().await.expect("the engine responds");
    b.resign("c").await.expect("the engine responds");
    assert_eq!(a.departures("a", known.clone()).await, Ok(Some(vec![follower("c")])));
    a.resign("a").await.expect("the engine responds");
    assert_eq!(a.departures("a", known).await, Ok(None), "a replica that resigned receives no departures");
}

pub(super) async fn follower_of_the_leader_sees_each_change(subject: &dyn Subject) {
    let [a, b, c] = &electors(subject, 3).await[..] else { panic!("three electors") };
    let runtime = subject.runtime();
    let mut followed = c.follow_leader().await.expect("the engine responds");
    assert_eq!(followed.now(), KnownLeader { leader: None, is_current: true });
    let limit = Duration::from_secs(20);
    let leader = |id: &str, term| KnownLeader { leader: Some(Leader { id: id.to_owned(), term }), is_current: true };
    let first = leads(a, "a").await.expect("the first replica that calls the elector becomes the leader");
    let shown = runtime.timeout(limit, followed.until(|known| *known == leader("a", first))).await;
    assert!(shown.is_some(), "the follower shows the first leader");
    assert_eq!(leads(b, "b").await, None);
    a.resign("a").await.expect("the engine responds");
    let second = b.is_leader("b", subject.lease()).await.expect("the engine responds");
    assert!(second.leads && second.term > first);
    let is_later = |known: &KnownLeader| known.leader.as_ref().is_none_or(|leader| leader.term > first);
    let next = runtime.timeout(limit, followed.until(is_later)).await.expect("the first leader resigned");
    // The lease of the second leader may have ended before the follower read it. No replica takes the lease after that.
    assert!(next == leader("b", second.term) || next.leader.is_none(), "{next:?}");
    let last = runtime.timeout(limit, followed.until(|known| known.leader.is_none())).await;
    assert!(last.is_some_and(|last| last.is_current), "the follower shows that no replica leads");
    assert!(c.followers().await.is_ok_and(|all| all.iter().all(|follower| follower.replica != "c")));
}

pub(super) async fn groups_are_independent(subject: &dyn Subject) {
    let (jobs, reports) = (subject.elector("jobs").await, subject.elector("reports").await);
    assert!(leads(&jobs, "a").await.is_some());
    assert!(leads(&reports, "b").await.is_some());
    assert_eq!(leads(&jobs, "b").await, None);
    jobs.resign("b").await.expect("the engine responds");
    let followers = reports.followers().await.expect("the engine responds");
    assert_eq!(followers, [Follower { replica: "b".to_owned(), leads: true }]);
}

pub(super) async fn too_long_replica_name_is_rejected(subject: &dyn Subject) {
    let elector = subject.elector("jobs").await;
    for replica in [String::new(), "a".repeat(REPLICA_LEN_MAX + 1), "a\0b".to_owned()] {
        let rejected = elector.is_leader(&replica, LONG).await;
        assert!(matches!(rejected, Err(ElectorError::Rejected(_))), "{rejected:?}");
    }
    assert!(leads(&elector, &"a".repeat(REPLICA_LEN_MAX)).await.is_some());
}
