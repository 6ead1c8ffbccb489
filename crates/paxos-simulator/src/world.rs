//! Simulated nodes with their network, disks, clocks and clients, and the queue of events.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::fmt::Write;

use paxos::{GroupId, Instant, NodeId};
use simulator::Random;

use crate::checks::{Checks, Violation};
use crate::clock::Clock;
use crate::config::{Fault, Mutation, RunConfig};
use crate::core_program::mix;
use crate::disk::{Disk, Left};
use crate::program::{Incident, Input, NodeConfig, Observation, Out, Program, Request};

/// Number of spare nodes. They are down at first, and can replace nodes whose disks are damaged.
const SPARES: usize = 3;

pub(crate) struct World<P: Program> {
    pub(crate) config: RunConfig,
    pub(crate) random: Random,
    /// True time in microseconds.
    pub(crate) now: u64,
    pub(crate) steps: u64,
    pub(crate) nodes: Vec<Host<P>>,
    /// True at `[from][to]` if the network loses all messages from the node `from` to the node `to`.
    pub(crate) is_cut: Vec<Vec<bool>>,
    pub(crate) groups: Vec<GroupId>,
    pub(crate) checks: Checks,
    pub(crate) faults_stopped: bool,
    /// True if clients propose no further entries.
    pub(crate) clients_stopped: bool,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Vec<Option<WorldEvent<P::Message>>>,
    free: Vec<usize>,
    sequence: u64,
    proposals: u64,
    founders: Vec<NodeId>,
    everyone: Vec<NodeId>,
    pub(crate) trace: u64,
    /// Additions of members that the simulation has requested. A paxos group may decide such an addition at any time.
    pub(crate) requested_additions: BTreeSet<(GroupId, NodeId)>,
    /// Removals of members that the simulation has requested. A paxos group may decide such a removal at any time.
    pub(crate) requested_removals: BTreeSet<(GroupId, NodeId)>,
    /// Trace as lines of text; `None` if the caller did not request a trace.
    pub(crate) lines: Option<Vec<String>>,
}

pub(crate) struct Host<P: Program> {
    pub(crate) id: NodeId,
    /// Program of the node; `None` while the node is down, or before its first start.
    pub(crate) program: Option<P>,
    /// Number of starts and crashes of the node. An event with a lower number is for an earlier process of the node,
    /// and the simulation drops it.
    pub(crate) incarnation: u32,
    disk: Disk,
    clock: Clock,
    pub(crate) is_paused: bool,
    waiting: Vec<WorldEvent<P::Message>>,
    out: Out<P::Message>,
    pub(crate) is_damaged: bool,
    /// True if the node will find its disk damaged at its next start.
    pub(crate) has_bit_flip: bool,
    /// True if a sync has failed, so that the node must restart.
    pub(crate) has_failed: bool,
}

impl<P: Program> Host<P> {
    pub(crate) fn was_up(&self) -> bool {
        self.incarnation > 0
    }
}

#[derive(Clone, Debug)]
pub(crate) enum WorldEvent<M> {
    Deliver { from: usize, to: usize, message: M },
    Synced { node: usize, incarnation: u32, fails: bool },
    Tick { node: usize, incarnation: u32 },
    Client,
    InjectFault,
    Resume { node: usize },
    Restart { node: usize },
    Crash { node: usize, incarnation: u32 },
    Isolate { node: usize },
    Take { node: usize, group: GroupId },
}

