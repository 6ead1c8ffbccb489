//! Faults that the simulation injects, and requests that it makes in place of operators and applications.

use paxos::{GroupId, NodeId, Slot};
use simulator::Random;

use crate::checks::{Rule, Violation};
use crate::config::Fault;
use crate::program::{Incident, Program, Request, View};
use crate::world::{Host, World, WorldEvent};

impl<P: Program> World<P> {
    pub(crate) fn inject_fault(&mut self) -> Result<(), Violation> {
        let fault = Fault::ALL[self.random.index(Fault::ALL.len())];
        let node = self.random.index(self.nodes.len());
        let group = self.groups[self.random.index(self.groups.len())];
        // The simulation forks the random number generator for every fault, so that a disabled fault does not change
        // later events.
        let mut random = self.random.fork();
        if self.config.isolates_masters && self.config.has(Fault::Ambushes) && random.coin() {
            self.heal_links();
            let [system, master] = [GroupId::SYSTEM, group].map(|group| self.checks.server(group.0 as usize));
            if let Some(master) = master.filter(|_| master != system) {
                self.isolate(master);
            }
            return Ok(());
        }
        let fault = if self.config.moves && random.coin() { Fault::Moves } else { fault };
        if !self.config.has(fault) {
            return Ok(());
        }
        match fault {
            Fault::Partitions => self.cut_or_heal(&mut random),
            Fault::Crashes if self.is_up(node) => {
                self.restart_later(node, 500 + random.below(60_000));
                return self.crash(node);
            }
            Fault::BitFlips if self.is_up(node) && random.below(10) == 0 && self.can_spare(node) => {
                self.crash(node)?;
                if self.flip(node) {
                    self.checks.note_incident(Incident::BitFlip);
                }
                self.restart_later(node, 500 + random.below(60_000));
            }
            Fault::Pauses if self.is_up(node) && !self.nodes[node].is_paused => {
                self.checks.note_incident(Incident::Pause);
                self.pause(node, 500 + random.below(200_000));
            }
            Fault::Drift => {
                self.set_rate(node);
                self.jump_wall(node);
            }
            Fault::Moves => return self.move_master(node, group, &mut random),
            Fault::Snapshots => {
                for _ in 0..random.below(3) {
                    let node = random.index(self.nodes.len());
                    self.request(node, group, Request::Snapshot(random.below(4)))?;
                }
            }
            Fault::Members => return self.change_members(group, &mut random),
            // The simulation isolates the master at any time. The node may have been master for a long time, and may be
            // idle.
            Fault::Ambushes if random.chance(self.config.targeted_fault) => {
                if let Some(master) = self.checks.server(group.0 as usize) {
                    self.isolate(master);
                }
            }
            Fault::Loss | Fault::Doubling | Fault::Tails | Fault::SlowSyncs | Fault::FailedSyncs | Fault::Ambushes => {}
            Fault::Crashes | Fault::BitFlips | Fault::Pauses => {}
        }
        Ok(())
    }

    fn cut_or_heal(&mut self, random: &mut Random) {
        let count = self.nodes.len();
        match random.below(5) {
            // The simulation cuts or repairs one direction of a single random link. The order of the repairs therefore
            // differs from the order of the cuts.
            0 => {
                let (a, b) = (random.index(count), random.index(count));
                let was_whole = !self.is_cut[a][b] && !self.is_cut[b][a];
                self.is_cut[a][b] = a != b && !self.is_cut[a][b];
                if a != b && was_whole && self.is_up(a) && self.is_up(b) {
                    self.checks.note_incident(Incident::OneWayPartition);
                }
            }
            1 | 2 => {
                let side: Vec<bool> = (0..count).map(|_| random.coin()).collect();
                let is_one_way = random.below(4) == 0;
                for a in 0..count {
                    for b in 0..count {
                        self.is_cut[a][b] = side[a] != side[b] && (side[a] || !is_one_way);
                    }
                }
                let has = |of: bool| (0..count).any(|node| side[node] == of && self.is_up(node));
                if has(true) && has(false) {
                    self.checks.note_incident(if is_one_way { Incident::OneWayPartition } else { Incident::Partition });
                }
            }
            _ => self.heal_links(),
        }
    }

    /// Injects a targeted fault into a node that has just become leader or master. At this time, many messages are in
    /// flight.
    pub(crate) fn inject_targeted_fault(&mut self, node: usize, crashes: bool) {
        if !self.draws_targeted_fault() {
            return;
        }
        if crashes {
            self.crash_soon(node, self.slot());
        } else {
            self.isolate(node);
            if self.random.below(3) == 0 {
                // All other nodes crash, although the isolated node has a lease that these nodes granted. Each of the
                // crashed nodes is down for a shorter time than the length of the lease.
                for other in (0..self.nodes.len()).filter(|other| *other != node) {
                    self.crash_soon(other, 2 * self.config.delay.1);
                }
            }
        }
    }

