//! Servers that are killed and started again on their data: A2, and A6 after it.

use coordination::recipes::Trust;
use coordination::tree::Expected;

use crate::candidate::Group;
use crate::engine::{Engine, on_real, path};
use crate::history::now;
use crate::{BOUND, LONG, SESSION};

on_both! {
    a2_terms_rise_over_deletions_and_restarts_of_all_servers
    a1_a6_somebody_leads_again_after_the_servers_were_killed_and_started_again
}

fn a2_terms_rise_over_deletions_and_restarts_of_all_servers(engine: &Engine) {
    let engine = engine.alone();
    let mut terms = Vec::new();
    for restarts in [false, true, false] {
        on_real(async |runtime| {
            for _ in 0..2 {
                let peer = engine.peer(&runtime, LONG).await;
                let held = peer.within("it leads", peer.selector("one", Trust::UntilLost).lead()).await.unwrap();
                terms.push(held.term());
                held.release().await;
                let tree = peer.tree().await;
                // Unless the engine has taken it away itself.
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

fn a1_a6_somebody_leads_again_after_the_servers_were_killed_and_started_again(engine: &Engine) {
    let engine = engine.alone();
    let group = Group::new(SESSION);
    let _all = ["one", "two"].map(|id| group.start(&engine.url(), id));
    let mut term = group.history.leader_after(0).term;
    for restart in [Engine::restart_leader, Engine::restart] {
        restart(&engine);
        let serving = now();
        // The old one, if its session has outlived this, or the next one.
        let leads = crate::until("somebody leads", || {
            let last = group.history.leaderships().pop()?;
            (last.last_live > serving).then_some(last)
        });
        let took = std::time::Duration::from_nanos(u64::try_from(leads.start.saturating_sub(serving)).unwrap());
        assert!(took <= SESSION + BOUND, "{} leads after {took:?}", leads.id);
        assert!(leads.term >= term);
        term = leads.term;
    }
    group.history.is_exclusive();
}
