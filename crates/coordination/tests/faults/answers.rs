//! Tests criterion A4: a node whose creation got no response blocks other processes at most for the session's timeout.
//! In the tests, a proxy drops responses, and processes die before they get a response.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use reveille_coordination::recipes::Trust;
use reveille_coordination::tree::{Acl, CreateMode};

use crate::candidate::Group;
use crate::engine::{Engine, path, with_real_runtime};
use crate::history::now;
use crate::{BOUND, LONG, SESSION, until};

on_both! {
    a4_place_with_lost_response_is_found_and_kept
    a4_abandoned_place_with_lost_response_is_removed
    a4_killed_process_blocks_others_for_at_most_its_session
    a4_kills_during_acquisition_do_not_block_others
}

/// Text that identifies the request in which a candidate creates its node. No earlier request contains this text.
const PLACE: &str = "-lock-";

fn a4_place_with_lost_response_is_found_and_kept(engine: &Engine) {
    with_real_runtime(async |runtime| {
        let route = engine.route();
        let (holder, other) = (engine.peer(&runtime, LONG).await, route.peer(&runtime, LONG).await);
        let held = holder.within("the candidate leads", holder.selector("one", Trust::UntilLost).lead()).await.unwrap();
        let session = other.tree().await.session().id();
        route.lose_response(PLACE);
        let selector = other.selector("two", Trust::UntilLost);
        let mut waiting = selector.lead().boxed();
        holder
            .until("the place is created", async || {
                assert!((&mut waiting).now_or_never().is_none(), "another candidate leads");
                holder.nodes().await.len() == 2
            })
            .await;
        assert!(route.has_lost_response());
        let created = holder.nodes().await;
        route.cut(false);
        // The candidate finds its node, although the response to the node's creation was lost. The candidate continues
        // to wait with this node and creates no second node.
        for _ in 0..50 {
            assert!((&mut waiting).now_or_never().is_none(), "another candidate leads");
            assert_eq!(holder.nodes().await, created, "the candidate has one place");
        }
        held.release().await;
        let next = holder.within("the candidate leads", waiting).await.unwrap();
        assert_eq!(other.tree().await.session().id(), session, "the session is still the same");
        let left = holder.nodes().await;
        assert!(
            left.len() == 1 && created.contains(&left[0]),
            "the candidate leads by the place with the lost response: {left:?}"
        );
        next.release().await;
        assert!(holder.nodes().await.is_empty());
    });
}

fn a4_abandoned_place_with_lost_response_is_removed(engine: &Engine) {
    with_real_runtime(async |runtime| {
        let route = engine.route();
        let (holder, other) = (engine.peer(&runtime, LONG).await, route.peer(&runtime, LONG).await);
        let held = holder.within("the candidate leads", holder.selector("one", Trust::UntilLost).lead()).await.unwrap();
        other.tree().await;
        route.lose_response(PLACE);
        let selector = other.selector("two", Trust::UntilLost);
        let mut waiting = selector.lead().boxed();
        holder
            .until("the place is created", async || {
                assert!((&mut waiting).now_or_never().is_none(), "another candidate leads");
                holder.nodes().await.len() == 2
            })
            .await;
        assert!(route.has_lost_response());
        drop(waiting);
        let next = holder.selector("three", Trust::UntilLost);
        let mut waiting = next.lead().boxed();
        holder
            .until("another place is behind it", async || {
                assert!((&mut waiting).now_or_never().is_none(), "another candidate leads");
                holder.nodes().await.len() == 3
            })
            .await;
        let mended = runtime.monotonic();
        route.cut(false);
        held.release().await;
        let held = holder.within("the candidate leads", waiting).await.unwrap();
        let took = runtime.monotonic().since(mended);
        assert!(took < LONG / 2, "the place must be removed before its session ends: {took:?}");
        assert_eq!(holder.nodes().await.len(), 1);
        held.release().await;
    });
}

fn a4_killed_process_blocks_others_for_at_most_its_session(engine: &Engine) {
    let (route, group) = (engine.route(), Group::new(SESSION));
    with_real_runtime(async |runtime| {
        // The test creates the parent node first, so the first request with the text `PLACE` creates the candidate's
        // node.
        let tree = engine.peer(&runtime, SESSION).await.tree().await;
        tree.create(&path("/group"), Bytes::new(), CreateMode::Persistent, Acl::Open).await.unwrap();
    });
    route.lose_response(PLACE);
    let mut dying = group.start(&route.url, "dying");
    until("the place is created", || {
        let is_created =
            with_real_runtime(async |runtime| engine.peer(&runtime, SESSION).await.nodes().await.len() == 1);
        (route.has_lost_response() && is_created).then_some(())
    });
    dying.kill();
    let killed = now();
    let _next = group.start(&engine.url(), "next");
    let leader = group.history.leader_after(0);
    assert_eq!(leader.id, "next");
    let took = leader.start.saturating_sub(killed);
    assert!(took <= (SESSION + BOUND).as_nanos(), "the next candidate was blocked for {took} ns");
    group.history.assert_exclusive();
}

fn a4_kills_during_acquisition_do_not_block_others(engine: &Engine) {
    let group = Group::new(SESSION);
    for round in 0..12 {
        let mut dying = group.start(&engine.url(), "dying");
        // The delay before the kill grows with each round. The kill therefore interrupts different steps of the
        // acquisition: the opening of the session, the creation of the place, or the leadership.
        std::thread::sleep(Duration::from_millis(5 * round));
        dying.kill();
    }
    let killed = now();
    let _next = group.start(&engine.url(), "next");
    let leader =
        until("the next candidate leads", || group.history.leaderships().pop().filter(|last| last.id == "next"));
    let took = leader.start.saturating_sub(killed);
    assert!(took <= (SESSION + BOUND).as_nanos(), "the next candidate was blocked for {took} ns");
    group.history.leader_after(leader.term - 1);
    group.history.assert_exclusive();
}
