//! Partitions of a consumer and its events. Every engine builds its [`crate::Consumer`] on this state machine, so that
//! all engines report ownership in the same way. It is pure: the engine provides the time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use instants::Monotonic;
use tokio::sync::oneshot;

use crate::consumer::{Assigned, Event, RecordBatch, Revocation};
use crate::topic::{Offset, Partition};

/// Partitions that a consumer has not released, and the events that its caller has not received. `T` is what the engine
/// stores for each partition.
#[derive(Debug)]
pub struct Ownership<T> {
    owned: BTreeMap<Partition, Owned<T>>,
    events: VecDeque<Event>,
    /// Partition of the last batch. The next batch comes from a later partition, if one has records.
    last: Option<Partition>,
    last_revocation: u64,
}

/// Partition that the consumer has not released.
#[derive(Debug)]
pub struct Owned<T> {
    /// Data of the engine.
    pub data: T,
    /// Offset of the next record that the caller receives.
    pub position: Offset,
    is_paused: bool,
    /// Number of the revocation, if the consumer must release the partition.
    revocation: Option<u64>,
    /// True if the caller has received the event of the assignment.
    is_known: bool,
}

/// Request to release partitions, which the engine must pass to [`Ownership::release`].
#[derive(Debug)]
pub struct Revoked {
    /// Number of the revocation.
    pub number: u64,
    /// Ends when the caller releases the partitions.
    pub released: oneshot::Receiver<()>,
}

impl<T> Default for Ownership<T> {
    fn default() -> Self {
        Ownership { owned: BTreeMap::new(), events: VecDeque::new(), last: None, last_revocation: 0 }
    }
}

impl<T> Ownership<T> {
    /// Returns the partitions that the consumer has not released.
    #[must_use]
    pub fn partitions(&self) -> BTreeSet<Partition> {
        self.owned.keys().cloned().collect()
    }

    /// Returns true if the consumer has not released the partition.
    #[must_use]
    pub fn contains(&self, partition: &Partition) -> bool {
        self.owned.contains_key(partition)
    }

    /// Returns true if the consumer has released all partitions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.owned.is_empty()
    }

    /// Returns true if the consumer must release partitions of this revocation.
    #[must_use]
    pub fn is_releasing(&self, revocation: u64) -> bool {
        self.owned.values().any(|owned| owned.revocation == Some(revocation))
    }

    /// Returns a partition whose assignment the caller knows. The caller can commit offsets of this partition.
    #[must_use]
    pub fn known(&self, partition: &Partition) -> Option<&Owned<T>> {
        self.owned.get(partition).filter(|owned| owned.is_known)
    }

    /// Adds partitions of a new assignment.
    pub fn assign(&mut self, new: Vec<(Assigned, T)>) {
        let mut event = Vec::new();
        for (assigned, data) in new {
            let position = assigned.position;
            let owned = Owned { data, position, is_paused: false, revocation: None, is_known: false };
            self.owned.insert(assigned.partition.clone(), owned);
            event.push(assigned);
        }
        if !event.is_empty() {
            self.events.push_back(Event::Assigned(event));
        }
    }

    /// Asks the caller to release the partitions for which `must_release` is true, until `deadline`. Returns `None` if
    /// the caller already has requests to release all of them.
    pub fn revoke(&mut self, deadline: Monotonic, must_release: impl Fn(&Partition) -> bool) -> Option<Revoked> {
        let number = self.last_revocation + 1;
        let mut partitions = Vec::new();
        for (partition, owned) in &mut self.owned {
            if owned.revocation.is_none() && must_release(partition) {
                owned.revocation = Some(number);
                partitions.push(partition.clone());
            }
        }
        if partitions.is_empty() {
            return None;
        }
        self.last_revocation = number;
        let (event, released) = Revocation::new(partitions, deadline);
        self.events.push_back(Event::Revoked(event));
        Some(Revoked { number, released })
    }

    /// Removes the partitions of a revocation. If the caller has not released them in time, it has lost them.
    pub fn release(&mut self, revocation: u64, in_time: bool) {
        let released: Vec<Partition> = self
            .owned
            .extract_if(.., |_, owned| owned.revocation == Some(revocation))
            .map(|(partition, _)| partition)
            .collect();
        if !in_time && !released.is_empty() {
            self.events.push_back(Event::Lost(released));
        }
    }

    /// Removes all partitions, because the session has ended.
    pub fn lose_all(&mut self) {
        // The other events in the queue belong to the lost assignment.
        self.events.retain(|event| matches!(event, Event::Lost(_)));
        let owned = std::mem::take(&mut self.owned).into_iter();
        let lost: Vec<Partition> = owned.filter(|(_, owned)| owned.is_known).map(|(partition, _)| partition).collect();
        if !lost.is_empty() {
            self.events.push_back(Event::Lost(lost));
        }
    }

    /// Removes all partitions and events, because the caller has closed the consumer.
    pub fn clear(&mut self) {
        self.owned.clear();
        self.events.clear();
    }

    /// Returns true if the caller has not received all events.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Removes the next event from the queue.
    pub fn take_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if let Event::Assigned(assigned) = &event {
            for one in assigned {
                if let Some(owned) = self.owned.get_mut(&one.partition) {
                    owned.is_known = true;
                }
            }
        }
        Some(event)
    }

    /// Returns the partitions whose records the caller wants. The first is the one after the partition of the last batch.
    #[must_use]
    pub fn wanted(&self) -> Vec<(Partition, Offset)> {
        let active = self.owned.iter().filter(|(_, owned)| !owned.is_paused && owned.revocation.is_none());
        let mut wanted: Vec<(Partition, Offset)> =
            active.map(|(partition, owned)| (partition.clone(), owned.position)).collect();
        let first = wanted.partition_point(|(partition, _)| Some(partition) <= self.last.as_ref());
        wanted.rotate_left(first);
        wanted
    }

    /// Moves the position behind the batch, which the engine fetched from position `from`. Returns `None` if the caller
    /// has changed the position or the pause of the partition during the fetch, or if the consumer may no longer deliver
    /// records of the partition.
    pub fn deliver(&mut self, from: Offset, batch: RecordBatch) -> Option<Event> {
        // The caller must receive the events of the assignment first.
        if !self.events.is_empty() {
            return None;
        }
        let owned = self.owned.get_mut(&batch.partition)?;
        if owned.is_paused || owned.revocation.is_some() || owned.position != from {
            return None;
        }
        owned.position = batch.records.last()?.offset.next();
        self.last = Some(batch.partition.clone());
        Some(Event::Records(batch))
    }

    /// Sets the position of a partition. Returns the data of the engine, if the consumer owns the partition.
    pub fn seek(&mut self, partition: &Partition, offset: Offset) -> Option<&mut T> {
        let owned = self.owned.get_mut(partition)?;
        owned.position = offset;
        Some(&mut owned.data)
    }

    /// Pauses or resumes partitions.
    pub fn set_paused(&mut self, partitions: &[Partition], is_paused: bool) {
        for partition in partitions {
            if let Some(owned) = self.owned.get_mut(partition) {
                owned.is_paused = is_paused;
            }
        }
    }
}
