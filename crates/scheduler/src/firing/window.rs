//! Window of the owner. It contains the keys of the near future by poller and millisecond, and the positions of each
//! poller.
//!
//! The window does no I/O and reads no clock. The owner reports completed reads and outcomes to the window. The window
//! returns the next reads, the positions that the owner must write, and the due keys. Each poller has the following
//! four positions, where `done` <= `checked` <= `closed`:
//!
//! - `read_to`: the owner has read the rows up to this position into the window.
//! - `closed`: this position is durable. No creator leaves a row at or before it.
//! - `checked`: the owner has read the rows up to this position *again* after `closed` became durable, so the window
//!   misses no row. `checked` moves by pages as capacity permits, so it may lie between two rows of one instant.
//! - `done`: this position is durable. Every occurrence up to it has an outcome, and no owner reads a row up to it
//!   again.
//!
//! Invariants: the window contains a key only once, even if the owner reads its row several times. The window retains
//! the key until the key is resolved and `checked` has passed it. `done` never passes an open key.
//!
//! The owner gains and releases shards. After a release, the window removes the keys of the shard, and retains only the
//! key numbers that the owner still uses. See [`Window::release`].

mod closing;
mod overdue;
mod reading;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, BuildHasherDefault};
use std::time::Duration;

use domain::{DueKey, Occurrence, PollerId, ShardId, TenantId, Timestamp};
use hashbrown::HashTable;
use rustc_hash::FxHasher;
use slab::Slab;
use store::{DueBound, InsertLogEntry, Positions};

use crate::cluster::shards::ShardTerm;
use crate::firing::wheel::Wheel;
use crate::options::Options;

use overdue::Moved;

/// Width of a bucket in milliseconds. `closed` and `done` move by whole buckets.
const BUCKET_MILLIS: i64 = 128;
/// Largest number of rows in one read of one poller.
const PAGE_KEYS: usize = 2_048;
/// Smallest number of rows in one read, if the tenant has capacity for them.
const PAGE_KEYS_MIN: usize = 16;

/// Number that identifies a key in the window.
pub(crate) type EntryId = u32;
/// Number that identifies a poller in the window. If the owner releases a poller and gains it again, the poller gets
/// another number.
pub(crate) type PollerIndex = u32;

#[derive(Debug)]
pub(crate) struct Window {
    ahead: Duration,
    keys_max: usize,
    entries: Slab<Entry>,
    /// Index of the entries by occurrence. If an occurrence has two entries, the index contains the entry of the later
    /// row.
    index: HashTable<EntryId>,
    wheel: Wheel,
    pollers: BTreeMap<PollerIndex, Poller>,
    next_index: PollerIndex,
    by_id: BTreeMap<PollerId, PollerIndex>,
    /// Number of keys of each tenant, including the resolved keys.
    keys_by_tenant: BTreeMap<TenantId, usize>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) key: DueKey,
    pub(crate) poller: PollerIndex,
    state: State,
    /// Open key of an earlier attempt of the same occurrence. If several earlier attempts have open keys, this is the
    /// key of the latest of these attempts.
    earlier: Option<EntryId>,
    /// True if the owner has deferred the key and now starts it before its new position.
    pub(crate) is_early: bool,
}

/// Decision whether the attempt of a key may start now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MayStart {
    Yes,
    /// The row of a later attempt is durable. An owner has therefore already made the attempt of this key, and the
    /// attempt must not start again.
    Superseded,
    /// An earlier attempt of the occurrence has not ended.
    NotYet,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The key is in the wheel, in a queue or in flight.
    Open,
    /// The outcome of the key, or the row of the next attempt, is durable.
    Resolved,
    /// The row of the key is durable at a later position.
    Deferred { to: Timestamp },
    /// The owner released the shard while the key was open. The wheel, a queue or a task still uses the number of the
    /// key. The number becomes free when the wheel, the queue or the task returns the key.
    Released,
}

