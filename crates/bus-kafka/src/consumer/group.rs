//! Task that answers the rebalances of the group, and proves the membership.

use std::time::Duration;

use bus::{Assigned, BusError, Commit, Committed, Partition};
use futures_util::future::{BoxFuture, FutureExt as _};

use super::native::{Found, Queue, Rebalance};
use super::{CommitJob, Shared};
use crate::RETRY_WAIT;

/// Longest time between two calls of librdkafka's poll function.
const POLL_MAX: Duration = Duration::from_millis(100);
/// Limit of the first attempt to read committed offsets.
const FIND_MIN: Duration = Duration::from_millis(250);
/// Number of proofs in a session timeout. While the group waits for a member that has died, the broker answers no commit
/// of the others. A late proof would then end before the group continues.
const PROOFS: u32 = 12;

/// Partitions of librdkafka's assignment, and their queues.
type Assignment = Vec<(Partition, Queue)>;

impl Shared {
    /// Answers rebalances and makes proofs without end.
    pub(super) async fn follow_group(&self) {
        let mut assignment = Assignment::default();
        loop {
            if let Err(failure) = self.native.poll() {
                self.state().failure = Some(failure);
                self.changed.notify_one();
            }
            match self.native.take_rebalance() {
                Some(Rebalance::Assign(partitions)) => {
                    let work = self.accept(&mut assignment, partitions).boxed();
                    self.poll_during(work).await;
                }
                Some(Rebalance::Revoke(partitions)) => {
                    let work = self.release(&mut assignment, partitions).boxed();
                    self.poll_during(work).await;
                }
                None => {
                    let work = self.keep(&mut assignment).boxed();
                    self.poll_during(work).await;
                }
            }
        }
    }

    /// Calls librdkafka's poll function during a longer work.
    async fn poll_during(&self, mut work: BoxFuture<'_, ()>) {
        loop {
            if self.runtime.timeout(POLL_MAX, &mut work).await.is_some() {
                return;
            }
            if let Err(failure) = self.native.poll() {
                self.state().failure = Some(failure);
                self.changed.notify_one();
            }
        }
    }

    /// Adds new partitions.
    async fn accept(&self, assignment: &mut Assignment, partitions: Vec<Partition>) {
        let queues = self.native.queues(&partitions);
        let found = if partitions.is_empty() { None } else { self.find(&partitions).await };
        self.native.assign(&partitions, found.as_deref());
        let new: Assignment = partitions.into_iter().zip(queues).collect();
        assignment.extend(new.iter().cloned());
        if let Some(found) = found {
            self.give(&new, &found).await;
        }
    }

    /// Reads the positions of partitions. Returns `None` if the group changes again.
    async fn find(&self, partitions: &[Partition]) -> Option<Vec<Found>> {
        // If librdkafka does not know the coordinator, it waits for a change of the brokers, which may never come. The
        // first attempts are therefore short.
        let mut limit = FIND_MIN;
        loop {
            match self.native.find(&self.runtime, partitions, limit).await {
                Ok(found) => return Some(found),
                Err(error) => self.report(&error),
            }
            if self.native.has_rebalance() {
                return None;
            }
            limit = (2 * limit).min(self.options.session_timeout.max(FIND_MIN));
            self.runtime.sleep(RETRY_WAIT).await;
        }
    }

