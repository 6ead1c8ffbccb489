//! Which node should be the master of which paxos group: balanced by weight, and with the fewest moves.
//!
//! A pure function, so that all who see the same facts name the same masters. It moves nothing, and knows nothing of who
//! is reachable or behind: the [mover](crate::mover) does.
//!
//! # What is minimised, and what is guaranteed
//!
//! A member's *share* is its part, by capacity, of all weight; its *band* is the share, give or take
//! [`Tolerance::goal_percent`]. The cost of a distribution is the sum over the members of (distance from the band)² /
//! capacity; of two with the same cost, the one with fewer moves is better.
//!
//! - *All weights equal*: the result has the least cost that the replicas allow, and the fewest moves of all
//!   distributions with that cost. (It is a flow of least cost: one is the best as soon as no cycle of its residual graph
//!   costs less than nothing.)
//! - *Weights that differ*: the best is as hard to find as to divide a set of numbers into two of equal sums. The result
//!   is one that no chain of moves of groups of one weight betters: neither one group that moves alone, nor one that goes
//!   back to where it was. So where all members have the same capacity and may master everything, a member carries
//!   at most max(upper end of its band, share + heaviest weight), and at least min(lower end, share - heaviest weight).
//! - *Hysteresis*: nothing moves but what has to, as long as every member is within [`Tolerance::start_percent`] of its
//!   share. What has to is a group whose master is unknown, may not master, or is no replica.
//! - The ideal of an ideal distribution is itself; a step from the present towards the ideal leaves (for equal weights)
//!   one move fewer to make.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{GroupId, NodeId};

#[cfg(test)]
mod tests;

/// A node that masters paxos groups, as far as it can and may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    pub node: NodeId,
    /// In any unit that is the same for all. 0 masters nothing.
    pub capacity: u32,
    /// False while it is drained, or dead.
    pub may_master: bool,
}

/// What a paxos group weighs, and who may carry it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Load {
    pub group: GroupId,
    /// In any unit that is the same for all, such as bytes per second. What is less than a 2²⁸th part of all counts as
    /// that much, so that idle groups are spread at no other's cost.
    pub weight: u64,
    pub replicas: Vec<NodeId>,
}

/// How far from its share a member may be, in per cent of the share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tolerance {
    /// Beyond this, groups are moved. Too small, and every change of traffic moves some; too large, and a member carries
    /// more than its part for good.
    pub start_percent: u8,
    /// Groups are then moved until all are within this. Less than `start_percent`, or the next change of traffic begins
    /// again; too small, and more are moved than need be.
    pub goal_percent: u8,
}

impl Default for Tolerance {
    fn default() -> Tolerance {
        Tolerance { start_percent: 20, goal_percent: 10 }
    }
}

/// Who masters what.
pub type Distribution = BTreeMap<GroupId, NodeId>;

/// The distribution to strive for. A group none of whose replicas may master is not in it.
///
/// # Panics
/// Two members are one node, or two loads one group.
#[must_use]
pub fn ideal(members: &[Member], groups: &[Load], present: &Distribution, tolerance: Tolerance) -> Distribution {
    let mut plan = Plan::new(members, groups, present, tolerance.goal_percent);
    plan.place_homeless();
    if plan.is_off_by(tolerance.start_percent) {
        plan.descend();
        plan.settle();
    }
    plan.groups.iter().map(|placed| (placed.group, plan.seats[placed.at].node)).collect()
}

/// Weights are scaled to this sum, whatever their unit. With it and the two below, costs of paths stay far under 2¹²⁷.
const WHOLE: i128 = 1 << 28;
/// What keeps the division of a squared distance by a capacity from being coarse.
const FINE: i128 = 1 << 32;
/// The least difference in balance is worth more than all moves together.
const BALANCE: i128 = 1 << 24;

struct Plan {
    seats: Vec<Seat>,
    groups: Vec<Placed>,
    /// The indices in `groups` of those with one weight.
    alike: BTreeMap<i128, Vec<usize>>,
}

struct Seat {
    node: NodeId,
    capacity: i128,
    share: i128,
    /// The ends of the band, both inclusive.
    low: i128,
    high: i128,
    load: i128,
}

struct Placed {
    group: GroupId,
    weight: i128,
    may: Vec<usize>,
    /// Where it is at present, if it may stay there.
    home: Option<usize>,
    at: usize,
}

