//! No two owners at a time: of one poller, no attempt of an older term starts after one of a newer, and a term is one member's.
//!
//! A poller's shard has one owner, so this shows it for the shard as often as something of the poller fires.

use std::collections::BTreeMap;

use super::super::log::Callback;
use super::{Broken, Promise, Records, Verdict};

pub(super) fn judge(records: &Records, verdict: &mut Verdict) {
    let mut pollers: BTreeMap<i64, Vec<&Callback>> = BTreeMap::new();
    for (token, story) in &records.stories {
        if let Some(poller) = records.pollers.get(token) {
            pollers.entry(*poller).or_default().extend(&story.callbacks);
        }
    }
    for (poller, mut callbacks) in pollers {
        callbacks.sort_by_key(|callback| (callback.started_ms, callback.term));
        judge_poller(poller, &callbacks, verdict);
    }
}

fn judge_poller(poller: i64, callbacks: &[&Callback], verdict: &mut Verdict) {
    let mut owners: BTreeMap<u64, &Callback> = BTreeMap::new();
    let mut newest: Option<&Callback> = None;
    for callback in callbacks {
        let mut broken = |how: String| {
            let token = callback.token.clone();
            verdict.broken.push(Broken { promise: Promise::OneOwnerAtATime, token, how });
        };
        let first = owners.entry(callback.term).or_insert(callback);
        if first.from != callback.from {
            let (term, one, other) = (callback.term, &first.from, &callback.from);
            broken(format!("poller {poller}: {one} and {other} both have term {term}"));
        }
        if let Some(before) = newest {
            verdict.compared += 1;
            verdict.risen += u64::from(callback.term > before.term);
            if callback.term < before.term && callback.started_ms > before.started_ms {
                let how = format!(
                    "poller {poller}: term {} of {} started at {}, when term {} of {} had since {}",
                    callback.term, callback.from, callback.started_ms, before.term, before.from, before.started_ms
                );
                verdict.broken.push(Broken { promise: Promise::OneOwnerAtATime, token: callback.token.clone(), how });
            }
        }
        // The first of its term is what later ones of older terms are compared with.
        if newest.is_none_or(|before| callback.term > before.term) {
            newest = Some(callback);
        }
    }
}
