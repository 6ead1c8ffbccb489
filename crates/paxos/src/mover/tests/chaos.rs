//! Tests with a mover on every node. All movers may act at the same time, as if each node were the master of the system
//! group. Nodes learn of the decided records at different times, and have different clocks. The network loses, delays
//! or duplicates proposals and responses, and processes pause or restart.

use proptest::prelude::*;

use super::*;

const NODES: u32 = 4;
const ROUND: Duration = Duration::from_millis(50);
const OPTIONS: Options = Options {
    tolerance: Tolerance { start_percent: 20, goal_percent: 10 },
    scheme: Scheme::Consent,
    lag_most: 10,
    lease: Duration::from_millis(1500),
    wait: Duration::from_millis(3600),
    retry: Duration::from_millis(500),
    prepare_within: Duration::from_millis(800),
    handover_within: Duration::from_millis(400),
    lease_within: Duration::from_millis(2000),
    remaining: Duration::from_millis(200),
    interval: Duration::from_millis(200),
    backoff: Duration::from_secs(1),
    backoff_most: Duration::from_secs(8),
};

/// Generator of random numbers by SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn percent(&mut self, of: u64) -> bool {
        self.below(100) < of
    }
}

struct Process {
    id: NodeId,
    mover: Mover,
    liveness: u64,
    /// Number of records that the process has learned. `system` is the state after these records.
    learned: usize,
    system: System,
    /// State of the paxos groups as known to the process. It may be outdated.
    groups: BTreeMap<GroupId, Facts>,
    /// Rate of the process's clock, in ten thousandths of the true rate. `shows` is the reading of the clock at the
    /// start of the test.
    rate: u64,
    shows: u64,
    paused_until: u64,
    inputs: Vec<Input>,
}

enum Event {
    Decide(Record),
    Deliver(NodeId, u64, Input),
    Become(Move),
}

struct World {
    random: Random,
    now: u64,
    has_faults: bool,
    log: Vec<Record>,
    system: System,
    processes: Vec<Process>,
    masters: BTreeMap<GroupId, (NodeId, Epoch)>,
    wire: Vec<(u64, Event)>,
    /// Node to which hand-overs never succeed, and a flag that is true if the node is also unreachable for other nodes.
    failing: Option<(NodeId, bool)>,
    /// Move whose steps may be in progress, and the time at which these steps end.
    under_way: Option<(Move, u64)>,
    hand_overs: u32,
}

impl World {
    fn new(seed: u64, groups: u32, failing: Option<(NodeId, bool)>) -> World {
        let mut world = World {
            random: Random(seed),
            now: 0,
            has_faults: true,
            log: Vec::new(),
            system: System::default(),
            processes: Vec::new(),
            masters: BTreeMap::new(),
            wire: Vec::new(),
            failing,
            under_way: None,
            hand_overs: 0,
        };
        for node in (1..=NODES).map(NodeId) {
            world.decide(Record::Node { node, capacity: 1 });
            world.decide(Record::Join { node, liveness: 1, incarnation: 1, stamp: Instant(1) });
        }
        for group in (1..=groups).map(GroupId) {
            let replicas: Vec<NodeId> = (1..=NODES).map(NodeId).collect();
            let master = replicas[usize::try_from(world.random.below(2)).unwrap()];
            world.decide(Record::Group { group, replicas });
            world.masters.insert(group, (master, Epoch(1)));
        }
        world.processes = (1..=NODES).map(|node| world.process(NodeId(node), 1)).collect();
        world
    }

    fn process(&mut self, id: NodeId, liveness: u64) -> Process {
        Process {
            id,
            mover: Mover::new(OPTIONS, Deviation::default()),
            liveness,
            learned: 0,
            system: System::default(),
            groups: BTreeMap::new(),
            rate: 9_950 + self.random.below(101),
            shows: self.random.below(1 << 40),
            paused_until: 0,
            inputs: Vec::new(),
        }
    }

    fn decide(&mut self, record: Record) {
        self.log.push(record.clone());
        self.system.apply(Slot(self.log.len() as u64), &record);
    }

    fn send(&mut self, event: Event) {
        let (lost, most) = match (self.has_faults, self.random.below(4)) {
            (true, 0) => (15, 4_000),
            (true, _) => (5, 200),
            (false, _) => (0, 100),
        };
        if !self.random.percent(lost) {
            let at = self.now + self.random.below(most) * 1000;
            self.wire.push((at, event));
        }
    }

