//! What must be so after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use paxos::{Ballot, Instant, Slot};

use crate::program::{Incident, OnDisk, Ordered, Program};

/// A promise that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    pub rule: Rule,
    pub story: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Two nodes decided different entries for a slot, or the same ones after different histories.
    OneValuePerSlot,
    /// What a node said to be decided is not followed by the next slot.
    NoGap,
    /// A node went back behind a ballot that it had told others.
    PromisesKept,
    /// Two nodes were master at one time.
    OneMaster,
    /// Two moves were in flight at one time.
    OneMove,
    /// What was acknowledged is not durable at a quorum.
    AcknowledgedIsDurable,
    /// A proposal is not where its client was told, or was decided though it was refused, or decided twice.
    ToldTheTruth,
    /// Two nodes made different states of the same log.
    OneState,
    /// What a snapshot holds is not what the log would have made.
    SnapshotIsTheLog,
    /// A core of nodes was healed, and did not go on.
    GoesOn,
    /// Nobody wrote anything, and a member of that core did not learn what was decided.
    AllLearn,
    /// The program's own assertion.
    Assertion,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.story)
    }
}

fn broken<T>(rule: Rule, story: String) -> Result<T, Violation> {
    Err(Violation { rule, story })
}

pub(crate) struct Checks {
    /// Of each group: what was decided in each slot, and all up to there.
    decided: Vec<Vec<(u64, u64)>>,
    /// Of each node and group: up to where it told.
    told: Vec<Vec<Slot>>,
    /// What a program made itself of all up to a slot.
    states: BTreeMap<(usize, Slot), u64>,
    /// In which group and slot a proposal was decided.
    held: BTreeMap<u64, (usize, Slot)>,
    refused: BTreeSet<u64>,
    vowed: Vec<Vec<Ballot>>,
    /// Of each node and group: until when it serves, by its clock, and its epoch.
    serving: Vec<Vec<Option<(Instant, u64)>>>,
    /// Of each node: its parts in moves.
    ordered: Vec<Vec<Ordered>>,
    /// The move that the token is for, and the slot that says so.
    token: (Option<u64>, Slot),
    /// Where each node was alive last.
    renewed: Vec<Slot>,
    /// Of each group: the last mastership that is decided.
    epochs: Vec<u64>,
    disks: Vec<Vec<Shadow>>,
    /// Of each group: after which slot disks have changed since they were looked at, if behind that they had anything.
    changed: Vec<Option<Slot>>,
    /// Of each group: the last slot that was acknowledged, and the members whose quorum has it and all before it.
    firm: Vec<(Slot, [Vec<usize>; 2])>,
    /// Of each group.
    acknowledged: Vec<u64>,
    incidents: u64,
    is_clock_broken: bool,
}

/// The log on a node's disk, in short.
#[derive(Clone, Default)]
struct Shadow {
    base: u64,
    values: Vec<u64>,
}

impl Checks {
    pub(crate) fn new(nodes: usize, groups: usize, is_clock_broken: bool) -> Self {
        Checks {
            decided: vec![Vec::new(); groups],
            told: vec![vec![Slot(0); groups]; nodes],
            states: BTreeMap::new(),
            held: BTreeMap::new(),
            refused: BTreeSet::new(),
            vowed: vec![vec![Ballot::NONE; groups]; nodes],
            serving: vec![vec![None; groups]; nodes],
            ordered: vec![Vec::new(); nodes],
            token: (None, Slot(0)),
            renewed: vec![Slot(0); nodes],
            epochs: vec![0; groups],
            disks: vec![vec![Shadow::default(); groups]; nodes],
            changed: vec![None; groups],
            firm: vec![(Slot(0), Default::default()); groups],
            acknowledged: vec![0; groups],
            incidents: 0,
            is_clock_broken,
        }
    }

    pub(crate) fn happened(&mut self, incident: Incident) {
        self.incidents |= 1 << incident as u32;
    }

    pub(crate) fn incidents(&self) -> u64 {
        self.incidents
    }

    /// How many slots of the group are known to be decided.
    pub(crate) fn count(&self, group: usize) -> u64 {
        self.decided[group].len() as u64
    }

    pub(crate) fn acknowledgements(&self) -> &[u64] {
        &self.acknowledged
    }

    /// What was not synced may be on the disk all the same, and is read again with all else.
    pub(crate) fn starts(&mut self, node: usize) {
        self.disks[node].fill(Shadow::default());
        self.changed.fill(Some(Slot(0)));
        self.told[node].fill(Slot(0));
    }

    pub(crate) fn decided(
        &mut self,
        node: usize,
        group: usize,
        slot: Slot,
        value: u64,
        chain: u64,
    ) -> Result<(), Violation> {
        let told = &mut self.told[node][group];
        if slot != told.next() {
            return broken(Rule::NoGap, format!("n{} decides slot {slot} after {told}", node + 1));
        }
        *told = slot;
        let known = &mut self.decided[group];
        let index = usize::try_from(slot.0 - 1).expect("logs are short");
        match known.get(index) {
            None => known.push((value, chain)),
            Some(first) if *first == (value, chain) => {}
            Some(_) => {
                return broken(Rule::OneValuePerSlot, format!("n{} decides another entry in slot {slot}", node + 1));
            }
        }
        Ok(())
    }

