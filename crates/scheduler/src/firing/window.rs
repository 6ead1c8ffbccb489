//! What the owner knows of the near future: keys, by poller and by millisecond, and how far each poller is accounted for.
//!
//! Pure: it is told what was read and what ended, and asked what to read, close and fire. A poller's stretch of time
//! goes through four borders, each behind the one before:
//!
//! - `read_to`: rows up to here were read ahead into the window;
//! - `closed`: durable; creators put no row at or before it any more;
//! - `checked`: after `closed` was durable the rows up to here were read *again*, so that none can be missing. It moves by
//!   pages, as there is room, and so may lie within an instant;
//! - `done`: durable; every occurrence up to here has its outcome, and nothing up to here is ever read again.
//!
//! Always true here: a key is known once, whatever number of times its row is read, until `checked` has passed it and
//! it is resolved; `done` never passes an open key.
//!
//! Shards come and go. Of one that has gone nothing is left but the numbers of keys that others hold still: see
//! [`Window::release`].

mod closing;
mod reading;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, BuildHasherDefault};
use std::time::Duration;

use domain::{DueKey, Occurrence, PollerId, ShardId, TenantId, Timestamp};
use hashbrown::HashTable;
use rustc_hash::FxHasher;
use slab::Slab;
use store::{Arrival, DueBound, Positions};

use crate::cluster::shards::ShardTerm;
use crate::firing::wheel::Wheel;
use crate::options::Options;

/// The grain of closing: positions move over whole buckets of this many milliseconds.
const BUCKET_MILLIS: i64 = 128;
/// Rows that one read of one poller brings at most.
const PAGE_KEYS: usize = 2_048;
/// And at least, if its tenant has room for so many.
const PAGE_KEYS_MIN: usize = 16;

/// A key in the window, by its number.
pub(crate) type EntryId = u32;
/// A poller in the window, by its number; one that comes back has another.
pub(crate) type PollerIndex = u32;

#[derive(Debug)]
pub(crate) struct Window {
    ahead: Duration,
    keys_max: usize,
    entries: Slab<Entry>,
    /// Entries by occurrence; of two for one occurrence, the later row.
    index: HashTable<EntryId>,
    wheel: Wheel,
    pollers: BTreeMap<PollerIndex, Poller>,
    next_index: PollerIndex,
    by_id: BTreeMap<PollerId, PollerIndex>,
    /// Keys of each tenant, the resolved ones among them included.
    held: BTreeMap<TenantId, usize>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) key: DueKey,
    pub(crate) poller: PollerIndex,
    state: State,
    /// The key of an earlier attempt of the same occurrence that is open: the latest of them.
    earlier: Option<EntryId>,
}

/// Whether a key may start now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MayStart {
    Yes,
    /// The row of a later attempt is durable: this attempt was made, by an owner that ended before it could say so.
    Superseded,
    /// An earlier attempt of the occurrence has not ended.
    NotYet,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Waiting, queued, or in flight.
    Open,
    /// Its outcome, or its next attempt's row, is durable.
    Resolved,
    /// The same row is durable at a later position.
    Deferred { to: Timestamp },
    /// Its shard was let go of while it was open; its number is free once whoever holds it gives it back.
    Gone,
}

#[derive(Debug)]
struct Poller {
    id: PollerId,
    shard_term: ShardTerm,
    read_to: DueBound,
    /// The position of the first row after `read_to`, as far as is known.
    next: Option<Timestamp>,
    /// The end of the read ahead that is under way.
    reading: Option<Timestamp>,
    /// The first row beyond the read under way that arrived meanwhile, and is perhaps not seen by it.
    arrived: Option<Timestamp>,
    /// A row at or before `read_to` for which there was no room when it arrived.
    missed: Option<Timestamp>,
    closed: Timestamp,
    closing: bool,
    checked: DueBound,
    done: Timestamp,
    /// Open keys by bucket; a bucket without any is not there.
    open: BTreeMap<i64, u32>,
    /// Resolved keys that a second read may still bring, by bucket.
    resolved: BTreeMap<i64, Vec<EntryId>>,
}

/// What a read of due rows is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadKind {
    Ahead,
    /// The second read, after `closed` became durable.
    Check,
}

fn bucket(at: Timestamp) -> i64 {
    at.as_millis().div_euclid(BUCKET_MILLIS)
}

fn bucket_end(bucket: i64) -> Timestamp {
    Timestamp::from_millis(bucket * BUCKET_MILLIS + BUCKET_MILLIS - 1)
}

