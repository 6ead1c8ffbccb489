//! Tests that kill servers and restart them with their data. They test criteria A1, A2 and A6 of leader election (see
//! `main.rs`).

use reveille_coordination::recipes::Trust;
use reveille_coordination::tree::Expected;

use crate::candidate::Group;
use crate::engine::{Engine, path, with_real_runtime};
use crate::history::now;
use crate::{BOUND, LONG, SESSION};

on_both! {
    a2_terms_rise_across_deletions_and_restarts
    a1_a6_leadership_resumes_after_servers_are_killed
}

fn a2_terms_rise_across_deletions_and_restarts(engine: &Engine) {
    let engine = engine.exclusive();
    let mut terms = Vec::new();
    for restarts in [false, true, false] {
        with_real_runtime(async |runtime| {
            for _ in 0..2 {
                let peer = engine.peer(&runtime, LONG).await;
                let held =
                    peer.within("the candidate leads", peer.selector("one", Trust::UntilLost).lead()).await.unwrap();
                terms.push(held.term());
                held.release().await;
                let tree = peer.tree().await;
                // The deletion of `/group` fails if the engine has already removed this container node.
                drop(tree.delete(&path("/group"), Expected::Any).await);
                peer.close().await;
            }
        });
        if restarts {
            engine.restart();
        }
    }
    assert!(terms.is_sorted_by(|one, next| one < next), "{terms:?}");
}

fn a1_a6_leadership_resumes_after_servers_are_killed(engine: &Engine) {
    let engine = engine.exclusive();
    let group = Group::new(SESSION);
    let _all = ["one", "two"].map(|id| group.start(&engine.url(), id));
    let mut term = group.history.leader_after(0).term;
    for restart in [Engine::restart_leader, Engine::restart] {
        restart(&engine);
        let serving = now();
        // The old leader still leads if its session has survived the restart. Otherwise the next candidate leads.
        let leads = crate::until("a candidate leads", || {
            let last = group.history.leaderships().pop()?;
            (last.last_live > serving).then_some(last)
        });
        let took = std::time::Duration::from_nanos(u64::try_from(leads.start.saturating_sub(serving)).unwrap());
        assert!(took <= SESSION + BOUND, "{} leads after {took:?}", leads.id);
        assert!(leads.term >= term);
        term = leads.term;
    }
    group.history.assert_exclusive();
}