impl<P: Program> World<P> {
    pub(crate) fn new(config: RunConfig, is_read: bool) -> Self {
        let mut random = Random::new(mix(config.seed));
        let count = config.nodes as usize + SPARES;
        let everyone: Vec<_> = (1..).map(NodeId).take(count).collect();
        let groups: Vec<_> = (u32::from(!config.has_system)..=config.groups).map(GroupId).collect();
        let nodes = everyone.iter().map(|id| Host {
            id: *id,
            program: None,
            incarnation: 0,
            disk: Disk::default(),
            clock: Clock { true_base: 0, base: random.below(1 << 30), rate_ppm: 0, wall: 0 },
            is_paused: false,
            waiting: Vec::new(),
            out: Out::default(),
            is_damaged: false,
            has_bit_flip: false,
            has_failed: false,
        });
        let nodes: Vec<_> = nodes.collect();
        let founders: Vec<_> = (1..=config.nodes).map(NodeId).collect();
        let mut world = World {
            now: 1,
            steps: 0,
            is_cut: vec![vec![false; count]; count],
            checks: Checks::new(count, config.groups as usize + 1, config.is_clock_broken),
            groups,
            nodes,
            faults_stopped: false,
            clients_stopped: false,
            queue: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            sequence: 0,
            proposals: 0,
            founders,
            everyone,
            trace: 0,
            requested_additions: BTreeSet::new(),
            requested_removals: BTreeSet::new(),
            lines: is_read.then(Vec::new),
            random,
            config,
        };
        for node in 0..world.config.nodes as usize {
            world.set_rate(node);
            world.schedule(node as u64 * 10, WorldEvent::Restart { node });
        }
        world.schedule(world.config.proposal, WorldEvent::Client);
        world.schedule(world.config.fault_interval, WorldEvent::InjectFault);
        world
    }