fn hash(occurrence: &Occurrence) -> u64 {
    BuildHasherDefault::<FxHasher>::default().hash_one(occurrence)
}

fn instant_of(bound: DueBound) -> Timestamp {
    match bound {
        DueBound::Instant(instant) => instant,
        DueBound::Key(key) => key.position,
    }
}

impl Window {
    pub(crate) fn new(options: &Options, now: Timestamp) -> Self {
        Window {
            ahead: options.window_ahead,
            // A page for one tenant, and as much left over.
            keys_max: options.window_keys_max.max(2 * PAGE_KEYS),
            entries: Slab::new(),
            index: HashTable::new(),
            wheel: Wheel::new(now),
            pollers: BTreeMap::new(),
            next_index: 0,
            by_id: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    /// Begins to serve a poller, from its durable `done`.
    pub(crate) fn add_poller(&mut self, id: PollerId, shard_term: ShardTerm, positions: Positions) {
        assert!(positions.done <= positions.closed, "done is never past closed");
        let index = self.next_index;
        self.next_index = index.checked_add(1).expect("fewer than 2^32 pollers come and go");
        let known = self.by_id.insert(id, index);
        assert!(known.is_none(), "a poller is added once");
        let poller = Poller {
            id,
            shard_term,
            read_to: DueBound::Instant(positions.done),
            next: Some(positions.done),
            reading: None,
            arrived: None,
            missed: None,
            closed: positions.closed,
            closing: false,
            checked: DueBound::Instant(positions.done),
            done: positions.done,
            open: BTreeMap::new(),
            resolved: BTreeMap::new(),
        };
        self.pollers.insert(index, poller);
    }

    pub(crate) fn has_poller(&self, id: PollerId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Forgets the pollers of these shards and all their keys. Open keys are gone from here on ([`Window::is_gone`]), but
    /// keep their numbers, as they wait in the wheel, in a queue or for an outcome: what comes out of the wheel is freed
    /// here, everything else by whoever holds it, with [`Window::free`] or by settling it.
    pub(crate) fn release(&mut self, shards: &BTreeSet<ShardId>) {
        let leaving = |poller: &Poller| shards.contains(&poller.id.shard());
        let left: BTreeMap<PollerIndex, TenantId> = (self.pollers.iter())
            .filter(|(_, poller)| leaving(poller))
            .map(|(index, poller)| (*index, poller.id.tenant))
            .collect();
        self.pollers.retain(|index, _| !left.contains_key(index));
        self.by_id.retain(|_, index| !left.contains_key(index));
        let of_left = self.entries.iter().filter(|(_, entry)| left.contains_key(&entry.poller));
        let ids: Vec<EntryId> = of_left.map(|(id, _)| EntryId::try_from(id).expect("numbers are 32 bits")).collect();
        for id in ids {
            self.leave_index(id);
            let entry = &mut self.entries[id as usize];
            if entry.state != State::Gone {
                uncount(&mut self.held, left[&entry.poller]);
            }
            match entry.state {
                State::Open => entry.state = State::Gone,
                State::Resolved | State::Deferred { .. } => {
                    self.entries.remove(id as usize);
                }
                State::Gone => {}
            }
        }
    }

    pub(crate) fn is_gone(&self, id: EntryId) -> bool {
        self.entries[id as usize].state == State::Gone
    }

    /// Whoever held this key, which is gone, holds it no more.
    pub(crate) fn free(&mut self, id: EntryId) {
        let entry = self.entries.remove(id as usize);
        assert_eq!(entry.state, State::Gone, "only what is gone is freed");
    }

    /// How many of the tenant's pollers are served here.
    pub(crate) fn pollers_of(&self, tenant: TenantId) -> u32 {
        let first = PollerId { tenant, generation: 0, number: 0 };
        let last = PollerId { tenant, generation: u16::MAX, number: u16::MAX };
        u32::try_from(self.by_id.range(first..=last).count()).unwrap_or(u32::MAX)
    }

    pub(crate) fn poller(&self, index: PollerIndex) -> (PollerId, ShardTerm) {
        let poller = &self.pollers[&index];
        (poller.id, poller.shard_term)
    }

    /// Under what a poller is served, if it is.
    pub(crate) fn shard_term(&self, id: PollerId) -> Option<ShardTerm> {
        self.by_id.get(&id).map(|index| self.pollers[index].shard_term)
    }

    pub(crate) fn entry(&self, id: EntryId) -> &Entry {
        &self.entries[id as usize]
    }

    /// Keys held, the resolved ones among them included.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The oldest instant that is not done, over all pollers that have something open.
    pub(crate) fn oldest_open(&self) -> Option<Timestamp> {
        let first = |poller: &Poller| poller.open.keys().next().map(|bucket| bucket * BUCKET_MILLIS);
        self.pollers.values().filter_map(first).min().map(Timestamp::from_millis)
    }

    /// How many more keys there is room for of this tenant: it holds at most as many as are left over then, so that n
    /// tenants with much to do leave one part in n + 1 to the rest.
    fn room(&self, tenant: TenantId) -> usize {
        self.share(self.keys_max.saturating_sub(self.entries.len()), tenant)
    }

    /// Of `left_over`.
    fn share(&self, left_over: usize, tenant: TenantId) -> usize {
        left_over.saturating_sub(self.held.get(&tenant).copied().unwrap_or(0)).div_ceil(2)
    }

    /// A due row was written. `false` if its poller is not served here.
    pub(crate) fn arrived(&mut self, arrival: &Arrival) -> bool {
        let Some(index) = self.by_id.get(&arrival.poller).copied() else { return false };
        let full = self.room(arrival.poller.tenant) == 0;
        let poller = self.pollers.get_mut(&index).expect("what has a number is there");
        let position = arrival.key.position;
        let read_to = poller.reading.unwrap_or(Timestamp::MIN).max(instant_of(poller.read_to));
        if position > read_to {
            let earliest = |known: Option<Timestamp>| Some(known.map_or(position, |known| known.min(position)));
            poller.next = earliest(poller.next);
            if poller.reading.is_some() {
                poller.arrived = earliest(poller.arrived);
            }
        } else if poller.is_checked(&arrival.key) {
            // The second read had it, or its creator writes it again, later.
        } else if full {
            poller.missed = Some(poller.missed.map_or(position, |missed| missed.min(position)));
        } else {
            self.admit(index, arrival.key);
        }
        true
    }

    fn admit(&mut self, index: PollerIndex, key: DueKey) {
        let hash = hash(&key.occurrence);
        let same = |id: &EntryId| self.entries[*id as usize].key.occurrence == key.occurrence;
        let mut earlier = None;
        if let Some(id) = self.index.find(hash, same) {
            let known = &self.entries[*id as usize];
            earlier = if known.state == State::Open { Some(*id) } else { known.earlier };
            let is_news = match known.state {
                // A retry's row may be read before it is told that its attempt is done.
                State::Open | State::Resolved => key.attempt > known.key.attempt,
                State::Deferred { to } => key.position >= to,
                State::Gone => unreachable!("what is gone is not in the index"),
            };
            if !is_news {
                return;
            }
        }
        let id = self.open(Entry { key, poller: index, state: State::Open, earlier });
        self.wheel.insert(key.position, id);
    }

    /// A key that an earlier owner has in flight: known and open, and due only once [`Window::wait_again`] says so.
    /// `None` if its poller is done with it, or is not served here.
    pub(crate) fn hold(&mut self, poller: PollerId, key: DueKey) -> Option<EntryId> {
        let index = *self.by_id.get(&poller)?;
        if key.position <= self.pollers[&index].done {
            return None;
        }
        Some(self.open(Entry { key, poller: index, state: State::Open, earlier: None }))
    }

    fn open(&mut self, entry: Entry) -> EntryId {
        let id = EntryId::try_from(self.entries.insert(entry)).expect("fewer keys than 2^32");
        self.put_index(hash(&entry.key.occurrence), id);
        let poller = self.pollers.get_mut(&entry.poller).expect("a key is opened for a poller that is there");
        *poller.open.entry(bucket(entry.key.position)).or_default() += 1;
        *self.held.entry(poller.id.tenant).or_default() += 1;
        id
    }

    fn put_index(&mut self, hash: u64, id: EntryId) {
        let occurrence = self.entries[id as usize].key.occurrence;
        let entries = &self.entries;
        let same = |other: &EntryId| entries[*other as usize].key.occurrence == occurrence;
        match self.index.find_mut(hash, same) {
            Some(slot) => *slot = id,
            None => {
                let rehash = |other: &EntryId| self::hash(&entries[*other as usize].key.occurrence);
                self.index.insert_unique(hash, id, rehash);
            }
        }
    }

    /// Whether its creator, if it is not done, will find that this key's position is closed.
    pub(crate) fn is_closed(&self, id: EntryId) -> bool {
        let entry = &self.entries[id as usize];
        entry.key.position <= self.pollers[&entry.poller].closed
    }

    pub(crate) fn may_start(&self, id: EntryId) -> MayStart {
        let entry = &self.entries[id as usize];
        let occurrence = entry.key.occurrence;
        let same = |other: &EntryId| self.entries[*other as usize].key.occurrence == occurrence;
        // A later one that is settled already may have left the index.
        if self.index.find(hash(&occurrence), same) != Some(&id) {
            return MayStart::Superseded;
        }
        if entry.earlier.is_some() { MayStart::NotYet } else { MayStart::Yes }
    }

    /// Moves what is due by `now` to the end of `out`, in order.
    pub(crate) fn expire(&mut self, now: Timestamp, out: &mut Vec<EntryId>) {
        self.wheel.expire(now, out);
        out.retain(|id| {
            let is_here = !self.is_gone(*id);
            if !is_here {
                self.free(*id);
            }
            is_here
        });
    }

    pub(crate) fn next_expiry(&self) -> Option<Timestamp> {
        self.wheel.next()
    }

    /// An expired key turned out not to be due (the clock went back): it waits again.
    pub(crate) fn wait_again(&mut self, id: EntryId, at: Timestamp) {
        self.wheel.insert(at, id);
    }

    /// The key's outcome, or its next attempt's row, is durable, or it came to nothing.
    pub(crate) fn resolve(&mut self, id: EntryId) {
        self.settle(id, State::Resolved);
    }

    /// The key's row is durable at the later position `to`.
    pub(crate) fn deferred(&mut self, id: EntryId, to: Timestamp) {
        self.settle(id, State::Deferred { to });
    }

    fn settle(&mut self, id: EntryId, state: State) {
        if self.is_gone(id) {
            self.free(id);
            return;
        }
        let entry = &mut self.entries[id as usize];
        assert_eq!(entry.state, State::Open, "a key is settled once");
        entry.state = state;
        let key = entry.key;
        self.pass_on(id);
        let entry = &self.entries[id as usize];
        let poller = self.pollers.get_mut(&entry.poller).expect("the poller of an open key is there");
        let bucket = bucket(key.position);
        let open = poller.open.get_mut(&bucket).expect("the bucket of an open key is there");
        *open -= 1;
        if *open == 0 {
            poller.open.remove(&bucket);
        }
        if poller.is_checked(&key) {
            self.forget(id);
        } else {
            poller.resolved.entry(bucket).or_default().push(id);
        }
    }

    /// Who waits for a key that is settled waits for what that waited for.
    fn pass_on(&mut self, settled: EntryId) {
        let Entry { key, earlier, .. } = self.entries[settled as usize];
        let same = |id: &EntryId| self.entries[*id as usize].key.occurrence == key.occurrence;
        let mut later = self.index.find(hash(&key.occurrence), same).copied();
        while let Some(id) = later {
            let waits_for = &mut self.entries[id as usize].earlier;
            if *waits_for == Some(settled) {
                *waits_for = earlier;
                return;
            }
            later = *waits_for;
        }
    }

    /// Its poller is there.
    fn forget(&mut self, id: EntryId) {
        self.leave_index(id);
        let entry = self.entries.remove(id as usize);
        uncount(&mut self.held, self.pollers[&entry.poller].id.tenant);
    }

    fn leave_index(&mut self, id: EntryId) {
        let entry = &self.entries[id as usize];
        if let Ok(slot) = self.index.find_entry(hash(&entry.key.occurrence), |other| *other == id) {
            slot.remove();
        }
    }
}

/// Whether a row lies at or before a bound.
fn is_within(key: &DueKey, bound: DueBound) -> bool {
    match bound {
        DueBound::Instant(instant) => key.position <= instant,
        DueBound::Key(last) => *key <= last,
    }
}

/// One key of the tenant less.
fn uncount(held: &mut BTreeMap<TenantId, usize>, tenant: TenantId) {
    let keys = held.get_mut(&tenant).expect("what is held is counted");
    *keys -= 1;
    if *keys == 0 {
        held.remove(&tenant);
    }
}

impl Poller {
    fn is_checked(&self, key: &DueKey) -> bool {
        is_within(key, self.checked)
    }

    /// The end of the last bucket that is checked whole.
    fn checked_whole(&self) -> Timestamp {
        match self.checked {
            DueBound::Instant(instant) => instant,
            DueBound::Key(key) => bucket_end(bucket(key.position) - 1),
        }
    }

    fn done_candidate(&self) -> Timestamp {
        let checked = self.checked_whole().max(self.done);
        match self.open.keys().next() {
            Some(first) if bucket_end(*first) <= checked => bucket_end(first - 1).max(self.done),
            _ => checked,
        }
    }
}

#[cfg(test)]
mod tests;
