//! Lanes of the records in hand. It is a pure state machine: the caller provides the time and runs the handlers.
//!
//! A lane contains the records of one key in one partition, in their order. At most one worker has records of a lane,
//! and it takes the first ones. Lanes of different keys are independent. Each record without a key has a lane of its
//! own.
//!
//! Invariants: a record is in hand from [`Lanes::push`] until its lane has finished it, or until the consumer gives up
//! the partition. A finished record is in the [`Progress`] of its partition, and no other record is. An assignment has
//! its own number, so the result of a worker never counts for a later assignment of the same partition.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashTable;
use instants::{Monotonic, Timestamp};
use slab::Slab;
use smallvec::SmallVec;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::handler::StatefulHandler;
use super::progress::{MetadataError, Progress};
use crate::consumer::{Assigned, Commit, RecordBatch};
use crate::topic::{Offset, Partition, Record};

/// Bounds of the records in hand. Each assigned partition has an equal share of the first two bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bounds {
    pub(super) records: usize,
    pub(super) bytes: usize,
    /// Largest number of finished records that no accepted commit describes. All partitions share this bound.
    pub(super) uncommitted: usize,
    /// Largest size of the metadata of a commit, in bytes.
    pub(super) metadata_bytes: usize,
}

/// Largest number of queues of removed lanes that [`Lanes`] keeps.
const SPARE_MAX: usize = 4_096;
/// Largest capacity of the queue of a removed lane that [`Lanes`] keeps, in records.
const SPARE_CAPACITY_MAX: usize = 16;

/// Number of an assignment of a partition. Each assignment has another number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct AssignmentId(u64);

/// Partition during one assignment.
#[derive(Debug)]
pub(super) struct AssignedPartition {
    pub(super) id: AssignmentId,
    pub(super) partition: Partition,
    /// Handler of this assignment, if the processor has stateful handlers.
    pub(super) handler: Option<Arc<dyn StatefulHandler>>,
    /// Stops the handlers when the consumer has released or lost the partition.
    pub(super) cancellation: CancellationToken,
}

/// Works of one call. Most calls have one work with one record, which needs no allocation.
pub(super) type Works = SmallVec<[Work; 1]>;

/// Records that a worker has taken from a lane.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) assigned: Arc<AssignedPartition>,
    /// First records of the lane, in their order. The list has at least one record.
    pub(super) records: SmallVec<[Record; 1]>,
    /// Number of failed calls of the handler for the first record.
    pub(super) calls: u32,
    lane: usize,
    /// True if the worker still has later records of the lane.
    is_part: bool,
}

impl Work {
    /// Removes the first `count` records, and returns them as a part of this work.
    pub(super) fn split_first(&mut self, count: usize) -> Work {
        let records = self.records.drain(..count).collect();
        let calls = std::mem::take(&mut self.calls);
        Work { assigned: self.assigned.clone(), records, calls, is_part: true, lane: self.lane }
    }

    pub(super) fn partition(&self) -> &Partition {
        &self.assigned.partition
    }
}

/// Outcome of a work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Outcome {
    /// Number of finished records. They are the first records of the work.
    pub(super) finished: usize,
    /// Time until which the lane waits, because the record after the finished ones has failed. `None` if no record waits
    /// for its next call.
    pub(super) retry_at: Option<Monotonic>,
}

/// Records of a partition that the group has not finished.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Backlog {
    pub(super) partition: Partition,
    /// Number of records, as far as the consumer knows.
    pub(super) records: u64,
    /// Time of the oldest record in hand. If no record is in hand, the records are later than this time.
    pub(super) oldest: Option<Timestamp>,
}

