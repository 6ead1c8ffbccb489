//! Nodes, their network, disks, clocks and clients, and one queue of what happens next.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::fmt::Write;

use paxos::{GroupId, Instant, NodeId};
use simulator::Random;

use crate::checks::{Checks, Violation};
use crate::clock::Clock;
use crate::disk::{Disk, Left};
use crate::knobs::{Fault, Knobs, Mutation};
use crate::program::{Incident, Input, Out, Program, Request, Seat, Told};
use crate::seat::mix;

/// Nodes that are not there at first, and can take the place of those that lost their disk.
const SPARES: usize = 3;

pub(crate) struct World<P: Program> {
    pub(crate) knobs: Knobs,
    pub(crate) random: Random,
    /// True microseconds.
    pub(crate) now: u64,
    pub(crate) steps: u64,
    pub(crate) nodes: Vec<Host<P>>,
    /// Whether what this one sends does not reach that one.
    pub(crate) is_cut: Vec<Vec<bool>>,
    pub(crate) groups: Vec<GroupId>,
    pub(crate) checks: Checks,
    pub(crate) is_peaceful: bool,
    /// Clients ask for nothing.
    pub(crate) is_silent: bool,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Vec<Option<WorldEvent<P::Message>>>,
    free: Vec<usize>,
    sequence: u64,
    proposals: u64,
    founders: Vec<NodeId>,
    everyone: Vec<NodeId>,
    pub(crate) trace: u64,
    /// Whose admission was ordered, which may come of it at any time.
    pub(crate) invited: BTreeSet<(GroupId, NodeId)>,
    /// Likewise, whose dismissal.
    pub(crate) dismissed: BTreeSet<(GroupId, NodeId)>,
    /// The trace as lines, if anybody wants to read it.
    pub(crate) lines: Option<Vec<String>>,
}

pub(crate) struct Host<P: Program> {
    pub(crate) id: NodeId,
    /// `None` while it is down, or was never up.
    pub(crate) program: Option<P>,
    /// How often it was started; what was meant for an earlier life is nobody's.
    pub(crate) life: u32,
    disk: Disk,
    clock: Clock,
    pub(crate) is_paused: bool,
    waiting: Vec<WorldEvent<P::Message>>,
    out: Out<P::Message>,
    pub(crate) is_damaged: bool,
    /// It will find that it is, when it starts.
    pub(crate) is_doomed: bool,
    /// A sync of it has failed, so it has to be started anew.
    pub(crate) has_failed: bool,
}

impl<P: Program> Host<P> {
    pub(crate) fn was_up(&self) -> bool {
        self.life > 0
    }
}

#[derive(Clone, Debug)]
pub(crate) enum WorldEvent<M> {
    Deliver { from: usize, to: usize, message: M },
    Synced { node: usize, life: u32, fails: bool },
    Tick { node: usize, life: u32 },
    Client,
    Trouble,
    Resume { node: usize },
    Restart { node: usize },
    Crash { node: usize, life: u32 },
    Isolate { node: usize },
    Take { node: usize, group: GroupId },
}

impl<P: Program> World<P> {
    pub(crate) fn new(knobs: Knobs, is_read: bool) -> Self {
        let mut random = Random::new(mix(knobs.seed));
        let count = knobs.nodes as usize + SPARES;
        let everyone: Vec<_> = (1..).map(NodeId).take(count).collect();
        let groups: Vec<_> = (u32::from(!knobs.has_system)..=knobs.groups).map(GroupId).collect();
        let nodes = everyone.iter().map(|id| Host {
            id: *id,
            program: None,
            life: 0,
            disk: Disk::default(),
            clock: Clock { true_base: 0, base: random.below(1 << 30), rate_ppm: 0, wall: 0 },
            is_paused: false,
            waiting: Vec::new(),
            out: Out::default(),
            is_damaged: false,
            is_doomed: false,
            has_failed: false,
        });
        let nodes: Vec<_> = nodes.collect();
        let founders: Vec<_> = (1..=knobs.nodes).map(NodeId).collect();
        let mut world = World {
            now: 1,
            steps: 0,
            is_cut: vec![vec![false; count]; count],
            checks: Checks::new(count, knobs.groups as usize + 1, knobs.is_clock_broken),
            groups,
            nodes,
            is_peaceful: false,
            is_silent: false,
            queue: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            sequence: 0,
            proposals: 0,
            founders,
            everyone,
            trace: 0,
            invited: BTreeSet::new(),
            dismissed: BTreeSet::new(),
            lines: is_read.then(Vec::new),
            random,
            knobs,
        };
        for node in 0..world.knobs.nodes as usize {
            world.set_rate(node);
            world.schedule(node as u64 * 10, WorldEvent::Restart { node });
        }
        world.schedule(world.knobs.proposal, WorldEvent::Client);
        world.schedule(world.knobs.trouble, WorldEvent::Trouble);
        world
    }

