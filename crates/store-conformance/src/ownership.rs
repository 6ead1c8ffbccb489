//! Test cases of terms. A new term makes the store reject writes of an older owner.

use std::sync::Arc;

use domain::{DueKey, Occurrence, RunState, Schedule, ShardId, Term};
use futures_util::future::join;

use crate::Subject;
use crate::fixture::{Fixture, Owner, TENANT, due_of, insert_in, minute, poller, run_of, yield_times};
use store::{Change, HandOver, HandedOver, Insert, Positions, WriteRejection, Written};

pub(super) async fn every_take_of_a_shard_returns_a_higher_term(subject: &dyn Subject) {
    let mut fixture = Fixture::open(subject).await;
    let shards = vec![ShardId(0), ShardId(255), ShardId(0)];
    let mut before = [None::<Term>; 2];
    for _ in 0..3 {
        let terms = fixture.store.take(shards.clone()).await.expect("the store assigns a new term");
        let [first, other, second] = terms[..] else {
            panic!("the store must return one term for each requested shard: {terms:?}")
        };
        assert!(second > first, "if one call takes a shard twice, the second term is higher than the first");
        assert!(
            Some(first) > before[0] && Some(other) > before[1],
            "a new term is higher than every earlier term of the shard"
        );
        before = [Some(second), Some(other)];
        fixture = fixture.reopen(subject).await;
    }
}

/// Returns one change of each kind. The owner of the poller that contains the schedule `live` may make all these
/// changes.
fn every_change(fixture: &Fixture, live: &Schedule, dead: Occurrence, new: Insert) -> Vec<Change> {
    let next = due_of(live, minute(30));
    let run = run_of(TENANT, due_of(live, minute(20)).occurrence, RunState::Succeeded);
    let again = DueKey { occurrence: Occurrence { replay: 1, ..dead }, position: minute(31), ..next };
    let (incarnation, revision) = (live.incarnation, live.revision);
    let replacing = insert_in(live.poller, fixture.numbers.incarnation(), live.id.clone(), minute(40));
    vec![
        Change::Put(new),
        Change::Put(replacing.clone()),
        Change::PutIf { insert: replacing, seen: Some(live.seen()) },
        Change::CancelIf(live.edition(), None),
        Change::Run { run, then: None, ends: false, origin: None },
        Change::Advance { incarnation, revision, due: next },
        Change::Defer(DueKey { position: minute(32), ..next }),
        Change::Redrive { of: dead, due: again },
        Change::Reencrypt(Arc::new(live.clone())),
        Change::Positions(Positions { closed: minute(2), done: minute(1) }),
        Change::Reopen(Positions { closed: minute(1), done: minute(1) }),
        Change::Run {
            run: run_of(TENANT, due_of(live, minute(21)).occurrence, RunState::Retrying),
            then: Some(DueKey { position: minute(33), attempt: 2, ..due_of(live, minute(21)) }),
            ends: false,
            origin: None,
        },
        Change::Run {
            run: run_of(TENANT, due_of(live, minute(22)).occurrence, RunState::Failed),
            then: None,
            ends: true,
            origin: None,
        },
        Change::End { incarnation, revision },
        Change::Cancel(incarnation),
    ]
}

pub(super) async fn older_term_is_rejected_for_every_change(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let live = fixture.create(fixture.named("live", minute(20))).await;
    let owner = fixture.owner(live.poller).await;
    let ended = fixture.create(fixture.unnamed_in(live.poller, minute(19))).await;
    let dead = owner.finish(&ended, RunState::Failed).await.occurrence;
    let new = fixture.unnamed_in(live.poller, minute(50));
    let changes = every_change(&fixture, &live, dead, new.clone());
    let successor = fixture.owner(live.poller).await;

    let everything = async || {
        (
            fixture.now(&live).await,
            fixture.load(new.schedule.incarnation).await,
            fixture.all_due(live.poller).await,
            fixture.positions(live.poller).await,
            fixture.store.runs(live.incarnation, None, 100).await.expect("the store accepts reads"),
            fixture.dead_letters(TENANT).await,
        )
    };
    let before = everything().await;
    for change in &changes {
        let rejected = owner.try_write(change.clone()).await;
        assert_eq!(rejected, Err(WriteRejection::Superseded), "{change:?}");
        assert_eq!(everything().await, before, "a rejected change must have no effect: {change:?}");
    }
    let batch = changes.iter().cloned().map(|change| owner.request(change)).collect::<Vec<_>>();
    let rejected = fixture.store.write(batch).await.expect("a call succeeds even if the store rejects all its items");
    assert!(rejected.iter().all(|response| *response == Err(WriteRejection::Superseded)), "{rejected:?}");
    assert_eq!(everything().await, before);

    // The store accepts the rejected changes under the new term. The old term was therefore the reason for the
    // rejections.
    let changes_the_version = |change: &Change| match change {
        Change::Put(insert) | Change::PutIf { insert, .. } => insert.schedule.id == live.id,
        Change::CancelIf(..) => true,
        _ => false,
    };
    for change in changes.into_iter().filter(|change| !changes_the_version(change)) {
        let written = successor.try_write(change.clone()).await;
        assert!(written.is_ok(), "{change:?} is {written:?}");
    }
}

