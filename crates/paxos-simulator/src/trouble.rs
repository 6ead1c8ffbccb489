//! What goes wrong, and what operators and applications ask for meanwhile.

use paxos::{GroupId, NodeId, Slot};
use simulator::Random;

use crate::checks::{Rule, Violation};
use crate::knobs::Fault;
use crate::program::{Incident, Program, Request, View};
use crate::world::{Host, World, WorldEvent};

impl<P: Program> World<P> {
    pub(crate) fn make_trouble(&mut self) -> Result<(), Violation> {
        let fault = Fault::ALL[self.random.index(Fault::ALL.len())];
        let node = self.random.index(self.nodes.len());
        let group = self.groups[self.random.index(self.groups.len())];
        // Drawn in any case, so that what is left out shifts nothing else.
        let mut dice = self.random.fork();
        if self.knobs.hunts && self.knobs.has(Fault::Ambushes) && dice.coin() {
            self.heal_links();
            let [system, master] = [GroupId::SYSTEM, group].map(|group| self.checks.server(group.0 as usize));
            if let Some(master) = master.filter(|_| master != system) {
                self.isolate(master);
            }
            return Ok(());
        }
        let fault = if self.knobs.moves && dice.coin() { Fault::Moves } else { fault };
        if !self.knobs.has(fault) {
            return Ok(());
        }
        match fault {
            Fault::Partitions => self.cut_or_heal(&mut dice),
            Fault::Crashes if self.is_up(node) => {
                self.restart_later(node, 500 + dice.below(60_000));
                return self.crash(node);
            }
            Fault::BitFlips if self.is_up(node) && dice.below(10) == 0 && self.can_spare(node) => {
                self.crash(node)?;
                if self.flip(node) {
                    self.checks.happened(Incident::BitFlip);
                }
                self.restart_later(node, 500 + dice.below(60_000));
            }
            Fault::Pauses if self.is_up(node) && !self.nodes[node].is_paused => {
                self.checks.happened(Incident::Pause);
                self.pause(node, 500 + dice.below(200_000));
            }
            Fault::Drift => {
                self.set_rate(node);
                self.jump_wall(node);
            }
            Fault::Moves => return self.move_master(node, group, &mut dice),
            Fault::Snapshots => {
                for _ in 0..dice.below(3) {
                    let node = dice.index(self.nodes.len());
                    self.request(node, group, Request::Snapshot(dice.below(4)))?;
                }
            }
            Fault::Members => return self.change_members(group, &mut dice),
            // A master that has long been one, and may be idle.
            Fault::Ambushes if dice.chance(self.knobs.ambush) => {
                if let Some(master) = self.checks.server(group.0 as usize) {
                    self.isolate(master);
                }
            }
            Fault::Loss | Fault::Doubling | Fault::Tails | Fault::SlowSyncs | Fault::FailedSyncs | Fault::Ambushes => {}
            Fault::Crashes | Fault::BitFlips | Fault::Pauses => {}
        }
        Ok(())
    }

    fn cut_or_heal(&mut self, dice: &mut Random) {
        let count = self.nodes.len();
        match dice.below(5) {
            // All links, one of them at a time, in any order: what is cut first need not be healed first.
            0 => {
                let (a, b) = (dice.index(count), dice.index(count));
                let was_whole = !self.is_cut[a][b] && !self.is_cut[b][a];
                self.is_cut[a][b] = a != b && !self.is_cut[a][b];
                if a != b && was_whole && self.is_up(a) && self.is_up(b) {
                    self.checks.happened(Incident::OneWayPartition);
                }
            }
            1 | 2 => {
                let side: Vec<bool> = (0..count).map(|_| dice.coin()).collect();
                let is_one_way = dice.below(4) == 0;
                for a in 0..count {
                    for b in 0..count {
                        self.is_cut[a][b] = side[a] != side[b] && (side[a] || !is_one_way);
                    }
                }
                let has = |of: bool| (0..count).any(|node| side[node] == of && self.is_up(node));
                if has(true) && has(false) {
                    self.checks.happened(if is_one_way { Incident::OneWayPartition } else { Incident::Partition });
                }
            }
            _ => self.heal_links(),
        }
    }

