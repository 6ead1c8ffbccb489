//! Coordinator of one group. It is a pure state machine: the caller provides the time.
//!
//! Each member sends heartbeats with the partitions that it holds, and each response contains the partitions that it
//! may hold. A change of the members changes the *target* of each member, which is the assignment that the group is
//! moving to. A partition moves in two steps: the response no longer contains the partition, and after the member's
//! next heartbeat without the partition, a response to the new owner contains it. This is the protocol of KIP-848.
//!
//! Each response that gives a partition to a member contains a new [`Grant`], and each commit contains the grant of its
//! partition. Otherwise a commit from before the loss of a partition could take effect after the same member received
//! the partition again, and after the coordinator read the committed offset for it.
//!
//! Invariant: [`Group::owners`] contains at most one member for each partition, and no member holds a partition that
//! another member owns, as long as each member stops at its own deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use instants::Monotonic;

use crate::BusError;
use crate::admin::{GroupDescription, GroupMember};
use crate::consumer::{Commit, Committed};
use crate::topic::{Partition, TopicName};

/// Host of all members.
const HOST: &str = "memory";

/// Number of a member. The bus uses each number once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct MemberId(pub(super) u64);

/// Number of a change of the owner of a partition. The group uses each number once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Grant(u64);

#[derive(Default)]
pub(super) struct Group {
    members: BTreeMap<MemberId, Member>,
    /// Member that may hold the partition, and its grant.
    owners: BTreeMap<Partition, (MemberId, Grant)>,
    last_grant: u64,
    committed: BTreeMap<Partition, Committed>,
    /// Number of changes after which the next heartbeat of a member may have another response.
    changes: u64,
}

struct Member {
    name: String,
    topics: BTreeSet<TopicName>,
    session_timeout: Duration,
    /// End of the session, unless the member sends a request before.
    ends: Monotonic,
    target: BTreeSet<Partition>,
}

/// Number of partitions of each topic.
pub(super) type Sizes = BTreeMap<TopicName, u32>;

impl Group {
    /// Adds a member.
    pub(super) fn join(
        &mut self,
        id: MemberId,
        name: &str,
        topics: BTreeSet<TopicName>,
        session_timeout: Duration,
        now: Monotonic,
        sizes: &Sizes,
    ) {
        let ends = now + session_timeout;
        let name = name.to_owned();
        self.members.insert(id, Member { name, topics, session_timeout, ends, target: BTreeSet::new() });
        self.rebalance(sizes);
    }

    /// Renews the session of a member that holds the partitions `held`. Returns the partitions that the member may hold,
    /// and their grants. The member must release all others.
    ///
    /// # Errors
    /// Returns [`BusError::Fenced`] if the session has ended.
    pub(super) fn heartbeat(
        &mut self,
        id: MemberId,
        held: &BTreeSet<Partition>,
        now: Monotonic,
    ) -> Result<BTreeMap<Partition, Grant>, BusError> {
        let member = self.members.get_mut(&id).ok_or(BusError::Fenced)?;
        member.ends = now + member.session_timeout;
        // The member has released these partitions, or it has never received the response that contained them.
        let count = self.owners.len();
        self.owners.retain(|partition, (owner, _)| {
            *owner != id || held.contains(partition) || member.target.contains(partition)
        });
        self.changes += u64::from(self.owners.len() < count);
        let mut granted = BTreeMap::new();
        for partition in &member.target {
            let owner = self.owners.get(partition).copied();
            let grant = match owner {
                Some((owner, _)) if owner != id => continue,
                Some((_, grant)) if held.contains(partition) => grant,
                Some(_) | None => {
                    self.last_grant += 1;
                    Grant(self.last_grant)
                }
            };
            self.owners.insert(partition.clone(), (id, grant));
            granted.insert(partition.clone(), grant);
        }
        Ok(granted)
    }