pub(super) async fn concurrent_write_and_take_agree_on_the_result(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let poller = poller(TENANT, 0);
    let mut owner = fixture.owner(poller).await;
    for round in 0..40 {
        let schedule = fixture.create(fixture.unnamed_in(poller, minute(20))).await;
        let run = run_of(TENANT, due_of(&schedule, minute(20)).occurrence, RunState::Succeeded);
        let writing = async {
            yield_times(round % 5).await;
            owner.try_write(Change::Run { run: run.clone(), then: None, ends: false, origin: None }).await
        };
        let taking = async {
            yield_times(round % 7).await;
            let term = fixture.take(poller.shard()).await;
            (Owner { fixture: &fixture, poller, term }, fixture.run(run.occurrence).await)
        };
        let (written, (successor, seen)) = join(writing, taking).await;
        let now = fixture.run(run.occurrence).await;
        assert_eq!(seen, now, "a write under an older term has no effect after the store has returned a new term");
        match written {
            Ok(Written::Done) => assert_eq!(now, Some(run)),
            Err(WriteRejection::Superseded) => assert_eq!(now, None),
            other => panic!("the write must return `Done` or `Superseded`, but returned {other:?}"),
        }
        owner = successor;
    }
}

pub(super) async fn rejected_item_does_not_affect_other_items(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let (ours, lost) = (poller(TENANT, 0), poller(TENANT, 1));
    assert_ne!(ours.shard(), lost.shard(), "the two pollers belong to different shards");
    let ours_owner = fixture.owner(ours).await;
    let lost_owner = fixture.owner(lost).await;
    let lost_to = fixture.take(lost.shard()).await;
    assert!(lost_to > lost_owner.term);

    let unknown = fixture.numbers.incarnation();
    let schedules = [
        fixture.create(fixture.unnamed_in(ours, minute(1))).await,
        fixture.create(fixture.unnamed_in(lost, minute(1))).await,
    ];
    let batch = vec![
        lost_owner.request(Change::Cancel(schedules[1].incarnation)),
        ours_owner.request(Change::Cancel(unknown)),
        ours_owner.request(Change::Cancel(schedules[0].incarnation)),
    ];
    let responses = fixture.store.write(batch).await.expect("a call succeeds even if the store rejects some items");
    assert_eq!(responses, [Err(WriteRejection::Superseded), Err(WriteRejection::NotFound), Ok(Written::Done)]);
    assert_ne!(fixture.now(&schedules[0]).await, schedules[0]);
    assert_eq!(fixture.now(&schedules[1]).await, schedules[1]);
}

pub(super) async fn attempts_in_flight_are_handed_over_under_a_term(subject: &dyn Subject) {
    let mut fixture = Fixture::open(subject).await;
    let (ours, other) = (poller(TENANT, 0), poller(TENANT, 1));
    let (shard, other_shard) = (ours.shard(), other.shard());
    assert_ne!(shard, other_shard, "the two pollers belong to different shards");
    let handed_over = async |fixture: &Fixture| {
        fixture.store.handed_over(vec![other_shard, shard]).await.expect("the store accepts reads")
    };
    assert_eq!(
        handed_over(&fixture).await,
        [vec![], vec![]],
        "a shard has no handed-over attempts before the first hand-over"
    );

    let attempts: Vec<HandedOver> = (0..300)
        .map(|number| {
            let key = fixture.unnamed_in(ours, minute(number)).due;
            HandedOver { poller: ours, key: DueKey { attempt: 3, ..key }, until: minute(number + 5) }
        })
        .collect();
    let (old, other_term) = (fixture.take(shard).await, fixture.take(other_shard).await);
    let list = |term, attempts: &[HandedOver]| HandOver { shard, term, attempts: attempts.to_vec() };
    let apart = HandOver { shard: other_shard, term: other_term, attempts: Vec::new() };
    let responses = fixture.store.hand_over(vec![list(old, &attempts), apart]).await.expect("the call succeeds");
    assert_eq!(responses, [Ok(()), Ok(())]);
    let new = fixture.take(shard).await;
    assert_eq!(
        handed_over(&fixture).await,
        [vec![], attempts.clone()],
        "the next owner reads the attempts that the previous owner handed over"
    );

    let late = fixture.store.hand_over(vec![list(old, &attempts[..1])]).await.expect("the call succeeds");
    assert_eq!(late, [Err(WriteRejection::Superseded)]);
    assert_eq!(handed_over(&fixture).await[1], attempts, "a rejected hand-over has no effect");
    fixture = fixture.reopen(subject).await;
    assert_eq!(handed_over(&fixture).await[1], attempts, "the handed-over attempts survive a reopen of the store");

    let newest = fixture.take(shard).await;
    assert!(newest > new);
    let responses = fixture.store.hand_over(vec![list(newest, &attempts[7..9])]).await.expect("the call succeeds");
    assert_eq!(responses, [Ok(())]);
    assert_eq!(
        handed_over(&fixture).await[1],
        attempts[7..9],
        "a new list of handed-over attempts replaces the previous list"
    );
}
