//! What members ask of each other, and how the listener stops.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    Attempt, AttemptResult, DueKey, Incarnation, Occurrence, PollerId, Revision, RunState, ShardId, TargetKey,
    TenantId, Timestamp,
};
use futures_util::future::join_all;
use membership::{Member, MemberId};
use peers::{Handler, Listener, ListenerOptions};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use runtime::Runtime;
use scheduler::peers::Outcome;
use scheduler::{Ask, CancelAnswer, CreateRefusal, Peers, PutAnswer, RedriveAnswer, Reply, Timing};
use store::StoreError;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::support::{Answering, Setup, asking, fitting, hurried, member, named, reason, schedule, secret};

fn an_occurrence() -> Occurrence {
    let nominal = Timestamp::from_millis(1_800_000_000_123);
    Occurrence { incarnation: Incarnation(5), nominal, revision: Revision(2), replay: 1 }
}

fn exchanges() -> Vec<(Ask, Reply)> {
    let poller = PollerId { tenant: TenantId(1), generation: 2, number: 3 };
    let started_at = Timestamp::from_millis(1_800_000_000_456);
    let result = AttemptResult::Answered(503);
    let attempt = Attempt { number: 1, started_at, duration: Duration::from_millis(12), result };
    let run =
        Run { tenant: TenantId(1), occurrence: an_occurrence(), state: RunState::Retrying, attempts: vec![attempt] };
    let then = DueKey { position: started_at, occurrence: an_occurrence(), attempt: 2, target: TargetKey(4) };
    let outcome = Outcome { poller, run, then: Some(then), ends: false };
    let put = PutAnswer { schedule: schedule(&named(1, 9)), created: true, too_late: true };
    let cancel = Ask::Cancel { poller, incarnation: Incarnation(5), applied: true };
    let seen = schedule(&named(1, 9)).seen();
    let put_if = Ask::PutIf { named: named(1, 9), seen: Some(seen), timing: Timing::Kept };
    let cancel_if = Ask::CancelIf { poller, edition: seen.edition };
    let redrive = Ask::Redrive { tenant: TenantId(1), of: an_occurrence() };
    let created = vec![Ok(schedule(&named(1, 9))), Err(CreateRefusal::Exists)];
    let decided_by = started_at;
    vec![
        (Ask::Create(vec![named(1, 9), named(2, 0)]), Reply::Created(created)),
        (Ask::Put(named(1, 9)), Reply::Put(Ok(put))),
        (Ask::Put(named(1, 9)), Reply::Put(Err(CreateRefusal::NeverFires))),
        (put_if.clone(), Reply::Put(Err(CreateRefusal::NeverFires))),
        (put_if, Reply::Changed),
        (cancel_if.clone(), Reply::Cancelled(CancelAnswer::Cancelled)),
        (cancel_if, Reply::Changed),
        (cancel.clone(), Reply::Cancelled(CancelAnswer::TooLate)),
        (cancel.clone(), Reply::Cancelled(CancelAnswer::Pending { decided_by })),
        (cancel, Reply::NotOwned),
        (redrive.clone(), Reply::Redriven(RedriveAnswer::Redriven(an_occurrence()))),
        (redrive, Reply::Failed(StoreError::Full("97%".to_owned()))),
        (Ask::LetGo { member: MemberId(3), shards: vec![ShardId(1), ShardId(2)] }, Reply::LetGo(vec![ShardId(2)])),
        (Ask::Outcome(outcome), Reply::Heard),
        (Ask::Nudge, Reply::Heard),
    ]
}

