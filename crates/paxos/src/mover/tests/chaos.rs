//! Movers on every node, all of which may believe to be the system group's master at once, over a log that all learn in
//! their own time, with clocks of their own, proposals and answers that are lost, late or doubled, and processes that stand
//! still or begin anew.

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
    pause: Duration::from_millis(200),
    backoff: Duration::from_secs(1),
    backoff_most: Duration::from_secs(8),
};

/// SplitMix64.
struct Chance(u64);

impl Chance {
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
    /// How many records of the log it has learned, and what they come to.
    learned: usize,
    system: System,
    /// What it believes of the masters, which may be old.
    groups: BTreeMap<GroupId, Facts>,
    /// Its clock's rate, in ten thousandths, and what it showed at first.
    rate: u64,
    shows: u64,
    stands_still_until: u64,
    inputs: Vec<Input>,
}

enum Event {
    Decide(Record),
    Hear(NodeId, u64, Input),
    Become(Move),
}

struct World {
    chance: Chance,
    now: u64,
    wild: bool,
    log: Vec<Record>,
    system: System,
    processes: Vec<Process>,
    masters: BTreeMap<GroupId, (NodeId, Epoch)>,
    wire: Vec<(u64, Event)>,
    /// A node that no hand-over to ever succeeds, and whether that is seen from afar.
    sick: Option<(NodeId, bool)>,
    /// The move whose steps may be under way, and until when.
    under_way: Option<(Move, u64)>,
    hand_overs: u32,
}

impl World {
    fn new(seed: u64, groups: u32, sick: Option<(NodeId, bool)>) -> World {
        let mut world = World {
            chance: Chance(seed),
            now: 0,
            wild: true,
            log: Vec::new(),
            system: System::default(),
            processes: Vec::new(),
            masters: BTreeMap::new(),
            wire: Vec::new(),
            sick,
            under_way: None,
            hand_overs: 0,
        };
        for node in (1..=NODES).map(NodeId) {
            world.decide(Record::Node { node, capacity: 1 });
            world.decide(Record::Join { node, liveness: 1, incarnation: 1, stamp: Instant(1) });
        }
        for group in (1..=groups).map(GroupId) {
            let replicas: Vec<NodeId> = (1..=NODES).map(NodeId).collect();
            let master = replicas[usize::try_from(world.chance.below(2)).unwrap()];
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
            rate: 9_950 + self.chance.below(101),
            shows: self.chance.below(1 << 40),
            stands_still_until: 0,
            inputs: Vec::new(),
        }
    }

    fn decide(&mut self, record: Record) {
        self.log.push(record.clone());
        self.system.apply(Slot(self.log.len() as u64), &record);
    }

    fn send(&mut self, event: Event) {
        let (lost, most) = match (self.wild, self.chance.below(4)) {
            (true, 0) => (15, 4_000),
            (true, _) => (5, 200),
            (false, _) => (0, 100),
        };
        if !self.chance.percent(lost) {
            let at = self.now + self.chance.below(most) * 1000;
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
            due.into_iter().for_each(|(_, event)| self.happen(event));
            if self.wild && self.chance.below(80) == 0 {
                // So that there is always something to move.
                let (node, draining) = (self.any_node(), self.chance.percent(50));
                self.decide(Record::Drain { node, draining });
            }
            for at in 0..self.processes.len() {
                self.step(at);
            }
        }
    }

    fn calm(&mut self, drained: NodeId) {
        self.wild = false;
        for node in (1..=NODES).map(NodeId) {
            self.decide(Record::Drain { node, draining: node == drained });
        }
    }