    fn run(&mut self, seconds: u64) {
        let end = self.now + seconds * 1_000_000;
        while self.now < end {
            self.now += u64::try_from(ROUND.as_micros()).unwrap();
            let (due, later) = std::mem::take(&mut self.wire).into_iter().partition(|(at, _)| *at <= self.now);
            self.wire = later;
            let due: Vec<(u64, Event)> = due;
            due.into_iter().for_each(|(_, event)| self.apply_event(event));
            if self.has_faults && self.random.below(80) == 0 {
                // The test drains a random node or ends its draining, so that some masters must move.
                let (node, draining) = (self.any_node(), self.random.percent(50));
                self.decide(Record::Drain { node, draining });
            }
            for at in 0..self.processes.len() {
                self.step(at);
            }
        }
    }

    fn stop_faults(&mut self, drained: NodeId) {
        self.has_faults = false;
        for node in (1..=NODES).map(NodeId) {
            self.decide(Record::Drain { node, draining: node == drained });
        }
    }

    fn any_node(&mut self) -> NodeId {
        NodeId(u32::try_from(self.random.below(u64::from(NODES))).unwrap() + 1)
    }

    fn apply_event(&mut self, event: Event) {
        match event {
            Event::Decide(record) => self.decide(record),
            Event::Deliver(node, liveness, input) => {
                let process = self.processes.iter_mut().find(|process| process.id == node).unwrap();
                if process.liveness == liveness {
                    process.inputs.push(input);
                }
            }
            Event::Become(of) => {
                let heals = self.failing.is_none_or(|(failing, _)| failing != of.to);
                if self.masters[&of.group] == (of.from, of.epoch) && heals {
                    self.masters.insert(of.group, (of.to, of.epoch.next()));
                }
            }
        }
    }

    fn step(&mut self, at: usize) {
        let (now, has_faults) = (self.now, self.has_faults);
        if self.processes[at].paused_until > now {
            return;
        }
        if has_faults && self.random.below(2000) == 0 {
            self.processes[at].paused_until = now + self.random.below(8_000_000);
        }
        if has_faults && self.random.below(3000) == 0 {
            let (id, liveness) = (self.processes[at].id, self.system.node(self.processes[at].id).unwrap().liveness);
            self.decide(Record::Join { node: id, liveness: liveness + 1, incarnation: 1, stamp: Instant(1) });
            self.processes[at] = self.process(id, liveness + 1);
        }
        let learned = if has_faults && self.random.percent(50) {
            let behind = (self.log.len() - self.processes[at].learned) as u64;
            self.processes[at].learned + usize::try_from(self.random.below(behind + 1)).unwrap()
        } else {
            self.log.len()
        };
        let process = &mut self.processes[at];
        for slot in process.learned..learned {
            process.system.apply(Slot(slot as u64 + 1), &self.log[slot]);
        }
        process.learned = learned;
        if !has_faults || self.random.percent(30) {
            let lag: BTreeMap<NodeId, u64> = (1..=NODES).map(|node| (NodeId(node), 0)).collect();
            let facts = |master: &(NodeId, Epoch)| Facts { master: Some(*master), lag: lag.clone() };
            process.groups = self.masters.iter().map(|(group, master)| (*group, facts(master))).collect();
        }
        let unreachable = self.failing.filter(|(_, visible)| *visible).map(|(node, _)| node);
        let reachable = (1..=NODES).map(NodeId).filter(|node| Some(*node) != unreachable).collect();
        let view = View {
            me: process.id,
            liveness: process.liveness,
            masters_system: if has_faults { self.random.percent(80) } else { process.id == NodeId(1) },
            system: &process.system,
            groups: &process.groups,
            reachable: &reachable,
        };
        let input = process.inputs.pop().unwrap_or(Input::Tick);
        let actions = process.mover.step(Instant(process.shows + now / 10_000 * process.rate), &view, input);
        let (id, liveness) = (process.id, process.liveness);
        actions.into_iter().for_each(|action| self.act(id, liveness, action));
    }