pub(super) struct Lanes {
    bounds: Bounds,
    /// Seed of the hashes of the keys. A sender of records does not know it, so it cannot choose keys with equal
    /// hashes.
    seed: u64,
    lanes: Slab<Lane>,
    /// Empty queues of removed lanes. New lanes use their memory.
    spare: Vec<VecDeque<Queued>>,
    /// Lanes of keys, by the hash of the key.
    by_key: HashTable<usize>,
    /// Lanes that have records and wait for a worker.
    ready: VecDeque<usize>,
    /// Lanes that wait for a time.
    waiting: BTreeSet<(Monotonic, usize)>,
    assignments: BTreeMap<AssignmentId, Assignment>,
    by_partition: BTreeMap<Partition, AssignmentId>,
    last_assignment: u64,
    /// True if no worker may take records.
    is_held: bool,
    /// True if the bus has not accepted the last commit.
    has_commit_failed: bool,
}

struct Lane {
    assignment: AssignmentId,
    hash: u64,
    key: Option<Bytes>,
    records: VecDeque<Queued>,
    /// Number of failed calls of the handler for the first record.
    calls: u32,
    /// Time of the first record that a worker has taken; `None` if no worker has records of the lane.
    taken: Option<Timestamp>,
}

struct Queued {
    record: Record,
    /// Time before which no worker may take the record.
    due: Option<Monotonic>,
}

struct Assignment {
    assigned: Arc<AssignedPartition>,
    progress: Progress,
    /// Offset of the next record that the consumer will deliver.
    position: Offset,
    /// Offset after the last record of the partition, as far as the consumer knows.
    end: Offset,
    /// Time of the last record that the consumer has delivered.
    last: Option<Timestamp>,
    records: usize,
    bytes: usize,
    /// Number of works that workers have.
    taken: usize,
    /// True if the records wait for a time, so that many of them may be in hand for long.
    is_delayed: bool,
    is_paused: bool,
    is_revoked: bool,
    /// True if the progress has changed since the last commit.
    has_changed: bool,
    /// Number of finished records that no accepted commit describes. The next owner would handle them again.
    uncommitted: usize,
    /// Number of these records that the running commit describes.
    committing: usize,
    /// True if the metadata of the last commit described all finished records.
    fits: bool,
}

impl Lanes {
    pub(super) fn new(bounds: Bounds, seed: u64) -> Self {
        Lanes {
            bounds,
            seed,
            lanes: Slab::new(),
            spare: Vec::new(),
            by_key: HashTable::new(),
            ready: VecDeque::new(),
            waiting: BTreeSet::new(),
            assignments: BTreeMap::new(),
            by_partition: BTreeMap::new(),
            last_assignment: 0,
            is_held: false,
            has_commit_failed: false,
        }
    }

    /// Adds an assigned partition, whose records wait for a time if `is_delayed` is true. A stateful `handler` also
    /// receives the finished records after the committed offset. Returns the offset to which the caller must seek, and
    /// the error if the metadata of the last commit is invalid.
    pub(super) fn assign(
        &mut self,
        assigned: &Assigned,
        is_delayed: bool,
        handler: Option<Arc<dyn StatefulHandler>>,
    ) -> (Option<Offset>, Option<MetadataError>) {
        self.last_assignment += 1;
        let id = AssignmentId(self.last_assignment);
        let (progress, error) = Progress::new(assigned);
        let position = match &handler {
            Some(_) => assigned.position,
            None => progress.first_unfinished(assigned.position),
        };
        let assignment = Assignment {
            assigned: Arc::new(AssignedPartition {
                id,
                partition: assigned.partition.clone(),
                handler,
                cancellation: CancellationToken::new(),
            }),
            progress,
            position,
            end: position,
            last: None,
            records: 0,
            bytes: 0,
            taken: 0,
            is_delayed,
            is_paused: false,
            is_revoked: false,
            has_changed: false,
            uncommitted: 0,
            committing: 0,
            fits: true,
        };
        self.assignments.insert(id, assignment);
        self.by_partition.insert(assigned.partition.clone(), id);
        ((position != assigned.position).then_some(position), error)
    }

