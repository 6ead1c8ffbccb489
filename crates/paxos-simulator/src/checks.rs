//! Rules that the simulation checks after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use paxos::{Ballot, Instant, Slot};

use crate::program::{Incident, OnDisk, Ordered, Program};

/// Violation of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    pub rule: Rule,
    pub detail: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// If two nodes decide a slot, they decide the same entry for this slot and for all earlier slots.
    OneValuePerSlot,
    /// Each node decides the slots without gaps.
    NoGap,
    /// No node promises a lower ballot than the ballots that it has already promised.
    PromisesKept,
    /// At most one node is master at a time.
    OneMaster,
    /// At most one move of a master is in progress at a time.
    OneMove,
    /// Each acknowledged slot is durable on a quorum of members.
    AcknowledgedIsDurable,
    /// An acknowledged proposal is in the slot that the acknowledgement names. A rejected proposal is in no slot. No
    /// proposal is in two slots.
    TrueOutcomes,
    /// Nodes that have applied the same log have the same state.
    OneState,
    /// Each snapshot equals the state after the slots that it replaces.
    SnapshotEqualsLog,
    /// Once the simulation has ended all faults among a quorum of nodes, these nodes make progress.
    Progress,
    /// Once the simulation has repaired all links, all members that are up learn all decided slots, even if no client
    /// writes.
    AllLearn,
    /// All assertions of the program hold.
    Assertion,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.detail)
    }
}

fn broken<T>(rule: Rule, detail: String) -> Result<T, Violation> {
    Err(Violation { rule, detail })
}

pub(crate) struct Checks {
    /// For each paxos group and each decided slot: hash of the slot's entry, and hash of all slots up to this slot.
    decided: Vec<Vec<(u64, u64)>>,
    /// Last slot that each node reported as decided, by node and paxos group.
    reported: Vec<Vec<Slot>>,
    /// Hash of the state after each slot, by paxos group and slot. The first node that applied the slot reported this
    /// hash.
    states: BTreeMap<(usize, Slot), u64>,
    /// Paxos group and slot of each decided proposal, by the proposal's id.
    decided_in: BTreeMap<u64, (usize, Slot)>,
    rejected: BTreeSet<u64>,
    last_promised: Vec<Vec<Ballot>>,
    /// For each node and each paxos group: the end of the time for which the node is master, by the node's own clock,
    /// and the epoch of its mastership. `None` if the node is not master.
    serving: Vec<Vec<Option<(Instant, u64)>>>,
    /// For each node, its roles in moves of masters.
    ordered: Vec<Vec<Ordered>>,
    /// Newest reported state of the move token: the fence of the move that holds the token (`None` if no move holds
    /// it), and the slot of the system group after which the token had this state.
    token: (Option<u64>, Slot),
    /// Slot of the system group at which each node last renewed its liveness.
    renewed: Vec<Slot>,
    /// Epoch of the last decided mastership of each paxos group.
    epochs: Vec<u64>,
    disks: Vec<Vec<Shadow>>,
    /// Lowest slot after which a node has removed entries from its log on disk, by paxos group. Only removals since the
    /// last check of durability count; `None` if there were no such removals.
    changed: Vec<Option<Slot>>,
    /// For each paxos group, the last acknowledged slot and two member lists. A quorum of at least one of these lists
    /// has this slot and all earlier slots on disk.
    last_acknowledged: Vec<(Slot, [Vec<usize>; 2])>,
    /// Number of acknowledged proposals, by paxos group.
    acknowledged: Vec<u64>,
    incidents: u64,
    is_clock_broken: bool,
}

/// Summary of the log on a node's disk.
#[derive(Clone, Default)]
struct Shadow {
    base: u64,
    values: Vec<u64>,
}

