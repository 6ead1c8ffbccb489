//! Who owned which shard when, as nobody in the cluster sees it, and what of that must not be.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::{Incarnation, ShardId, Term};
use membership::MemberId;

use super::CLOCK_OFFSET_MAX;
use super::net::Net;
use crate::{Handle, Ledger};

/// An outcome that is to be told to a next owner waits for one so long, and a little less.
const OWNERLESS_MAX: Duration = Duration::from_secs(8);
/// A clock that is beyond the bound by less than this may not be noticed: a measurement has its doubt.
const CLOCK_DOUBT: Duration = Duration::from_millis(300);

#[derive(Clone)]
pub(super) struct Record {
    sim: Handle,
    net: Net,
    lease: Duration,
    book: Arc<Mutex<Book>>,
}

#[derive(Default)]
struct Book {
    newest: BTreeMap<ShardId, Term>,
    takes: BTreeMap<ShardId, Vec<Take>>,
    /// When a list of what is in flight was written.
    handed_over: BTreeMap<ShardId, Vec<Duration>>,
    sessions: BTreeMap<String, MemberId>,
    /// Sessions that were opened, ever.
    sessions_opened: u64,
    /// Beside those that the simulation knows of.
    interruptions: BTreeMap<String, Vec<RangeInclusive<Duration>>>,
    homes: BTreeMap<Incarnation, ShardId>,
    /// Since when a member's clock is beyond the bound.
    clocks_off: BTreeMap<String, Duration>,
    broken: BTreeSet<String>,
}

/// A member asks for a term.
struct Take {
    member: String,
    at: Duration,
    /// When it was answered.
    took_at: Option<Duration>,
}

impl Record {
    pub(super) fn new(sim: &Handle, net: &Net, lease: Duration) -> Record {
        Record { sim: sim.clone(), net: net.clone(), lease, book: Arc::default() }
    }

    /// It is about to; whether it comes to that or not.
    pub(super) fn takes(&self, member: &str, shards: &[ShardId]) {
        let at = self.sim.elapsed();
        let mut book = self.book();
        for shard in shards {
            book.takes.entry(*shard).or_default().push(Take { member: member.to_owned(), at, took_at: None });
        }
    }

    pub(super) fn took(&self, member: &str, terms: impl IntoIterator<Item = (ShardId, Term)>) {
        let now = self.sim.elapsed();
        let mut book = self.book();
        for (shard, term) in terms {
            let asked = book.takes.entry(shard).or_default().iter_mut().rev().find(|take| take.member == member);
            asked.expect("a take is answered that was asked for").took_at = Some(now);
            let newest = book.newest.entry(shard).or_insert(term);
            *newest = term.max(*newest);
        }
    }

    pub(super) fn hands_over(&self, shards: impl IntoIterator<Item = ShardId>) {
        let now = self.sim.elapsed();
        let mut book = self.book();
        shards.into_iter().for_each(|shard| book.handed_over.entry(shard).or_default().push(now));
    }

    pub(super) fn newest(&self, shard: ShardId) -> Option<Term> {
        self.book().newest.get(&shard).copied()
    }

    /// A join is answered.
    pub(super) fn joined(&self, member: &str, id: MemberId) {
        let now = self.sim.elapsed();
        let mut book = self.book();
        match book.sessions.insert(member.to_owned(), id) {
            Some(known) if known == id => return,
            // What it held under another, if it did not give it back, it lost: the store or the engine did not answer in time.
            Some(_) => {
                let lost = now.saturating_sub(2 * self.lease)..=now;
                book.interruptions.entry(member.to_owned()).or_default().push(lost);
            }
            None => {}
        }
        book.sessions_opened += 1;
        self.sim.note(&format!("{member} joined as {id}"));
    }

    /// It stops in good order: what it held is given back.
    pub(super) fn stopped(&self, member: &str) {
        self.book().sessions.remove(member);
    }

    pub(super) fn sessions_opened(&self) -> u64 {
        self.book().sessions_opened
    }

    /// What `member` has in flight may come again.
    pub(super) fn interrupted(&self, member: &str, during: RangeInclusive<Duration>) {
        self.book().interruptions.entry(member.to_owned()).or_default().push(during);
    }

    pub(super) fn lives_at(&self, incarnation: Incarnation, shard: ShardId) {
        self.book().homes.insert(incarnation, shard);
    }

    pub(super) fn clock_is_off(&self, member: &str, is_off: bool) {
        let now = self.sim.elapsed();
        let mut book = self.book();
        if is_off {
            book.clocks_off.entry(member.to_owned()).or_insert(now);
        } else {
            book.clocks_off.remove(member);
        }
    }

