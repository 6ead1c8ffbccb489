//! Cases about leader selectors and the tasks that they run.

use std::sync::Mutex;

use tokio_util::sync::CancellationToken;

use super::*;
use coordination::recipes::{Ended, Followed, KnownLeader, Leader, Leading, Participant, Term};

fn participant(id: &str, leads: bool) -> Participant {
    Participant { id: id.to_owned(), leads }
}

pub(super) async fn candidates_lead_in_the_order_of_the_line(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let (first, second) = (one.selector("one"), two.selector("two"));
    assert_eq!(first.participants().await, Ok(Vec::new()));
    let leading =
        within(subject, "the first leads", first.lead()).await.expect("the candidate acquires the leadership");
    let mut waiting = second.lead().boxed();
    let both = [participant("one", true), participant("two", false)];
    until(subject, "one process leads and the other waits in line", async || {
        assert!((&mut waiting).now_or_never().is_none(), "the other leads");
        first.participants().await == Ok(both.to_vec())
    })
    .await;
    let term = leading.term();
    leading.release().await;
    let next = within(subject, "the second leads", waiting).await.expect("the candidate acquires the leadership");
    assert!(next.term() > term);
    assert_eq!(second.participants().await, Ok(vec![participant("two", true)]));
    next.release().await;
}

pub(super) async fn a7_former_leader_rejoins_at_the_end_of_the_line(subject: &dyn Subject) {
    const ROUNDS: usize = 12;
    let (one, two, stop) = (Peer::open(subject).await, Peer::open(subject).await, CancellationToken::new());
    let led: Mutex<Vec<(&str, u64)>> = Mutex::default();
    let task = |id: &'static str, leading: Leading| {
        let count = {
            let mut led = led.lock().expect("no code panics while it holds this mutex");
            led.push((id, leading.term.0));
            led.len()
        };
        if count == ROUNDS {
            stop.cancel();
        }
        short_wait(subject)
    };
    let (first, second) = (one.selector("one"), two.selector("two"));
    let both = futures_util::future::join(
        first.run(&stop, |leading| task("one", leading)),
        second.run(&stop, |leading| task("two", leading)),
    );
    let (first, second) = within(subject, "the processes lead alternately until the test stops them", both).await;
    assert_eq!((first, second), (Ok(()), Ok(())));
    let led = led.into_inner().expect("no code panics while it holds this mutex");
    assert!(led.is_sorted_by(|one, next| one.1 < next.1), "terms rise: {led:?}");
    // From the first term of the second leader on, the two processes lead alternately.
    let from = led.iter().position(|(id, _)| *id != led[0].0).expect("both have led");
    assert!(led[from..].is_sorted_by(|one, next| one.0 != next.0), "they take turns: {led:?}");
}

pub(super) async fn a7_candidate_with_a_lost_session_rejoins_at_the_end(subject: &dyn Subject) {
    let (leader, losing, third) =
        (Peer::open(subject).await, Peer::open_short(subject).await, Peer::open(subject).await);
    let held = within(subject, "the process leads", leader.selector("leader").lead())
        .await
        .expect("the candidate acquires the leadership");
    let (second, last) = (losing.selector("losing"), third.selector("third"));
    let (mut losing_waits, mut third_waits) = (second.lead().boxed(), last.lead().boxed());
    until(subject, "the process waits in line", async || {
        assert!((&mut losing_waits).now_or_never().is_none(), "another process leads");
        leader.line("/leaders/one").await.len() == 2
    })
    .await;
    let mut stand = async |what: &str, ids: &[&str]| {
        until(subject, what, async || {
            assert!((&mut losing_waits).now_or_never().is_none(), "another process leads");
            assert!((&mut third_waits).now_or_never().is_none(), "another process leads");
            let standing = leader.selector("").participants().await.expect("the engine responds");
            standing.iter().map(|one| one.id.as_str()).eq(ids.iter().copied())
        })
        .await;
    };
    stand("all processes wait in line", &["leader", "losing", "third"]).await;
    losing.process.cut(true);
    stand("the session ends", &["leader", "third"]).await;
    losing.process.cut(false);
    stand("the process joins the waiting line again", &["leader", "third", "losing"]).await;
    held.release().await;
    let next = within(subject, "the process leads", third_waits).await.expect("the candidate acquires the leadership");
    assert!((&mut losing_waits).now_or_never().is_none(), "the other leads");
    next.release().await;
    within(subject, "the process leads", losing_waits)
        .await
        .expect("the candidate acquires the leadership")
        .release()
        .await;
}

