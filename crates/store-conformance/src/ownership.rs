//! Terms: what fences an old owner off.

use domain::{DueKey, Occurrence, RunState, Schedule, ShardId, Term};
use futures_util::future::join;

use crate::Subject;
use crate::scene::{Owner, Scene, TENANT, due_of, insert_in, minute, poller, run_of, yield_times};
use store::{Change, HandOver, HandedOver, Insert, Positions, WriteRefusal, Written};

pub(super) async fn terms_rise(subject: &dyn Subject) {
    let mut scene = Scene::open(subject).await;
    let shards = vec![ShardId(0), ShardId(255), ShardId(0)];
    let mut before = [None::<Term>; 2];
    for _ in 0..3 {
        let terms = scene.store.take(shards.clone()).await.expect("the store mints terms");
        let [first, other, second] = terms[..] else { panic!("each shard has its term: {terms:?}") };
        assert!(second > first, "a shard taken twice in one call has two terms");
        assert!(Some(first) > before[0] && Some(other) > before[1], "a term is above every earlier one");
        before = [Some(second), Some(other)];
        scene = scene.reopen(subject).await;
    }
}

/// One of each change, all of which the owner of `live`'s poller may make.
fn every_change(scene: &Scene, live: &Schedule, dead: Occurrence, new: Insert) -> Vec<Change> {
    let next = due_of(live, minute(30));
    let run = run_of(TENANT, due_of(live, minute(20)).occurrence, RunState::Succeeded);
    let again = DueKey { occurrence: Occurrence { replay: 1, ..dead }, position: minute(31), ..next };
    let (incarnation, revision) = (live.incarnation, live.revision);
    let replacing = insert_in(live.poller, scene.numbers.incarnation(), live.id.clone(), minute(40));
    vec![
        Change::Put(new),
        Change::Put(replacing.clone()),
        Change::PutIf { insert: replacing, seen: Some(live.seen()) },
        Change::CancelIf(live.edition()),
        Change::Run { run, then: None, ends: false },
        Change::Advance { incarnation, revision, due: next },
        Change::Defer(DueKey { position: minute(32), ..next }),
        Change::Redrive { of: dead, due: again },
        Change::Positions(Positions { closed: minute(2), done: minute(1) }),
        Change::Run {
            run: run_of(TENANT, due_of(live, minute(21)).occurrence, RunState::Retrying),
            then: Some(DueKey { position: minute(33), attempt: 2, ..due_of(live, minute(21)) }),
            ends: false,
        },
        Change::Run {
            run: run_of(TENANT, due_of(live, minute(22)).occurrence, RunState::Failed),
            then: None,
            ends: true,
        },
        Change::End { incarnation, revision },
        Change::Cancel(incarnation),
    ]
}

pub(super) async fn an_older_term_is_refused_for_every_change(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let live = scene.create(scene.named("live", minute(20))).await;
    let owner = scene.owner(live.poller).await;
    let ended = scene.create(scene.unnamed_in(live.poller, minute(19))).await;
    let dead = owner.finish(&ended, RunState::Failed).await.occurrence;
    let new = scene.unnamed_in(live.poller, minute(50));
    let changes = every_change(&scene, &live, dead, new.clone());
    let successor = scene.owner(live.poller).await;

    let everything = async || {
        (
            scene.now(&live).await,
            scene.load(new.schedule.incarnation).await,
            scene.all_due(live.poller).await,
            scene.positions(live.poller).await,
            scene.store.runs(live.incarnation, None, 100).await.expect("the store is read"),
            scene.dead_letters(TENANT).await,
        )
    };
    let before = everything().await;
    for change in &changes {
        let refused = owner.try_write(change.clone()).await;
        assert_eq!(refused, Err(WriteRefusal::Superseded), "{change:?}");
        assert_eq!(everything().await, before, "refused, and yet with effect: {change:?}");
    }
    let batch = changes.iter().cloned().map(|change| owner.asks(change)).collect::<Vec<_>>();
    let refused = scene.store.write(batch).await.expect("the call itself goes through");
    assert!(refused.iter().all(|answer| *answer == Err(WriteRefusal::Superseded)), "{refused:?}");
    assert_eq!(everything().await, before);

    // The same changes are good under the new term: the term was the reason.
    let makes_another_edition = |change: &Change| match change {
        Change::Put(insert) | Change::PutIf { insert, .. } => insert.schedule.id == live.id,
        Change::CancelIf(_) => true,
        _ => false,
    };
    for change in changes.into_iter().filter(|change| !makes_another_edition(change)) {
        let written = successor.try_write(change.clone()).await;
        assert!(written.is_ok(), "{change:?} is {written:?}");
    }
}