    /// Proves the membership by a commit of the positions, and then gives the partitions to the caller. The commit also
    /// makes the start of a group durable that begins at the end of a partition.
    async fn give(&self, new: &Assignment, found: &[Found]) {
        let first = |one: &Found| Commit {
            partition: one.partition.clone(),
            committed: one.committed.clone().unwrap_or(Committed { offset: one.position, metadata: String::new() }),
        };
        let commits: Vec<Commit> = found.iter().map(first).collect();
        let committed = commits.iter().map(|one| (one.partition.clone(), one.committed.clone()));
        self.state().committed.extend(committed);
        loop {
            match self.commit(|outcome| CommitJob::First { commits: commits.clone(), outcome }).await {
                Ok(()) => break,
                Err(error) => self.report(&error),
            }
            if self.native.has_rebalance() {
                return;
            }
            self.runtime.sleep(RETRY_WAIT).await;
        }
        let assigned = |one: &Found| {
            let (_, queue) = new.iter().find(|(partition, _)| *partition == one.partition)?;
            let (partition, position, committed) = (one.partition.clone(), one.position, one.committed.clone());
            Some((Assigned { partition, position, committed }, queue.clone()))
        };
        let mut state = self.state();
        if !self.native.is_lost() && self.now() < state.ends {
            state.ownership.assign(found.iter().filter_map(assigned).collect());
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Takes partitions from the caller, and gives them to the group.
    async fn release(&self, assignment: &mut Assignment, partitions: Vec<Partition>) {
        let deadline = self.now() + self.options.revoke_timeout;
        let revoked = {
            let mut state = self.state();
            if self.native.is_lost() {
                state.ownership.lose_all();
            }
            state.ownership.revoke(deadline, |partition| partitions.contains(partition))
        };
        self.changed.notify_one();
        if let Some(mut revoked) = revoked {
            // The caller may lose the partitions before it releases them.
            let in_time = loop {
                if !self.state().ownership.is_releasing(revoked.number) || self.now() >= deadline {
                    break false;
                }
                if self.native.is_lost() {
                    self.state().ownership.lose_all();
                }
                let wait = POLL_MAX.min(deadline.since(self.now()));
                if self.runtime.timeout(wait, &mut revoked.released).await.is_some() {
                    break true;
                }
                self.prove();
            };
            self.state().ownership.release(revoked.number, in_time);
            self.changed.notify_one();
        }
        self.native.unassign(&partitions);
        assignment.retain(|(partition, _)| !partitions.contains(partition));
        self.state().committed.retain(|partition, _| !partitions.contains(partition));
    }

    /// Makes a proof if one is due. If the caller has lost partitions that the group has kept for this member, gives them
    /// to the caller again. Otherwise waits for an event.
    async fn keep(&self, assignment: &mut Assignment) {
        let lost: Vec<Partition> = {
            let mut state = self.state();
            state.expire(self.now());
            let partitions = assignment.iter().map(|(partition, _)| partition);
            partitions.filter(|partition| !state.ownership.contains(partition)).cloned().collect()
        };
        if !lost.is_empty() {
            self.changed.notify_one();
            self.regain(assignment, &lost).await;
            self.runtime.sleep(RETRY_WAIT).await;
            return;
        }
        self.prove();
        _ = self.runtime.timeout(POLL_MAX, self.native.woken()).await;
    }

    /// Gives partitions of librdkafka's assignment to the caller again.
    async fn regain(&self, assignment: &mut Assignment, lost: &[Partition]) {
        let Some(found) = self.find(lost).await else { return };
        let mut regained = Assignment::new();
        for (partition, queue) in assignment {
            if let Some(one) = found.iter().find(|one| one.partition == *partition) {
                *queue = queue.renewed(&self.native);
                queue.begin_seek();
                self.native.seek(&self.runtime, queue.clone(), partition.clone(), one.position).await;
                regained.push((partition.clone(), queue.clone()));
            }
        }
        self.give(&regained, &found).await;
    }

    /// Commits a committed offset again, if no commit has been accepted for some time.
    fn prove(&self) {
        let mut state = self.state();
        let (left, timeout) = (state.ends.since(self.now()), self.options.session_timeout);
        if !state.is_proving && !state.committed.is_empty() && left <= timeout - timeout / PROOFS {
            state.is_proving = self.commits.send(CommitJob::Proof).is_ok();
        }
    }

    /// Reports an error after which a repetition cannot succeed.
    fn report(&self, error: &BusError) {
        tracing::debug!(%error, "a request of a member of a group failed");
        if !error.is_retryable() && *error != BusError::Fenced {
            self.state().failure = Some(error.clone());
            self.changed.notify_one();
        }
    }
}
