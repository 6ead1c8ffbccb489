//! Leaders that are killed, stopped, and cut off: A1, and with it A6 and A7 of processes.

use std::time::Duration;

use test_servers::Namespace;

use crate::candidate::{Candidate, Group};
use crate::engine::{Engine, on_real, path};
use crate::history::{Leadership, now};
use crate::{BOUND, SESSION, until};
use coordination::tree::Expected;

on_both! {
    a1_a7_a_leader_that_is_cut_off_is_over_before_the_next_begins_and_stands_again
    a1_a_leader_that_stood_still_past_its_session_writes_nothing_with_its_old_term
    a1_a6_leaders_that_are_killed_are_followed_one_by_one
    a2_a7_candidates_stand_again_under_later_terms_when_their_line_is_deleted
}

fn took(from: u128, next: &Leadership) -> Duration {
    Duration::from_nanos(u64::try_from(next.start.saturating_sub(from)).unwrap())
}

#[track_caller]
fn is_in_time(from: u128, next: &Leadership) {
    let took = took(from, next);
    assert!(took <= SESSION + BOUND, "{} leads after {took:?}", next.id);
}

fn position(all: &[Candidate], id: &str) -> usize {
    all.iter().position(|one| one.id == id).unwrap()
}

fn a1_a7_a_leader_that_is_cut_off_is_over_before_the_next_begins_and_stands_again(engine: &Engine) {
    let group = Group::new(SESSION);
    let networks = [Namespace::make().unwrap(), Namespace::make().unwrap()];
    let ways = networks.each_ref().map(|network| engine.way_at(network.host()));
    let names = ["one", "two"];
    let mut all: Vec<Candidate> = (0..2).map(|at| group.start_in(&networks[at], &ways[at].url, names[at])).collect();
    let mut first = group.history.leader_after(0);
    until("both stand", || (standing(engine) == 2).then_some(()));
    for _ in 0..2 {
        let at = position(&all, &first.id);
        networks[at].cut(true).unwrap();
        let cut = now();
        let next = group.history.leader_after(first.term);
        assert_ne!(next.id, first.id);
        is_in_time(cut, &next);
        let over = group.history.leaderships().into_iter().find(|one| one.term == first.term).unwrap();
        // It was answered for the last time before it was cut off, and asked that before.
        assert!(over.last_live <= cut + (SESSION * 3 / 4).as_nanos(), "it relied on its hold for too long");

        networks[at].cut(false).unwrap();
        let late = group.history.late_writes_of(first.term);
        assert!(late.values().all(|is_taken| !is_taken), "what it wrote late was taken: {late:?}");
        until("it stands again", || (standing(engine) == 2).then_some(()));
        first = next;
    }
    // It was at the end of the line, and its turn comes.
    let at = position(&all, &first.id);
    all[at].kill();
    let killed = now();
    let next = group.history.leader_after(first.term);
    assert_ne!(next.id, first.id);
    is_in_time(killed, &next);
    group.history.is_exclusive();
}

fn a1_a_leader_that_stood_still_past_its_session_writes_nothing_with_its_old_term(engine: &Engine) {
    let group = Group::new(SESSION);
    let all = ["one", "two"].map(|id| group.start(&engine.url(), id));
    let first = group.history.leader_after(0);
    until("both stand", || (standing(engine) == 2).then_some(()));
    let at = position(&all, &first.id);
    all[at].pause();
    let paused = now();
    let next = group.history.leader_after(first.term);
    assert_ne!(next.id, first.id);
    is_in_time(paused, &next);
    until("the sink has heard of it", || (group.sink.highest() == next.term).then_some(()));
    all[at].resume();
    let late = group.history.late_writes_of(first.term);
    assert!(late.values().all(|is_taken| !is_taken), "what it wrote late was taken: {late:?}");
    // The next one goes on.
    let written = group.history.writes_of(next.term);
    until("it goes on", || (group.history.writes_of(next.term) > written).then_some(()));
    let all = group.history.leaderships();
    assert!(all.windows(2).all(|pair| pair[0].last_live < pair[1].start), "it relied on its hold: {all:?}");
    group.history.is_fenced();
}

fn a1_a6_leaders_that_are_killed_are_followed_one_by_one(engine: &Engine) {
    let group = Group::new(SESSION);
    let mut all: Vec<Candidate> = ["one", "two", "three"].map(|id| group.start(&engine.url(), id)).into();
    let mut leader = group.history.leader_after(0);
    until("all stand", || (standing(engine) == 3).then_some(()));
    for _ in 0..2 {
        let at = position(&all, &leader.id);
        all[at].kill();
        let killed = now();
        let next = group.history.leader_after(leader.term);
        is_in_time(killed, &next);
        assert!(killed < next.start);
        leader = next;
    }
    group.history.is_exclusive();
}

/// An operator takes everything away below the leader's feet.
fn a2_a7_candidates_stand_again_under_later_terms_when_their_line_is_deleted(engine: &Engine) {
    let group = Group::new(SESSION);
    let _all = ["one", "two", "three"].map(|id| group.start(&engine.url(), id));
    let mut leader = group.history.leader_after(0);
    for _ in 0..3 {
        until("all stand", || (standing(engine) == 3).then_some(()));
        on_real(async |runtime| {
            let operator = engine.peer(&runtime, SESSION).await;
            let tree = operator.tree().await;
            for name in operator.nodes().await {
                drop(tree.delete(&path(&format!("/group/{name}")), Expected::Any).await);
            }
            // Unless somebody stands there again.
            drop(tree.delete(&path("/group"), Expected::Any).await);
            operator.close().await;
        });
        leader = group.history.leader_after(leader.term);
    }
    until("all stand", || (standing(engine) == 3).then_some(()));
    // Who leads cannot know that its node will be taken away; its fence does.
    group.history.is_fenced();
}

/// How many stand for leader.
fn standing(engine: &Engine) -> usize {
    on_real(async |runtime| {
        let peer = engine.peer(&runtime, SESSION).await;
        let count = peer.nodes().await.len();
        peer.close().await;
        count
    })
}