    /// Until so many more events have been, or this true time has come; not beyond it.
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
        let event = self.events[index].take().expect("an event is queued once");
        self.free.push(index);
        self.now = self.now.max(at);
        self.steps += 1;
        self.happen(event)
    }

    fn happen(&mut self, event: WorldEvent<P::Message>) -> Result<(), Violation> {
        match event {
            WorldEvent::Deliver { from, to, message } => {
                if self.nodes[to].is_paused {
                    self.nodes[to].waiting.push(WorldEvent::Deliver { from, to, message });
                } else if !self.is_cut[from][to] {
                    let from = self.nodes[from].id;
                    return self.feed(to, Input::Message(from, message));
                }
            }
            WorldEvent::Synced { node, life, fails } => {
                if self.nodes[node].is_paused {
                    self.nodes[node].waiting.push(WorldEvent::Synced { node, life, fails });
                } else if self.nodes[node].life == life {
                    return self.sync_is_over(node, fails);
                }
            }
            WorldEvent::Tick { node, life } if self.nodes[node].life == life && self.nodes[node].program.is_some() => {
                let jitter = self.random.below(self.knobs.tick / 4 + 1);
                self.schedule(self.knobs.tick + jitter, WorldEvent::Tick { node, life });
                if !self.nodes[node].is_paused {
                    if self.nodes[node].disk.wants_marker() {
                        self.nodes[node].disk.mark();
                        self.sync(node);
                    }
                    return self.feed(node, Input::Tick);
                }
            }
            WorldEvent::Tick { .. } => {}
            WorldEvent::Client => {
                self.schedule(self.knobs.proposal, WorldEvent::Client);
                if !self.is_silent {
                    return self.propose();
                }
            }
            WorldEvent::Trouble => {
                let wait = self.knobs.trouble / 2 + self.random.below(self.knobs.trouble);
                self.schedule(wait, WorldEvent::Trouble);
                if !self.is_peaceful {
                    return self.make_trouble();
                }
            }
            WorldEvent::Resume { node } => return self.resume(node),
            WorldEvent::Restart { node } => return self.start(node),
            WorldEvent::Crash { node, life } if self.nodes[node].life == life && !self.is_peaceful => {
                let after = self.random.below(3_000);
                self.restart_later(node, after);
                return self.crash(node);
            }
            WorldEvent::Crash { .. } => {}
            WorldEvent::Isolate { node } => self.isolate(node),
            WorldEvent::Take { node, group } if !self.is_peaceful => return self.request(node, group, Request::Take),
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

    /// What the node takes for the time.
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
        // A machine's clock begins anew with it.
        let base = self.random.below(1 << 30);
        let clock = &mut self.nodes[node].clock;
        (clock.base, clock.true_base) = (base, self.now);
        let now = self.clock(node);
        let member = &mut self.nodes[node];
        let Ok(records) = member.disk.open() else {
            member.is_damaged = true;
            self.note(node, || "its disk is damaged: it refuses to start".to_owned());
            return Ok(());
        };
        member.life += 1;
        let is_founder = self.founders.contains(&member.id);
        let founders: &[NodeId] = if is_founder { &self.founders } else { &[] };
        let seat = Seat { me: member.id, groups: &self.groups, everyone: &self.everyone, founders, knobs: &self.knobs };
        member.out = Out { token: member.out.token + 1, ..Out::default() };
        self.checks.starts(node);
        self.checks.on_disk::<P>(node, &records)?;
        let program = P::start(&seat, records, now, &mut member.out);
        let life = member.life;
        for group in &self.groups {
            self.checks.remembers(node, group.0 as usize, program.view(*group).promised)?;
        }
        member.program = Some(program);
        self.note(node, || "starts".to_owned());
        self.schedule(self.knobs.tick, WorldEvent::Tick { node, life });
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
        let told = match self.knobs.mutant {
            Mutation::WallClock => Instant(now.0.saturating_add_signed(wall)),
            Mutation::None | Mutation::Core(_) => now,
        };
        let is_tick = matches!(input, Input::Tick);
        program.step(told, input, &mut member.out);
        if is_tick {
            program.attend(told, &mut member.out);
        }
        self.collect(node)
    }

    /// Does what the node wants done, and looks whether all is as it must be.
    fn collect(&mut self, node: usize) -> Result<(), Violation> {
        let member = &mut self.nodes[node];
        let mut told = std::mem::take(&mut member.out.told);
        let records = std::mem::take(&mut member.out.records);
        let mut sends = std::mem::take(&mut member.out.sends);
        self.trace = mix(self.trace ^ self.now ^ (node as u64) << 48 ^ (records.len() as u64) << 40);
        if !records.is_empty() {
            let token = member.out.token;
            member.out.token += 1;
            self.append(node, token, records);
        }
        for told in told.drain(..) {
            self.hear(node, told)?;
        }
        for (to, message) in sends.drain(..) {
            if let Some((group, ballot)) = P::vow(&message) {
                self.checks.vows(node, group.0 as usize, ballot)?;
            }
            self.send(node, to, message);
        }
        (self.nodes[node].out.told, self.nodes[node].out.sends) = (told, sends);
        self.look(node)
    }

    /// Who serves.
    fn look(&mut self, node: usize) -> Result<(), Violation> {
        for at in 0..self.groups.len() {
            let group = self.groups[at];
            let index = group.0 as usize;
            let wall = if self.knobs.mutant == Mutation::WallClock { self.nodes[node].clock.wall } else { 0 };
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

    fn hear(&mut self, node: usize, told: Told) -> Result<(), Violation> {
        self.note(node, || format!("{told:?}"));
        let index = |group: GroupId| group.0 as usize;
        match told {
            Told::Decided { group, slot, value, chain } => {
                self.trace = mix(self.trace ^ chain);
                self.checks.decided(node, index(group), slot, value, chain)
            }
            Told::Installed { group, slot, chain } => self.checks.installed(node, index(group), slot, chain),
            Told::Applied { group, slot, state } => self.checks.applied(node, index(group), slot, state),
            Told::Token { fence, at } => {
                self.checks.token(fence, at);
                Ok(())
            }
            Told::Renewed { node, at } => {
                self.checks.renewed(self.index(node), at);
                Ok(())
            }
            Told::Holds { group, slot, id } => self.checks.holds(index(group), slot, id),
            Told::Acknowledged { group, slot, id } => {
                let view = self.nodes[node].program.as_ref().map(|program| program.view(group));
                let Some(view) = view else { return Ok(()) };
                let indexes = |members: &[NodeId]| members.iter().map(|id| self.index(*id)).collect::<Vec<_>>();
                // The next change of members may have begun in this very step.
                let members = [indexes(&view.members), indexes(&view.members_decided)];
                self.checks.acknowledged(index(group), slot, id, members)
            }
            Told::Refused { id } => self.checks.refused(id),
            Told::Mastered { group, epoch } => {
                self.checks.mastered(index(group), epoch);
                Ok(())
            }
            Told::Unknown { .. } => Ok(()),
            Told::Leads | Told::Serves => {
                self.ambush(node, told == Told::Leads);
                Ok(())
            }
            Told::Happened(incident) => {
                self.checks.happened(incident);
                let is_move = matches!(incident, Incident::MoveBegun | Incident::HandedOver);
                if is_move && self.checks.server(index(GroupId::SYSTEM)) == Some(node) {
                    self.ambush_move(node);
                }
                Ok(())
            }
        }
    }

    fn send(&mut self, from: usize, to: NodeId, message: P::Message) {
        let to = self.index(to);
        let knobs = &self.knobs;
        let (loss, doubling, tail) = match self.is_peaceful {
            true => (0.0, 0.0, 0.0),
            false => (
                if knobs.has(Fault::Loss) { knobs.loss } else { 0.0 },
                if knobs.has(Fault::Doubling) { knobs.doubling } else { 0.0 },
                match knobs.has(Fault::Tails) {
                    true if P::is_order(&message) => knobs.tail.max(knobs.late_orders),
                    true => knobs.tail,
                    false => 0.0,
                },
            ),
        };
        // What nobody is there to hear is not worth a step.
        if self.is_cut[from][to] || !self.is_up(to) {
            return;
        }
        if self.random.chance(loss) {
            return self.checks.happened(Incident::Lost);
        }
        let copies = if self.random.chance(doubling) { 2 } else { 1 };
        for copy in 0..copies {
            let (least, most) = self.knobs.delay;
            let mut delay = least + self.random.below(most - least + 1);
            if self.random.chance(tail) {
                delay *= 1 + self.random.below(200);
            }
            if copy > 0 {
                self.checks.happened(Incident::Doubled);
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
        let life = self.nodes[node].life;
        let (least, most) = self.knobs.sync;
        let mut time = least + self.random.below(most - least + 1);
        let (slow, failing) = if self.is_peaceful { (0.0, 0.0) } else { (0.002, 0.0003) };
        if self.knobs.has(Fault::SlowSyncs) && self.random.chance(slow) {
            self.checks.happened(Incident::SlowSync);
            time += 10_000 + self.random.below(200_000);
        }
        let fails = self.knobs.has(Fault::FailedSyncs) && self.random.chance(failing);
        self.schedule(time, WorldEvent::Synced { node, life, fails });
    }

    fn sync_is_over(&mut self, node: usize, fails: bool) -> Result<(), Violation> {
        if fails && !self.is_peaceful {
            self.checks.happened(Incident::FailedSync);
            self.nodes[node].has_failed = true;
            self.nodes[node].disk.fail_sync(&mut self.random);
            // A right program has stopped. Any other is given the time to go on, and told that later syncs succeed.
            let (after, life) = (1_000 + self.random.below(50_000), self.nodes[node].life);
            self.schedule(after, WorldEvent::Crash { node, life });
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
        member.life += 1;
        (member.is_paused, member.has_failed) = (false, false);
        member.waiting.clear();
        let left = member.disk.crash(&mut self.random);
        self.checks.happened(Incident::Crash);
        match left {
            Left::All => {}
            Left::Lost => self.checks.happened(Incident::LostWrite),
            Left::Torn => self.checks.happened(Incident::TornWrite),
        }
        self.note(node, || format!("crashes, and leaves of what was not synced: {left:?}"));
        self.look(node)
    }

    pub(crate) fn flip(&mut self, node: usize) -> bool {
        let is_flipped = self.nodes[node].disk.flip(&mut self.random);
        self.nodes[node].is_doomed |= is_flipped;
        self.note(node, || "a bit of its disk flips".to_owned());
        is_flipped
    }

    pub(crate) fn pause(&mut self, node: usize, time: u64) {
        self.nodes[node].is_paused = true;
        self.note(node, || format!("stands still for {time}"));
        self.schedule(time, WorldEvent::Resume { node });
    }

    pub(crate) fn resume(&mut self, node: usize) -> Result<(), Violation> {
        if !std::mem::take(&mut self.nodes[node].is_paused) {
            return Ok(());
        }
        self.note(node, || "goes on".to_owned());
        for event in std::mem::take(&mut self.nodes[node].waiting) {
            self.happen(event)?;
        }
        Ok(())
    }

    /// A new rate, within the bound or, if clocks are broken, beyond it.
    pub(crate) fn set_rate(&mut self, node: usize) {
        let now = self.now;
        let bound = i64::from(self.knobs.drift_ppm) * if self.knobs.is_clock_broken { 20 } else { 1 };
        if bound == 0 || !self.knobs.has(Fault::Drift) {
            return;
        }
        let rate = self.random.below(u64::try_from(2 * bound + 1).expect("it is positive"));
        let clock = &mut self.nodes[node].clock;
        (clock.base, clock.true_base) = (clock.read(now), now);
        clock.rate_ppm = i64::try_from(rate).expect("it is small") - bound;
        self.checks.happened(Incident::ClockDrift);
    }

    pub(crate) fn jump_wall(&mut self, node: usize) {
        let jump = self.random.below(2_000_000);
        self.nodes[node].clock.wall = i64::try_from(jump).expect("it is small") - 1_000_000;
    }

    fn propose(&mut self) -> Result<(), Violation> {
        self.proposals += 1;
        let index = 1 + self.random.index(self.knobs.groups as usize);
        let group = GroupId(u32::try_from(index).expect("they are few"));
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
        if let Request::Admit(joining) = request {
            self.invited.insert((group, joining));
        }
        if let Request::Dismiss(leaving) = request {
            self.dismissed.insert((group, leaving));
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
            Input::Request(group, request) => format!("order {group} {request:?}"),
        };
        let clock = self.clock(node).0;
        self.note(node, || format!("@{clock} {what}"));
    }
}