    /// Adds the records of a batch. `due` returns the time before which no worker may take a record. Returns the offset to
    /// which the caller must seek, because the records before it are already finished, or because a delayed partition
    /// has its share of the records in hand.
    pub(super) fn push(&mut self, batch: RecordBatch, due: impl Fn(&Record) -> Option<Monotonic>) -> Option<Offset> {
        let id = *self.by_partition.get(&batch.partition)?;
        let share = self.bounds.records.div_ceil(self.assignments.len());
        let assignment = self.assignments.get_mut(&id)?;
        if assignment.is_revoked {
            return None;
        }
        assignment.end = batch.end;
        for record in batch.records {
            if record.offset < assignment.position {
                continue;
            }
            // Records that wait for long must not fill the bound of all partitions.
            if assignment.is_delayed && assignment.records >= share {
                return Some(assignment.position);
            }
            // The bus has no records with the offsets between the two records.
            assignment.progress.finish(assignment.position, record.offset);
            assignment.position = record.offset.next();
            assignment.last = Some(record.timestamp);
            if assignment.progress.is_finished(record.offset) {
                if let Some(handler) = &assignment.assigned.handler {
                    handler.replay(&record);
                }
                continue;
            }
            assignment.records += 1;
            assignment.bytes += record.bytes();
            let hash = record.key.as_ref().map_or(0, |key| xxh3_64_with_seed(key, self.seed ^ id.0));
            let is_same = |at: &usize| {
                let lane = &self.lanes[*at];
                lane.hash == hash && lane.assignment == id && lane.key == record.key
            };
            let existing = record.key.as_ref().and_then(|_| self.by_key.find(hash, is_same)).copied();
            let queued = Queued { due: due(&record), record };
            if let Some(at) = existing {
                self.lanes[at].records.push_back(queued);
                continue;
            }
            let (key, due) = (queued.record.key.clone(), queued.due);
            let has_key = key.is_some();
            let mut records = self.spare.pop().unwrap_or_default();
            records.push_back(queued);
            let at = self.lanes.insert(Lane { assignment: id, hash, key, records, calls: 0, taken: None });
            match due {
                Some(due) => _ = self.waiting.insert((due, at)),
                None => self.ready.push_back(at),
            }
            if has_key {
                let lanes = &self.lanes;
                self.by_key.insert_unique(hash, at, |other| lanes[*other].hash);
            }
        }
        let next = assignment.progress.first_unfinished(assignment.position);
        if next == assignment.position || assignment.assigned.handler.is_some() {
            return None;
        }
        assignment.position = next;
        Some(next)
    }

    /// Returns works for one call of a handler. They are from different lanes of one assignment, and they have at most
    /// `records_max` records in all. The list is empty if no lane is ready.
    pub(super) fn take(&mut self, records_max: usize) -> Works {
        let (mut works, mut left) = (Works::new(), records_max);
        while left > 0
            && let Some(work) = self.take_lane(left, works.first().map(|first: &Work| first.assigned.id))
        {
            left -= work.records.len();
            works.push(work);
        }
        works
    }

    /// Returns the first records of the next ready lane, at most `records_max`, if it is a lane of `assignment`. Only the
    /// first record may have waited for a time.
    fn take_lane(&mut self, records_max: usize, assignment: Option<AssignmentId>) -> Option<Work> {
        let at = *self.ready.front().filter(|_| !self.is_held)?;
        let lane = &mut self.lanes[at];
        if assignment.is_some_and(|assignment| assignment != lane.assignment) {
            return None;
        }
        self.ready.pop_front();
        let others = lane.records.iter().take(records_max).skip(1).take_while(|queued| queued.due.is_none());
        let count = 1 + others.count();
        let records: SmallVec<[Record; 1]> = lane.records.drain(..count).map(|queued| queued.record).collect();
        lane.taken = Some(records[0].timestamp);
        let assignment = self.assignments.get_mut(&lane.assignment).expect("a lane ends with its assignment");
        assignment.taken += 1;
        let assigned = assignment.assigned.clone();
        Some(Work { assigned, records, calls: lane.calls, lane: at, is_part: false })
    }

