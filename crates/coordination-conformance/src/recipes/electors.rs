//! Cases about electors on a tree. Each case tests the two forms of an elector, polling and watching.

use super::*;
use coordination::recipes::{Form, KnownLeader, Leader, Term, TreeElector};
use coordination::{Elector, ElectorError, Follower};

/// Length of the electors' leases. It is shorter than half of the shortest session timeout that a case uses.
const LEASE: Duration = Duration::from_millis(200);
const FORMS: [Form; 2] = [Form::Polling, Form::Watching];

fn elector(peer: &Peer<'_>, form: Form) -> TreeElector {
    TreeElector::new(&peer.client, path(&format!("/nodes-{form:?}")), form, Acl::Open)
}

async fn leads(elector: &TreeElector, replica: &str) -> Option<Term> {
    let leadership = elector.is_leader(replica, LEASE).await.expect("the engine responds");
    leadership.leads.then_some(leadership.term)
}

async fn wait_until_leading(subject: &dyn Subject, elector: &TreeElector, replica: &str) -> Term {
    let mut term = None;
    until(subject, &format!("{replica} leads"), async || {
        term = leads(elector, replica).await;
        term.is_some()
    })
    .await;
    term.expect("the process leads")
}

fn follower(replica: &str, leads: bool) -> Follower {
    Follower { replica: replica.to_owned(), leads }
}

pub(super) async fn replicas_lead_one_after_another(subject: &dyn Subject) {
    for form in FORMS {
        let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
        let (first, second) = (elector(&one, form), elector(&two, form));
        assert_eq!(first.followers().await, Ok(Vec::new()));
        // The replica with the last name in the alphabet joins first. The order of the replicas depends only on their
        // sequence numbers.
        let term = wait_until_leading(subject, &first, "zoe").await;
        assert_eq!(leads(&second, "ann").await, None);
        assert_eq!(leads(&second, "bob").await, None);
        let names = one.line(&format!("/nodes-{form:?}")).await;
        assert_eq!(names, ["ann0000000001", "bob0000000002", "zoe0000000000"]);
        let all = [follower("ann", false), follower("bob", false), follower("zoe", true)];
        assert_eq!(second.followers().await, Ok(all.to_vec()));
        assert_eq!(leads(&first, "zoe").await, Some(term), "the leader keeps its term");
        first.resign("zoe").await.expect("the engine responds");
        let next = wait_until_leading(subject, &second, "ann").await;
        assert!(next > term);
        assert_eq!(leads(&second, "bob").await, None);
        assert_eq!(leads(&first, "zoe").await, None, "a replica that resigned joins the end of the waiting line");
        second.resign("ann").await.expect("the engine responds");
        second.resign("ann").await.expect("a second resignation has no effect");
        assert!(wait_until_leading(subject, &second, "bob").await > next);
        assert_eq!(leads(&first, "zoe").await, None);
    }
}

pub(super) async fn departures_are_reported_only_to_the_leader(subject: &dyn Subject) {
    for form in FORMS {
        let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
        let dying = Peer::open_short(subject).await;
        let (leader, other, dead) = (elector(&one, form), elector(&two, form), elector(&dying, form));
        wait_until_leading(subject, &leader, "leader").await;
        for (elector, replica) in [(&other, "other"), (&dead, "dying")] {
            assert_eq!(leads(elector, replica).await, None);
        }
        let known = leader.followers().await.expect("the engine responds");
        assert_eq!(known.len(), 3);
        assert_eq!(
            other.departures("other", known.clone()).await,
            Ok(None),
            "a replica that does not lead receives no departures"
        );
        dying.process.cut(true);
        let departed = within(
            subject,
            "the leader receives the departure of the dead follower",
            leader.departures("leader", known),
        )
        .await;
        assert_eq!(departed, Ok(Some(vec![follower("dying", false)])));
        let known = leader.followers().await.expect("the engine responds");
        let departures = leader.departures("leader", known);
        let leaving = async {
            short_wait(subject).await;
            other.resign("other").await.expect("the engine responds");
        };
        let both = futures_util::future::join(departures, leaving);
        let (departed, ()) =
            within(subject, "the leader receives the departure of the follower that resigned", both).await;
        assert_eq!(departed, Ok(Some(vec![follower("other", false)])));
    }
}

pub(super) async fn replica_rejoins_after_a_lost_session(subject: &dyn Subject) {
    for form in FORMS {
        let (dying, next) = (Peer::open_short(subject).await, Peer::open(subject).await);
        let (first, second) = (elector(&dying, form), elector(&next, form));
        let term = wait_until_leading(subject, &first, "first").await;
        assert_eq!(leads(&second, "second").await, None);
        let (started, session) = (subject.runtime().monotonic(), dying.tree().await.session().clone());
        dying.process.cut(true);
        let later = wait_until_leading(subject, &second, "second").await;
        assert!(later > term);
        assert!(
            subject.runtime().monotonic().since(started) >= LEASE,
            "the second replica does not lead before the lease of the first replica ends"
        );
        within(subject, "the session is lost", session.lost()).await;
        dying.process.cut(false);
        until(subject, "the first replica joins the waiting line again", async || {
            first.is_leader("first", LEASE).await.is_ok()
        })
        .await;
        assert_eq!(leads(&first, "first").await, None);
        second.resign("second").await.expect("the engine responds");
        assert!(wait_until_leading(subject, &first, "first").await > later);
    }
}

pub(super) async fn followed_leader_is_the_replica_that_leads(subject: &dyn Subject) {
    for form in FORMS {
        let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
        let (first, second) = (elector(&one, form), elector(&two, form));
        let mut followed = second.follow_leader().await.expect("every session may access the group");
        assert_eq!(followed.now(), KnownLeader { leader: None, is_current: true });
        for (elector, replica) in [(&first, "zoe-1"), (&second, "ann")] {
            let term = wait_until_leading(subject, elector, replica).await;
            let expected = Some(Leader { id: replica.to_owned(), term });
            let known = followed.until(|known| known.leader == expected);
            within(subject, "the follower shows the leader", known).await;
            elector.resign(replica).await.expect("the engine responds");
            within(subject, "no replica leads", followed.until(|known| known.leader.is_none())).await;
        }
        assert_eq!(second.followers().await, Ok(Vec::new()), "the follower is not a replica");
    }
}

pub(super) async fn unsupported_lease_or_name_is_rejected(subject: &dyn Subject) {
    let peer = Peer::open_short(subject).await;
    for form in FORMS {
        let elector = elector(&peer, form);
        assert!(elector.is_leader("a", subject.timeout() / 2).await.is_ok());
        let too_long = elector.is_leader("a", subject.timeout() / 2 + Duration::from_millis(1)).await;
        assert!(matches!(&too_long, Err(ElectorError::Rejected(text)) if text.contains("lease")), "{too_long:?}");
        for name in ["", "a/b"] {
            let rejected = elector.is_leader(name, LEASE).await;
            assert!(matches!(rejected, Err(ElectorError::Rejected(_))), "{rejected:?}");
        }
        assert_eq!(elector.resign("unknown").await, Ok(()));
    }
}