    /// Injects a targeted fault into a move in progress. There are three such faults. In the first, the holder of the
    /// move token fails, and another process must continue the move. In the second, the simulation pauses the master
    /// that must hand over its mastership. In the third, another node becomes master of the system group.
    pub(crate) fn inject_fault_into_move(&mut self, holder: usize) {
        if !self.draws_targeted_fault() {
            return;
        }
        let leaving = self.checks.moving().filter(|node| self.is_up(*node) && !self.nodes[*node].is_paused);
        match (self.random.below(6), leaving) {
            (0, _) => self.isolate(holder),
            (4, _) => self.crash_soon(holder, self.slot()),
            (1..4, Some(node)) if self.config.has(Fault::Pauses) => {
                let lease = u64::try_from(self.config.options.lease.as_micros())
                    .expect("a lease in microseconds fits into 64 bits");
                // The pause is shorter than the lease.
                let time = lease / 8 + self.random.below(lease / 2);
                self.checks.note_incident(Incident::Pause);
                self.pause(node, time);
            }
            _ => {
                let node = self.random.index(self.nodes.len());
                let after = self.random.below(self.slot());
                self.schedule(after, WorldEvent::Take { node, group: GroupId::SYSTEM });
            }
        }
    }

    /// Isolates the node after a random short time, so that the isolation occurs early in a move.
    fn isolate_soon(&mut self, node: usize) {
        if self.draws_targeted_fault() {
            let after = self.random.below(2 * self.slot());
            self.schedule(after, WorldEvent::Isolate { node });
        }
    }

    fn draws_targeted_fault(&mut self) -> bool {
        !self.faults_stopped && self.config.has(Fault::Ambushes) && self.random.chance(self.config.targeted_fault)
    }

    /// Returns the approximate time in microseconds that members need to decide a slot.
    fn slot(&self) -> u64 {
        2 * self.config.delay.1 + self.config.sync.1
    }

    fn crash_soon(&mut self, node: usize, within: u64) {
        let incarnation = self.nodes[node].incarnation;
        let after = self.random.below(within);
        self.schedule(after, WorldEvent::Crash { node, incarnation });
    }

