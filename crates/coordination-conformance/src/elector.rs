//! One leader of a group, under terms that rise.

use std::sync::Arc;
use std::time::Duration;

use conformance::until;
use coordination::{Elector, ElectorError, Follower, Leadership, REPLICA_LEN_MAX, Term};
use futures_util::future::{BoxFuture, join_all};
use runtime::Runtime;

/// A lease that does not end while a case runs.
const LONG: Duration = Duration::from_secs(60);

/// An engine of electors, with no group that has replicas.
pub trait Subject: Send + Sync {
    fn runtime(&self) -> Runtime;

    /// A lease whose end is waited for, several times in a case. A renewal every quarter of it must come in time, on a
    /// busy machine, too.
    fn lease(&self) -> Duration {
        Duration::from_millis(300)
    }

    /// Opens the elector of this group as another process does.
    fn elector<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Arc<dyn Elector>>;
}

conformance::suite! { $ dyn Subject, elector_conformance_tests, [$crate::elector];
    self {
        of_replicas_that_call_at_once_one_leads
        the_leader_goes_on_under_its_term
        a_lease_that_ended_passes_on_under_a_later_term
        a_lease_taken_again_has_a_later_term
        a_leader_that_resigns_hands_over_at_once
        a_follower_that_resigns_takes_nothing_away
        an_earlier_life_of_a_replica_is_another
        followers_are_those_who_called_lately
        departures_are_told_to_the_leader_alone
        groups_are_apart
        a_replicas_name_has_a_limit
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
    let Leadership { leads, term } = elector.is_leader(replica, LONG).await.expect("the engine answers");
    leads.then_some(term)
}

pub(super) async fn of_replicas_that_call_at_once_one_leads(subject: &dyn Subject) {
    let electors = electors(subject, 4).await;
    let mut last = None;
    for round in 0..20 {
        let calls = electors.iter().enumerate().map(|(at, elector)| async move {
            (at, elector.is_leader(&name(at), LONG).await.expect("the engine answers"))
        });
        let answers = join_all(calls).await;
        let leaders: Vec<usize> = answers.iter().filter(|(_, answer)| answer.leads).map(|(at, _)| *at).collect();
        let [leader] = leaders[..] else { panic!("round {round}: {answers:?}") };
        let term = answers[leader].1.term;
        assert!(answers.iter().all(|(_, answer)| answer.term <= term), "{answers:?}");
        assert!(Some(term) > last, "{term:?} after {last:?}");
        last = Some(term);
        electors[leader].resign(&name(leader)).await.expect("the engine answers");
    }
}

pub(super) async fn the_leader_goes_on_under_its_term(subject: &dyn Subject) {
    let short = subject.lease();
    let [a, b] = &electors(subject, 2).await[..] else { panic!("two electors") };
    let runtime = subject.runtime();
    let first = a.is_leader("a", short).await.expect("the engine answers");
    assert!(first.leads);
    for _ in 0..5 {
        runtime.sleep(short / 4).await;
        assert_eq!(a.is_leader("a", short).await, Ok(first));
        assert_eq!(b.is_leader("b", short).await, Ok(Leadership { leads: false, ..first }));
    }
}

pub(super) async fn a_lease_that_ended_passes_on_under_a_later_term(subject: &dyn Subject) {
    let short = subject.lease();
    let [a, b] = &electors(subject, 2).await[..] else { panic!("two electors") };
    let runtime = subject.runtime();
    let mut before = (a, "a", Term(0));
    for round in 0..2 {
        let (leader, replica, term) = before;
        let called = runtime.monotonic();
        let now = leader.is_leader(replica, short).await.expect("the engine answers");
        assert!(now.leads && (now.term > term || round > 0));
        let (next, other) = if replica == "a" { (b, "b") } else { (a, "a") };
        until(&runtime, "the other leads", async || leads(next, other).await.is_some()).await;
        let kept = runtime.monotonic().since(called);
        assert!(kept >= short, "given away after {kept:?}");
        let later = leads(next, other).await.expect("it leads");
        assert!(later > now.term, "{later:?} after {:?}", now.term);
        assert_eq!(leads(leader, replica).await, None, "the earlier leader is one no longer");
        before = (next, other, later);
    }
}

pub(super) async fn a_lease_taken_again_has_a_later_term(subject: &dyn Subject) {
    let short = subject.lease();
    let [a] = &electors(subject, 1).await[..] else { panic!("one elector") };
    let first = a.is_leader("a", short).await.expect("the engine answers");
    subject.runtime().sleep(short * 3 / 2).await;
    let second = leads(a, "a").await.expect("nobody else is there");
    assert!(second > first.term, "nobody led in between, and it is another leadership");
    a.resign("a").await.expect("the engine answers");
    assert!(leads(a, "a").await > Some(second));
}

pub(super) async fn a_leader_that_resigns_hands_over_at_once(subject: &dyn Subject) {
    let [a, b] = &electors(subject, 2).await[..] else { panic!("two electors") };
    let first = leads(a, "a").await.expect("nobody else is there");
    assert_eq!(leads(b, "b").await, None);
    a.resign("a").await.expect("the engine answers");
    let second = leads(b, "b").await.expect("the leader resigned");
    assert!(second > first);
    a.resign("a").await.expect("to resign again is harmless");
    assert_eq!(leads(b, "b").await, Some(second));
    assert_eq!(leads(a, "a").await, None);
}

pub(super) async fn a_follower_that_resigns_takes_nothing_away(subject: &dyn Subject) {
    let [a, b] = &electors(subject, 2).await[..] else { panic!("two electors") };
    let term = leads(a, "a").await;
    assert_eq!(leads(b, "b").await, None);
    b.resign("b").await.expect("the engine answers");
    // Another process does not resign for this one, whatever name it gives.
    b.resign("a").await.expect("the engine answers");
    assert_eq!(leads(b, "b").await, None);
    assert_eq!(leads(a, "a").await, term);
}

pub(super) async fn an_earlier_life_of_a_replica_is_another(subject: &dyn Subject) {
    let [earlier, later] = &electors(subject, 2).await[..] else { panic!("two electors") };
    let first = leads(earlier, "a").await.expect("nobody else is there");
    assert_eq!(leads(later, "a").await, None, "the earlier one may be alive still");
    assert_eq!(leads(earlier, "a").await, Some(first));
    earlier.resign("a").await.expect("the engine answers");
    assert!(leads(later, "a").await > Some(first));
}

pub(super) async fn followers_are_those_who_called_lately(subject: &dyn Subject) {
    let short = subject.lease();
    let [a, b] = &electors(subject, 2).await[..] else { panic!("two electors") };
    let runtime = subject.runtime();
    let follower = |replica: &str, leads| Follower { replica: replica.to_owned(), leads };
    assert_eq!(a.followers().await, Ok(Vec::new()));
    leads(b, "b").await.expect("nobody else is there");
    a.is_leader("a", short).await.expect("the engine answers");
    a.is_leader("c", LONG).await.expect("the engine answers");
    assert_eq!(b.followers().await, Ok(vec![follower("a", false), follower("b", true), follower("c", false)]));
    let left = Ok(vec![follower("b", true), follower("c", false)]);
    until(&runtime, "a is forgotten", async || a.followers().await == left).await;
    a.resign("c").await.expect("the engine answers");
    b.resign("b").await.expect("the engine answers");
    assert_eq!(a.followers().await, Ok(Vec::new()));
}

pub(super) async fn departures_are_told_to_the_leader_alone(subject: &dyn Subject) {
    let [a, b] = &electors(subject, 2).await[..] else { panic!("two electors") };
    let follower = |replica: &str| Follower { replica: replica.to_owned(), leads: false };
    leads(a, "a").await.expect("nobody else is there");
    b.is_leader("b", subject.lease()).await.expect("the engine answers");
    leads(b, "c").await;
    let known = a.followers().await.expect("the engine answers");
    assert_eq!(b.departures("c", known.clone()).await, Ok(None), "it does not lead");
    // One is not heard of any more, one says so.
    assert_eq!(a.departures("a", known).await, Ok(Some(vec![follower("b")])));
    let known = a.followers().await.expect("the engine answers");
    b.resign("c").await.expect("the engine answers");
    assert_eq!(a.departures("a", known.clone()).await, Ok(Some(vec![follower("c")])));
    a.resign("a").await.expect("the engine answers");
    assert_eq!(a.departures("a", known).await, Ok(None), "it leads no longer");
}

pub(super) async fn groups_are_apart(subject: &dyn Subject) {
    let (jobs, reports) = (subject.elector("jobs").await, subject.elector("reports").await);
    assert!(leads(&jobs, "a").await.is_some());
    assert!(leads(&reports, "b").await.is_some());
    assert_eq!(leads(&jobs, "b").await, None);
    jobs.resign("b").await.expect("the engine answers");
    let followers = reports.followers().await.expect("the engine answers");
    assert_eq!(followers, [Follower { replica: "b".to_owned(), leads: true }]);
}

pub(super) async fn a_replicas_name_has_a_limit(subject: &dyn Subject) {
    let elector = subject.elector("jobs").await;
    for replica in [String::new(), "a".repeat(REPLICA_LEN_MAX + 1), "a\0b".to_owned()] {
        let refused = elector.is_leader(&replica, LONG).await;
        assert!(matches!(refused, Err(ElectorError::Rejected(_))), "{refused:?}");
    }
    assert!(leads(&elector, &"a".repeat(REPLICA_LEN_MAX)).await.is_some());
}
