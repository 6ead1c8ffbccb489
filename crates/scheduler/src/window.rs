//! What the owner knows of the near future: keys, by poller and by millisecond, and how far each poller is accounted for.
//!
//! Pure: it is told what was read and what ended, and asked what to read, close and fire. A poller's stretch of time
//! goes through four borders, each behind the one before:
//!
//! - `read_to`: rows up to here were read ahead into the window;
//! - `closed`: durable; creators put no row at or before it any more;
//! - `checked`: after `closed` was durable the rows up to here were read *again*, so that none can be missing;
//! - `done`: durable; every occurrence up to here has its outcome, and nothing up to here is ever read again.
//!
//! Always true here: a key is known once, whatever number of times its row is read, until `checked` has passed it and
//! it is resolved; `done` never passes an open key.
//!
//! Shards come and go. Of one that has gone nothing is left but the numbers of keys that others hold still: see
//! [`Window::let_go`].

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, BuildHasherDefault};
use std::time::Duration;

use domain::{DueKey, Occurrence, PollerId, ShardId, Term, Timestamp};
use hashbrown::HashTable;
use rustc_hash::FxHasher;
use slab::Slab;
use store::{Arrival, DueBound, DuePage, DueRead, Positions};

use crate::wheel::Wheel;

/// The grain of closing: positions move over whole buckets of this many milliseconds.
const BUCKET_MILLIS: i64 = 128;
/// Rows that one read of one poller brings at most.
const PAGE_KEYS: usize = 2_048;

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
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) key: DueKey,
    pub(crate) poller: PollerIndex,
    state: State,
    /// The key of an earlier attempt of the same occurrence, which was open when this one came.
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

/// Under what a shard is owned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tenure {
    pub(crate) term: Term,
    /// When it began: a row due before may have been fired by an earlier owner.
    pub(crate) since: Timestamp,
}

#[derive(Debug)]
struct Poller {
    id: PollerId,
    tenure: Tenure,
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
    checked: Timestamp,
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
    pub(crate) fn new(options: &crate::Options, now: Timestamp) -> Self {
        Window {
            ahead: options.window_ahead,
            keys_max: options.window_keys_max.max(PAGE_KEYS),
            entries: Slab::new(),
            index: HashTable::new(),
            wheel: Wheel::new(now),
            pollers: BTreeMap::new(),
            next_index: 0,
            by_id: BTreeMap::new(),
        }
    }