/// A change of one group's place, or of what a seat carries: an edge of the residual graph.
struct Edge {
    from: usize,
    to: usize,
    cost: i128,
    group: Option<usize>,
}

impl Plan {
    fn new(members: &[Member], groups: &[Load], present: &Distribution, goal_percent: u8) -> Plan {
        let able: BTreeMap<NodeId, u32> =
            members.iter().filter(|m| m.may_master && m.capacity > 0).map(|m| (m.node, m.capacity)).collect();
        let nodes: BTreeSet<NodeId> = members.iter().map(|member| member.node).collect();
        assert_eq!(nodes.len(), members.len(), "a node is a member once");
        let index: BTreeMap<NodeId, usize> = able.keys().enumerate().map(|(at, node)| (*node, at)).collect();

        let mut placed: Vec<Placed> = groups
            .iter()
            .filter_map(|load| {
                let may: BTreeSet<usize> = load.replicas.iter().filter_map(|node| index.get(node).copied()).collect();
                let at = *may.first()?;
                let home = present.get(&load.group).and_then(|node| index.get(node).copied());
                let home = home.filter(|home| may.contains(home));
                let weight = i128::from(load.weight);
                Some(Placed { group: load.group, weight, may: may.into_iter().collect(), home, at })
            })
            .collect();
        placed.sort_by_key(|placed| placed.group);
        assert!(placed.windows(2).all(|two| two[0].group < two[1].group), "a paxos group is weighed once");
        scale(&mut placed);

        let total: i128 = placed.iter().map(|placed| placed.weight).sum();
        let capacities: i128 = able.values().map(|capacity| i128::from(*capacity)).sum();
        let goal = i128::from(goal_percent);
        let seat = |(node, capacity): (&NodeId, &u32)| {
            let capacity = i128::from(*capacity);
            let part = total * capacity;
            let low = (part * (100 - goal)).div_euclid(100 * capacities);
            let high = -(-part * (100 + goal)).div_euclid(100 * capacities);
            Seat { node: *node, capacity, share: part / capacities, low, high, load: 0 }
        };
        let seats = able.iter().map(seat).collect();

        let mut alike: BTreeMap<i128, Vec<usize>> = BTreeMap::new();
        for (at, placed) in placed.iter().enumerate() {
            alike.entry(placed.weight).or_default().push(at);
        }
        Plan { seats, groups: placed, alike }
    }

    /// Seats all groups where they are, and then, heaviest first, those that have to move where least is carried.
    fn place_homeless(&mut self) {
        let mut homeless = Vec::new();
        for (at, placed) in self.groups.iter_mut().enumerate() {
            match placed.home {
                Some(home) => {
                    placed.at = home;
                    self.seats[home].load += placed.weight;
                }
                None => homeless.push(at),
            }
        }
        homeless.sort_by_key(|at| (-self.groups[*at].weight, self.groups[*at].group));
        for at in homeless {
            let Placed { weight, may, .. } = &self.groups[at];
            let carried = |seat: &usize| (self.seats[*seat].load + weight) * FINE / self.seats[*seat].capacity;
            let seat =
                *may.iter().min_by_key(|seat| carried(seat)).expect("a group is placed that somebody may master");
            self.seats[seat].load += weight;
            self.groups[at].at = seat;
        }
    }

    fn is_off_by(&self, percent: u8) -> bool {
        self.seats.iter().any(|seat| (seat.load - seat.share).abs() * 100 > seat.share * i128::from(percent))
    }

    /// Moves one group after the other, each time the one that betters most. Alone this is not the best there is, but what
    /// is left to [`Plan::settle`], which takes what it finds first, is little.
    fn descend(&mut self) {
        loop {
            let gain = |(at, to): &(usize, usize)| {
                let Placed { weight, at: from, .. } = self.groups[*at];
                let (from, to) = (&self.seats[from], &self.seats[*to]);
                from.cost(from.load - weight) - from.cost(from.load) + to.cost(to.load + weight) - to.cost(to.load)
            };
            let others = |(at, placed): (usize, &Placed)| -> Vec<(usize, usize)> {
                placed.may.iter().filter(|to| **to != placed.at).map(|to| (at, *to)).collect()
            };
            let steepest = self.groups.iter().enumerate().flat_map(others).min_by_key(gain);
            match steepest.filter(|step| gain(step) < 0) {
                Some((group, to)) => self.shift(group, to),
                None => return,
            }
        }
    }