#[tokio::test]
async fn every_ask_and_every_reply_goes_through() {
    let (asked, replies) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let (heard, next) = (asked.clone(), replies.clone());
    let answering = Answering::start(Setup::default(), move |ask| {
        heard.lock().unwrap().push(ask);
        let reply = next.lock().unwrap().pop().unwrap();
        Box::pin(async move { reply })
    });
    let answering = answering.await;
    let (peers, to) = (asking(), member(answering.address));
    for (ask, reply) in exchanges() {
        replies.lock().unwrap().push(reply.clone());
        assert_eq!(peers.ask(&to, ask.clone()).await, Ok(reply));
        assert_eq!(asked.lock().unwrap().pop(), Some(ask));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_asks_at_once_are_answered_each_with_its_own() {
    let answering = Answering::fitting().await;
    let (peers, to) = (asking(), member(answering.address));
    let asks = (0..200).map(|number| {
        let ask = Ask::Create(vec![named(number, 1_024)]);
        let asked = peers.ask(&to, ask.clone());
        async move { assert_eq!(asked.await, Ok(fitting(&ask)), "{number}") }
    });
    join_all(asks).await;
    assert_eq!(answering.asked(), 200);
}

#[tokio::test]
async fn a_create_of_a_thousand_long_schedules_goes_in_parts_and_comes_back_whole() {
    let answering = Answering::fitting().await;
    let ask = Ask::Create((0..1_000).map(|number| named(number, 16 * 1024)).collect());
    let patient = hurried(Duration::from_secs(60));
    let reply = patient.ask(&member(answering.address), ask.clone()).await;
    assert!(reply == Ok(fitting(&ask)), "all of them, in order");
    assert!(answering.asked() >= 4, "{}", answering.asked());
}

#[tokio::test]
async fn of_a_create_in_parts_what_was_answered_is_told_and_the_rest_is_not_known() {
    let answers = Mutex::new(vec![false, true]);
    let answering = Answering::start(Setup::default(), move |ask| {
        let reply = if answers.lock().unwrap().pop().unwrap() { fitting(&ask) } else { Reply::NotOwned };
        Box::pin(async move { reply })
    });
    let answering = answering.await;
    let all: Vec<_> = (0..2).map(|number| named(number, 3 * 1024 * 1024)).collect();
    let first = schedule(&all[0]);
    let reply = asking().ask(&member(answering.address), Ask::Create(all)).await;
    assert!(reply == Ok(Reply::Created(vec![Ok(first), Err(CreateRefusal::Unreachable)])), "not as it should be");
}

#[tokio::test]
async fn a_stop_lets_what_is_under_way_end_and_takes_no_more() {
    let gate = Arc::new(Semaphore::new(0));
    let (begun, go_on) = (Arc::new(Semaphore::new(0)), gate.clone());
    let begins = begun.clone();
    let answering = Answering::start(Setup::default(), move |_| {
        let (begins, go_on) = (begins.clone(), go_on.clone());
        Box::pin(async move {
            begins.add_permits(1);
            go_on.acquire().await.unwrap().forget();
            Reply::Heard
        })
    });
    let answering = answering.await;
    let (address, stop) = (answering.address, answering.stop.clone());
    let (peers, to) = (asking(), member(address));
    let asked = tokio::join!(peers.ask(&to, Ask::Nudge), async {
        begun.acquire().await.unwrap().forget();
        stop.cancel();
        // The socket closes before what is under way ends.
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        gate.add_permits(1);
    });
    assert_eq!(asked.0, Ok(Reply::Heard));
    answering.ended().await;
    assert_eq!(reason(peers.ask(&to, Ask::Nudge).await), "connection refused");
}

/// Tells when it is dropped.
struct Dropped(Arc<Semaphore>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

fn never_answers(
    begun: Arc<Semaphore>,
    dropped: Arc<Semaphore>,
) -> impl Fn(Ask) -> futures_util::future::BoxFuture<'static, Reply> {
    move |_| {
        let held = Dropped(dropped.clone());
        begun.add_permits(1);
        Box::pin(async move {
            let _held = held;
            std::future::pending().await
        })
    }
}

#[tokio::test]
async fn a_stop_drops_what_does_not_end_in_time() {
    let (begun, dropped) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let options = ListenerOptions { drain_timeout: Duration::from_millis(20), ..ListenerOptions::default() };
    let setup = Setup { options, ..Setup::default() };
    let answering = Answering::start(setup, never_answers(begun.clone(), dropped.clone())).await;
    let (stop, to) = (answering.stop.clone(), member(answering.address));
    let peers = asking();
    let (asked, ()) = tokio::join!(peers.ask(&to, Ask::Nudge), async {
        begun.acquire().await.unwrap().forget();
        stop.cancel();
        answering.ended().await;
        assert_eq!(dropped.available_permits(), 1);
    });
    assert_eq!(reason(asked), "connection closed before the answer was complete");
}

#[tokio::test]
async fn what_takes_too_long_is_given_up_and_said_so() {
    let (begun, dropped) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let options = ListenerOptions { answer_timeout: Duration::from_millis(20), ..ListenerOptions::default() };
    let setup = Setup { options, ..Setup::default() };
    let answering = Answering::start(setup, never_answers(begun, dropped.clone())).await;
    let asked = asking().ask(&member(answering.address), Ask::Nudge).await;
    assert_eq!(reason(asked), "it refuses (504): it took too long, and may be half-done");
    assert_eq!(dropped.available_permits(), 1);
}

#[tokio::test]
async fn what_was_begun_goes_on_when_its_asker_goes_away() {
    let gate = Arc::new(Semaphore::new(0));
    let (begun, done) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (begins, go_on, ends) = (begun.clone(), gate.clone(), done.clone());
    let answering = Answering::start(Setup::default(), move |ask| {
        let (begins, go_on, ends) = (begins.clone(), go_on.clone(), ends.clone());
        Box::pin(async move {
            if ask != Ask::Nudge {
                return fitting(&ask);
            }
            begins.add_permits(1);
            go_on.acquire().await.unwrap().forget();
            ends.add_permits(1);
            Reply::Heard
        })
    });
    let mut answering = answering.await;
    let asked = asking().ask(&member(answering.address), Ask::Nudge);
    tokio::select! {
        biased;
        reply = asked => panic!("it was answered: {reply:?}"),
        permit = begun.acquire() => permit.unwrap().forget(),
    }
    // By when others are answered, the end of the first one's connection has been seen.
    for _ in 0..5 {
        let other = asking().ask(&member(answering.address), Ask::Create(Vec::new())).await;
        assert_eq!(other, Ok(Reply::Created(Vec::new())));
    }
    // Nor does a stop drop it, as long as there is time.
    answering.stop.cancel();
    assert!(!answering.ends_within(Duration::from_millis(100)).await, "it is still under way");
    gate.add_permits(1);
    answering.ended().await;
    assert_eq!(done.available_permits(), 1);
}

#[tokio::test]
async fn asks_and_requests_are_counted() {
    let runtime = Runtime::real();
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&runtime, address, ListenerOptions::default()).await.unwrap();
    let (mut registry, peers) = (Registry::default(), asking());
    listener.register(&mut registry);
    peers.register(&mut registry);
    let to = member(listener.local_addr());
    let me = to.id;
    let handler: Handler = Arc::new(|ask| Box::pin(async move { fitting(&ask) }));
    let stop = std::future::pending::<()>();
    drop(runtime.spawn("listener", listener.serve_until(secret(), Arc::new(move |id| id == me), handler, stop)));
    assert_eq!(peers.ask(&to, Ask::Nudge).await, Ok(Reply::Heard));
    assert_eq!(peers.ask(&to, Ask::Put(named(1, 1))).await, Ok(Reply::NotOwned));
    assert!(peers.ask(&Member { id: MemberId(0), ..to }, Ask::Nudge).await.is_err());
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    lines.sort_unstable();
    let expected = [
        "reveille_peer_asks_total{ask=\"nudge\",outcome=\"answered\"} 1",
        "reveille_peer_asks_total{ask=\"nudge\",outcome=\"unreachable\"} 1",
        "reveille_peer_asks_total{ask=\"put\",outcome=\"not_owned\"} 1",
        "reveille_peer_requests_total{status=\"200\"} 2",
        "reveille_peer_requests_total{status=\"421\"} 1",
    ];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn a_reply_that_does_not_belong_to_its_ask_is_not_handed_on() {
    let reply = Arc::new(Mutex::new(Reply::Heard));
    let present = reply.clone();
    let answering = Answering::start(Setup::default(), move |_| {
        let reply = present.lock().unwrap().clone();
        Box::pin(async move { reply })
    });
    let answering = answering.await;
    let (peers, to) = (asking(), member(answering.address));
    let all = exchanges();
    for (ask, _) in &all {
        for (_, other) in &all {
            let belongs = match (ask, other) {
                (_, Reply::NotOwned | Reply::Failed(_)) => true,
                (Ask::Outcome(_) | Ask::Nudge, Reply::Heard) => true,
                (ask, other) => {
                    all.iter().any(|(a, b)| a == ask && std::mem::discriminant(b) == std::mem::discriminant(other))
                }
            };
            *reply.lock().unwrap() = other.clone();
            let expected = if belongs { Ok(other.clone()) } else { Err("it answers something else than was asked") };
            let found = peers.ask(&to, ask.clone()).await;
            match expected {
                Ok(expected) => assert_eq!(found, Ok(expected)),
                Err(expected) => assert_eq!(reason(found), expected, "{ask:?} {other:?}"),
            }
        }
    }
    // A create is answered for each of its schedules.
    *reply.lock().unwrap() = Reply::Created(vec![Err(CreateRefusal::Exists)]);
    let told = reason(peers.ask(&to, Ask::Create(vec![named(1, 1), named(2, 1)])).await);
    assert_eq!(told, "it answers something else than was asked");
}

#[tokio::test]
async fn a_handler_that_panics_fails_its_own_ask_only() {
    let answering = Answering::start(Setup::default(), |ask| {
        Box::pin(async move {
            assert!(ask == Ask::Nudge, "a bug, on purpose");
            Reply::Heard
        })
    });
    let answering = answering.await;
    let (peers, to) = (asking(), member(answering.address));
    let asked = peers.ask(&to, Ask::Create(Vec::new())).await;
    assert_eq!(reason(asked), "it refuses (500): it failed, and may be half-done");
    assert_eq!(peers.ask(&to, Ask::Nudge).await, Ok(Reply::Heard));
}