    /// Holds all lanes, or ends the hold. Workers take no records of held lanes.
    pub(super) fn set_held(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Ends the waits of the lanes for which `wakes` is true. Its arguments are the partition and the offset of the first
    /// record, and the number of failed calls for it.
    pub(super) fn wake_where(&mut self, wakes: impl Fn(&Partition, Offset, u32) -> bool) {
        let (lanes, assignments) = (&self.lanes, &self.assignments);
        let must_wake = |(_, at): &(Monotonic, usize)| {
            let lane = &lanes[*at];
            let partition = &assignments[&lane.assignment].assigned.partition;
            lane.records.front().is_some_and(|first| wakes(partition, first.record.offset, lane.calls))
        };
        self.ready.extend(self.waiting.extract_if(.., must_wake).map(|(_, at)| at));
    }

    /// Moves the lanes whose time has come to the lanes that are ready. Returns the time of the next lane.
    pub(super) fn wake(&mut self, now: Monotonic) -> Option<Monotonic> {
        while let Some((at, lane)) = self.waiting.first().copied() {
            if at > now {
                return Some(at);
            }
            self.waiting.pop_first();
            self.ready.push_back(lane);
        }
        None
    }

    /// Records the outcome of a worker. The outcome has no effect if the consumer has lost the partition. The finished
    /// records stay in the work, so that the caller can drop them without the lock.
    pub(super) fn finish(&mut self, work: &mut Work, outcome: Outcome) {
        let Some(assignment) = self.assignments.get_mut(&work.assigned.id) else { return };
        let Outcome { finished, retry_at } = outcome;
        for record in &work.records[..finished] {
            assignment.progress.finish(record.offset, record.offset.next());
            assignment.records -= 1;
            assignment.bytes -= record.bytes();
            assignment.has_changed = true;
            assignment.uncommitted += 1;
        }
        if work.is_part {
            return;
        }
        assignment.taken -= 1;
        let lane = &mut self.lanes[work.lane];
        lane.taken = None;
        lane.calls = match retry_at {
            Some(_) if finished == 0 => work.calls + 1,
            Some(_) => 1,
            None => 0,
        };
        for record in work.records.drain(finished..).rev() {
            lane.records.push_front(Queued { record, due: None });
        }
        let due = retry_at.or(lane.records.front().and_then(|queued| queued.due));
        match due {
            _ if assignment.is_revoked || lane.records.is_empty() => self.remove(work.lane),
            Some(due) => _ = self.waiting.insert((due, work.lane)),
            None => self.ready.push_back(work.lane),
        }
    }

    /// Removes a lane and its records.
    fn remove(&mut self, at: usize) {
        let mut lane = self.lanes.remove(at);
        if lane.key.is_some()
            && let Ok(entry) = self.by_key.find_entry(lane.hash, |other| *other == at)
        {
            entry.remove();
        }
        if let Some(assignment) = self.assignments.get_mut(&lane.assignment) {
            assignment.records -= lane.records.len();
            assignment.bytes -= lane.records.iter().map(|queued| queued.record.bytes()).sum::<usize>();
        }
        lane.records.clear();
        if lane.records.capacity() <= SPARE_CAPACITY_MAX && self.spare.len() < SPARE_MAX {
            self.spare.push(lane.records);
        }
    }

    /// Removes the records of a revoked partition that no worker has taken. The next owner receives them again.
    pub(super) fn revoke(&mut self, id: AssignmentId) {
        if let Some(assignment) = self.assignments.get_mut(&id) {
            assignment.is_revoked = true;
            self.remove_lanes(id, false);
        }
    }

    /// Returns true if the consumer must release the partition, or has released it.
    pub(super) fn is_revoked(&self, id: AssignmentId) -> bool {
        self.assignments.get(&id).is_none_or(|assignment| assignment.is_revoked)
    }

    /// Returns true if no worker has records of the assignment.
    pub(super) fn is_drained(&self, id: AssignmentId) -> bool {
        self.assignments.get(&id).is_none_or(|assignment| assignment.taken == 0)
    }

    /// Removes an assignment with all its records, and stops its handlers, because the consumer has released or lost the
    /// partition.
    pub(super) fn give_up(&mut self, id: AssignmentId) {
        if let Some(assignment) = self.assignments.get(&id) {
            assignment.assigned.cancellation.cancel();
            self.by_partition.remove(&assignment.assigned.partition);
            self.remove_lanes(id, true);
            self.assignments.remove(&id);
        }
    }

    fn remove_lanes(&mut self, id: AssignmentId, with_taken: bool) {
        let mut removed = BTreeSet::new();
        for (at, lane) in self.lanes.iter_mut().filter(|(_, lane)| lane.assignment == id) {
            if with_taken || lane.taken.is_none() {
                removed.insert(at);
                continue;
            }
            // The lane stays until the worker returns the first records, but the records after them end now.
            let rest = std::mem::take(&mut lane.records);
            let assignment = self.assignments.get_mut(&id).expect("a lane ends with its assignment");
            assignment.records -= rest.len();
            assignment.bytes -= rest.iter().map(|queued| queued.record.bytes()).sum::<usize>();
        }
        self.ready.retain(|at| !removed.contains(at));
        self.waiting.retain(|(_, at)| !removed.contains(at));
        removed.into_iter().for_each(|at| self.remove(at));
    }

    /// Returns true if a lane waits for a worker.
    pub(super) fn is_ready(&self) -> bool {
        !self.is_held && !self.ready.is_empty()
    }

    /// Returns the current assignments of the partitions.
    pub(super) fn ids_of(&self, partitions: &[Partition]) -> Vec<AssignmentId> {
        partitions.iter().filter_map(|partition| self.by_partition.get(partition).copied()).collect()
    }

    /// Returns all assignments.
    pub(super) fn ids(&self) -> Vec<AssignmentId> {
        self.assignments.keys().copied().collect()
    }

    /// Returns the commits of all partitions whose progress has changed since the last call.
    pub(super) fn commits(&mut self) -> Vec<Commit> {
        let bytes_max = self.bounds.metadata_bytes;
        let changed = self.assignments.values_mut().filter_map(|assignment| {
            if !std::mem::take(&mut assignment.has_changed) {
                return None;
            }
            // The state may also need records that the handler has not replayed. If the state changes at this moment, it
            // concerns only records that are not finished in this commit.
            let (handler, position) = (assignment.assigned.handler.as_ref(), assignment.position);
            let oldest = handler.and_then(|handler| handler.oldest().into_iter().chain([position]).min());
            let (committed, fits) = assignment.progress.commit(oldest, bytes_max);
            assignment.fits = fits;
            assignment.committing = assignment.uncommitted;
            Some(Commit { partition: assignment.assigned.partition.clone(), committed })
        });
        changed.collect()
    }

    /// Records the outcome of a commit: true if the bus has accepted it.
    pub(super) fn end_commit(&mut self, commits: &[Commit], is_accepted: bool) {
        self.has_commit_failed = !is_accepted;
        for Commit { partition, .. } in commits {
            let Some(id) = self.by_partition.get(partition) else { continue };
            let assignment = self.assignments.get_mut(id).expect("each partition has an assignment");
            let described = std::mem::take(&mut assignment.committing);
            if is_accepted {
                assignment.uncommitted -= described;
            } else {
                assignment.has_changed = true;
            }
        }
    }

    /// Marks a partition whose progress the bus has not stored.
    pub(super) fn mark_changed(&mut self, partition: &Partition) {
        if let Some(id) = self.by_partition.get(partition) {
            self.assignments.get_mut(id).expect("each partition has an assignment").has_changed = true;
        }
    }

    fn uncommitted(&self) -> usize {
        self.assignments.values().map(|assignment| assignment.uncommitted).sum()
    }

    /// Returns true if so many finished records wait for a commit that the caller must make one before its time. A failed
    /// commit is repeated only at its time.
    pub(super) fn needs_commit(&self) -> bool {
        let is_committing = self.assignments.values().any(|assignment| assignment.committing > 0);
        !is_committing && !self.has_commit_failed && self.uncommitted() >= self.bounds.uncommitted.div_ceil(2)
    }

    /// Returns the partitions to pause and the partitions to resume. A partition pauses when a bound or its share of the
    /// bound is reached, when the metadata of a commit cannot describe its finished records, or when all lanes are held.
    /// It resumes when half of its share is free. A bound for finished records that no accepted commit describes keeps a
    /// member that cannot commit from finishing more and more records for nothing.
    pub(super) fn flow(&mut self) -> (Vec<Partition>, Vec<Partition>) {
        let count = self.assignments.len().max(1);
        let (records_max, bytes_max) = (self.bounds.records.div_ceil(count), self.bounds.bytes.div_ceil(count));
        // A delayed partition counts at most with its share. Otherwise records that wait for long could pause the others.
        let counted = |one: &Assignment| match one.is_delayed {
            true => (one.records.min(records_max), one.bytes.min(bytes_max)),
            false => (one.records, one.bytes),
        };
        let all = self.assignments.values().map(counted);
        let (records, bytes) =
            all.fold((0, 0), |(all, all_bytes), (records, bytes)| (all + records, all_bytes + bytes));
        // A share shrinks when the group assigns a further partition, so the shares alone do not keep the bound.
        let is_reached = self.is_held
            || records >= self.bounds.records
            || bytes >= self.bounds.bytes
            || self.uncommitted() >= self.bounds.uncommitted;
        let (mut pause, mut resume) = (Vec::new(), Vec::new());
        for assignment in self.assignments.values_mut().filter(|assignment| !assignment.is_revoked) {
            let is_full = |part: usize| {
                assignment.records >= records_max.div_ceil(part) || assignment.bytes >= bytes_max.div_ceil(part)
            };
            if !assignment.is_paused && (is_reached || is_full(1) || !assignment.fits) {
                assignment.is_paused = true;
                pause.push(assignment.assigned.partition.clone());
            } else if assignment.is_paused && !is_reached && !is_full(2) && assignment.fits {
                assignment.is_paused = false;
                resume.push(assignment.assigned.partition.clone());
            }
        }
        (pause, resume)
    }

    /// Returns the number of records in hand, including the records that workers have.
    pub(super) fn record_count(&self) -> usize {
        self.assignments.values().map(|assignment| assignment.records).sum()
    }

    /// Returns true if the group has finished the record; `None` if the partition is not assigned.
    pub(super) fn is_finished(&self, partition: &Partition, offset: Offset) -> Option<bool> {
        let id = self.by_partition.get(partition)?;
        Some(self.assignments[id].progress.is_finished(offset))
    }

    /// Returns the numbers of lanes that workers have, and of lanes whose first record has failed.
    pub(super) fn lane_counts(&self) -> (usize, usize) {
        let busy = self.assignments.values().map(|assignment| assignment.taken).sum();
        let failed = self.lanes.iter().filter(|(_, lane)| lane.calls > 0);
        (busy, failed.count())
    }

    /// Returns the backlog of each partition.
    pub(super) fn backlogs(&self) -> Vec<Backlog> {
        let mut in_hand = BTreeMap::new();
        for (_, lane) in &self.lanes {
            if let Some(first) = lane.taken.or(lane.records.front().map(|queued| queued.record.timestamp)) {
                let oldest = in_hand.entry(lane.assignment).or_insert(first);
                *oldest = first.min(*oldest);
            }
        }
        let backlog = |assignment: &Assignment| {
            let records = assignment.progress.unfinished(assignment.end);
            let fetched_later = assignment.last.filter(|_| records > 0);
            let oldest = in_hand.get(&assignment.assigned.id).copied().or(fetched_later);
            Backlog { partition: assignment.assigned.partition.clone(), records, oldest }
        };
        self.assignments.values().map(backlog).collect()
    }
}

#[cfg(test)]
mod tests;