    /// Betters the distribution until nothing does; each time the cost is less, so it ends.
    fn settle(&mut self) {
        // Heaviest first: one of them does what several light ones would.
        let weights: Vec<i128> = self.alike.keys().rev().copied().collect();
        loop {
            let mut bettered = false;
            for &weight in &weights {
                while let Some(cycle) = self.bettering(weight) {
                    cycle
                        .iter()
                        .filter_map(|edge| Some((edge.group?, edge.to)))
                        .for_each(|(group, to)| self.shift(group, to));
                    bettered = true;
                }
            }
            if !bettered {
                return;
            }
        }
    }

    /// A cycle of edges that costs less than nothing, among those that groups of this weight make. Within it a seat that
    /// is passed gives one group and takes another, so carries the same; one that the cycle enters from outside gives,
    /// and one that it leaves to there takes.
    fn bettering(&self, weight: i128) -> Option<Vec<Edge>> {
        let outside = self.seats.len();
        let mut edges: Vec<Edge> = Vec::new();
        for (at, seat) in self.seats.iter().enumerate() {
            let now = seat.cost(seat.load);
            edges.push(Edge { from: at, to: outside, cost: seat.cost(seat.load + weight) - now, group: None });
            edges.push(Edge { from: outside, to: at, cost: seat.cost(seat.load - weight) - now, group: None });
        }
        let mut cheapest: BTreeMap<(usize, usize), (i128, usize)> = BTreeMap::new();
        for &group in &self.alike[&weight] {
            let placed = &self.groups[group];
            for &to in placed.may.iter().filter(|to| **to != placed.at) {
                let moves = i128::from(placed.home != Some(to)) - i128::from(placed.home != Some(placed.at));
                let best = cheapest.entry((placed.at, to)).or_insert((moves, group));
                *best = (*best).min((moves, group));
            }
        }
        edges.extend(cheapest.into_iter().map(|((from, to), (cost, group))| Edge {
            from,
            to,
            cost,
            group: Some(group),
        }));
        negative_cycle(outside + 1, edges)
    }

    fn shift(&mut self, group: usize, to: usize) {
        let placed = &mut self.groups[group];
        self.seats[placed.at].load -= placed.weight;
        self.seats[to].load += placed.weight;
        placed.at = to;
    }
}

impl Seat {
    fn cost(&self, load: i128) -> i128 {
        let distance = (load - self.high).max(self.low - load).max(0);
        distance * distance * FINE / self.capacity * BALANCE
    }
}

fn scale(groups: &mut [Placed]) {
    let sum: i128 = groups.iter().map(|placed| placed.weight).sum();
    for placed in groups {
        // With 0 all weigh nothing, and so the same.
        placed.weight = (placed.weight * WHOLE).checked_div(sum).unwrap_or(1 << 10).max(1);
    }
}

/// Bellman's and Ford's search from all nodes at once: what still gets cheaper after as many rounds as there are nodes
/// is reached from a cycle that costs less than nothing.
fn negative_cycle(nodes: usize, edges: Vec<Edge>) -> Option<Vec<Edge>> {
    let mut cost = vec![0_i128; nodes];
    let mut by: Vec<Option<usize>> = vec![None; nodes];
    let mut last = None;
    for _ in 0..nodes {
        last = None;
        for (at, edge) in edges.iter().enumerate() {
            if cost[edge.from] + edge.cost < cost[edge.to] {
                cost[edge.to] = cost[edge.from] + edge.cost;
                by[edge.to] = Some(at);
                last = Some(edge.to);
            }
        }
        last?;
    }
    let before = |node: usize| by[node].expect("a node that got cheaper was reached by an edge");
    let on_cycle = (0..nodes).fold(last?, |node, _| edges[before(node)].from);
    let mut cycle = BTreeSet::new();
    let mut node = on_cycle;
    while cycle.insert(before(node)) {
        node = edges[before(node)].from;
    }
    Some(edges.into_iter().enumerate().filter(|(at, _)| cycle.contains(at)).map(|(_, edge)| edge).collect())
}