impl Checks {
    pub(crate) fn new(nodes: usize, groups: usize, is_clock_broken: bool) -> Self {
        Checks {
            decided: vec![Vec::new(); groups],
            reported: vec![vec![Slot(0); groups]; nodes],
            states: BTreeMap::new(),
            decided_in: BTreeMap::new(),
            rejected: BTreeSet::new(),
            last_promised: vec![vec![Ballot::NONE; groups]; nodes],
            serving: vec![vec![None; groups]; nodes],
            ordered: vec![Vec::new(); nodes],
            token: (None, Slot(0)),
            renewed: vec![Slot(0); nodes],
            epochs: vec![0; groups],
            disks: vec![vec![Shadow::default(); groups]; nodes],
            changed: vec![None; groups],
            last_acknowledged: vec![(Slot(0), Default::default()); groups],
            acknowledged: vec![0; groups],
            incidents: 0,
            is_clock_broken,
        }
    }

    pub(crate) fn note_incident(&mut self, incident: Incident) {
        self.incidents |= 1 << incident as u32;
    }

    pub(crate) fn incidents(&self) -> u64 {
        self.incidents
    }

    /// Returns the number of slots of the paxos group that at least one node has reported as decided.
    pub(crate) fn count(&self, group: usize) -> u64 {
        self.decided[group].len() as u64
    }

    pub(crate) fn acknowledgements(&self) -> &[u64] {
        &self.acknowledged
    }

    /// Resets the summaries of the logs on the node's disk when the node starts. The summaries may lack unsynced
    /// records that the disk kept in a crash. The starting node reads all records again.
    pub(crate) fn starts(&mut self, node: usize) {
        self.disks[node].fill(Shadow::default());
        self.changed.fill(Some(Slot(0)));
        self.reported[node].fill(Slot(0));
    }

    pub(crate) fn decided(
        &mut self,
        node: usize,
        group: usize,
        slot: Slot,
        value: u64,
        chain: u64,
    ) -> Result<(), Violation> {
        let reported = &mut self.reported[node][group];
        if slot != reported.next() {
            return broken(
                Rule::NoGap,
                format!("node n{} decides slot {slot}, but its next slot is {}", node + 1, reported.next()),
            );
        }
        *reported = slot;
        let known = &mut self.decided[group];
        let index = usize::try_from(slot.0 - 1).expect("logs are short");
        match known.get(index) {
            None => known.push((value, chain)),
            Some(first) if *first == (value, chain) => {}
            Some(_) => {
                return broken(
                    Rule::OneValuePerSlot,
                    format!(
                        "node n{}'s entry in slot {slot} differs from the first entry decided in this slot",
                        node + 1
                    ),
                );
            }
        }
        Ok(())
    }

    pub(crate) fn contains(&mut self, group: usize, slot: Slot, id: u64) -> Result<(), Violation> {
        if self.rejected.contains(&id) {
            return broken(
                Rule::TrueOutcomes,
                format!("proposal {id} is decided in slot {slot}, although a node rejected it"),
            );
        }
        let first = *self.decided_in.entry(id).or_insert((group, slot));
        if first != (group, slot) {
            return broken(
                Rule::TrueOutcomes,
                format!("proposal {id} is decided in slot {slot} and in slot {}", first.1),
            );
        }
        Ok(())
    }

    pub(crate) fn rejected(&mut self, id: u64) -> Result<(), Violation> {
        if let Some((_, slot)) = self.decided_in.get(&id) {
            return broken(
                Rule::TrueOutcomes,
                format!("proposal {id} is rejected, although it was decided in slot {slot}"),
            );
        }
        self.rejected.insert(id);
        Ok(())
    }

    pub(crate) fn installed(
        &mut self,
        node: usize,
        group: usize,
        slot: Slot,
        chain: Option<u64>,
    ) -> Result<(), Violation> {
        self.reported[node][group] = slot;
        let index = usize::try_from(slot.0).expect("logs are short").checked_sub(1);
        match index.and_then(|index| self.decided[group].get(index)) {
            Some((_, first)) if chain.is_none_or(|chain| *first == chain) => Ok(()),
            _ => broken(
                Rule::SnapshotEqualsLog,
                format!(
                    "node n{} installs a snapshot up to slot {slot} that differs from the decided entries",
                    node + 1
                ),
            ),
        }
    }

