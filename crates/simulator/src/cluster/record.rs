//! Record of the ownership of each shard over time, as an observer outside the cluster sees it. The record also
//! contains the violations that the checks have found.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::{Incarnation, ShardId, Term, Timestamp};
use membership::MemberId;

use super::CLOCK_OFFSET_MAX;
use super::net::Net;
use crate::{Handle, History};

/// Time for which a member tries to send an outcome to a shard without an owner, minus a margin.
const OWNERLESS_MAX: Duration = Duration::from_secs(8);
/// Largest error of a member's measurement of its clock offset. If the offset exceeds the bound by less than this time,
/// it is possible that the member does not detect the offset.
const CLOCK_ERROR_MAX: Duration = Duration::from_millis(300);
/// Longest time in which a member takes shards from a store without long interruptions.
const TAKE_TIME_MAX: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub(super) struct Record {
    sim: Handle,
    net: Net,
    lease: Duration,
    entries: Arc<Mutex<Entries>>,
}

#[derive(Default)]
struct Entries {
    newest_terms: BTreeMap<ShardId, Term>,
    /// All terms that members received.
    terms: BTreeSet<(ShardId, Term)>,
    takes: BTreeMap<ShardId, Vec<Take>>,
    /// For each shard, the instants at which an owner handed the shard over with the list of its attempts in flight.
    handed_over: BTreeMap<ShardId, Vec<Duration>>,
    sessions: BTreeMap<String, MemberId>,
    /// Number of sessions that members have opened in the whole run.
    sessions_opened: u64,
    /// Interruptions of members that the simulation does not record, for example cut links and lost sessions.
    interruptions: BTreeMap<String, Vec<RangeInclusive<Duration>>>,
    homes: BTreeMap<Incarnation, ShardId>,
    /// For each member whose clock offset exceeds the bound, the instant at which the offset began to exceed it.
    clocks_off: BTreeMap<String, Duration>,
    violations: BTreeSet<String>,
}

/// Request of a member for a term of a shard.
struct Take {
    member: String,
    at: Duration,
    /// Instant of the response. `None` if the request got no response.
    took_at: Option<Duration>,
}

impl Record {
    pub(super) fn new(sim: &Handle, net: &Net, lease: Duration) -> Record {
        Record { sim: sim.clone(), net: net.clone(), lease, entries: Arc::default() }
    }

    /// Records that a member requests terms for these shards. The request may still fail.
    pub(super) fn record_take_request(&self, member: &str, shards: &[ShardId]) {
        let at = self.sim.elapsed();
        let mut entries = self.entries();
        for shard in shards {
            entries.takes.entry(*shard).or_default().push(Take { member: member.to_owned(), at, took_at: None });
        }
    }

    pub(super) fn record_take(&self, member: &str, terms: impl IntoIterator<Item = (ShardId, Term)>) {
        let now = self.sim.elapsed();
        let mut entries = self.entries();
        for (shard, term) in terms {
            let request = entries.takes.entry(shard).or_default().iter_mut().rev().find(|take| take.member == member);
            request.expect("every response belongs to a recorded request").took_at = Some(now);
            if !entries.terms.insert((shard, term)) {
                entries
                    .violations
                    .insert(format!("term reused: {member} took {shard:?} under {term:?}, which had an owner"));
            }
            let newest = entries.newest_terms.entry(shard).or_insert(term);
            *newest = term.max(*newest);
        }
    }

    pub(super) fn record_hand_over(&self, shards: impl IntoIterator<Item = ShardId>) {
        let now = self.sim.elapsed();
        let mut entries = self.entries();
        shards.into_iter().for_each(|shard| entries.handed_over.entry(shard).or_default().push(now));
    }

    pub(super) fn newest_term(&self, shard: ShardId) -> Option<Term> {
        self.entries().newest_terms.get(&shard).copied()
    }

