//! Electors on a tree, by looking and by watching.

use coordination::Term;

use super::*;
use coordination::recipes::{Form, TreeElector};
use coordination::{Elector, ElectorError, Follower};

/// Half of the shortest session that a case has is more.
const LEASE: Duration = Duration::from_millis(200);
const FORMS: [Form; 2] = [Form::Polling, Form::Watching];

fn elector(peer: &Peer<'_>, form: Form) -> TreeElector {
    TreeElector::new(&peer.client, path(&format!("/nodes-{form:?}")), form, Acl::Open)
}

async fn leads(elector: &TreeElector, replica: &str) -> Option<Term> {
    let leadership = elector.is_leader(replica, LEASE).await.expect("the engine answers");
    leadership.leads.then_some(leadership.term)
}

async fn comes_to_lead(subject: &dyn Subject, elector: &TreeElector, replica: &str) -> Term {
    let mut term = None;
    until(subject, &format!("{replica} leads"), async || {
        term = leads(elector, replica).await;
        term.is_some()
    })
    .await;
    term.expect("it leads")
}

fn follower(replica: &str, leads: bool) -> Follower {
    Follower { replica: replica.to_owned(), leads }
}

pub(super) async fn of_replicas_one_leads_and_then_the_next(subject: &dyn Subject) {
    for form in FORMS {
        let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
        let (first, second) = (elector(&one, form), elector(&two, form));
        assert_eq!(first.followers().await, Ok(Vec::new()));
        // The greater name comes first: it is the number that counts.
        let term = comes_to_lead(subject, &first, "zoe").await;
        assert_eq!(leads(&second, "ann").await, None);
        assert_eq!(leads(&second, "bob").await, None);
        let names = one.standing(&format!("/nodes-{form:?}")).await;
        assert_eq!(names, ["ann0000000001", "bob0000000002", "zoe0000000000"]);
        let all = [follower("ann", false), follower("bob", false), follower("zoe", true)];
        assert_eq!(second.followers().await, Ok(all.to_vec()));
        assert_eq!(leads(&first, "zoe").await, Some(term), "it goes on under its term");
        first.resign("zoe").await.expect("the engine answers");
        let next = comes_to_lead(subject, &second, "ann").await;
        assert!(next > term);
        assert_eq!(leads(&second, "bob").await, None);
        assert_eq!(leads(&first, "zoe").await, None, "it stands at the end");
        second.resign("ann").await.expect("the engine answers");
        second.resign("ann").await.expect("to resign again is harmless");
        assert!(comes_to_lead(subject, &second, "bob").await > next);
        assert_eq!(leads(&first, "zoe").await, None);
    }
}

pub(super) async fn departures_are_told_to_the_leader_alone(subject: &dyn Subject) {
    for form in FORMS {
        let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
        let dying = Peer::open_short(subject).await;
        let (leader, other, dead) = (elector(&one, form), elector(&two, form), elector(&dying, form));
        comes_to_lead(subject, &leader, "leader").await;
        for (elector, replica) in [(&other, "other"), (&dead, "dying")] {
            assert_eq!(leads(elector, replica).await, None);
        }
        let known = leader.followers().await.expect("the engine answers");
        assert_eq!(known.len(), 3);
        assert_eq!(other.departures("other", known.clone()).await, Ok(None), "it does not lead");
        dying.process.cut(true);
        let departed = within(subject, "one has died", leader.departures("leader", known)).await;
        assert_eq!(departed, Ok(Some(vec![follower("dying", false)])));
        let known = leader.followers().await.expect("the engine answers");
        let departures = leader.departures("leader", known);
        let leaving = async {
            a_moment(subject).await;
            other.resign("other").await.expect("the engine answers");
        };
        let both = futures_util::future::join(departures, leaving);
        let (departed, ()) = within(subject, "one has left", both).await;
        assert_eq!(departed, Ok(Some(vec![follower("other", false)])));
    }
}

pub(super) async fn a_replica_that_lost_its_session_stands_again(subject: &dyn Subject) {
    for form in FORMS {
        let (dying, next) = (Peer::open_short(subject).await, Peer::open(subject).await);
        let (first, second) = (elector(&dying, form), elector(&next, form));
        let term = comes_to_lead(subject, &first, "first").await;
        assert_eq!(leads(&second, "second").await, None);
        let (asked, session) = (subject.runtime().monotonic(), dying.tree().await.session().clone());
        dying.process.cut(true);
        let later = comes_to_lead(subject, &second, "second").await;
        assert!(later > term);
        assert!(subject.runtime().monotonic().since(asked) >= LEASE, "what it answered was kept");
        within(subject, "it knows", session.lost()).await;
        dying.process.cut(false);
        until(subject, "it stands again", async || first.is_leader("first", LEASE).await.is_ok()).await;
        assert_eq!(leads(&first, "first").await, None);
        second.resign("second").await.expect("the engine answers");
        assert!(comes_to_lead(subject, &first, "first").await > later);
    }
}

pub(super) async fn what_an_elector_cannot_do_is_refused(subject: &dyn Subject) {
    let peer = Peer::open_short(subject).await;
    for form in FORMS {
        let elector = elector(&peer, form);
        assert!(elector.is_leader("a", subject.timeout() / 2).await.is_ok());
        let too_long = elector.is_leader("a", subject.timeout() / 2 + Duration::from_millis(1)).await;
        assert!(matches!(&too_long, Err(ElectorError::Rejected(text)) if text.contains("lease")), "{too_long:?}");
        for name in ["", "a/b"] {
            let refused = elector.is_leader(name, LEASE).await;
            assert!(matches!(refused, Err(ElectorError::Rejected(_))), "{refused:?}");
        }
        assert_eq!(elector.resign("nobody").await, Ok(()));
    }
}