    fn any_node(&mut self) -> NodeId {
        NodeId(u32::try_from(self.chance.below(u64::from(NODES))).unwrap() + 1)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Decide(record) => self.decide(record),
            Event::Hear(node, liveness, input) => {
                let process = self.processes.iter_mut().find(|process| process.id == node).unwrap();
                if process.liveness == liveness {
                    process.inputs.push(input);
                }
            }
            Event::Become(of) => {
                let heals = self.sick.is_none_or(|(sick, _)| sick != of.to);
                if self.masters[&of.group] == (of.from, of.epoch) && heals {
                    self.masters.insert(of.group, (of.to, of.epoch.next()));
                }
            }
        }
    }

    fn step(&mut self, at: usize) {
        let (now, wild) = (self.now, self.wild);
        if self.processes[at].stands_still_until > now {
            return;
        }
        if wild && self.chance.below(2000) == 0 {
            self.processes[at].stands_still_until = now + self.chance.below(8_000_000);
        }
        if wild && self.chance.below(3000) == 0 {
            let (id, liveness) = (self.processes[at].id, self.system.node(self.processes[at].id).unwrap().liveness);
            self.decide(Record::Join { node: id, liveness: liveness + 1, incarnation: 1, stamp: Instant(1) });
            self.processes[at] = self.process(id, liveness + 1);
        }
        let learned = if wild && self.chance.percent(50) {
            let behind = (self.log.len() - self.processes[at].learned) as u64;
            self.processes[at].learned + usize::try_from(self.chance.below(behind + 1)).unwrap()
        } else {
            self.log.len()
        };
        let process = &mut self.processes[at];
        for slot in process.learned..learned {
            process.system.apply(Slot(slot as u64 + 1), &self.log[slot]);
        }
        process.learned = learned;
        if !wild || self.chance.percent(30) {
            let lag: BTreeMap<NodeId, u64> = (1..=NODES).map(|node| (NodeId(node), 0)).collect();
            let facts = |master: &(NodeId, Epoch)| Facts { master: Some(*master), lag: lag.clone() };
            process.groups = self.masters.iter().map(|(group, master)| (*group, facts(master))).collect();
        }
        let unreachable = self.sick.filter(|(_, seen)| *seen).map(|(node, _)| node);
        let reachable = (1..=NODES).map(NodeId).filter(|node| Some(*node) != unreachable).collect();
        let view = View {
            me: process.id,
            liveness: process.liveness,
            masters_system: if wild { self.chance.percent(80) } else { process.id == NodeId(1) },
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
                if self.wild && self.chance.percent(20) {
                    self.send(Event::Decide(record.clone()));
                }
                self.send(Event::Decide(record));
            }
            Action::Begin { step: Step::Prepare(what), of, within } => {
                self.begins(of, within);
                self.send(Event::Hear(id, liveness, Input::Prepared { fence: of.fence, what }));
            }
            Action::Begin { step: Step::Handover(_), of, within } => {
                self.begins(of, within);
                self.hand_overs += 1;
                // Whoever is told of a step keeps to its limit.
                let at = self.now + self.chance.below(u64::try_from(within.as_micros()).unwrap());
                if !self.wild || self.chance.percent(70) {
                    self.wire.push((at, Event::Become(of)));
                }
            }
        }
    }

    fn begins(&mut self, of: Move, within: Duration) {
        if self.masters[&of.group].1 != of.epoch {
            // Of a mastership that is over: nobody obeys.
            return;
        }
        if let Some((other, until)) = self.under_way
            && self.masters[&other.group].1 == other.epoch
        {
            let (fence, other) = (of.fence.0, other.fence.0);
            assert!(other <= fence, "fence {fence} begins a step after {other}");
            assert!(other == fence || until < self.now, "fences {other} and {fence} are under way");
        }
        // Whoever obeys counts shorter by what clocks may differ.
        let until = self.now + u64::try_from(within.as_micros()).unwrap() * 99 / 100;
        let before = self.under_way.filter(|(other, _)| other.fence == of.fence);
        self.under_way = Some((of, before.map_or(until, |(_, before)| until.max(before))));
    }

    /// Where masters are that should be elsewhere, and where that is.
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
    fn no_two_moves_are_in_flight_and_after_the_storm_all_masters_are_where_they_should_be(
        seed in any::<u64>(), groups in 2..12_u32, drained in 0..=NODES,
    ) {
        let mut world = World::new(seed, groups, None);
        world.run(60);
        world.calm(NodeId(drained));
        // The storm's last pause, the wait for a token, the longest back-off, and the moves.
        world.run(8 + 4 + 8 + 2 * u64::from(groups));
        prop_assert!(world.misplaced().is_empty(), "{:?}", world.masters);
        prop_assert_eq!(world.system.token(), None);
    }

    #[test]
    fn a_node_that_never_becomes_master_or_is_never_reached_keeps_no_other_waiting(
        seed in any::<u64>(), groups in 4..12_u32, sick in 2..=NODES, seen in any::<bool>(),
    ) {
        let sick = NodeId(sick);
        let mut world = World::new(seed, groups, Some((sick, seen)));
        world.wild = false;
        // A move to the sick node may fail, by all its limits, before the others' turn.
        world.run(4 * u64::from(groups));
        prop_assert!(world.misplaced().iter().all(|(from, to)| *to == sick || seen && *from == sick), "{:?}", world.masters);
    }
}

#[test]
fn the_storm_moves_masters_and_tokens_are_taken_over() {
    let (mut hand_overs, mut takeovers) = (0, 0);
    for seed in 0..8 {
        let mut world = World::new(seed, 8, None);
        world.run(60);
        hand_overs += world.hand_overs;
        let over = |record: &&Record| matches!(record, Record::TokenTake(take) if take.seen.1 > Slot(0));
        takeovers += world.log.iter().filter(over).count();
    }
    assert!(hand_overs > 40 && takeovers > 0, "{hand_overs} hand-overs, {takeovers} takeovers");
}
