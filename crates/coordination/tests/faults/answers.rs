//! Answers that are lost, and processes that die before they have one: A4.

use std::time::Duration;

use bytes::Bytes;
use coordination::recipes::Trust;
use coordination::tree::{Acl, CreateMode};
use futures_util::FutureExt as _;

use crate::candidate::Group;
use crate::engine::{Engine, on_real, path};
use crate::history::now;
use crate::{BOUND, LONG, SESSION, until};

on_both! {
    a4_a_place_whose_answer_was_lost_is_found_and_kept
    a4_a_place_whose_answer_was_lost_and_that_nobody_wants_is_removed
    a4_a_process_that_dies_before_it_is_answered_blocks_nobody_for_longer_than_its_session
    a4_processes_killed_at_any_moment_of_their_acquisition_block_nobody
}

/// What the request that makes a place has in it, and none before it.
const PLACE: &str = "-lock-";

fn a4_a_place_whose_answer_was_lost_is_found_and_kept(engine: &Engine) {
    on_real(async |runtime| {
        let way = engine.way();
        let (holder, unsure) = (engine.peer(&runtime, LONG).await, way.peer(&runtime, LONG).await);
        let held = holder.within("it leads", holder.selector("one", Trust::UntilLost).lead()).await.unwrap();
        let session = unsure.tree().await.session().id();
        way.lose_answer(PLACE);
        let selector = unsure.selector("two", Trust::UntilLost);
        let mut waiting = selector.lead().boxed();
        holder
            .until("its place is made", async || {
                assert!((&mut waiting).now_or_never().is_none(), "somebody else leads");
                holder.nodes().await.len() == 2
            })
            .await;
        assert!(way.has_lost_answer());
        let made = holder.nodes().await;
        way.cut(false);
        // It waits with what it has.
        for _ in 0..50 {
            assert!((&mut waiting).now_or_never().is_none(), "somebody else leads");
            assert_eq!(holder.nodes().await, made, "it has one place");
        }
        held.release().await;
        let next = holder.within("it leads", waiting).await.unwrap();
        assert_eq!(unsure.tree().await.session().id(), session, "its session went on");
        let left = holder.nodes().await;
        assert!(left.len() == 1 && made.contains(&left[0]), "it leads by the place that it was not told of: {left:?}");
        next.release().await;
        assert!(holder.nodes().await.is_empty());
    });
}

fn a4_a_place_whose_answer_was_lost_and_that_nobody_wants_is_removed(engine: &Engine) {
    on_real(async |runtime| {
        let way = engine.way();
        let (holder, unsure) = (engine.peer(&runtime, LONG).await, way.peer(&runtime, LONG).await);
        let held = holder.within("it leads", holder.selector("one", Trust::UntilLost).lead()).await.unwrap();
        unsure.tree().await;
        way.lose_answer(PLACE);
        let selector = unsure.selector("two", Trust::UntilLost);
        let mut waiting = selector.lead().boxed();
        holder
            .until("its place is made", async || {
                assert!((&mut waiting).now_or_never().is_none(), "somebody else leads");
                holder.nodes().await.len() == 2
            })
            .await;
        assert!(way.has_lost_answer());
        drop(waiting);
        let next = holder.selector("three", Trust::UntilLost);
        let mut waiting = next.lead().boxed();
        holder
            .until("another is behind it", async || {
                assert!((&mut waiting).now_or_never().is_none(), "somebody else leads");
                holder.nodes().await.len() == 3
            })
            .await;
        let mended = runtime.monotonic();
        way.cut(false);
        held.release().await;
        let held = holder.within("it leads", waiting).await.unwrap();
        let took = runtime.monotonic().since(mended);
        assert!(took < LONG / 2, "it was removed, and did not end with its session: {took:?}");
        assert_eq!(holder.nodes().await.len(), 1);
        held.release().await;
    });
}

fn a4_a_process_that_dies_before_it_is_answered_blocks_nobody_for_longer_than_its_session(engine: &Engine) {
    let (way, group) = (engine.way(), Group::new(SESSION));
    on_real(async |runtime| {
        // So that the first request with this in it makes the place.
        let tree = engine.peer(&runtime, SESSION).await.tree().await;
        tree.create(&path("/group"), Bytes::new(), CreateMode::Persistent, Acl::Open).await.unwrap();
    });
    way.lose_answer(PLACE);
    let mut dying = group.start(&way.url, "dying");
    until("its place is made", || {
        let is_made = on_real(async |runtime| engine.peer(&runtime, SESSION).await.nodes().await.len() == 1);
        (way.has_lost_answer() && is_made).then_some(())
    });
    dying.kill();
    let killed = now();
    let _next = group.start(&engine.url(), "next");
    let leader = group.history.leader_after(0);
    assert_eq!(leader.id, "next");
    let took = leader.start.saturating_sub(killed);
    assert!(took <= (SESSION + BOUND).as_nanos(), "it was blocked for {took} ns");
    group.history.is_exclusive();
}

fn a4_processes_killed_at_any_moment_of_their_acquisition_block_nobody(engine: &Engine) {
    let group = Group::new(SESSION);
    for round in 0..12 {
        let mut dying = group.start(&engine.url(), "dying");
        // Wherever it is by then: before its session, its place, its answer, or its leadership.
        std::thread::sleep(Duration::from_millis(5 * round));
        dying.kill();
    }
    let killed = now();
    let _next = group.start(&engine.url(), "next");
    let leader = until("the next leads", || group.history.leaderships().pop().filter(|last| last.id == "next"));
    let took = leader.start.saturating_sub(killed);
    assert!(took <= (SESSION + BOUND).as_nanos(), "it was blocked for {took} ns");
    group.history.leader_after(leader.term - 1);
    group.history.is_exclusive();
}