    /// When most is under way: who has just come to lead, or to serve.
    pub(crate) fn ambush(&mut self, node: usize, crashes: bool) {
        if !self.may_ambush() {
            return;
        }
        if crashes {
            self.crash_soon(node, self.slot());
        } else {
            self.isolate(node);
            if self.random.below(3) == 0 {
                // All but this one, which has a lease from them, and for less than that.
                for other in (0..self.nodes.len()).filter(|other| *other != node) {
                    self.crash_soon(other, 2 * self.knobs.delay.1);
                }
            }
        }
    }

    /// Whoever makes a move, in the midst of it: another has to go on with that. Or who is to leave by it is late.
    pub(crate) fn ambush_move(&mut self, holder: usize) {
        if !self.may_ambush() {
            return;
        }
        let leaving = self.checks.moving().filter(|node| self.is_up(*node) && !self.nodes[*node].is_paused);
        match (self.random.below(6), leaving) {
            (0, _) => self.isolate(holder),
            (4, _) => self.crash_soon(holder, self.slot()),
            (1..4, Some(node)) if self.knobs.has(Fault::Pauses) => {
                let lease = u64::try_from(self.knobs.options.lease.as_micros()).expect("it is short");
                // Its lease is not over by that.
                let time = lease / 8 + self.random.below(lease / 2);
                self.checks.happened(Incident::Pause);
                self.pause(node, time);
            }
            _ => {
                let node = self.random.index(self.nodes.len());
                let after = self.random.below(self.slot());
                self.schedule(after, WorldEvent::Take { node, group: GroupId::SYSTEM });
            }
        }
    }

    /// Soon after a move has begun.
    fn ambush_later(&mut self, node: usize) {
        if self.may_ambush() {
            let after = self.random.below(2 * self.slot());
            self.schedule(after, WorldEvent::Isolate { node });
        }
    }

    fn may_ambush(&mut self) -> bool {
        !self.is_peaceful && self.knobs.has(Fault::Ambushes) && self.random.chance(self.knobs.ambush)
    }

    /// About how long one takes to be decided.
    fn slot(&self) -> u64 {
        2 * self.knobs.delay.1 + self.knobs.sync.1
    }

    fn crash_soon(&mut self, node: usize, within: u64) {
        let life = self.nodes[node].life;
        let after = self.random.below(within);
        self.schedule(after, WorldEvent::Crash { node, life });
    }