    /// Records the response to a member's request to join.
    pub(super) fn record_join(&self, member: &str, id: MemberId) {
        let now = self.sim.elapsed();
        let mut entries = self.entries();
        match entries.sessions.insert(member.to_owned(), id) {
            Some(known) if known == id => return,
            // The member's previous session ended without an orderly stop, for example because the store or the
            // coordination engine did not respond in time. The member has lost the shards that it had not released.
            Some(_) => {
                let lost = now.saturating_sub(2 * self.lease)..=now;
                entries.interruptions.entry(member.to_owned()).or_default().push(lost);
            }
            None => {}
        }
        entries.sessions_opened += 1;
        self.sim.note(&format!("{member} joined as {id}"));
    }

    /// Records an orderly stop: the member has released its shards.
    pub(super) fn record_stop(&self, member: &str) {
        self.entries().sessions.remove(member);
    }

    pub(super) fn sessions_opened(&self) -> u64 {
        self.entries().sessions_opened
    }

    /// Records that other members may repeat the attempts that `member` had in flight during this time.
    pub(super) fn record_interruption(&self, member: &str, during: RangeInclusive<Duration>) {
        self.entries().interruptions.entry(member.to_owned()).or_default().push(during);
    }

    pub(super) fn record_home(&self, incarnation: Incarnation, shard: ShardId) {
        self.entries().homes.insert(incarnation, shard);
    }

    pub(super) fn record_clock_error(&self, member: &str, is_off: bool) {
        let now = self.sim.elapsed();
        let mut entries = self.entries();
        if is_off {
            entries.clocks_off.entry(member.to_owned()).or_insert(now);
        } else {
            entries.clocks_off.remove(member);
        }
    }

    /// Checks the start of a callback of the instant `nominal`. The member that starts the callback must be the only
    /// owner of the shard, and the offset of the member's clock must be within the bound. Even if the member's clock
    /// has just leapt, the callback must not be early by more than this bound, by the clock of the coordination engine.
    pub(super) fn check_start(&self, member: &str, shard: ShardId, nominal: Timestamp) {
        let now = self.sim.elapsed();
        let early = nominal.since(self.sim.outside().now());
        if early > CLOCK_OFFSET_MAX {
            self.record_violation(format!(
                "ahead: {member} fires the instant {nominal} at {now:?}, {early:?} before it by the engine's clock"
            ));
        }
        let off_since = self.entries().clocks_off.get(member).copied();
        // A member measures its clock at every renewal of its lease, and then releases its shards. The release waits until
        // the member has taken the shards that it is about to take. If its clock is behind, callbacks are late until then.
        // While a link between the member and a server is cut, the member can neither measure its clock nor take shards.
        let ends = |of: &Vec<RangeInclusive<Duration>>| of.iter().map(|interruption| *interruption.end()).max();
        let connected_since = self.entries().interruptions.get(member).and_then(ends).unwrap_or_default();
        if off_since.is_some_and(|since| now > since.max(connected_since) + self.lease + TAKE_TIME_MAX) {
            self.record_violation(format!(
                "clock: {member} fires at {now:?}, but its clock offset has exceeded the bound since {off_since:?}"
            ));
        }
        let others = self.owners().remove(&shard).unwrap_or_default();
        if let Some(other) = others.iter().find(|other| *other != member) {
            self.record_violation(format!(
                "two owners: {member} fires a row of {shard:?} at {now:?}, but {other} owns the shard"
            ));
        }
    }

    /// Returns the owners of each shard, according to the members' leases.
    pub(super) fn owners(&self) -> BTreeMap<ShardId, Vec<String>> {
        let mut owners: BTreeMap<ShardId, Vec<String>> = BTreeMap::new();
        for name in self.net.names().into_iter().filter(|name| self.sim.is_up(name)) {
            for shard in self.net.scheduler(&name).map(|scheduler| scheduler.owned()).unwrap_or_default() {
                owners.entry(shard).or_default().push(name.clone());
            }
        }
        owners
    }

