//! History of the handled records and of the commits, and the checks of the scenario.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use bus::processor::Delivery;
use bus::{Commit, NewRecord, Offset, Partition};
use bytes::Bytes;

use crate::Handle;

/// Number of an assignment of a partition to a member. Each assignment has another number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct AssignmentId(u64);

type RecordId = (Partition, Offset);

pub(super) struct History {
    sim: Handle,
    /// Topics through which a failing record passes: its own, the retry topics, and the topic for dead letters. Empty if
    /// the members copy no records. Then they must handle the records of a key in their order.
    path: Vec<String>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// First violation of a check. A handler cannot panic for a violation, because the processor catches its panics.
    violation: Option<String>,
    last_assignment: u64,
    /// Current assignment of each partition of each member, as far as the member knows, and the time of its start.
    current: BTreeMap<(&'static str, Partition), (AssignmentId, Duration)>,
    /// Times at which handlers reported a record as finished, and the assignments of these handlers.
    effects: BTreeMap<RecordId, Vec<(AssignmentId, Duration)>>,
    /// For each member, topic, key and number, the last record whose handler the member has started, and its assignment.
    started: BTreeMap<(&'static str, String, String, u64), (RecordId, AssignmentId)>,
    /// Numbers of each key that a handler has finished or that became dead letters.
    keys: BTreeMap<String, BTreeSet<u64>>,
    /// Finished records that a successful commit describes, and the time of the response.
    covered: BTreeMap<RecordId, Duration>,
}

impl History {
    pub(super) fn new(sim: &Handle, path: Vec<String>) -> Self {
        History { sim: sim.clone(), path, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Panics if a check has found a violation.
    pub(super) fn check(&self) {
        let violation = self.state().violation.clone();
        assert!(violation.is_none(), "{}", violation.unwrap_or_default());
    }

    /// Returns how many of the sent records handlers have finished, or are dead letters.
    pub(super) fn done(&self) -> usize {
        self.state().keys.values().map(BTreeSet::len).sum()
    }

    pub(super) fn assign(&self, member: &'static str, partition: &Partition) {
        let now = self.sim.elapsed();
        let mut state = self.state();
        state.last_assignment += 1;
        let id = AssignmentId(state.last_assignment);
        state.current.insert((member, partition.clone()), (id, now));
    }

    /// Returns the current assignments of these partitions to a member.
    pub(super) fn assignments(&self, member: &'static str, partitions: &[Partition]) -> BTreeSet<AssignmentId> {
        let state = self.state();
        let current = |partition: &Partition| state.current.get(&(member, partition.clone()));
        partitions.iter().filter_map(current).map(|(id, _)| *id).collect()
    }

    /// Ends assignments, because the member has released or lost the partitions.
    pub(super) fn unassign(&self, assignments: &BTreeSet<AssignmentId>) {
        self.state().current.retain(|_, (id, _)| !assignments.contains(id));
    }

    /// Ends all assignments of a member, because its process has ended.
    pub(super) fn end(&self, member: &'static str) {
        self.state().current.retain(|(other, _), _| *other != member);
    }

    /// Checks a call of a handler. Returns the assignment of the record.
    pub(super) fn start(&self, member: &'static str, delivery: &Delivery) -> Option<AssignmentId> {
        let mut guard = self.state();
        let state = &mut *guard;
        let id = (delivery.partition.clone(), delivery.record.offset);
        let (key, number) = names(delivery);
        let finished = state.keys.entry(key.clone()).or_default();
        if let Some(missing) = (0..number).find(|earlier| self.path.is_empty() && !finished.contains(earlier)) {
            let text = format!("inverted: {member} handles {number} of {key} before {missing} is finished");
            state.violation.get_or_insert(text);
        }
        let Some((assignment, since)) = state.current.get(&(member, delivery.partition.clone())).copied() else {
            let text = format!("unowned: {member} handles {number} of {key}, but does not own {}", delivery.partition);
            state.violation.get_or_insert(text);
            return None;
        };
        let topic = delivery.partition.topic.as_str().to_owned();
        state.started.insert((member, topic, key.clone(), number), (id.clone(), assignment));
        if let Some(covered) = state.covered.get(&id).filter(|covered| **covered <= since) {
            let text = format!(
                "repeated: {member} has owned {} since {since:?} and handles {number} of {key}, which was committed at \
                 {covered:?}",
                delivery.partition
            );
            state.violation.get_or_insert(text);
        }
        Some(assignment)
    }

    /// Checks the end of a successful call.
    pub(super) fn finish(&self, member: &'static str, delivery: &Delivery, started: Option<AssignmentId>) {
        let mut guard = self.state();
        let state = &mut *guard;
        let (key, number) = names(delivery);
        let current = state.current.get(&(member, delivery.partition.clone())).map(|(id, _)| *id);
        if current != started {
            let text = format!("continued: {member} has lost {} but finishes {number} of {key}", delivery.partition);
            state.violation.get_or_insert(text);
        }
        state.keys.entry(key).or_default().insert(number);
    }

    /// Records that the handler reports this record as finished.
    pub(super) fn report(&self, delivery: &Delivery, started: Option<AssignmentId>) {
        let now = self.sim.elapsed();
        if let Some(assignment) = started {
            let id = (delivery.partition.clone(), delivery.record.offset);
            self.state().effects.entry(id).or_default().push((assignment, now));
        }
    }

    /// Records that the bus has acknowledged the member's copy of a record.
    pub(super) fn copied(&self, member: &'static str, record: &NewRecord) {
        let now = self.sim.elapsed();
        let mut guard = self.state();
        let state = &mut *guard;
        let (key, number) = name_of(record.key.as_ref(), record.value.as_ref());
        let at = self.path.iter().position(|topic| topic == record.topic.as_str()).expect("the path has all topics");
        // The lane of a key handles its records in this topic one after the other, so this is the copied record.
        let source = (member, self.path[at - 1].clone(), key.clone(), number);
        if let Some((id, assignment)) = state.started.get(&source).cloned() {
            state.effects.entry(id).or_default().push((assignment, now));
        }
        if at + 1 == self.path.len() {
            state.keys.entry(key).or_default().insert(number);
        }
    }

    /// Checks a commit before the member sends it. Returns the finished records that it describes.
    pub(super) fn commit(&self, member: &'static str, commits: &[Commit]) -> Vec<RecordId> {
        let now = self.sim.elapsed();
        let mut guard = self.state();
        let state = &mut *guard;
        let mut described = Vec::new();
        for Commit { partition, committed } in commits {
            let id = |offset| (partition.clone(), Offset(offset));
            if let Some(early) = (0..committed.offset.0).find(|offset| !state.effects.contains_key(&id(*offset))) {
                let text =
                    format!("early: {member} commits {} of {partition}, but {early} is not finished", committed.offset);
                state.violation.get_or_insert(text);
            }
            let Some((assignment, _)) = state.current.get(&(member, partition.clone())).copied() else {
                let text = format!("unowned: {member} commits {partition}, which it does not own");
                state.violation.get_or_insert(text);
                continue;
            };
            let all = state.effects.range(id(0)..=id(u64::MAX));
            let is_own =
                |effects: &[(AssignmentId, Duration)]| effects.iter().any(|(own, at)| *own == assignment && *at < now);
            described.extend(all.filter(|(_, effects)| is_own(effects)).map(|(record, _)| record.clone()));
        }
        described
    }

    /// Records that the bus has accepted a commit with these finished records.
    pub(super) fn committed(&self, described: Vec<RecordId>) {
        let now = self.sim.elapsed();
        let mut state = self.state();
        for record in described {
            state.covered.entry(record).or_insert(now);
        }
    }
}

fn names(delivery: &Delivery) -> (String, u64) {
    name_of(delivery.record.key.as_ref(), delivery.record.value.as_ref())
}

/// Returns the key and the number of a record.
fn name_of(key: Option<&Bytes>, value: Option<&Bytes>) -> (String, u64) {
    let text = |bytes: Option<&Bytes>| {
        String::from_utf8(bytes.expect("the producer sets it").to_vec()).expect("the producer sends text")
    };
    // The mutant `SplitsLanes` adds a number to the key.
    let key = text(key);
    let key = key.split('#').next().unwrap_or_default().to_owned();
    (key, text(value).parse().expect("the producer sends a number"))
}