    pub(crate) fn isolate(&mut self, node: usize) {
        if self.is_peaceful {
            return;
        }
        self.note(node, || "is cut off".to_owned());
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            if self.is_up(node) && self.is_up(other) {
                self.checks.happened(Incident::Partition);
            }
            (self.is_cut[node][other], self.is_cut[other][node]) = (true, true);
        }
    }

    pub(crate) fn heal_links(&mut self) {
        self.is_cut.iter_mut().for_each(|row| row.fill(false));
    }

    fn move_master(&mut self, node: usize, group: GroupId, dice: &mut Random) -> Result<(), Violation> {
        let master = self.checks.server(group.0 as usize).unwrap_or(node);
        self.ambush_later(master);
        if self.knobs.has_system && group != GroupId::SYSTEM {
            let (node, draining) = if dice.coin() { (master, true) } else { (dice.index(self.nodes.len()), false) };
            return self.request(node, GroupId::SYSTEM, Request::Drain(self.nodes[node].id, draining));
        }
        if dice.coin() {
            return self.request(node, group, Request::Take);
        }
        let lease = u64::try_from(self.knobs.options.lease.as_micros()).expect("it is short");
        let remaining = [lease, lease / 8, lease / 2][dice.index(3)];
        let mut others = self.members(group);
        others.retain(|member| *member != self.nodes[master].id);
        let Some(to) = others.get(dice.index(others.len().max(1))) else { return Ok(()) };
        self.request(master, group, Request::Shorten(*to, remaining))?;
        // It may have said so, and does not learn that it is decided.
        if self.knobs.has(Fault::Pauses) && self.is_up(master) && !self.nodes[master].is_paused && self.may_ambush() {
            self.checks.happened(Incident::Pause);
            self.pause(master, lease / 8 + dice.below(lease));
        }
        Ok(())
    }

    /// Members as far as the node knows that has decided most.
    fn members(&self, group: GroupId) -> Vec<NodeId> {
        self.newest(group).map(|view| view.members.to_vec()).unwrap_or_default()
    }

    /// Whether so many members are well that this one may be lost for good, whatever configuration turns out to hold.
    fn can_spare(&self, node: usize) -> bool {
        let id = self.nodes[node].id;
        let is_quiet = self.nodes.iter().all(|member| member.program.is_some() || member.is_doomed || !member.was_up());
        is_quiet
            && self.configurations().iter().all(|members| {
                let well =
                    members.iter().filter(|member| **member != id && !self.nodes[self.index(**member)].is_doomed);
                well.count() > members.len() / 2
            })
    }

    /// All that any node takes to hold, or that may come of what was ordered.
    fn configurations(&self) -> Vec<Vec<NodeId>> {
        let mut all = Vec::new();
        for program in self.nodes.iter().filter_map(|member| member.program.as_ref()) {
            for group in &self.groups {
                let view = program.view(*group);
                for members in [view.members, view.members_decided].iter().filter(|members| !members.is_empty()) {
                    let invited = self.invited.iter().filter(|(to, node)| to == group && !members.contains(node));
                    let grown = invited.map(|(_, node)| [members, &[*node][..]].concat());
                    let grown: Vec<_> = grown.chain([members.to_vec()]).collect();
                    for (_, leaving) in self.dismissed.iter().filter(|(from, _)| from == group) {
                        let shrunk = grown.iter().filter(|members| members.contains(leaving));
                        all.extend(
                            shrunk.map(|members| members.iter().copied().filter(|node| node != leaving).collect()),
                        );
                    }
                    all.extend(grown);
                }
            }
        }
        all
    }

    /// A damaged one is replaced; else one comes or goes.
    fn change_members(&mut self, group: GroupId, dice: &mut Random) -> Result<(), Violation> {
        let Some(master) = self.checks.server(group.0 as usize) else { return Ok(()) };
        let members = self.members(group);
        let is_member = |node: &usize| members.contains(&self.nodes[*node].id);
        let damaged = (0..self.nodes.len()).find(|node| is_member(node) && self.nodes[*node].is_doomed);
        let outside: Vec<usize> =
            (0..self.nodes.len()).filter(|node| !is_member(node) && !self.nodes[*node].is_doomed).collect();
        let is_replaced = |(from, node): &(GroupId, NodeId)| {
            *from == group && !members.contains(node) && self.nodes[self.index(*node)].is_doomed
        };
        if self.dismissed.iter().any(is_replaced) {
            self.checks.happened(Incident::Dismissed);
        }
        if let Some(node) = damaged {
            self.request(master, group, Request::Dismiss(self.nodes[node].id))?;
        } else if members.len() > 3 && dice.coin() && (0..self.nodes.len()).all(|node| self.can_spare(node)) {
            let leaving = members[dice.index(members.len())];
            self.request(master, group, Request::Dismiss(leaving))?;
        }
        if members.len() < 5 && !outside.is_empty() && dice.coin() {
            let joining = outside[dice.index(outside.len())];
            self.restart_later(joining, 0);
            self.request(master, group, Request::Admit(self.nodes[joining].id))?;
        }
        Ok(())
    }

    /// Heals a core of nodes, and only it; each group has to have a master there soon, and to decide what clients propose.
    pub(crate) fn heal(&mut self) -> Result<(), Violation> {
        self.is_peaceful = true;
        // Who is down knows of members, too.
        for node in 0..self.nodes.len() {
            if self.nodes[node].has_failed {
                self.crash(node)?;
            }
            self.start(node)?;
        }
        let core = self.core();
        for a in 0..self.nodes.len() {
            for b in 0..self.nodes.len() {
                if core[a] && core[b] {
                    self.is_cut[a][b] = false;
                } else if core[a] != core[b] {
                    // What comes from outside may get in, and no word gets out: or both, or neither.
                    self.is_cut[a][b] = self.random.coin();
                }
            }
            if core[a] {
                self.resume(a)?;
            } else if self.random.coin() {
                self.crash(a)?;
            }
        }
        let lease = u64::try_from(self.knobs.options.lease.as_micros()).expect("it is short");
        let begun = self.now;
        let patience = 40 * lease + 10_000_000;
        // A lease that is over before a slot can be decided may leave nobody master: then deciding is all there is to ask,
        // as it is of the system group, which clients do not write to.
        // What is written waits for the sync that is under way, and then for its own.
        // Twice that, so that it serves for about half of the time.
        let can_serve = lease > 2 * (2 * self.knobs.delay.1 + 2 * self.knobs.sync.1);
        let count = |world: &Self, group: GroupId| match can_serve && group != GroupId::SYSTEM {
            true => world.checks.acknowledgements()[group.0 as usize],
            false => world.checks.count(group.0 as usize),
        };
        // Of nodes that are gone that is decided by who serves the system group for a while, and their paxos groups wait for it.
        let is_asked = |group: GroupId| can_serve || !self.knobs.has_system || group == GroupId::SYSTEM;
        let asked: Vec<GroupId> = self.groups.iter().copied().filter(|group| is_asked(*group)).collect();
        let before: Vec<u64> = asked.iter().map(|group| count(self, *group)).collect();
        let renewed_before = self.checks.renewals().to_vec();
        let move_before = self.move_known(&core);
        while self.now < begun + patience {
            self.run(1_000, begun + patience)?;
            let mut groups = asked.iter().zip(&before);
            let decide = groups.all(|(group, before)| count(self, *group) >= before + 5);
            // Whom its master does not hear, or who finds no room there, cannot be alive.
            let mut renewals = self.checks.renewals().iter().zip(&renewed_before).zip(&core);
            let is_alive = renewals.any(|((last, before), is_core)| *is_core && last > before);
            let is_over = move_before.is_none_or(|before| self.move_known(&core) != Some(before));
            let is_alone = !can_serve || !self.knobs.has_system;
            if decide && (is_alone || is_alive && is_over) {
                self.checks.happened(Incident::Healed);
                return if asked.len() == self.groups.len() { self.settle(patience) } else { Ok(()) };
            }
        }
        let story = format!("{} microseconds after the healing of {core:?}", self.now - begun);
        Err(Violation { rule: Rule::GoesOn, story })
    }

    /// All links are healed, clients fall silent, and a node is started anew: the members that are up all know soon what one of
    /// them knew.
    fn settle(&mut self, patience: u64) -> Result<(), Violation> {
        self.is_silent = true;
        self.heal_links();
        let decided = |group| Some((group, self.newest(group)?.decided));
        let known: Vec<_> = self.groups.iter().copied().filter_map(decided).collect();
        let up: Vec<usize> = (0..self.nodes.len()).filter(|node| self.is_up(*node)).collect();
        let restarted = up[self.random.index(up.len())];
        self.crash(restarted)?;
        self.start(restarted)?;
        let until = self.now + patience;
        loop {
            let behind: Vec<_> = known.iter().flat_map(|known| self.behind(*known)).collect();
            if behind.is_empty() {
                return Ok(());
            }
            if self.now >= until {
                let story = format!("{} started anew, and {behind:?} have not learnt", self.nodes[restarted].id);
                return Err(Violation { rule: Rule::AllLearn, story });
            }
            self.run(100, until)?;
        }
    }

    /// As the node has it that has decided most.
    fn newest(&self, group: GroupId) -> Option<View> {
        let views = self.nodes.iter().filter_map(|member| member.program.as_ref()).map(|program| program.view(group));
        views.max_by_key(|view| view.decided)
    }

    /// Members that do not know that so much is decided.
    fn behind(&self, (group, decided): (GroupId, Slot)) -> Vec<(GroupId, Slot, NodeId)> {
        let members = self.newest(group).map(|view| view.members_decided).unwrap_or_default();
        let is_behind = |host: &&Host<P>| {
            let view = host.program.as_ref().map(|program| program.view(group));
            members.contains(&host.id) && view.is_some_and(|view| view.decided < decided)
        };
        self.nodes.iter().filter(is_behind).map(|member| (group, decided, member.id)).collect()
    }

    /// The move that may be under way, as far as the node of the core knows that has decided most of the system group.
    fn move_known(&self, core: &[bool]) -> Option<u64> {
        let nodes = self.nodes.iter().zip(core).filter(|(_, is_core)| **is_core && self.knobs.has_system);
        let programs = nodes.filter_map(|(member, _)| member.program.as_ref());
        programs.max_by_key(|program| program.view(GroupId::SYSTEM).decided)?.moves()
    }

    /// All that are well, or all of them but one if the others are enough, whatever configuration holds.
    fn core(&self) -> Vec<bool> {
        let well: Vec<bool> = self.nodes.iter().map(|member| !member.is_damaged).collect();
        let is_enough = |core: &[bool]| {
            self.configurations()
                .iter()
                .all(|members| members.iter().filter(|id| core[self.index(**id)]).count() > members.len() / 2)
        };
        let mut core = well.clone();
        let left_out = self.random.clone().index(core.len());
        core[left_out] = false;
        if is_enough(&core) { core } else { well }
    }
}