    fn act(&mut self, id: NodeId, liveness: u64, action: Action) {
        match action {
            Action::Propose(record) => {
                if self.has_faults && self.random.percent(20) {
                    self.send(Event::Decide(record.clone()));
                }
                self.send(Event::Decide(record));
            }
            Action::Begin { step: Step::Prepare(what), of, within } => {
                self.begins(of, within);
                self.send(Event::Deliver(id, liveness, Input::Prepared { fence: of.fence, what }));
            }
            Action::Begin { step: Step::Handover(_), of, within } => {
                self.begins(of, within);
                self.hand_overs += 1;
                // A node that obeys a step finishes the step before the time limit of the step.
                let at = self.now + self.random.below(u64::try_from(within.as_micros()).unwrap());
                if !self.has_faults || self.random.percent(70) {
                    self.wire.push((at, Event::Become(of)));
                }
            }
        }
    }

    fn begins(&mut self, of: Move, within: Duration) {
        if self.masters[&of.group].1 != of.epoch {
            // The mastership is over, so no node obeys the step.
            return;
        }
        if let Some((other, until)) = self.under_way
            && self.masters[&other.group].1 == other.epoch
        {
            let (fence, other) = (of.fence.0, other.fence.0);
            assert!(other <= fence, "fence {fence} begins a step after the later fence {other}");
            assert!(other == fence || until < self.now, "steps of the fences {other} and {fence} overlap");
        }
        // A node that obeys a step acts for less than the time limit of the step, because it subtracts the possible
        // clock drift.
        let until = self.now + u64::try_from(within.as_micros()).unwrap() * 99 / 100;
        let before = self.under_way.filter(|(other, _)| other.fence == of.fence);
        self.under_way = Some((of, before.map_or(until, |(_, before)| until.max(before))));
    }

    /// Returns the present node and the ideal node of each master that is not on its ideal node.
    fn misplaced(&self) -> Vec<(NodeId, NodeId)> {
        let present: Distribution = self.masters.iter().map(|(group, (node, _))| (*group, *node)).collect();
        let nodes = self.system.nodes().iter();
        let members: Vec<Member> =
            nodes.map(|(node, at)| Member { node: *node, capacity: 1, may_master: !at.draining }).collect();
        let replicas: Vec<NodeId> = (1..=NODES).map(NodeId).collect();
        let load = |group: &GroupId| Load { group: *group, weight: 0, replicas: replicas.clone() };
        let loads: Vec<Load> = present.keys().map(load).collect();
        let ideal = balancer::ideal(&members, &loads, &present, OPTIONS.tolerance);
        ideal.into_iter().map(|(group, node)| (present[&group], node)).filter(|(is, should)| is != should).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn moves_never_overlap_and_masters_reach_their_ideal_nodes(
        seed in any::<u64>(), groups in 2..12_u32, drained in 0..=NODES,
    ) {
        let mut world = World::new(seed, groups, None);
        world.run(60);
        world.stop_faults(NodeId(drained));
        // The run is long enough for the last pause of a process, the wait for a token, the longest backoff, and the
        // moves.
        world.run(8 + 4 + 8 + 2 * u64::from(groups));
        prop_assert!(world.misplaced().is_empty(), "{:?}", world.masters);
        prop_assert_eq!(world.system.token(), None);
    }

    #[test]
    fn moves_to_a_failing_node_do_not_block_other_moves(
        seed in any::<u64>(), groups in 4..12_u32, failing in 2..=NODES, visible in any::<bool>(),
    ) {
        let failing = NodeId(failing);
        let mut world = World::new(seed, groups, Some((failing, visible)));
        world.has_faults = false;
        // Before the other moves begin, a move to the failing node may last until all its time limits are over.
        world.run(4 * u64::from(groups));
        let is_excused = |(from, to): &(NodeId, NodeId)| *to == failing || visible && *from == failing;
        prop_assert!(world.misplaced().iter().all(is_excused), "{:?}", world.masters);
    }
}

#[test]
fn fault_tests_include_hand_overs_and_takeovers() {
    let (mut hand_overs, mut takeovers) = (0, 0);
    for seed in 0..8 {
        let mut world = World::new(seed, 8, None);
        world.run(60);
        hand_overs += world.hand_overs;
        let over = |record: &&Record| matches!(record, Record::TokenTake(take) if take.precondition.1 > Slot(0));
        takeovers += world.log.iter().filter(over).count();
    }
    assert!(hand_overs > 40 && takeovers > 0, "{hand_overs} hand-overs, {takeovers} takeovers");
}