    pub(crate) fn holds(&mut self, group: usize, slot: Slot, id: u64) -> Result<(), Violation> {
        if self.refused.contains(&id) {
            return broken(Rule::ToldTheTruth, format!("{id} was refused, and is decided in slot {slot}"));
        }
        let first = *self.held.entry(id).or_insert((group, slot));
        if first != (group, slot) {
            return broken(Rule::ToldTheTruth, format!("{id} is decided in slot {slot}, and in slot {} too", first.1));
        }
        Ok(())
    }

    pub(crate) fn refused(&mut self, id: u64) -> Result<(), Violation> {
        if let Some((_, slot)) = self.held.get(&id) {
            return broken(Rule::ToldTheTruth, format!("{id} is refused, and was decided in slot {slot}"));
        }
        self.refused.insert(id);
        Ok(())
    }

    pub(crate) fn installed(
        &mut self,
        node: usize,
        group: usize,
        slot: Slot,
        chain: Option<u64>,
    ) -> Result<(), Violation> {
        self.told[node][group] = slot;
        let index = usize::try_from(slot.0).expect("logs are short").checked_sub(1);
        match index.and_then(|index| self.decided[group].get(index)) {
            Some((_, first)) if chain.is_none_or(|chain| *first == chain) => Ok(()),
            _ => broken(Rule::SnapshotIsTheLog, format!("n{} installs another state of slot {slot}", node + 1)),
        }
    }

    pub(crate) fn applied(&mut self, node: usize, group: usize, slot: Slot, state: u64) -> Result<(), Violation> {
        if *self.states.entry((group, slot)).or_insert(state) != state {
            return broken(Rule::OneState, format!("n{} makes another state of all up to slot {slot}", node + 1));
        }
        Ok(())
    }

    pub(crate) fn vows(&mut self, node: usize, group: usize, ballot: Ballot) -> Result<(), Violation> {
        let vowed = &mut self.vowed[node][group];
        if ballot < *vowed {
            return broken(Rule::PromisesKept, format!("n{} vows {ballot} after {vowed}", node + 1));
        }
        *vowed = ballot;
        Ok(())
    }

    /// What a node that starts knows of its vows.
    pub(crate) fn remembers(&self, node: usize, group: usize, promised: Ballot) -> Result<(), Violation> {
        let vowed = self.vowed[node][group];
        if promised < vowed {
            return broken(Rule::PromisesKept, format!("n{} starts with {promised} and had vowed {vowed}", node + 1));
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
                format!("n{} of epoch {epoch} until {}", node + 1, until.0)
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

    /// Of each node: where it was alive last.
    pub(crate) fn renewals(&self) -> &[Slot] {
        &self.renewed
    }

    pub(crate) fn ordered(&mut self, node: usize, ordered: Vec<Ordered>) {
        self.ordered[node] = ordered;
    }

    /// Some node that has a part in a move.
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
                let story = format!(
                    "n{} has a part in {fence} until {until}, and the token is for {:?}",
                    node + 1,
                    self.token.0
                );
                broken(Rule::OneMove, story)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Who served last, as far as anybody knows.
    pub(crate) fn server(&self, group: usize) -> Option<usize> {
        (0..self.serving.len())
            .filter(|node| self.serving[*node][group].is_some())
            .max_by_key(|node| self.serving[*node][group].map(|(_, epoch)| epoch))
    }

    /// Records that are durable now, all that are at once: what is cut and written again in one go was not lost.
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
                // Entries that contradict a snapshot go with their successors; which they are, a next truncation says.
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
        if self.held.get(&id) != Some(&(group, slot)) {
            return broken(Rule::ToldTheTruth, format!("{id} is acknowledged, and not in slot {slot}"));
        }
        self.check_durable(group, slot, &members)?;
        if slot >= self.firm[group].0 {
            self.firm[group] = (slot, members);
        }
        Ok(())
    }

    /// What was acknowledged, and all before it, is where it was.
    pub(crate) fn stays_durable(&mut self) -> Result<(), Violation> {
        for group in 0..self.changed.len() {
            let Some(after) = self.changed[group].take() else { continue };
            let (last, members) = &self.firm[group];
            for slot in after.0 + 1..=last.0 {
                self.check_durable(group, Slot(slot), members)?;
            }
        }
        Ok(())
    }

    fn check_durable(&self, group: usize, slot: Slot, members: &[Vec<usize>; 2]) -> Result<(), Violation> {
        let index = usize::try_from(slot.0 - 1).expect("logs are short");
        let Some((value, _)) = self.decided[group].get(index) else {
            return broken(Rule::AcknowledgedIsDurable, format!("slot {slot} is acknowledged and not decided"));
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
            format!("slot {slot} is acknowledged, and not durable at a quorum of {members:?}"),
        )
    }
}