    /// Runs the simulation until `steps` further events have occurred or the true time has reached `until`.
    pub(crate) fn run(&mut self, steps: u64, until: u64) -> Result<(), Violation> {
        let last = self.steps + steps;
        while self.steps < last && self.now < until {
            match self.queue.peek() {
                Some(Reverse((at, ..))) if *at <= until => self.step()?,
                Some(_) | None => self.now = until,
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), Violation> {
        let Some(Reverse((at, _, index))) = self.queue.pop() else { return Ok(()) };
        let event = self.events[index].take().expect("the queue contains each event once");
        self.free.push(index);
        self.now = self.now.max(at);
        self.steps += 1;
        self.handle_event(event)
    }

    fn handle_event(&mut self, event: WorldEvent<P::Message>) -> Result<(), Violation> {
        match event {
            WorldEvent::Deliver { from, to, message } => {
                if self.nodes[to].is_paused {
                    self.nodes[to].waiting.push(WorldEvent::Deliver { from, to, message });
                } else if !self.is_cut[from][to] {
                    let from = self.nodes[from].id;
                    return self.feed(to, Input::Message(from, message));
                }
            }
            WorldEvent::Synced { node, incarnation, fails } => {
                if self.nodes[node].is_paused {
                    self.nodes[node].waiting.push(WorldEvent::Synced { node, incarnation, fails });
                } else if self.nodes[node].incarnation == incarnation {
                    return self.sync_is_over(node, fails);
                }
            }
            WorldEvent::Tick { node, incarnation }
                if self.nodes[node].incarnation == incarnation && self.nodes[node].program.is_some() =>
            {
                let jitter = self.random.below(self.config.tick / 4 + 1);
                self.schedule(self.config.tick + jitter, WorldEvent::Tick { node, incarnation });
                if !self.nodes[node].is_paused {
                    if self.nodes[node].disk.wants_marker() {
                        self.nodes[node].disk.append_marker();
                        self.sync(node);
                    }
                    return self.feed(node, Input::Tick);
                }
            }
            WorldEvent::Tick { .. } => {}
            WorldEvent::Client => {
                self.schedule(self.config.proposal, WorldEvent::Client);
                if !self.clients_stopped {
                    return self.propose();
                }
            }
            WorldEvent::InjectFault => {
                let wait = self.config.fault_interval / 2 + self.random.below(self.config.fault_interval);
                self.schedule(wait, WorldEvent::InjectFault);
                if !self.faults_stopped {
                    return self.inject_fault();
                }
            }
            WorldEvent::Resume { node } => return self.resume(node),
            WorldEvent::Restart { node } => return self.start(node),
            WorldEvent::Crash { node, incarnation }
                if self.nodes[node].incarnation == incarnation && !self.faults_stopped =>
            {
                let after = self.random.below(3_000);
                self.restart_later(node, after);
                return self.crash(node);
            }
            WorldEvent::Crash { .. } => {}
            WorldEvent::Isolate { node } => self.isolate(node),
            WorldEvent::Take { node, group } if !self.faults_stopped => {
                return self.request(node, group, Request::Take);
            }
            WorldEvent::Take { .. } => {}
        }
        Ok(())
    }

    pub(crate) fn schedule(&mut self, after: u64, event: WorldEvent<P::Message>) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[index] = Some(event);
        self.sequence += 1;
        self.queue.push(Reverse((self.now + after, self.sequence, index)));
    }

    pub(crate) fn restart_later(&mut self, node: usize, after: u64) {
        self.schedule(after, WorldEvent::Restart { node });
    }

    pub(crate) fn index(&self, id: NodeId) -> usize {
        id.0 as usize - 1
    }

    /// Returns the present time by the node's clock.
    pub(crate) fn clock(&self, node: usize) -> Instant {
        Instant(self.nodes[node].clock.read(self.now))
    }

    pub(crate) fn is_up(&self, node: usize) -> bool {
        self.nodes[node].program.is_some()
    }

    pub(crate) fn start(&mut self, node: usize) -> Result<(), Violation> {
        if self.is_up(node) || self.nodes[node].is_damaged {
            return Ok(());
        }
        // The monotonic clock of a machine restarts with the machine.
        let base = self.random.below(1 << 30);
        let clock = &mut self.nodes[node].clock;
        (clock.base, clock.true_base) = (base, self.now);
        let now = self.clock(node);
        let member = &mut self.nodes[node];
        let Ok(records) = member.disk.open() else {
            member.is_damaged = true;
            self.note(node, || "start failed, because the disk of this node is damaged".to_owned());
            return Ok(());
        };
        member.incarnation += 1;
        let is_founder = self.founders.contains(&member.id);
        let founders: &[NodeId] = if is_founder { &self.founders } else { &[] };
        let node_config =
            NodeConfig { me: member.id, groups: &self.groups, everyone: &self.everyone, founders, run: &self.config };
        member.out = Out { token: member.out.token + 1, ..Out::default() };
        self.checks.starts(node);
        self.checks.on_disk::<P>(node, &records)?;
        let program = P::start(&node_config, records, now, &mut member.out);
        let incarnation = member.incarnation;
        for group in &self.groups {
            self.checks.remembers(node, group.0 as usize, program.view(*group).promised)?;
        }
        member.program = Some(program);
        self.note(node, || "starts".to_owned());
        self.schedule(self.config.tick, WorldEvent::Tick { node, incarnation });
        self.collect(node)
    }

    pub(crate) fn feed(&mut self, node: usize, input: Input<P::Message>) -> Result<(), Violation> {
        let now = self.clock(node);
        let wall = self.nodes[node].clock.wall;
        if self.lines.is_some() {
            self.note_input(node, &input);
        }
        let member = &mut self.nodes[node];
        let Some(program) = &mut member.program else { return Ok(()) };
        let clock_time = match self.config.mutant {
            Mutation::WallClock => Instant(now.0.saturating_add_signed(wall)),
            Mutation::None | Mutation::Core(_) => now,
        };
        let is_tick = matches!(input, Input::Tick);
        program.step(clock_time, input, &mut member.out);
        if is_tick {
            program.attend(clock_time, &mut member.out);
        }
        self.collect(node)
    }

    /// Carries out the effects of a node's step, and checks the rules.
    fn collect(&mut self, node: usize) -> Result<(), Violation> {
        let member = &mut self.nodes[node];
        let mut observations = std::mem::take(&mut member.out.observations);
        let records = std::mem::take(&mut member.out.records);
        let mut sends = std::mem::take(&mut member.out.sends);
        self.trace = mix(self.trace ^ self.now ^ (node as u64) << 48 ^ (records.len() as u64) << 40);
        if !records.is_empty() {
            let token = member.out.token;
            member.out.token += 1;
            self.append(node, token, records);
        }
        for observation in observations.drain(..) {
            self.observe(node, observation)?;
        }
        for (to, message) in sends.drain(..) {
            if let Some((group, ballot)) = P::promised_ballot(&message) {
                self.checks.promises(node, group.0 as usize, ballot)?;
            }
            self.send(node, to, message);
        }
        (self.nodes[node].out.observations, self.nodes[node].out.sends) = (observations, sends);
        self.look(node)
    }

    /// Records whether the node is master, and checks the rules about masters and moves.
    fn look(&mut self, node: usize) -> Result<(), Violation> {
        for at in 0..self.groups.len() {
            let group = self.groups[at];
            let index = group.0 as usize;
            let wall = if self.config.mutant == Mutation::WallClock { self.nodes[node].clock.wall } else { 0 };
            let view = self.nodes[node].program.as_ref().map(|program| program.view(group));
            let serves = view.and_then(|view| view.serves);
            let serves = serves.map(|(until, epoch)| (Instant(until.0.saturating_add_signed(-wall)), epoch));
            self.checks.serves(node, index, serves);
            let clocks = |other: usize| Instant(self.nodes[other].clock.read(self.now));
            self.checks.one_serves(index, clocks)?;
        }
        let now = self.clock(node);
        let ordered = self.nodes[node].program.as_ref().map(|program| program.orders(now)).unwrap_or_default();
        self.checks.ordered(node, ordered);
        self.checks.one_moves(|other| Instant(self.nodes[other].clock.read(self.now)))
    }

    fn observe(&mut self, node: usize, observation: Observation) -> Result<(), Violation> {
        self.note(node, || format!("{observation:?}"));
        let index = |group: GroupId| group.0 as usize;
        match observation {
            Observation::Decided { group, slot, value, chain } => {
                self.trace = mix(self.trace ^ chain);
                self.checks.decided(node, index(group), slot, value, chain)
            }
            Observation::Installed { group, slot, chain } => self.checks.installed(node, index(group), slot, chain),
            Observation::Applied { group, slot, state } => self.checks.applied(node, index(group), slot, state),
            Observation::Token { fence, at } => {
                self.checks.token(fence, at);
                Ok(())
            }
            Observation::Renewed { node, at } => {
                self.checks.renewed(self.index(node), at);
                Ok(())
            }
            Observation::Contains { group, slot, id } => self.checks.contains(index(group), slot, id),
            Observation::Acknowledged { group, slot, id } => {
                let view = self.nodes[node].program.as_ref().map(|program| program.view(group));
                let Some(view) = view else { return Ok(()) };
                let indexes = |members: &[NodeId]| members.iter().map(|id| self.index(*id)).collect::<Vec<_>>();
                // The check of durability needs the members after the last entry and the members after the last decided
                // slot, because the node may have begun the next change of members in the same step.
                let members = [indexes(&view.members), indexes(&view.members_decided)];
                self.checks.acknowledged(index(group), slot, id, members)
            }
            Observation::Rejected { id } => self.checks.rejected(id),
            Observation::Mastered { group, epoch } => {
                self.checks.mastered(index(group), epoch);
                Ok(())
            }
            Observation::Unknown { .. } => Ok(()),
            Observation::Leads | Observation::Serves => {
                self.inject_targeted_fault(node, observation == Observation::Leads);
                Ok(())
            }
            Observation::Incident(incident) => {
                self.checks.note_incident(incident);
                let is_move = matches!(incident, Incident::MoveBegun | Incident::HandedOver);
                if is_move && self.checks.server(index(GroupId::SYSTEM)) == Some(node) {
                    self.inject_fault_into_move(node);
                }
                Ok(())
            }
        }
    }

    fn send(&mut self, from: usize, to: NodeId, message: P::Message) {
        let to = self.index(to);
        let config = &self.config;
        let (loss, duplication, tail) = match self.faults_stopped {
            true => (0.0, 0.0, 0.0),
            false => (
                if config.has(Fault::Loss) { config.loss } else { 0.0 },
                if config.has(Fault::Doubling) { config.duplication } else { 0.0 },
                match config.has(Fault::Tails) {
                    true if P::is_order(&message) => config.tail.max(config.late_orders),
                    true => config.tail,
                    false => 0.0,
                },
            ),
        };
        // The simulation drops a message that no node can receive, and schedules no event for it.
        if self.is_cut[from][to] || !self.is_up(to) {
            return;
        }
        if self.random.chance(loss) {
            return self.checks.note_incident(Incident::Lost);
        }
        let copies = if self.random.chance(duplication) { 2 } else { 1 };
        for copy in 0..copies {
            let (least, most) = self.config.delay;
            let mut delay = least + self.random.below(most - least + 1);
            if self.random.chance(tail) {
                delay *= 1 + self.random.below(200);
            }
            if copy > 0 {
                self.checks.note_incident(Incident::Duplicated);
            }
            self.schedule(delay, WorldEvent::Deliver { from, to, message: message.clone() });
        }
    }

    fn append(&mut self, node: usize, token: u64, records: Vec<Vec<u8>>) {
        self.nodes[node].disk.append(token, records);
        self.sync(node);
    }

    fn sync(&mut self, node: usize) {
        let disk = &mut self.nodes[node].disk;
        if disk.syncing.is_some() || disk.is_synced() {
            return;
        }
        disk.sync();
        let incarnation = self.nodes[node].incarnation;
        let (least, most) = self.config.sync;
        let mut time = least + self.random.below(most - least + 1);
        let (slow, failing) = if self.faults_stopped { (0.0, 0.0) } else { (0.002, 0.0003) };
        if self.config.has(Fault::SlowSyncs) && self.random.chance(slow) {
            self.checks.note_incident(Incident::SlowSync);
            time += 10_000 + self.random.below(200_000);
        }
        let fails = self.config.has(Fault::FailedSyncs) && self.random.chance(failing);
        self.schedule(time, WorldEvent::Synced { node, incarnation, fails });
    }

    fn sync_is_over(&mut self, node: usize, fails: bool) -> Result<(), Violation> {
        if fails && !self.faults_stopped {
            self.checks.note_incident(Incident::FailedSync);
            self.nodes[node].has_failed = true;
            self.nodes[node].disk.fail_sync(&mut self.random);
            // A correct program stops when it receives `StorageFailed`. An incorrect program may continue, and its
            // later syncs succeed.
            let (after, incarnation) = (1_000 + self.random.below(50_000), self.nodes[node].incarnation);
            self.schedule(after, WorldEvent::Crash { node, incarnation });
            return self.feed(node, Input::StorageFailed);
        }
        let (token, fresh) = self.nodes[node].disk.synced();
        let records = self.nodes[node].disk.records(fresh);
        self.checks.on_disk::<P>(node, &records)?;
        self.sync(node);
        match token {
            Some(token) => self.feed(node, Input::Persisted(token)),
            None => Ok(()),
        }
    }

    pub(crate) fn crash(&mut self, node: usize) -> Result<(), Violation> {
        let member = &mut self.nodes[node];
        if member.program.take().is_none() {
            return Ok(());
        }
        member.incarnation += 1;
        (member.is_paused, member.has_failed) = (false, false);
        member.waiting.clear();
        let left = member.disk.crash(&mut self.random);
        self.checks.note_incident(Incident::Crash);
        match left {
            Left::All => {}
            Left::Lost => self.checks.note_incident(Incident::LostWrite),
            Left::Torn => self.checks.note_incident(Incident::TornWrite),
        }
        self.note(node, || format!("this node crashes; state of the unsynced records on its disk: {left:?}"));
        self.look(node)
    }

    pub(crate) fn flip(&mut self, node: usize) -> bool {
        let is_flipped = self.nodes[node].disk.flip(&mut self.random);
        self.nodes[node].has_bit_flip |= is_flipped;
        self.note(node, || "the disk of this node has a flipped bit".to_owned());
        is_flipped
    }

    pub(crate) fn pause(&mut self, node: usize, time: u64) {
        self.nodes[node].is_paused = true;
        self.note(node, || format!("pauses for {time}"));
        self.schedule(time, WorldEvent::Resume { node });
    }

    pub(crate) fn resume(&mut self, node: usize) -> Result<(), Violation> {
        if !std::mem::take(&mut self.nodes[node].is_paused) {
            return Ok(());
        }
        self.note(node, || "resumes".to_owned());
        for event in std::mem::take(&mut self.nodes[node].waiting) {
            self.handle_event(event)?;
        }
        Ok(())
    }

    /// Sets a new random rate of the node's clock. The rate differs from the true rate by at most `drift_ppm`
    /// millionths, or by at most 20 times as much if `is_clock_broken` is true.
    pub(crate) fn set_rate(&mut self, node: usize) {
        let now = self.now;
        let bound = i64::from(self.config.drift_ppm) * if self.config.is_clock_broken { 20 } else { 1 };
        if bound == 0 || !self.config.has(Fault::Drift) {
            return;
        }
        let rate =
            self.random.below(u64::try_from(2 * bound + 1).expect("the number of possible clock rates is positive"));
        let clock = &mut self.nodes[node].clock;
        (clock.base, clock.true_base) = (clock.read(now), now);
        clock.rate_ppm = i64::try_from(rate).expect("a clock rate fits into 64 bits") - bound;
        self.checks.note_incident(Incident::ClockDrift);
    }

    pub(crate) fn jump_wall(&mut self, node: usize) {
        let jump = self.random.below(2_000_000);
        self.nodes[node].clock.wall = i64::try_from(jump).expect("a clock jump fits into 64 bits") - 1_000_000;
    }

    fn propose(&mut self) -> Result<(), Violation> {
        self.proposals += 1;
        let index = 1 + self.random.index(self.config.groups as usize);
        let group = GroupId(u32::try_from(index).expect("the number of paxos groups fits into 32 bits"));
        let server = self.checks.server(index).filter(|_| self.random.below(8) > 0);
        let node = server.unwrap_or_else(|| self.random.index(self.nodes.len()));
        if self.nodes[node].is_paused {
            return Ok(());
        }
        self.feed(node, Input::Propose(group, self.proposals))
    }

    pub(crate) fn request(&mut self, node: usize, group: GroupId, request: Request) -> Result<(), Violation> {
        if self.nodes[node].is_paused {
            return Ok(());
        }
        if let Request::AddMember(joining) = request {
            self.requested_additions.insert((group, joining));
        }
        if let Request::RemoveMember(leaving) = request {
            self.requested_removals.insert((group, leaving));
        }
        self.feed(node, Input::Request(group, request))
    }

    pub(crate) fn note(&mut self, node: usize, what: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            let mut line = format!("{:>9} {:>5} n{} ", self.now, self.steps, node + 1);
            let _ = write!(line, "{}", what());
            lines.push(line);
        }
    }

    fn note_input(&mut self, node: usize, input: &Input<P::Message>) {
        let what = match input {
            Input::Message(from, message) => format!("< {from}: {}", P::describe(message)),
            Input::Persisted(token) => format!("synced {token}"),
            Input::StorageFailed => "a sync fails".to_owned(),
            Input::Tick => return,
            Input::Propose(group, id) => format!("propose {group} {id}"),
            Input::Request(group, request) => format!("request {group} {request:?}"),
        };
        let clock = self.clock(node).0;
        self.note(node, || format!("@{clock} {what}"));
    }
}