#[derive(Debug)]
struct Poller {
    id: PollerId,
    shard_term: ShardTerm,
    read_to: DueBound,
    /// Position of the first known row after `read_to`.
    next: Option<Timestamp>,
    /// End of the range that the current read of kind [`ReadKind::Ahead`] covers.
    reading: Option<Timestamp>,
    /// Earliest position, after the range of the current read, at which a creator wrote a row during this read. The
    /// read may have missed this row.
    written_during_read: Option<Timestamp>,
    /// Rows within the range of the current read that were overdue when the read began. Their entries of the insert log
    /// arrived during the read. The window adds them after the read, so that they do not start before older rows.
    /// Contains at most [`PAGE_KEYS`] rows.
    held: Vec<DueKey>,
    /// Position of the earliest row that the window could not add because it had no capacity for the row. The row lies
    /// at or before `read_to`.
    missed: Option<Timestamp>,
    closed: Timestamp,
    /// `closed` at the time when the owner took the shard.
    closed_at_take: Timestamp,
    /// True if the owner has written the next due row of a recurring schedule of this poller.
    has_recurring: bool,
    closing: bool,
    checked: DueBound,
    done: Timestamp,
    /// Number of open keys by bucket. Buckets without open keys have no entry.
    open: BTreeMap<i64, u32>,
    moved: Moved,
    /// Resolved keys by bucket. A second read may still return the rows of these keys.
    resolved: BTreeMap<i64, Vec<EntryId>>,
}

/// Purpose of a read of due rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadKind {
    Ahead,
    /// Second read of a range, after `closed` became durable.
    Check,
}

fn bucket(at: Timestamp) -> i64 {
    at.as_millis().div_euclid(BUCKET_MILLIS)
}

fn bucket_end(bucket: i64) -> Timestamp {
    Timestamp::from_millis(bucket * BUCKET_MILLIS + BUCKET_MILLIS - 1)
}

/// Returns the latest position before `now` that an owner may write as `closed`: the end of a whole bucket.
pub(crate) fn closable(now: Timestamp) -> Timestamp {
    bucket_end(bucket(now) - 1)
}

fn hash(occurrence: &Occurrence) -> u64 {
    BuildHasherDefault::<FxHasher>::default().hash_one(occurrence)
}

pub(crate) fn instant_of(bound: DueBound) -> Timestamp {
    match bound {
        DueBound::Instant(instant) => instant,
        DueBound::Key(key) => key.position,
    }
}

impl Window {
    pub(crate) fn new(options: &Options, now: Timestamp) -> Self {
        Window {
            ahead: options.window_ahead,
            // The window has capacity for at least two pages: one page of one tenant, and one page of all other tenants
            // together.
            keys_max: options.window_keys_max.max(2 * PAGE_KEYS),
            entries: Slab::new(),
            index: HashTable::new(),
            wheel: Wheel::new(now),
            pollers: BTreeMap::new(),
            next_index: 0,
            by_id: BTreeMap::new(),
            keys_by_tenant: BTreeMap::new(),
        }
    }

    /// Adds a poller. The owner then reads the poller's rows after the poller's durable position `done`.
    pub(crate) fn add_poller(&mut self, id: PollerId, shard_term: ShardTerm, positions: Positions) {
        assert!(
            positions.done <= positions.closed,
            "the position `done` of a poller is at or before its position `closed`"
        );
        let index = self.next_index;
        self.next_index = index.checked_add(1).expect("an owner adds fewer than 2^32 pollers");
        let known = self.by_id.insert(id, index);
        assert!(known.is_none(), "the owner adds a poller only once");
        let poller = Poller {
            id,
            shard_term,
            read_to: DueBound::Instant(positions.done),
            next: Some(positions.done),
            reading: None,
            written_during_read: None,
            held: Vec::new(),
            missed: None,
            closed: positions.closed,
            closed_at_take: positions.closed,
            has_recurring: false,
            closing: false,
            checked: DueBound::Instant(positions.done),
            done: positions.done,
            open: BTreeMap::new(),
            moved: Moved::default(),
            resolved: BTreeMap::new(),
        };
        self.pollers.insert(index, poller);
    }