    /// Begins to serve a poller, from its durable `done`.
    pub(crate) fn add_poller(&mut self, id: PollerId, tenure: Tenure, positions: Positions) {
        assert!(positions.done <= positions.closed, "done is never past closed");
        let index = self.next_index;
        self.next_index = index.checked_add(1).expect("fewer than 2^32 pollers come and go");
        let known = self.by_id.insert(id, index);
        assert!(known.is_none(), "a poller is added once");
        let poller = Poller {
            id,
            tenure,
            read_to: DueBound::Instant(positions.done),
            next: Some(positions.done),
            reading: None,
            arrived: None,
            missed: None,
            closed: positions.closed,
            closing: false,
            checked: positions.done,
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
    pub(crate) fn let_go(&mut self, shards: &BTreeSet<ShardId>) {
        let leaving = |poller: &Poller| shards.contains(&poller.id.shard());
        let left: BTreeSet<PollerIndex> =
            self.pollers.iter().filter(|(_, poller)| leaving(poller)).map(|(index, _)| *index).collect();
        self.pollers.retain(|index, _| !left.contains(index));
        self.by_id.retain(|_, index| !left.contains(index));
        let of_left = self.entries.iter().filter(|(_, entry)| left.contains(&entry.poller));
        let ids: Vec<EntryId> = of_left.map(|(id, _)| EntryId::try_from(id).expect("numbers are 32 bits")).collect();
        for id in ids {
            self.leave_index(id);
            let entry = &mut self.entries[id as usize];
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

    pub(crate) fn poller(&self, index: PollerIndex) -> (PollerId, Tenure) {
        let poller = &self.pollers[&index];
        (poller.id, poller.tenure)
    }

    /// Under what a poller is served, if it is.
    pub(crate) fn tenure(&self, id: PollerId) -> Option<Tenure> {
        self.by_id.get(&id).map(|index| self.pollers[index].tenure)
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

    /// The reads ahead that are due now; each is to be answered by [`Window::read`] or [`Window::read_failed`].
    pub(crate) fn plan_reads(&mut self, now: Timestamp) -> Vec<(PollerIndex, DueRead)> {
        let until = now + self.ahead;
        let mut room = self.keys_max.saturating_sub(self.entries.len());
        let mut reads = Vec::new();
        for (&index, poller) in &mut self.pollers {
            if room == 0 {
                break;
            }
            if poller.reading.is_some() {
                continue;
            }
            // What is at or before `checked` was read again in any case.
            if let Some(missed) = poller.missed.take().filter(|missed| *missed > poller.checked) {
                // Everything after it is read again; what is known already is recognised.
                let before = Timestamp::from_millis(missed.as_millis() - 1);
                if before < instant_of(poller.read_to) {
                    poller.read_to = DueBound::Instant(before);
                }
                poller.next = Some(missed);
            }
            if poller.next.is_none_or(|next| next > until) {
                continue;
            }
            poller.reading = Some(until);
            poller.arrived = None;
            let limit = room.min(PAGE_KEYS);
            room -= limit;
            reads.push((index, DueRead { poller: poller.id, after: poller.read_to, until, limit }));
        }
        reads
    }

    pub(crate) fn read_failed(&mut self, index: PollerIndex, kind: ReadKind) {
        let Some(poller) = self.pollers.get_mut(&index) else { return };
        match kind {
            ReadKind::Ahead => poller.reading = None,
            ReadKind::Check => poller.closing = false,
        }
    }

    /// A page has come. For a check that is not at its end, the read to go on with.
    pub(crate) fn read(
        &mut self,
        index: PollerIndex,
        kind: ReadKind,
        read: DueRead,
        page: &DuePage,
    ) -> Option<DueRead> {
        if !self.pollers.contains_key(&index) {
            return None;
        }
        for key in &page.keys {
            self.admit(index, *key);
        }
        let last = page.keys.last().copied();
        let complete = page.next.is_none_or(|next| next > read.until);
        let poller = self.pollers.get_mut(&index).expect("it was there a moment ago");
        match kind {
            ReadKind::Ahead => {
                poller.reading = None;
                let read_to = match last {
                    _ if complete => DueBound::Instant(read.until),
                    Some(last) => DueBound::Key(last),
                    None => read.after,
                };
                // A check may have come further meanwhile.
                if instant_of(read_to) >= instant_of(poller.read_to) {
                    poller.read_to = read_to;
                }
                poller.next = [page.next, poller.arrived.take()].into_iter().flatten().min();
                None
            }
            ReadKind::Check if complete => {
                self.checked(index, read.until);
                None
            }
            ReadKind::Check => {
                let after = last.map_or(read.after, DueBound::Key);
                Some(DueRead { after, ..read })
            }
        }
    }

    /// A due row was written. `false` if its poller is not served here.
    pub(crate) fn arrived(&mut self, arrival: &Arrival) -> bool {
        let Some(index) = self.by_id.get(&arrival.poller).copied() else { return false };
        let full = self.entries.len() >= self.keys_max;
        let poller = self.pollers.get_mut(&index).expect("what has a number is there");
        let position = arrival.key.position;
        let read_to = poller.reading.unwrap_or(Timestamp::MIN).max(instant_of(poller.read_to));
        if position > read_to {
            let earliest = |known: Option<Timestamp>| Some(known.map_or(position, |known| known.min(position)));
            poller.next = earliest(poller.next);
            if poller.reading.is_some() {
                poller.arrived = earliest(poller.arrived);
            }
        } else if position <= poller.checked {
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
            earlier = Some(*id);
            let known = &self.entries[*id as usize];
            let is_news = match known.state {
                // A retry's row may be read before it is told that its attempt is booked.
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
        let newest = self.index.find(hash(&occurrence), same).expect("an open key is in the index");
        if *newest != id {
            return MayStart::Superseded;
        }
        let earlier = entry.earlier.and_then(|earlier| self.entries.get(earlier as usize));
        // The number may belong to another key by now.
        let is_open = |earlier: &Entry| earlier.state == State::Open && earlier.key.occurrence == occurrence;
        match earlier.is_some_and(|earlier| earlier.key.attempt < entry.key.attempt && is_open(earlier)) {
            true => MayStart::NotYet,
            false => MayStart::Yes,
        }
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
        let position = entry.key.position;
        let poller = self.pollers.get_mut(&entry.poller).expect("the poller of an open key is there");
        let bucket = bucket(position);
        let open = poller.open.get_mut(&bucket).expect("the bucket of an open key is there");
        *open -= 1;
        if *open == 0 {
            poller.open.remove(&bucket);
        }
        if position <= poller.checked {
            self.forget(id);
        } else {
            poller.resolved.entry(bucket).or_default().push(id);
        }
    }

    fn forget(&mut self, id: EntryId) {
        self.leave_index(id);
        self.entries.remove(id as usize);
    }

    fn leave_index(&mut self, id: EntryId) {
        let entry = &self.entries[id as usize];
        if let Ok(slot) = self.index.find_entry(hash(&entry.key.occurrence), |other| *other == id) {
            slot.remove();
        }
    }

    /// The positions to write now; each is to be answered by [`Window::positions_written`], or, if it could not be
    /// written, by [`Window::read_failed`] with [`ReadKind::Check`].
    pub(crate) fn plan_closings(&mut self, now: Timestamp) -> Vec<(PollerIndex, Positions)> {
        // The bucket that `now` is in is still open to creators; so is the one before, for those that are slow.
        let last = bucket(now) - 2;
        let mut closings = Vec::new();
        for (&index, poller) in &mut self.pollers {
            if poller.closing {
                continue;
            }
            // Nothing that lies before `checked` asks for another second read.
            let unchecked = bucket(poller.checked) + 1..=last;
            let has_news = unchecked.start() <= unchecked.end()
                && (poller.open.range(unchecked.clone()).next().is_some()
                    || poller.resolved.range(unchecked).next().is_some());
            let closed = if has_news { poller.closed.max(bucket_end(last)) } else { poller.closed };
            let done = poller.done_candidate();
            // A second read that failed is made again, whatever else there is.
            if has_news || done > poller.done || poller.closed > poller.checked {
                poller.closing = true;
                closings.push((index, Positions { closed, done }));
            }
        }
        closings
    }

    /// `positions` are durable. The second read that this asks for, if any.
    pub(crate) fn positions_written(&mut self, index: PollerIndex, positions: Positions) -> Option<DueRead> {
        let poller = self.pollers.get_mut(&index)?;
        poller.closed = poller.closed.max(positions.closed);
        poller.done = poller.done.max(positions.done);
        if poller.checked >= poller.closed {
            poller.closing = false;
            return None;
        }
        let after = DueBound::Instant(poller.checked);
        Some(DueRead { poller: poller.id, after, until: poller.closed, limit: PAGE_KEYS })
    }

    fn checked(&mut self, index: PollerIndex, until: Timestamp) {
        let poller = self.pollers.get_mut(&index).expect("its caller has looked");
        poller.closing = false;
        poller.checked = poller.checked.max(until);
        if instant_of(poller.read_to) < until {
            // Everything up to `until` is in the window now.
            poller.read_to = DueBound::Instant(until);
        }
        let later = poller.resolved.split_off(&(bucket(poller.checked) + 1));
        for id in std::mem::replace(&mut poller.resolved, later).into_values().flatten() {
            self.forget(id);
        }
    }
}

impl Poller {
    fn done_candidate(&self) -> Timestamp {
        match self.open.keys().next() {
            Some(first) if bucket_end(*first) <= self.checked => bucket_end(first - 1).max(self.done),
            _ => self.checked,
        }
    }
}

#[cfg(test)]
mod tests;
