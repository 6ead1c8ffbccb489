//! Checks that a shard never has two owners at the same time. In the callbacks of one poller, no attempt of an older
//! term may start after an attempt of a newer term, and all attempts of one term must belong to one member.
//!
//! A poller belongs to one shard, so each callback of the poller is evidence about the shard's owner.

use std::collections::BTreeMap;

use super::super::log::Callback;
use super::losses::Failover;
use super::{Promise, Records, Verdict, Violation};

pub(super) fn judge(records: &Records, verdict: &mut Verdict) {
    let mut pollers: BTreeMap<i64, Vec<&Callback>> = BTreeMap::new();
    for (token, history) in &records.histories {
        if let Some(poller) = records.pollers.get(token) {
            pollers.entry(*poller).or_default().extend(&history.callbacks);
        }
    }
    for (poller, mut callbacks) in pollers {
        callbacks.sort_by_key(|callback| (callback.started_ms, callback.term));
        judge_poller(poller, &callbacks, &records.failovers, verdict);
    }
}

fn judge_poller(poller: i64, callbacks: &[&Callback], failovers: &[Failover], verdict: &mut Verdict) {
    let mut owners: BTreeMap<u64, &Callback> = BTreeMap::new();
    let mut newest: Option<&Callback> = None;
    for callback in callbacks {
        let mut broken = |how: String| {
            let token = callback.token.clone();
            verdict.broken.push(Violation { promise: Promise::OneOwnerAtATime, token, how });
        };
        let first = owners.entry(callback.term).or_insert(callback);
        // If the sender of a record is unknown, all callbacks of its term are records.
        if first.from != callback.from {
            let (term, one, other) = (callback.term, &first.from, &callback.from);
            broken(format!("poller {poller}: the members {one} and {other} both sent callbacks with term {term}"));
        }
        if let Some(before) = newest {
            verdict.compared += 1;
            verdict.term_rises += u64::from(callback.term > before.term);
            if callback.term < before.term && callback.started_ms > before.started_ms {
                let has_failed_over =
                    |one: &Failover| one.is_by_earlier_owner(callback) && one.lost.until_ms <= before.started_ms;
                if failovers.iter().any(has_failed_over) {
                    verdict.overlapping += 1;
                    continue;
                }
                let how = format!(
                    "poller {poller}: member {} started an attempt with term {} at {} ms since 1970, after member {} \
                     had started an attempt with the newer term {} at {} ms",
                    callback.from, callback.term, callback.started_ms, before.from, before.term, before.started_ms
                );
                verdict.broken.push(Violation {
                    promise: Promise::OneOwnerAtATime,
                    token: callback.token.clone(),
                    how,
                });
            }
        }
        // The check compares the later callbacks with the first callback of the newest term.
        if newest.is_none_or(|before| callback.term > before.term) {
            newest = Some(callback);
        }
    }
}