pub(super) async fn a_write_and_a_take_at_once_agree_on_the_outcome(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let poller = poller(TENANT, 0);
    let mut owner = scene.owner(poller).await;
    for round in 0..40 {
        let schedule = scene.create(scene.unnamed_in(poller, minute(20))).await;
        let run = run_of(TENANT, due_of(&schedule, minute(20)).occurrence, RunState::Succeeded);
        let booking = async {
            yield_times(round % 5).await;
            owner.try_write(Change::Run { run: run.clone(), then: None, ends: false }).await
        };
        let taking = async {
            yield_times(round % 7).await;
            let term = scene.take(poller.shard()).await;
            (Owner { scene: &scene, poller, term }, scene.run(run.occurrence).await)
        };
        let (written, (successor, seen)) = join(booking, taking).await;
        let now = scene.run(run.occurrence).await;
        assert_eq!(seen, now, "nothing of an older term takes effect once the new one is answered");
        match written {
            Ok(Written::Done) => assert_eq!(now, Some(run)),
            Err(WriteRefusal::Superseded) => assert_eq!(now, None),
            other => panic!("neither written nor superseded: {other:?}"),
        }
        owner = successor;
    }
}

pub(super) async fn a_refused_item_leaves_the_others_alone(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let (ours, lost) = (poller(TENANT, 0), poller(TENANT, 1));
    assert_ne!(ours.shard(), lost.shard(), "the case needs two shards");
    let ours_owner = scene.owner(ours).await;
    let lost_owner = scene.owner(lost).await;
    let lost_to = scene.take(lost.shard()).await;
    assert!(lost_to > lost_owner.term);

    let unknown = scene.numbers.incarnation();
    let schedules =
        [scene.create(scene.unnamed_in(ours, minute(1))).await, scene.create(scene.unnamed_in(lost, minute(1))).await];
    let batch = vec![
        lost_owner.asks(Change::Cancel(schedules[1].incarnation)),
        ours_owner.asks(Change::Cancel(unknown)),
        ours_owner.asks(Change::Cancel(schedules[0].incarnation)),
    ];
    let answers = scene.store.write(batch).await.expect("the call itself goes through");
    assert_eq!(answers, [Err(WriteRefusal::Superseded), Err(WriteRefusal::NotFound), Ok(Written::Done)]);
    assert_ne!(scene.now(&schedules[0]).await, schedules[0]);
    assert_eq!(scene.now(&schedules[1]).await, schedules[1]);
}

pub(super) async fn what_is_in_flight_is_handed_over_under_a_term(subject: &dyn Subject) {
    let mut scene = Scene::open(subject).await;
    let (ours, other) = (poller(TENANT, 0), poller(TENANT, 1));
    let (shard, other_shard) = (ours.shard(), other.shard());
    assert_ne!(shard, other_shard, "the case needs two shards");
    let handed_over =
        async |scene: &Scene| scene.store.handed_over(vec![other_shard, shard]).await.expect("the store is read");
    assert_eq!(handed_over(&scene).await, [vec![], vec![]], "nobody handed anything over");

    let attempts: Vec<HandedOver> = (0..300)
        .map(|number| {
            let key = scene.unnamed_in(ours, minute(number)).due;
            HandedOver { poller: ours, key: DueKey { attempt: 3, ..key }, until: minute(number + 5) }
        })
        .collect();
    let (old, other_term) = (scene.take(shard).await, scene.take(other_shard).await);
    let list = |term, attempts: &[HandedOver]| HandOver { shard, term, attempts: attempts.to_vec() };
    let apart = HandOver { shard: other_shard, term: other_term, attempts: Vec::new() };
    let answers = scene.store.hand_over(vec![list(old, &attempts), apart]).await.expect("the call goes through");
    assert_eq!(answers, [Ok(()), Ok(())]);
    let new = scene.take(shard).await;
    assert_eq!(handed_over(&scene).await, [vec![], attempts.clone()], "the next owner is told");

    let late = scene.store.hand_over(vec![list(old, &attempts[..1])]).await.expect("the call goes through");
    assert_eq!(late, [Err(WriteRefusal::Superseded)]);
    assert_eq!(handed_over(&scene).await[1], attempts, "refused, and without effect");
    scene = scene.reopen(subject).await;
    assert_eq!(handed_over(&scene).await[1], attempts, "it outlives a reopen");

    let newest = scene.take(shard).await;
    assert!(newest > new);
    let answers = scene.store.hand_over(vec![list(newest, &attempts[7..9])]).await.expect("the call goes through");
    assert_eq!(answers, [Ok(())]);
    assert_eq!(handed_over(&scene).await[1], attempts[7..9], "a list replaces the one before");
}
