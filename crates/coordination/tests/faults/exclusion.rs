//! Tests that kill and pause the processes of leaders, and cut their networks. They test criteria A1, A2, A6 and A7 of
//! leader election (see `main.rs`).

use std::time::Duration;

use test_servers::Namespace;

use crate::candidate::{Candidate, Group};
use crate::engine::{Engine, path, with_real_runtime};
use crate::history::{Leadership, now};
use crate::{BOUND, SESSION, until};
use reveille_coordination::tree::Expected;

on_both! {
    a1_a7_cut_off_leader_ends_before_the_next_and_joins_again
    a1_paused_leader_cannot_write_with_its_old_term
    a1_a6_killed_leaders_are_followed_one_by_one
    a2_a7_candidates_rejoin_with_later_terms_after_deletion
}

fn took(from: u128, next: &Leadership) -> Duration {
    Duration::from_nanos(u64::try_from(next.start.saturating_sub(from)).unwrap())
}

#[track_caller]
fn assert_in_time(from: u128, next: &Leadership) {
    let took = took(from, next);
    assert!(took <= SESSION + BOUND, "{} leads after {took:?}", next.id);
}

fn position(all: &[Candidate], id: &str) -> usize {
    all.iter().position(|one| one.id == id).unwrap()
}

fn a1_a7_cut_off_leader_ends_before_the_next_and_joins_again(engine: &Engine) {
    let group = Group::new(SESSION);
    let networks = [Namespace::make().unwrap(), Namespace::make().unwrap()];
    let routes = networks.each_ref().map(|network| engine.route_at(network.host()));
    let names = ["one", "two"];
    let mut all: Vec<Candidate> = (0..2).map(|at| group.start_in(&networks[at], &routes[at].url, names[at])).collect();
    let mut first = group.history.leader_after(0);
    until("both candidates are in the line", || (candidate_count(engine) == 2).then_some(()));
    for _ in 0..2 {
        let at = position(&all, &first.id);
        networks[at].cut(true).unwrap();
        let cut = now();
        let next = group.history.leader_after(first.term);
        assert_ne!(next.id, first.id);
        assert_in_time(cut, &next);
        let ended = group.history.leaderships().into_iter().find(|one| one.term == first.term).unwrap();
        // The engine responded only to requests that the leader sent before the test cut the leader's network. The
        // guard ends four fifths of the session's timeout after the leader sent the last of these requests.
        assert!(ended.last_live <= cut + (SESSION * 4 / 5).as_nanos(), "the leader trusted its guard for too long");

        networks[at].cut(false).unwrap();
        let late = group.history.late_writes_of(first.term);
        assert!(late.values().all(|is_taken| !is_taken), "a late write was accepted: {late:?}");
        until("the former leader is in the line again", || (candidate_count(engine) == 2).then_some(()));
        first = next;
    }
    // The former leader waits in the queue of candidates. It leads after the test kills the present leader.
    let at = position(&all, &first.id);
    all[at].kill();
    let killed = now();
    let next = group.history.leader_after(first.term);
    assert_ne!(next.id, first.id);
    assert_in_time(killed, &next);
    group.history.assert_exclusive();
}

fn a1_paused_leader_cannot_write_with_its_old_term(engine: &Engine) {
    let group = Group::new(SESSION);
    let all = ["one", "two"].map(|id| group.start(&engine.url(), id));
    let first = group.history.leader_after(0);
    until("both candidates are in the line", || (candidate_count(engine) == 2).then_some(()));
    let at = position(&all, &first.id);
    all[at].pause();
    let paused = now();
    let next = group.history.leader_after(first.term);
    assert_ne!(next.id, first.id);
    assert_in_time(paused, &next);
    until("the sink has received the next term", || (group.sink.highest() == next.term).then_some(()));
    all[at].resume();
    let late = group.history.late_writes_of(first.term);
    assert!(late.values().all(|is_taken| !is_taken), "a late write was accepted: {late:?}");
    // The next leader continues to write to the tree after the paused leader resumes.
    let written = group.history.writes_of(next.term);
    until("the next leader writes again", || (group.history.writes_of(next.term) > written).then_some(()));
    let all = group.history.leaderships();
    assert!(
        all.windows(2).all(|pair| pair[0].last_live < pair[1].start),
        "the paused leader trusted its guard: {all:?}"
    );
    group.history.assert_fenced();
}

fn a1_a6_killed_leaders_are_followed_one_by_one(engine: &Engine) {
    let group = Group::new(SESSION);
    let mut all: Vec<Candidate> = ["one", "two", "three"].map(|id| group.start(&engine.url(), id)).into();
    let mut leader = group.history.leader_after(0);
    until("all candidates are in the line", || (candidate_count(engine) == 3).then_some(()));
    for _ in 0..2 {
        let at = position(&all, &leader.id);
        all[at].kill();
        let killed = now();
        let next = group.history.leader_after(leader.term);
        assert_in_time(killed, &next);
        assert!(killed < next.start);
        leader = next;
    }
    group.history.assert_exclusive();
}

/// Deletes the nodes of all candidates, including the leader's node, as an operator may do.
fn a2_a7_candidates_rejoin_with_later_terms_after_deletion(engine: &Engine) {
    let group = Group::new(SESSION);
    let _all = ["one", "two", "three"].map(|id| group.start(&engine.url(), id));
    let mut leader = group.history.leader_after(0);
    for _ in 0..3 {
        until("all candidates are in the line", || (candidate_count(engine) == 3).then_some(()));
        with_real_runtime(async |runtime| {
            let operator = engine.peer(&runtime, SESSION).await;
            let tree = operator.tree().await;
            for name in operator.nodes().await {
                drop(tree.delete(&path(&format!("/group/{name}")), Expected::Any).await);
            }
            // The deletion of `/group` fails if a candidate has already joined the queue again.
            drop(tree.delete(&path("/group"), Expected::Any).await);
            operator.close().await;
        });
        leader = group.history.leader_after(leader.term);
    }
    until("all candidates are in the line", || (candidate_count(engine) == 3).then_some(()));
    // A leader does not know at once that the operator deleted its node, but the tree rejects the leader's later
    // writes.
    group.history.assert_fenced();
}

/// Returns the number of candidates in the queue, including the leader.
fn candidate_count(engine: &Engine) -> usize {
    with_real_runtime(async |runtime| {
        let peer = engine.peer(&runtime, SESSION).await;
        let count = peer.nodes().await.len();
        peer.close().await;
        count
    })
}