    /// Removes a member. Its partitions are free at once.
    pub(super) fn leave(&mut self, id: MemberId, sizes: &Sizes) {
        if self.members.remove(&id).is_some() {
            self.owners.retain(|_, (owner, _)| *owner != id);
            self.rebalance(sizes);
        }
    }

    /// Removes the members whose sessions have ended.
    pub(super) fn expire(&mut self, now: Monotonic, sizes: &Sizes) {
        let is_over = |member: &Member| member.ends <= now;
        let over: Vec<MemberId> =
            self.members.iter().filter(|(_, member)| is_over(member)).map(|(id, _)| *id).collect();
        over.into_iter().for_each(|id| self.leave(id, sizes));
    }

    /// Stores committed offsets of a member, and renews its session.
    ///
    /// # Errors
    /// Returns [`BusError::Fenced`], and stores nothing, if one of the grants is not the current grant of the member.
    pub(super) fn commit(
        &mut self,
        id: MemberId,
        commits: Vec<(Commit, Grant)>,
        now: Monotonic,
    ) -> Result<(), BusError> {
        let is_current = |(commit, grant): &(Commit, Grant)| self.owners.get(&commit.partition) == Some(&(id, *grant));
        if !commits.iter().all(is_current) {
            return Err(BusError::Fenced);
        }
        if let Some(member) = self.members.get_mut(&id) {
            member.ends = now + member.session_timeout;
        }
        self.committed.extend(commits.into_iter().map(|(commit, _)| (commit.partition, commit.committed)));
        Ok(())
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn committed(&self, partition: &Partition) -> Option<&Committed> {
        self.committed.get(partition)
    }

    /// Returns true if the group has neither members nor committed offsets.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.committed.is_empty()
    }

    pub(super) fn describe(&self) -> GroupDescription {
        let partitions = |id: MemberId| {
            let owned = self.owners.iter().filter(move |(_, (owner, _))| *owner == id);
            owned.map(|(partition, _)| partition.clone()).collect()
        };
        let member = |(id, member): (&MemberId, &Member)| GroupMember {
            id: id.0.to_string(),
            name: member.name.clone(),
            host: HOST.to_owned(),
            partitions: partitions(*id),
        };
        GroupDescription {
            members: self.members.iter().map(member).collect(),
            committed: self.committed.clone(),
            is_rebalancing: self.is_rebalancing(),
        }
    }

    /// Returns true if a partition has not reached its target.
    fn is_rebalancing(&self) -> bool {
        let targets = self.members.iter().flat_map(|(id, member)| member.target.iter().map(move |one| (one, *id)));
        let owners: BTreeMap<&Partition, MemberId> = self.owners.iter().map(|(one, (id, _))| (one, *id)).collect();
        owners != targets.collect()
    }

    /// Computes the targets of all members. Partitions stay with their owners where this does not unbalance the group.
    pub(super) fn rebalance(&mut self, sizes: &Sizes) {
        self.changes += 1;
        let mut targets: BTreeMap<MemberId, BTreeSet<Partition>> =
            self.members.keys().map(|id| (*id, BTreeSet::new())).collect();
        for (topic, size) in sizes {
            let readers: Vec<MemberId> =
                self.members.iter().filter(|(_, member)| member.topics.contains(topic)).map(|(id, _)| *id).collect();
            if !readers.is_empty() {
                self.share(topic, *size, &readers, &mut targets);
            }
        }
        for (id, target) in targets {
            self.members.get_mut(&id).expect("each target belongs to a member").target = target;
        }
    }