    pub(crate) fn applied(&mut self, node: usize, group: usize, slot: Slot, state: u64) -> Result<(), Violation> {
        if *self.states.entry((group, slot)).or_insert(state) != state {
            return broken(
                Rule::OneState,
                format!(
                    "node n{}'s state after slot {slot} differs from the first state computed for this slot",
                    node + 1
                ),
            );
        }
        Ok(())
    }

    pub(crate) fn promises(&mut self, node: usize, group: usize, ballot: Ballot) -> Result<(), Violation> {
        let last_promised = &mut self.last_promised[node][group];
        if ballot < *last_promised {
            return broken(Rule::PromisesKept, format!("node n{} promises {ballot} after {last_promised}", node + 1));
        }
        *last_promised = ballot;
        Ok(())
    }

    /// Checks that a node still knows its last promise after a start.
    pub(crate) fn remembers(&self, node: usize, group: usize, promised: Ballot) -> Result<(), Violation> {
        let last_promised = self.last_promised[node][group];
        if promised < last_promised {
            return broken(
                Rule::PromisesKept,
                format!(
                    "node n{} starts with the promise {promised}, but its last promise was {last_promised}",
                    node + 1
                ),
            );
        }
        Ok(())
    }

    pub(crate) fn serves(&mut self, node: usize, group: usize, serves: Option<(Instant, u64)>) {
        self.serving[node][group] = serves;
    }

    pub(crate) fn one_serves(&self, group: usize, clock: impl Fn(usize) -> Instant) -> Result<(), Violation> {
        let mut serving = (0..self.serving.len())
            .filter_map(|node| self.serving[node][group].map(|(until, epoch)| (node, until, epoch)))
            .filter(|(node, until, _)| clock(*node) < *until);
        if let (Some(one), Some(two)) = (serving.next(), serving.next())
            && !self.is_clock_broken
        {
            let name = |(node, until, epoch): (usize, Instant, u64)| {
                format!("n{} (epoch {epoch}, until {})", node + 1, until.0)
            };
            return broken(Rule::OneMaster, format!("{} and {} serve group {group}", name(one), name(two)));
        }
        Ok(())
    }

    pub(crate) fn mastered(&mut self, group: usize, epoch: u64) {
        self.epochs[group] = epoch.max(self.epochs[group]);
    }

    pub(crate) fn token(&mut self, fence: Option<u64>, at: Slot) {
        if at > self.token.1 {
            self.token = (fence, at);
        }
    }

    pub(crate) fn renewed(&mut self, node: usize, at: Slot) {
        self.renewed[node] = at.max(self.renewed[node]);
    }

    /// Returns, for each node, the slot of the system group at which the node last renewed its liveness.
    pub(crate) fn renewals(&self) -> &[Slot] {
        &self.renewed
    }

    pub(crate) fn ordered(&mut self, node: usize, ordered: Vec<Ordered>) {
        self.ordered[node] = ordered;
    }

    /// Returns a node that takes part in a move, or `None` if no node does.
    pub(crate) fn moving(&self) -> Option<usize> {
        self.ordered.iter().position(|ordered| !ordered.is_empty())
    }