    /// A callback begins: its member must be the one owner, and know the time.
    pub(super) fn begins(&self, member: &str, shard: ShardId) {
        let now = self.sim.elapsed();
        let off_since = self.book().clocks_off.get(member).copied();
        // Every renewal measures, and without one the lease is over.
        if off_since.is_some_and(|since| now > since + self.lease) {
            self.broken(format!("clock: {member} fires at {now:?}, its clock is beyond the bound since {off_since:?}"));
        }
        let others = self.owners().remove(&shard).unwrap_or_default();
        if let Some(other) = others.iter().find(|other| *other != member) {
            self.broken(format!("two owners: {member} fires of {shard:?} at {now:?}, which is {other}'s"));
        }
    }

    /// Who owns each shard, as the leases say.
    pub(super) fn owners(&self) -> BTreeMap<ShardId, Vec<String>> {
        let mut owners: BTreeMap<ShardId, Vec<String>> = BTreeMap::new();
        for name in self.net.names().into_iter().filter(|name| self.sim.is_up(name)) {
            for shard in self.net.scheduler(&name).map(|scheduler| scheduler.owned()).unwrap_or_default() {
                owners.entry(shard).or_default().push(name.clone());
            }
        }
        owners
    }

    /// No shard has two owners now.
    pub(super) fn look(&self) {
        let mut shared: BTreeMap<Vec<String>, Vec<u16>> = BTreeMap::new();
        for (shard, owners) in self.owners().into_iter().filter(|(_, owners)| owners.len() > 1) {
            shared.entry(owners).or_default().push(shard.0);
        }
        for (owners, shards) in shared {
            self.broken(format!("two owners: {owners:?} at {:?}: {shards:?}", self.sim.elapsed()));
        }
    }

    pub(super) fn broken(&self, what: String) {
        self.sim.note(&what);
        self.book().broken.insert(what);
    }

    /// Tells the ledger what was interrupted, beside the members that made the attempts: whoever had a schedule's shard
    /// was to wait for their outcomes.
    pub(super) fn tell_excuses(&self, ledger: &Ledger) {
        let book = self.book();
        for (incarnation, shard) in &book.homes {
            let takes = book.takes.get(shard).map(Vec::as_slice).unwrap_or_default();
            for at in book.handed_over.get(shard).into_iter().flatten() {
                let next = takes.iter().find(|take| take.at > *at).map_or(Duration::MAX, |take| take.at);
                if next > *at + OWNERLESS_MAX {
                    ledger.excuse(*incarnation, *at..=next);
                }
            }
            for (number, take) in takes.iter().enumerate() {
                // It may be a while until the next one has its term.
                let next = takes.get(number + 1).map_or(Duration::MAX, |next| next.at);
                let until = next.saturating_add(self.lease);
                let known = self.sim.interruptions(&take.member);
                let more = book.interruptions.get(&take.member).cloned().unwrap_or_default();
                // One that comes late, after another's, takes the shard from the one that has it.
                if let Some(took_at) = take.took_at.filter(|took_at| *took_at >= next) {
                    let again = takes.iter().find(|later| later.at > took_at);
                    ledger.excuse(*incarnation, take.at..=again.map_or(Duration::MAX, |again| again.at + self.lease));
                }
                // Who takes a shard again that nobody else has taken since, lost it to one whose answer never came.
                let unanswered = takes[..number].iter().any(|one| one.member != take.member && one.took_at.is_none());
                if unanswered && takes.get(number + 1).is_some_and(|next| next.member == take.member) {
                    ledger.excuse(*incarnation, take.at..=until);
                }
                for one in known.into_iter().chain(more) {
                    let (from, to) = (take.at.max(*one.start()), until.min(*one.end()));
                    if from <= to {
                        ledger.excuse(*incarnation, from..=to);
                    }
                }
            }
        }
    }

    /// # Panics
    /// If anything was broken.
    pub(super) fn check(&self) {
        const SHOWN_MAX: usize = 20;
        let broken = self.book().broken.clone();
        let shown: Vec<String> = broken.iter().take(SHOWN_MAX).cloned().collect();
        assert!(broken.is_empty(), "{} broken:\n  {}", broken.len(), shown.join("\n  "));
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no holder of this lock panics")
    }
}

/// Whether nobody may take shards whose clock is so far off.
pub(super) fn is_beyond(ahead_millis: i64) -> bool {
    Duration::from_millis(ahead_millis.unsigned_abs()) > CLOCK_OFFSET_MAX + CLOCK_DOUBT
}