    pub(crate) fn isolate(&mut self, node: usize) {
        if self.faults_stopped {
            return;
        }
        self.note(node, || "is isolated".to_owned());
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            if self.is_up(node) && self.is_up(other) {
                self.checks.note_incident(Incident::Partition);
            }
            (self.is_cut[node][other], self.is_cut[other][node]) = (true, true);
        }
    }

    pub(crate) fn heal_links(&mut self) {
        self.is_cut.iter_mut().for_each(|row| row.fill(false));
    }

    fn move_master(&mut self, node: usize, group: GroupId, random: &mut Random) -> Result<(), Violation> {
        let master = self.checks.server(group.0 as usize).unwrap_or(node);
        self.isolate_soon(master);
        if self.config.has_system && group != GroupId::SYSTEM {
            let (node, draining) = if random.coin() { (master, true) } else { (random.index(self.nodes.len()), false) };
            return self.request(node, GroupId::SYSTEM, Request::Drain(self.nodes[node].id, draining));
        }
        if random.coin() {
            return self.request(node, group, Request::Take);
        }
        let lease =
            u64::try_from(self.config.options.lease.as_micros()).expect("a lease in microseconds fits into 64 bits");
        let remaining = [lease, lease / 8, lease / 2][random.index(3)];
        let mut others = self.members(group);
        others.retain(|member| *member != self.nodes[master].id);
        let Some(to) = others.get(random.index(others.len().max(1))) else { return Ok(()) };
        self.request(master, group, Request::Shorten(*to, remaining))?;
        // The simulation pauses the master. When the pause begins, the master may have proposed the `Shorten` entry,
        // which ends its lease, but may not know yet whether this entry is decided.
        if self.config.has(Fault::Pauses)
            && self.is_up(master)
            && !self.nodes[master].is_paused
            && self.draws_targeted_fault()
        {
            self.checks.note_incident(Incident::Pause);
            self.pause(master, lease / 8 + random.below(lease));
        }
        Ok(())
    }

    /// Returns the members of the paxos group according to the node that has decided the most slots.
    fn members(&self, group: GroupId) -> Vec<NodeId> {
        self.newest(group).map(|view| view.members.to_vec()).unwrap_or_default()
    }

    /// Returns true if the simulation may permanently damage the node's data: the other healthy members are a quorum of
    /// each member list that may be in effect.
    fn can_spare(&self, node: usize) -> bool {
        let id = self.nodes[node].id;
        let is_quiet =
            self.nodes.iter().all(|member| member.program.is_some() || member.has_bit_flip || !member.was_up());
        is_quiet
            && self.configurations().iter().all(|members| {
                let well =
                    members.iter().filter(|member| **member != id && !self.nodes[self.index(**member)].has_bit_flip);
                well.count() > members.len() / 2
            })
    }

    /// Returns all member lists that any node considers to be in effect, and all member lists that requested changes of
    /// members may produce.
    fn configurations(&self) -> Vec<Vec<NodeId>> {
        let mut all = Vec::new();
        for program in self.nodes.iter().filter_map(|member| member.program.as_ref()) {
            for group in &self.groups {
                let view = program.view(*group);
                for members in [view.members, view.members_decided].iter().filter(|members| !members.is_empty()) {
                    let requested_additions =
                        self.requested_additions.iter().filter(|(to, node)| to == group && !members.contains(node));
                    let grown = requested_additions.map(|(_, node)| [members, &[*node][..]].concat());
                    let grown: Vec<_> = grown.chain([members.to_vec()]).collect();
                    for (_, leaving) in self.requested_removals.iter().filter(|(from, _)| from == group) {
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

    /// Removes a damaged member if the paxos group has one. Otherwise, randomly removes another member or none. Then
    /// randomly adds one member or none.
    fn change_members(&mut self, group: GroupId, random: &mut Random) -> Result<(), Violation> {
        let Some(master) = self.checks.server(group.0 as usize) else { return Ok(()) };
        let members = self.members(group);
        let is_member = |node: &usize| members.contains(&self.nodes[*node].id);
        let damaged = (0..self.nodes.len()).find(|node| is_member(node) && self.nodes[*node].has_bit_flip);
        let outside: Vec<usize> =
            (0..self.nodes.len()).filter(|node| !is_member(node) && !self.nodes[*node].has_bit_flip).collect();
        let is_replaced = |(from, node): &(GroupId, NodeId)| {
            *from == group && !members.contains(node) && self.nodes[self.index(*node)].has_bit_flip
        };
        if self.requested_removals.iter().any(is_replaced) {
            self.checks.note_incident(Incident::DamagedMemberRemoved);
        }
        if let Some(node) = damaged {
            self.request(master, group, Request::RemoveMember(self.nodes[node].id))?;
        } else if members.len() > 3 && random.coin() && (0..self.nodes.len()).all(|node| self.can_spare(node)) {
            let leaving = members[random.index(members.len())];
            self.request(master, group, Request::RemoveMember(leaving))?;
        }
        if members.len() < 5 && !outside.is_empty() && random.coin() {
            let joining = outside[random.index(outside.len())];
            self.restart_later(joining, 0);
            self.request(master, group, Request::AddMember(self.nodes[joining].id))?;
        }
        Ok(())
    }

    /// Ends all faults among the nodes that the function `core` selects. The other nodes may stay down or isolated.
    /// Each paxos group must soon have a master among the selected nodes, and must decide the proposals of clients.
    pub(crate) fn heal(&mut self) -> Result<(), Violation> {
        self.faults_stopped = true;
        // The simulation starts all nodes, because the function `core` needs the member lists that the nodes know.
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
                    // Between a node that `core` selects and any other node, messages pass in one direction, in both
                    // directions, or in none.
                    self.is_cut[a][b] = self.random.coin();
                }
            }
            if core[a] {
                self.resume(a)?;
            } else if self.random.coin() {
                self.crash(a)?;
            }
        }
        let lease =
            u64::try_from(self.config.options.lease.as_micros()).expect("a lease in microseconds fits into 64 bits");
        let begun = self.now;
        let timeout = 40 * lease + 10_000_000;
        // If a lease may end before the members decide a slot, it is possible that no node becomes master. The rule
        // `Progress` then requires decided slots instead of acknowledgements. For the system group, the rule always
        // requires decided slots, because clients do not write to this group. A write waits for the sync in progress
        // and then for its own sync. The lease must be longer than twice the total of these two syncs and of two
        // message delays, so that a master serves for about half of the time.
        let can_serve = lease > 2 * (2 * self.config.delay.1 + 2 * self.config.sync.1);
        let count = |world: &Self, group: GroupId| match can_serve && group != GroupId::SYSTEM {
            true => world.checks.acknowledgements()[group.0 as usize],
            false => world.checks.count(group.0 as usize),
        };
        // A dead node's liveness expires only if a master of the system group serves for some time. The paxos groups
        // whose master is dead wait for this expiry. If the lease is too short for such a master of the system group,
        // the rule `Progress` requires progress of the system group only.
        let is_required = |group: GroupId| can_serve || !self.config.has_system || group == GroupId::SYSTEM;
        let required: Vec<GroupId> = self.groups.iter().copied().filter(|group| is_required(*group)).collect();
        let before: Vec<u64> = required.iter().map(|group| count(self, *group)).collect();
        let renewed_before = self.checks.renewals().to_vec();
        let move_before = self.move_known(&core);
        while self.now < begun + timeout {
            self.run(1_000, begun + timeout)?;
            let mut groups = required.iter().zip(&before);
            let decide = groups.all(|(group, before)| count(self, *group) >= before + 5);
            // A node's liveness expires if the master of the system group does not receive the node's renewals, or if
            // the system group never decides these renewals.
            let mut renewals = self.checks.renewals().iter().zip(&renewed_before).zip(&core);
            let is_alive = renewals.any(|((last, before), is_core)| *is_core && last > before);
            let is_over = move_before.is_none_or(|before| self.move_known(&core) != Some(before));
            let is_alone = !can_serve || !self.config.has_system;
            if decide && (is_alone || is_alive && is_over) {
                self.checks.note_incident(Incident::Healed);
                return if required.len() == self.groups.len() { self.check_all_learn(timeout) } else { Ok(()) };
            }
        }
        let detail = format!(
            "the core nodes made no progress in {} µs after the end of all faults among them; whether each node is \
             in the core: {core:?}",
            self.now - begun
        );
        Err(Violation { rule: Rule::Progress, detail })
    }

    /// Repairs all links, stops the clients and restarts a node. All members that are up must soon know all slots that
    /// any node knew to be decided before the restart.
    fn check_all_learn(&mut self, timeout: u64) -> Result<(), Violation> {
        self.clients_stopped = true;
        self.heal_links();
        let decided = |group| Some((group, self.newest(group)?.decided));
        let known: Vec<_> = self.groups.iter().copied().filter_map(decided).collect();
        let up: Vec<usize> = (0..self.nodes.len()).filter(|node| self.is_up(*node)).collect();
        let restarted = up[self.random.index(up.len())];
        self.crash(restarted)?;
        self.start(restarted)?;
        let until = self.now + timeout;
        loop {
            let behind: Vec<_> = known.iter().flat_map(|known| self.behind(*known)).collect();
            if behind.is_empty() {
                return Ok(());
            }
            if self.now >= until {
                let detail = format!(
                    "after the restart of {}, members lack decided slots (paxos group, slot, member): {behind:?}",
                    self.nodes[restarted].id
                );
                return Err(Violation { rule: Rule::AllLearn, detail });
            }
            self.run(100, until)?;
        }
    }

    /// Returns the view of the node that has decided the most slots of the paxos group.
    fn newest(&self, group: GroupId) -> Option<View> {
        let views = self.nodes.iter().filter_map(|member| member.program.as_ref()).map(|program| program.view(group));
        views.max_by_key(|view| view.decided)
    }

    /// Returns the members that are up and do not know that all slots up to `decided` are decided.
    fn behind(&self, (group, decided): (GroupId, Slot)) -> Vec<(GroupId, Slot, NodeId)> {
        let members = self.newest(group).map(|view| view.members_decided).unwrap_or_default();
        let is_behind = |host: &&Host<P>| {
            let view = host.program.as_ref().map(|program| program.view(group));
            members.contains(&host.id) && view.is_some_and(|view| view.decided < decided)
        };
        self.nodes.iter().filter(is_behind).map(|member| (group, decided, member.id)).collect()
    }

    /// Returns the fence of the move that may be in progress, or `None`. The result is the answer of the node in `core`
    /// that has decided the most slots of the system group.
    fn move_known(&self, core: &[bool]) -> Option<u64> {
        let nodes = self.nodes.iter().zip(core).filter(|(_, is_core)| **is_core && self.config.has_system);
        let programs = nodes.filter_map(|(member, _)| member.program.as_ref());
        programs.max_by_key(|program| program.view(GroupId::SYSTEM).decided)?.moves()
    }

    /// Selects the nodes among which the simulation ends all faults: all healthy nodes except one. If these nodes are
    /// not a quorum of each member list that may be in effect, selects all healthy nodes. Returns a flag for each node.
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