    pub(crate) fn one_moves(&self, clock: impl Fn(usize) -> Instant) -> Result<(), Violation> {
        let is_live = |node: usize, ordered: &Ordered| {
            clock(node) < ordered.until && self.epochs[ordered.group.0 as usize] <= ordered.epoch
        };
        let all = self.ordered.iter().enumerate();
        let all = all.flat_map(|(node, ordered)| ordered.iter().map(move |ordered| (node, *ordered)));
        let mut live = all.filter(|(node, ordered)| is_live(*node, ordered));
        match live.find(|(_, ordered)| Some(ordered.fence) != self.token.0) {
            Some((node, Ordered { fence, until, .. })) if !self.is_clock_broken => {
                let until = until.0;
                let detail = format!(
                    "node n{} takes part in a move with fence {fence} until instant {until}, but the current move \
                     token has the fence {:?}",
                    node + 1,
                    self.token.0
                );
                broken(Rule::OneMove, detail)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the node that is or was master in the latest epoch. The node may have stopped serving as master.
    pub(crate) fn server(&self, group: usize) -> Option<usize> {
        (0..self.serving.len())
            .filter(|node| self.serving[*node][group].is_some())
            .max_by_key(|node| self.serving[*node][group].map(|(_, epoch)| epoch))
    }

    /// Processes all records that one sync made durable, and then checks that acknowledged slots are still durable. The
    /// check therefore does not treat entries as lost if these records remove the entries and write them again.
    pub(crate) fn on_disk<P: Program>(&mut self, node: usize, records: &[Bytes]) -> Result<(), Violation> {
        for record in records {
            P::note(record, &mut |group, change| self.change(node, group.0 as usize, change));
        }
        self.stays_durable()
    }

    pub(crate) fn change(&mut self, node: usize, group: usize, change: OnDisk) {
        let shadow = &mut self.disks[node][group];
        match change {
            OnDisk::Truncate { after } => {
                let kept = usize::try_from(after.0.saturating_sub(shadow.base)).expect("logs are short");
                if kept < shadow.values.len() {
                    shadow.values.truncate(kept);
                    let changed = &mut self.changed[group];
                    *changed = Some(changed.map_or(after, |first| first.min(after)));
                }
            }
            OnDisk::Push { value } => shadow.values.push(value),
            OnDisk::Base { slot } => {
                let gone = usize::try_from(slot.0.saturating_sub(shadow.base)).expect("logs are short");
                // The summary keeps the entries after the snapshot, even if the node drops them from its log because
                // they contradict the snapshot. The node's next record with entries removes them from the summary.
                shadow.values.drain(..gone.min(shadow.values.len()));
                shadow.base = shadow.base.max(slot.0);
            }
        }
    }

    pub(crate) fn acknowledged(
        &mut self,
        group: usize,
        slot: Slot,
        id: u64,
        members: [Vec<usize>; 2],
    ) -> Result<(), Violation> {
        self.acknowledged[group] += 1;
        if self.decided_in.get(&id) != Some(&(group, slot)) {
            return broken(
                Rule::TrueOutcomes,
                format!("proposal {id} is acknowledged for slot {slot}, but this slot does not contain it"),
            );
        }
        self.check_durable(group, slot, &members)?;
        if slot >= self.last_acknowledged[group].0 {
            self.last_acknowledged[group] = (slot, members);
        }
        Ok(())
    }

    /// Checks that acknowledged slots, and all slots before them, are still durable.
    pub(crate) fn stays_durable(&mut self) -> Result<(), Violation> {
        for group in 0..self.changed.len() {
            let Some(after) = self.changed[group].take() else { continue };
            let (last, members) = &self.last_acknowledged[group];
            for slot in after.0 + 1..=last.0 {
                self.check_durable(group, Slot(slot), members)?;
            }
        }
        Ok(())
    }

    fn check_durable(&self, group: usize, slot: Slot, members: &[Vec<usize>; 2]) -> Result<(), Violation> {
        let index = usize::try_from(slot.0 - 1).expect("logs are short");
        let Some((value, _)) = self.decided[group].get(index) else {
            return broken(
                Rule::AcknowledgedIsDurable,
                format!("slot {slot} is acknowledged, but no node has decided it"),
            );
        };
        let has = |node: &&usize| {
            let shadow = &self.disks[**node][group];
            let above = slot.0.checked_sub(shadow.base + 1).and_then(|above| usize::try_from(above).ok());
            above.is_none_or(|above| shadow.values.get(above) == Some(value))
        };
        if members.iter().any(|members| members.iter().filter(has).count() > members.len() / 2) {
            return Ok(());
        }
        broken(
            Rule::AcknowledgedIsDurable,
            format!(
                "slot {slot} is acknowledged, but no quorum has it on disk; member sets (node indexes): {members:?}"
            ),
        )
    }
}