    /// Checks that no shard has two owners now.
    pub(super) fn check_owners(&self) {
        let mut shared: BTreeMap<Vec<String>, Vec<u16>> = BTreeMap::new();
        for (shard, owners) in self.owners().into_iter().filter(|(_, owners)| owners.len() > 1) {
            shared.entry(owners).or_default().push(shard.0);
        }
        for (owners, shards) in shared {
            self.record_violation(format!("two owners: {owners:?} at {:?}: {shards:?}", self.sim.elapsed()));
        }
    }

    pub(super) fn record_violation(&self, violation: String) {
        self.sim.note(&violation);
        self.entries().violations.insert(violation);
    }

    /// Reports to the history the periods in which duplicates are permitted. The history already contains the
    /// interruptions of the members that made the attempts. This function adds the interruptions of the owners that had
    /// to wait for the outcomes of these attempts.
    pub(super) fn report_exemptions(&self, history: &History) {
        let entries = self.entries();
        for (incarnation, shard) in &entries.homes {
            let takes = entries.takes.get(shard).map(Vec::as_slice).unwrap_or_default();
            for at in entries.handed_over.get(shard).into_iter().flatten() {
                let next = takes.iter().find(|take| take.at > *at).map_or(Duration::MAX, |take| take.at);
                if next > *at + OWNERLESS_MAX {
                    history.allow_duplicates(*incarnation, *at..=next);
                }
            }
            for (number, take) in takes.iter().enumerate() {
                // The next owner may receive its term some time after its request.
                let next = takes.get(number + 1).map_or(Duration::MAX, |next| next.at);
                let until = next.saturating_add(self.lease);
                let known = self.sim.interruptions(&take.member);
                let more = entries.interruptions.get(&take.member).cloned().unwrap_or_default();
                // An owner whose session ended did not hand over its attempts in flight. It may have no later session.
                let mut handed_over = entries.handed_over.get(shard).into_iter().flatten();
                let is_handed_over = handed_over.any(|at| (take.at..=next).contains(at));
                if takes.get(number + 1).is_some_and(|next| next.member != take.member) && !is_handed_over {
                    history.allow_duplicates(*incarnation, next.saturating_sub(2 * self.lease)..=next);
                }
                // If the response to a member's request for a shard arrives after another member has requested the
                // shard, the shard may move back to the first member.
                if let Some(took_at) = take.took_at.filter(|took_at| *took_at >= next) {
                    let again = takes.iter().find(|later| later.at > took_at);
                    let again_at = again.map_or(Duration::MAX, |again| again.at + self.lease);
                    history.allow_duplicates(*incarnation, take.at..=again_at);
                }
                // A member may take a shard twice in a row. This is valid if another member requested the shard earlier
                // and got no response. The store may have executed that request between the two takes, although the
                // response got lost.
                let unanswered = takes[..number].iter().any(|one| one.member != take.member && one.took_at.is_none());
                if unanswered && takes.get(number + 1).is_some_and(|next| next.member == take.member) {
                    history.allow_duplicates(*incarnation, take.at..=until);
                }
                for one in known.into_iter().chain(more) {
                    let (from, to) = (take.at.max(*one.start()), until.min(*one.end()));
                    if from <= to {
                        history.allow_duplicates(*incarnation, from..=to);
                    }
                }
            }
        }
    }

    /// Checks that the record contains no violation.
    ///
    /// # Panics
    /// Panics if the record contains a violation.
    pub(super) fn check(&self) {
        const SHOWN_MAX: usize = 20;
        let violations = self.entries().violations.clone();
        let shown: Vec<String> = violations.iter().take(SHOWN_MAX).cloned().collect();
        assert!(violations.is_empty(), "{} violations:\n  {}", violations.len(), shown.join("\n  "));
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().expect("no holder of this lock panics")
    }
}

/// Returns true if a member with this clock offset must not own shards.
pub(super) fn is_beyond(ahead_millis: i64) -> bool {
    Duration::from_millis(ahead_millis.unsigned_abs()) > CLOCK_OFFSET_MAX + CLOCK_ERROR_MAX
}