pub(super) async fn task_is_notified_of_the_end_and_dropped_after_the_grace(subject: &dyn Subject) {
    let (one, two, never) = (Peer::open(subject).await, Peer::open(subject).await, CancellationToken::new());
    let grace = Duration::from_millis(300);
    for obeys in [true, false] {
        let held = within(subject, "the process leads", one.selector("one").lead())
            .await
            .expect("the candidate acquires the leadership");
        let has_written = CancellationToken::new();
        let working = held.run(&never, grace, async |leading: Leading| {
            let tree = two.tree().await;
            tree.multi(leading.fence.clone()).await.expect("the process leads");
            has_written.cancel();
            leading.over.cancelled().await;
            assert!(tree.multi(leading.fence).await.is_err(), "the leadership has ended");
            if !obeys {
                std::future::pending::<()>().await;
            }
            "done"
        });
        let taking = async {
            has_written.cancelled().await;
            let names = two.line("/leaders/one").await;
            let place = path(&format!("/leaders/one/{}", names[0]));
            two.tree().await.delete(&place, Expected::Any).await.expect("every session may access the node");
        };
        let (ended, ()) = within(subject, "the task ends", futures_util::future::join(working, taking)).await;
        assert_eq!(ended, if obeys { Ended::DoneInGrace("done") } else { Ended::Aborted });
    }
}

pub(super) async fn leadership_handle_ends_with_its_task(subject: &dyn Subject) {
    let (one, stop) = (Peer::open(subject).await, CancellationToken::new());
    let held = within(subject, "the process leads", one.selector("one").lead())
        .await
        .expect("the candidate acquires the leadership");
    let working = held.run(&stop, Duration::from_secs(1), async |leading: Leading| {
        stop.cancel();
        leading.over.cancelled().await;
        assert!(leading.is_valid(), "the leadership is valid until the task ends");
        leading
    });
    let ended = within(subject, "the task ends", working).await;
    let (Ended::DoneInGrace(kept) | Ended::Done(kept)) = ended else { panic!("the task was aborted") };
    assert!(kept.over.is_cancelled() && !kept.is_valid(), "the leadership has ended");
}

pub(super) async fn stop_ends_the_task_and_the_candidacy(subject: &dyn Subject) {
    let (one, two, stop) = (Peer::open(subject).await, Peer::open(subject).await, CancellationToken::new());
    let (first, second) = (one.selector("one"), two.selector("two"));
    let leads = CancellationToken::new();
    let leading = first.run(&stop, async |leading: Leading| {
        leads.cancel();
        leading.over.cancelled().await;
    });
    let waiting = async {
        leads.cancelled().await;
        let stopping = async {
            until(subject, "one process leads and the other waits in line", async || {
                second.participants().await.is_ok_and(|standing| standing.len() == 2)
            })
            .await;
            stop.cancel();
        };
        futures_util::future::join(
            second.run(&stop, async |_| panic!("the second candidate never becomes the leader")),
            stopping,
        )
        .await
        .0
    };
    let (first_ended, second_ended) = within(subject, "both end", futures_util::future::join(leading, waiting)).await;
    assert_eq!((first_ended, second_ended), (Ok(()), Ok(())));
    until(subject, "no process leads or waits in line", async || first.participants().await == Ok(Vec::new())).await;
}

pub(super) async fn places_have_curators_layout(subject: &dyn Subject) {
    let peer = Peer::open(subject).await;
    for (layout, name) in [(Layout::Selector, "-lock-"), (Layout::Latch, "-latch-")] {
        let group = path(&format!("/of{name}"));
        let candidate = Candidate { layout, ..Candidate::new("host-7") };
        let held =
            within(subject, "the process leads", LeaderSelector::new(&peer.client, group.clone(), candidate).lead())
                .await;
        let [place] = &peer.line(group.as_str()).await[..] else { panic!("exactly one process has a place in line") };
        let guid = place
            .strip_prefix("_c_")
            .and_then(|rest| rest.split_once(name))
            .expect("the node's name has Curator's protection prefix")
            .0;
        assert_eq!(guid.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12], "{place}");
        assert_eq!(Sequence::after(place, name), Some(Sequence(0)), "{place}");
        let node = peer
            .tree()
            .await
            .get(&group.join(place).expect("the name of the place is valid"))
            .await
            .expect("the node exists");
        assert_eq!(node.data, "host-7");
        held.expect("the candidate acquires the leadership").release().await;
    }
}