    pub(crate) fn has_poller(&self, id: PollerId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Forgets the pollers of these shards and all their keys. Open keys become released ([`Window::is_released`]). A
    /// released key keeps its number, because the key waits in the wheel, in a queue or for an outcome. The window
    /// frees a released key that comes out of the wheel. The owner frees all other released keys: it calls
    /// [`Window::free`], or it resolves or defers the key.
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
            if entry.state != State::Released {
                uncount(&mut self.keys_by_tenant, left[&entry.poller]);
            }
            match entry.state {
                State::Open => entry.state = State::Released,
                State::Resolved | State::Deferred { .. } => {
                    self.entries.remove(id as usize);
                }
                State::Released => {}
            }
        }
    }

    pub(crate) fn is_released(&self, id: EntryId) -> bool {
        self.entries[id as usize].state == State::Released
    }

    /// Frees the number of a released key that the owner no longer uses.
    pub(crate) fn free(&mut self, id: EntryId) {
        let entry = self.entries.remove(id as usize);
        assert_eq!(entry.state, State::Released, "the owner frees only the numbers of released keys");
    }

    /// Returns the number of the tenant's pollers in this window.
    pub(crate) fn pollers_of(&self, tenant: TenantId) -> u32 {
        let first = PollerId { tenant, generation: 0, number: 0 };
        let last = PollerId { tenant, generation: u16::MAX, number: u16::MAX };
        u32::try_from(self.by_id.range(first..=last).count()).unwrap_or(u32::MAX)
    }

    pub(crate) fn poller(&self, index: PollerIndex) -> (PollerId, ShardTerm) {
        let poller = &self.pollers[&index];
        (poller.id, poller.shard_term)
    }

    /// Returns the term of the poller's shard. Returns `None` if the window does not contain the poller.
    pub(crate) fn shard_term(&self, id: PollerId) -> Option<ShardTerm> {
        self.by_id.get(&id).map(|index| self.pollers[index].shard_term)
    }

    pub(crate) fn entry(&self, id: EntryId) -> &Entry {
        &self.entries[id as usize]
    }

    /// Returns the number of keys in the window, including the resolved keys and the released keys.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of further keys that the window accepts for this tenant. A tenant has at most as many keys as
    /// the window has free entries. With n busy tenants, at least 1 / (n + 1) of the window therefore remains free for
    /// other tenants.
    fn capacity(&self, tenant: TenantId) -> usize {
        self.share(self.keys_max.saturating_sub(self.entries.len()), tenant)
    }

    /// Returns the number of further keys that the tenant may add if the window has `left_over` free entries.
    fn share(&self, left_over: usize, tenant: TenantId) -> usize {
        left_over.saturating_sub(self.keys_by_tenant.get(&tenant).copied().unwrap_or(0)).div_ceil(2)
    }

    /// Records that a creator has written a due row. Returns `false` if the window does not contain the row's poller.
    pub(crate) fn add_written_row(&mut self, arrival: &InsertLogEntry) -> bool {
        let Some(index) = self.by_id.get(&arrival.poller).copied() else { return false };
        let mut full = self.capacity(arrival.poller.tenant) == 0;
        let poller = self.pollers.get_mut(&index).expect("each poller in `by_id` exists in `pollers`");
        let position = arrival.key.position;
        // The read began when the clock showed `until - ahead`.
        let was_overdue = poller.reading.is_some_and(|until| position <= until - self.ahead);
        if was_overdue && position > instant_of(poller.read_to) {
            full |= poller.held.len() >= PAGE_KEYS;
            if !full {
                poller.held.push(arrival.key);
                return true;
            }
        }
        let read_to = poller.reading.unwrap_or(Timestamp::MIN).max(instant_of(poller.read_to));
        if position > read_to {
            let earliest = |known: Option<Timestamp>| Some(known.map_or(position, |known| known.min(position)));
            poller.next = earliest(poller.next);
            if poller.reading.is_some() {
                poller.written_during_read = earliest(poller.written_during_read);
            }
        } else if poller.is_checked(&arrival.key) {
            // Either the second read has returned the row, or the creator writes the row again at a later position.
        } else if full {
            poller.missed = Some(poller.missed.map_or(position, |missed| missed.min(position)));
        } else {
            self.add_key(index, arrival.key);
        }
        true
    }

    /// Records that the owner has written the next due row of a recurring schedule of this poller.
    pub(crate) fn set_recurring(&mut self, id: PollerId) {
        let poller = self.by_id.get(&id).and_then(|index| self.pollers.get_mut(index));
        if let Some(poller) = poller {
            poller.has_recurring = true;
        }
    }

    /// Adds a deferred key, so that it starts at `now` and not at its position. If a later read returns the row of the
    /// key, the window ignores it. Without capacity for the key, it starts at its position.
    pub(crate) fn add_early(&mut self, index: PollerIndex, key: DueKey, now: Timestamp) {
        let Some(tenant) = self.pollers.get(&index).map(|poller| poller.id.tenant) else { return };
        if self.capacity(tenant) > 0 {
            self.add_key_at(index, key, Some(now));
            self.pollers.get_mut(&index).expect("the window contains the poller").moved.brought_forward(&key);
        }
    }

    fn add_key(&mut self, index: PollerIndex, key: DueKey) {
        self.add_key_at(index, key, None);
    }

    /// Adds a key, unless the window already contains the key. The key becomes due at `early`, or else at its position.
    fn add_key_at(&mut self, index: PollerIndex, key: DueKey, early: Option<Timestamp>) {
        let hash = hash(&key.occurrence);
        let same = |id: &EntryId| self.entries[*id as usize].key.occurrence == key.occurrence;
        let mut earlier = None;
        if let Some(id) = self.index.find(hash, same) {
            let known = &self.entries[*id as usize];
            earlier = if known.state == State::Open { Some(*id) } else { known.earlier };
            let is_new = match known.state {
                // The owner may read the row of a retry before the window receives the outcome of the previous attempt.
                State::Open | State::Resolved => key.attempt > known.key.attempt,
                State::Deferred { to } => key.position >= to,
                State::Released => unreachable!("the index contains no released key"),
            };
            if !is_new {
                return;
            }
        }
        let is_early = early.is_some();
        let id = self.open(Entry { key, poller: index, state: State::Open, earlier, is_early });
        self.wheel.insert(early.unwrap_or(key.position), id);
    }

    /// Adds a key that an earlier owner has in flight. The key is open, and becomes due only after a call of
    /// [`Window::wait_again`]. Returns `None` if the poller's `done` has passed the key, or if the window does not
    /// contain the poller.
    pub(crate) fn add_handed_over(&mut self, poller: PollerId, key: DueKey) -> Option<EntryId> {
        let index = *self.by_id.get(&poller)?;
        if key.position <= self.pollers[&index].done {
            return None;
        }
        Some(self.open(Entry { key, poller: index, state: State::Open, earlier: None, is_early: false }))
    }

    fn open(&mut self, entry: Entry) -> EntryId {
        let id = EntryId::try_from(self.entries.insert(entry)).expect("the window has fewer than 2^32 keys");
        self.put_index(hash(&entry.key.occurrence), id);
        let poller = self.pollers.get_mut(&entry.poller).expect("the window contains the poller of a new key");
        *poller.open.entry(bucket(entry.key.position)).or_default() += 1;
        poller.moved.opened(&entry.key);
        *self.keys_by_tenant.entry(poller.id.tenant).or_default() += 1;
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

    /// Returns the poller's durable `closed`, now and at the time when the owner took the shard.
    pub(crate) fn closed(&self, index: PollerIndex) -> (Timestamp, Timestamp) {
        let poller = &self.pollers[&index];
        (poller.closed, poller.closed_at_take)
    }

    pub(crate) fn may_start(&self, id: EntryId) -> MayStart {
        let entry = &self.entries[id as usize];
        let occurrence = entry.key.occurrence;
        let same = |other: &EntryId| self.entries[*other as usize].key.occurrence == occurrence;
        // The key of a later attempt may be missing in the index, because it is already resolved.
        if self.index.find(hash(&occurrence), same) != Some(&id) {
            return MayStart::Superseded;
        }
        if entry.earlier.is_some() { MayStart::NotYet } else { MayStart::Yes }
    }

    /// Appends the keys due at or before `now` to `out`, in the order of their instants.
    pub(crate) fn expire(&mut self, now: Timestamp, out: &mut Vec<EntryId>) {
        self.wheel.expire(now, out);
        out.retain(|id| {
            let is_here = !self.is_released(*id);
            if !is_here {
                self.free(*id);
            }
            is_here
        });
    }

    pub(crate) fn next_expiry(&self) -> Option<Timestamp> {
        self.wheel.next()
    }

    /// Puts a key into the wheel again. The key becomes due at `at`.
    pub(crate) fn wait_again(&mut self, id: EntryId, at: Timestamp) {
        self.wheel.insert(at, id);
    }

    /// Records that the key's outcome or the row of its next attempt is durable, or that the key needs no attempt.
    pub(crate) fn resolve(&mut self, id: EntryId) {
        self.finish(id, State::Resolved);
    }

    /// Records that the key's row is durable at the later position `to`.
    pub(crate) fn deferred(&mut self, id: EntryId, to: Timestamp) {
        self.finish(id, State::Deferred { to });
    }

    fn finish(&mut self, id: EntryId, state: State) {
        if self.is_released(id) {
            self.free(id);
            return;
        }
        let entry = &mut self.entries[id as usize];
        assert_eq!(entry.state, State::Open, "the owner resolves or defers a key only once");
        entry.state = state;
        let key = entry.key;
        self.pass_on(id);
        let entry = &self.entries[id as usize];
        let poller = self.pollers.get_mut(&entry.poller).expect("the poller of an open key exists");
        let bucket = bucket(key.position);
        let open = poller.open.get_mut(&bucket).expect("the bucket of an open key exists");
        *open -= 1;
        if *open == 0 {
            poller.open.remove(&bucket);
        }
        poller.moved.finished(&key);
        if let State::Deferred { to } = state {
            poller.moved.deferred(&key, to);
        }
        if poller.is_checked(&key) {
            self.forget(id);
        } else {
            poller.resolved.entry(bucket).or_default().push(id);
        }
    }

    /// Removes the key `finished` from the chain of its occurrence's keys. In this chain, each key waits for the key
    /// before it. The key after `finished` then waits for the key before `finished`, if any.
    fn pass_on(&mut self, finished: EntryId) {
        let Entry { key, earlier, .. } = self.entries[finished as usize];
        let same = |id: &EntryId| self.entries[*id as usize].key.occurrence == key.occurrence;
        let mut later = self.index.find(hash(&key.occurrence), same).copied();
        while let Some(id) = later {
            let waits_for = &mut self.entries[id as usize].earlier;
            if *waits_for == Some(finished) {
                *waits_for = earlier;
                return;
            }
            later = *waits_for;
        }
    }

    /// Removes a key whose poller is still in the window.
    fn forget(&mut self, id: EntryId) {
        self.leave_index(id);
        let entry = self.entries.remove(id as usize);
        uncount(&mut self.keys_by_tenant, self.pollers[&entry.poller].id.tenant);
    }

    fn leave_index(&mut self, id: EntryId) {
        let entry = &self.entries[id as usize];
        if let Ok(slot) = self.index.find_entry(hash(&entry.key.occurrence), |other| *other == id) {
            slot.remove();
        }
    }
}

/// Returns true if the row with this key lies at or before `bound`.
fn is_within(key: &DueKey, bound: DueBound) -> bool {
    match bound {
        DueBound::Instant(instant) => key.position <= instant,
        DueBound::Key(last) => *key <= last,
    }
}

/// Subtracts one from the tenant's number of keys.
fn uncount(keys_by_tenant: &mut BTreeMap<TenantId, usize>, tenant: TenantId) {
    let keys = keys_by_tenant.get_mut(&tenant).expect("the window counts every key of a tenant");
    *keys -= 1;
    if *keys == 0 {
        keys_by_tenant.remove(&tenant);
    }
}

impl Poller {
    fn is_checked(&self, key: &DueKey) -> bool {
        is_within(key, self.checked)
    }

    /// Returns the end of the last bucket whose rows are all at or before `checked`.
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