    /// Adds the partitions of `topic` to the targets of `readers`. The numbers of partitions of two readers differ by at
    /// most one.
    fn share(
        &self,
        topic: &TopicName,
        size: u32,
        readers: &[MemberId],
        targets: &mut BTreeMap<MemberId, BTreeSet<Partition>>,
    ) {
        let partitions = (0..size).map(|index| Partition { topic: topic.clone(), index });
        let (least, mut larger) = (size as usize / readers.len(), size as usize % readers.len());
        let mut counts: BTreeMap<MemberId, usize> = readers.iter().map(|id| (*id, 0)).collect();
        let mut free = Vec::new();
        for partition in partitions {
            // The owner of a partition, or otherwise the member that waits for it, keeps it up to its share.
            let waiting = || readers.iter().find(|id| self.members[*id].target.contains(&partition)).copied();
            let keeper = self.owners.get(&partition).map(|(owner, _)| *owner).or_else(waiting);
            let count = keeper.and_then(|id| counts.get_mut(&id).map(|count| (id, count)));
            match count {
                Some((id, count)) if *count < least || (*count == least && larger > 0) => {
                    larger -= usize::from(*count == least);
                    *count += 1;
                    targets.entry(id).or_default().insert(partition);
                }
                _ => free.push(partition),
            }
        }
        for partition in free {
            let (id, count) = counts.iter_mut().min_by_key(|(id, count)| (**count, **id)).expect("a topic has readers");
            *count += 1;
            targets.entry(*id).or_default().insert(partition);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SESSION: Duration = Duration::from_secs(10);

    fn topic() -> TopicName {
        TopicName::new("orders").unwrap()
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(seconds))
    }

    /// Returns the partitions that the member may hold.
    fn heartbeat_of(group: &mut Group, id: MemberId, held: &BTreeSet<Partition>, now: u64) -> BTreeSet<Partition> {
        group.heartbeat(id, held, at(now)).unwrap().into_keys().collect()
    }

    proptest! {
        /// Members join, leave, fail, and send heartbeats in any order. The test checks after each step that no two
        /// members hold the same partition, and at the end that the partitions are balanced.
        #[test]
        fn partition_has_one_holder_and_the_group_is_balanced_at_the_end(
            size in 1_u32..12,
            steps in prop::collection::vec((0_u8..4, 0_u64..5), 0..60),
        ) {
            let sizes = Sizes::from([(topic(), size)]);
            let (mut group, mut held) = (Group::default(), BTreeMap::<MemberId, BTreeSet<Partition>>::new());
            let mut next = 0;
            let heartbeat = |group: &mut Group, held: &mut BTreeMap<MemberId, BTreeSet<Partition>>, id| {
                let all = held.get_mut(&id).unwrap();
                *all = heartbeat_of(group, id, all, 0);
            };
            for (kind, member) in steps {
                let id = held.keys().nth(usize::try_from(member).unwrap()).copied();
                match (kind, id) {
                    (0, _) if held.len() < 5 => {
                        next += 1;
                        group.join(MemberId(next), "a", [topic()].into(), SESSION, at(0), &sizes);
                        held.insert(MemberId(next), BTreeSet::new());
                    }
                    (1, Some(id)) => {
                        group.leave(id, &sizes);
                        held.remove(&id);
                    }
                    // The response is lost, so the member holds the same partitions as before.
                    (2, Some(id)) => {
                        group.heartbeat(id, &held[&id], at(0)).unwrap();
                    }
                    (_, Some(id)) => heartbeat(&mut group, &mut held, id),
                    _ => {}
                }
                let all: Vec<&Partition> = held.values().flatten().collect();
                let distinct: BTreeSet<&Partition> = all.iter().copied().collect();
                prop_assert_eq!(all.len(), distinct.len(), "two members hold one partition");
            }
            for _ in 0..3 {
                for id in held.keys().copied().collect::<Vec<_>>() {
                    heartbeat(&mut group, &mut held, id);
                }
            }
            let counts: Vec<usize> = held.values().map(BTreeSet::len).collect();
            if let (Some(least), Some(most)) = (counts.iter().min(), counts.iter().max()) {
                prop_assert_eq!(counts.iter().sum::<usize>(), size as usize);
                prop_assert!(most - least <= 1, "{:?}", counts);
            }
        }
    }

    #[test]
    fn partitions_move_only_as_far_as_the_balance_requires() {
        let sizes = Sizes::from([(topic(), 6)]);
        let mut group = Group::default();
        let [a, b, c] = [1, 2, 3].map(MemberId);
        group.join(a, "a", [topic()].into(), SESSION, at(0), &sizes);
        group.join(b, "b", [topic()].into(), SESSION, at(0), &sizes);
        let first = [a, b].map(|id| heartbeat_of(&mut group, id, &BTreeSet::new(), 0));
        assert_eq!([3, 3], [first[0].len(), first[1].len()]);
        group.join(c, "c", [topic()].into(), SESSION, at(0), &sizes);
        let second = [(a, &first[0]), (b, &first[1])].map(|(id, held)| heartbeat_of(&mut group, id, held, 1));
        assert!(second.iter().zip(&first).all(|(second, first)| second.len() == 2 && second.is_subset(first)));
        assert!(group.heartbeat(c, &BTreeSet::new(), at(1)).unwrap().is_empty(), "the owners still hold them");
        for (id, held) in [(a, &second[0]), (b, &second[1])] {
            group.heartbeat(id, held, at(2)).unwrap();
        }
        assert_eq!(group.heartbeat(c, &BTreeSet::new(), at(2)).unwrap().len(), 2);
    }

    #[test]
    fn member_whose_session_has_ended_can_neither_commit_nor_renew() {
        let sizes = Sizes::from([(topic(), 1)]);
        let mut group = Group::default();
        let [a, b] = [1, 2].map(MemberId);
        group.join(a, "a", [topic()].into(), SESSION, at(0), &sizes);
        let granted = group.heartbeat(a, &BTreeSet::new(), at(1)).unwrap();
        let (partition, grant) = granted.into_iter().next().unwrap();
        let held = BTreeSet::from([partition.clone()]);
        let commit = || {
            let committed = Committed { offset: crate::Offset(1), metadata: String::new() };
            vec![(Commit { partition: partition.clone(), committed }, grant)]
        };
        group.commit(a, commit(), at(1)).unwrap();
        group.join(b, "b", [topic()].into(), SESSION, at(5), &sizes);
        assert_eq!(group.commit(b, commit(), at(5)), Err(BusError::Fenced));
        group.expire(at(10), &sizes);
        assert!(heartbeat_of(&mut group, b, &BTreeSet::new(), 10).is_empty());
        group.expire(at(11), &sizes);
        assert_eq!(heartbeat_of(&mut group, b, &BTreeSet::new(), 11), held);
        assert_eq!(group.commit(a, commit(), at(11)), Err(BusError::Fenced));
        assert_eq!(group.heartbeat(a, &held, at(11)), Err(BusError::Fenced));
    }

    #[test]
    fn commit_from_before_a_loss_is_rejected_after_the_same_member_receives_the_partition_again() {
        let sizes = Sizes::from([(topic(), 1)]);
        let (mut group, a) = (Group::default(), MemberId(1));
        group.join(a, "a", [topic()].into(), SESSION, at(0), &sizes);
        let first = group.heartbeat(a, &BTreeSet::new(), at(1)).unwrap();
        let held: BTreeSet<Partition> = first.keys().cloned().collect();
        let kept = group.heartbeat(a, &held, at(2)).unwrap();
        assert_eq!(kept, first);
        let second = group.heartbeat(a, &BTreeSet::new(), at(3)).unwrap();
        let mut commit = |granted: &BTreeMap<Partition, Grant>| {
            let committed = Committed { offset: crate::Offset(1), metadata: String::new() };
            let (partition, grant) = granted.first_key_value().unwrap();
            group.commit(a, vec![(Commit { partition: partition.clone(), committed }, *grant)], at(3))
        };
        assert_eq!((commit(&first), commit(&second)), (Err(BusError::Fenced), Ok(())));
    }
}