fn leader(id: &str, term: Term) -> Option<Leader> {
    Some(Leader { id: id.to_owned(), term })
}

async fn wait_for_leader(subject: &dyn Subject, followed: &mut Followed<KnownLeader>, expected: Option<Leader>) {
    let known = followed.until(|known| known.is_current && known.leader == expected);
    within(subject, &format!("the follower shows {expected:?}"), known).await;
}

pub(super) async fn follower_of_the_leader_sees_each_leader_with_its_term(subject: &dyn Subject) {
    let (one, two, reader) = (Peer::open(subject).await, Peer::open(subject).await, Peer::open_short(subject).await);
    let group = reader.selector("reader");
    let mut followed = group.follow_leader().await.expect("every session may access the group");
    assert_eq!(followed.now(), KnownLeader { leader: None, is_current: true });
    let (first, second) = (one.selector("one"), two.selector("two"));
    let held = within(subject, "the first leads", first.lead()).await.expect("the candidate acquires the leadership");
    wait_for_leader(subject, &mut followed, leader("one", held.term())).await;
    let mut waiting = second.lead().boxed();
    until(subject, "the second waits in line", async || {
        assert!((&mut waiting).now_or_never().is_none(), "the first leads");
        one.line("/leaders/one").await.len() == 2
    })
    .await;
    held.release().await;
    let held = within(subject, "the second leads", waiting).await.expect("the candidate acquires the leadership");
    wait_for_leader(subject, &mut followed, leader("two", held.term())).await;

    // The follower loses its connection, and the leader changes.
    let session = reader.tree().await.session().clone();
    reader.process.cut(true);
    let interrupted = followed.until(|known| !known.is_current);
    let last = within(subject, "the follower reports the interruption", interrupted).await;
    assert_eq!(last.leader, leader("two", held.term()), "the last known leader remains");
    within(subject, "the session is lost", session.lost()).await;
    held.release().await;
    let held = within(subject, "the first leads", first.lead()).await.expect("the candidate acquires the leadership");
    reader.process.cut(false);
    wait_for_leader(subject, &mut followed, leader("one", held.term())).await;
    held.release().await;
    wait_for_leader(subject, &mut followed, None).await;
    assert_eq!(group.participants().await, Ok(Vec::new()), "the follower is not a candidate");
}

pub(super) async fn waiting_candidates_cause_no_requests_of_a_leader_follower(subject: &dyn Subject) {
    let one = Peer::open(subject).await;
    let counted = Arc::new(Counted::new(subject.process().await));
    let options = SessionOptions { timeout: LONG, credentials: Vec::new() };
    let client = Client::new(&subject.runtime(), counted.clone(), options);
    let group = LeaderSelector::new(&client, path("/leaders/one"), Candidate::new("reader"));
    let held = within(subject, "the first leads", one.selector("one").lead())
        .await
        .expect("the candidate acquires the leadership");
    let mut followed = group.follow_leader().await.expect("every session may access the group");
    wait_for_leader(subject, &mut followed, leader("one", held.term())).await;
    let before = counted.requests();
    for _ in 0..5 {
        let other = one.selector("other");
        let mut waiting = other.lead().boxed();
        until(subject, "the other waits in line", async || {
            assert!((&mut waiting).now_or_never().is_none(), "the first leads");
            one.line("/leaders/one").await.len() == 2
        })
        .await;
        drop(waiting);
        until(subject, "the other leaves the line", async || one.line("/leaders/one").await.len() == 1).await;
    }
    short_wait(subject).await;
    assert_eq!(counted.requests(), before, "the follower reads the group only when the leader changes");
    held.release().await;
    wait_for_leader(subject, &mut followed, None).await;
}
