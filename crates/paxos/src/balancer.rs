//! Ideal masters of the paxos groups. They balance the weight of the paxos groups over the members, with the fewest
//! moves of masters.
//!
//! The balancer is a pure function, so all callers with the same input compute the same masters. The balancer itself
//! moves no master. It does not know which nodes are reachable, or which logs lack entries. The [mover](crate::mover)
//! moves the masters, and considers both facts.
//!
//! # Objective and guarantees
//!
//! A *distribution* assigns a master to each paxos group. The *share* of a member is its part of the total weight, in
//! proportion to its capacity. The *band* of a member is its share plus or minus [`Tolerance::goal_percent`]. The cost
//! of a distribution is the sum over the members of (distance of the load from the band)² / capacity. Of two
//! distributions with the same cost, the one with fewer moves is better.
//!
//! - *Equal weights*: the result has the least cost that the replicas allow, and the fewest moves of all distributions
//!   with that cost. The problem is a minimum-cost flow. A flow is optimal as soon as its residual graph has no cycle
//!   of negative cost.
//! - *Different weights*: to find an optimum is as hard as to divide a set of numbers into two sets of equal sums. The
//!   result is therefore a local optimum: no chain of moves of equally heavy paxos groups improves it. A chain may also
//!   be a single move, such as the return of one paxos group to its present master. Two bounds follow if all members
//!   have the same capacity and may be master of every paxos group. The load of a member is then at most max(upper end
//!   of its band, share + heaviest weight). It is at least min(lower end of its band, share - heaviest weight).
//! - *Hysteresis*: while the load of every member differs from its share by at most [`Tolerance::start_percent`], a
//!   paxos group moves only if its master is unknown, must not be master, or is not a replica.
//! - If the present distribution is already ideal, the balancer returns this distribution. For equal weights, each move
//!   towards the ideal distribution reduces the number of remaining moves by one.
//!
//! docs/decisions/0153-balance-masters-with-few-moves.md gives the reasons for the design.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{GroupId, NodeId};

#[cfg(test)]
mod tests;

/// Node that can be the master of paxos groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    pub node: NodeId,
    /// Capacity, in any unit that is the same for all members. A member with capacity 0 is master of no paxos group.
    pub capacity: u32,
    /// False while the node is drained or dead: it must then be master of no paxos group.
    pub may_master: bool,
}

/// Weight of a paxos group, and the nodes that may be its master.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Load {
    pub group: GroupId,
    /// Weight, in any unit that is the same for all paxos groups, such as bytes per second. The balancer raises each
    /// weight to at least 1/2²⁸ of the total weight. It therefore also distributes idle paxos groups evenly. The raised
    /// weight is too small to affect other paxos groups.
    pub weight: u64,
    pub replicas: Vec<NodeId>,
}

/// Tolerated difference of a member's load from its share, in per cent of the share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tolerance {
    /// Largest difference between the load of a member and its share, in per cent of the share, that does not cause
    /// moves. If the value is too small, the balancer moves paxos groups at every change of traffic. If the value is
    /// too large, a member may carry more than its share permanently.
    pub start_percent: u8,
    /// Maximum difference between the load of a member and its share that should remain after the moves, in per cent of
    /// the share. The value should be less than `start_percent`; otherwise the next change of traffic causes further
    /// moves. If the value is too small, more paxos groups move than necessary.
    pub goal_percent: u8,
}

impl Default for Tolerance {
    fn default() -> Tolerance {
        Tolerance { start_percent: 20, goal_percent: 10 }
    }
}

/// Master of each paxos group.
pub type Distribution = BTreeMap<GroupId, NodeId>;

/// Returns the ideal distribution. It omits paxos groups of which no replica may be master.
///
/// # Panics
/// Panics if two members have the same node, or if two loads have the same paxos group.
#[must_use]
pub fn ideal(members: &[Member], groups: &[Load], present: &Distribution, tolerance: Tolerance) -> Distribution {
    let mut plan = Plan::new(members, groups, present, tolerance.goal_percent);
    plan.place_unassigned();
    if plan.is_off_by(tolerance.start_percent) {
        plan.descend();
        plan.refine();
    }
    plan.groups.iter().map(|placed| (placed.group, plan.planned[placed.at].node)).collect()
}

/// Sum of all weights after scaling. The sum does not depend on the unit of the weights. With this sum and the factors
/// `FINE` and `BALANCE`, the cost of a path in the residual graph is always far below 2¹²⁷, the limit of an `i128`.
const WHOLE: i128 = 1 << 28;
/// Factor that preserves precision in the division of a squared distance by a capacity.
const FINE: i128 = 1 << 32;
/// Factor of the cost of imbalance. It is so large that the smallest difference in balance counts more than all moves
/// together.
const BALANCE: i128 = 1 << 24;

struct Plan {
    planned: Vec<PlannedMember>,
    groups: Vec<Placed>,
    /// Indices of paxos groups in `groups`, by the weight of the paxos groups.
    alike: BTreeMap<i128, Vec<usize>>,
}

struct PlannedMember {
    node: NodeId,
    capacity: i128,
    share: i128,
    /// Least load in the member's band, which is the range of loads that the balancer tolerates. `high` is the greatest
    /// load in the band.
    low: i128,
    high: i128,
    load: i128,
}

struct Placed {
    group: GroupId,
    weight: i128,
    may: Vec<usize>,
    /// Present master of the paxos group; `None` if it is unknown or must not remain the master.
    current: Option<usize>,
    at: usize,
}

/// Edge of the residual graph: a change of one paxos group's master, or a change of one member's load.
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
        assert_eq!(nodes.len(), members.len(), "each member is a different node");
        let index: BTreeMap<NodeId, usize> = able.keys().enumerate().map(|(at, node)| (*node, at)).collect();

        let mut placed: Vec<Placed> = groups
            .iter()
            .filter_map(|load| {
                let may: BTreeSet<usize> = load.replicas.iter().filter_map(|node| index.get(node).copied()).collect();
                let at = *may.first()?;
                let current = present.get(&load.group).and_then(|node| index.get(node).copied());
                let current = current.filter(|current| may.contains(current));
                let weight = i128::from(load.weight);
                Some(Placed { group: load.group, weight, may: may.into_iter().collect(), current, at })
            })
            .collect();
        placed.sort_by_key(|placed| placed.group);
        assert!(placed.windows(2).all(|two| two[0].group < two[1].group), "each load is a different paxos group");
        scale(&mut placed);

        let total: i128 = placed.iter().map(|placed| placed.weight).sum();
        let capacities: i128 = able.values().map(|capacity| i128::from(*capacity)).sum();
        let goal = i128::from(goal_percent);
        let member = |(node, capacity): (&NodeId, &u32)| {
            let capacity = i128::from(*capacity);
            let part = total * capacity;
            let low = (part * (100 - goal)).div_euclid(100 * capacities);
            let high = -(-part * (100 + goal)).div_euclid(100 * capacities);
            PlannedMember { node: *node, capacity, share: part / capacities, low, high, load: 0 }
        };
        let planned = able.iter().map(member).collect();

        let mut alike: BTreeMap<i128, Vec<usize>> = BTreeMap::new();
        for (at, placed) in placed.iter().enumerate() {
            alike.entry(placed.weight).or_default().push(at);
        }
        Plan { planned, groups: placed, alike }
    }

    /// Assigns each paxos group that has a present master to this master. Then assigns the other paxos groups, the
    /// heaviest first. For each of them, chooses the eligible replica with the least load in proportion to its
    /// capacity.
    fn place_unassigned(&mut self) {
        let mut unassigned = Vec::new();
        for (at, placed) in self.groups.iter_mut().enumerate() {
            match placed.current {
                Some(current) => {
                    placed.at = current;
                    self.planned[current].load += placed.weight;
                }
                None => unassigned.push(at),
            }
        }
        unassigned.sort_by_key(|at| (-self.groups[*at].weight, self.groups[*at].group));
        for at in unassigned {
            let Placed { weight, may, .. } = &self.groups[at];
            let carried =
                |member: &usize| (self.planned[*member].load + weight) * FINE / self.planned[*member].capacity;
            let member = *may
                .iter()
                .min_by_key(|member| carried(member))
                .expect("every placed group has a member that may be its master");
            self.planned[member].load += weight;
            self.groups[at].at = member;
        }
    }

    fn is_off_by(&self, percent: u8) -> bool {
        self.planned.iter().any(|member| (member.load - member.share).abs() * 100 > member.share * i128::from(percent))
    }

    /// Moves one paxos group at a time. Each move is the move with the greatest improvement. This function does not
    /// always find the optimum, but it leaves little work to [`Plan::refine`], which uses the first improvement that it
    /// finds.
    fn descend(&mut self) {
        loop {
            let gain = |(at, to): &(usize, usize)| {
                let Placed { weight, at: from, .. } = self.groups[*at];
                let (from, to) = (&self.planned[from], &self.planned[*to]);
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

    /// Improves the distribution until no improvement exists. Each improvement reduces the cost, so the loop ends.
    fn refine(&mut self) {
        // The search starts with the heaviest paxos groups, because the move of one heavy paxos group can replace the
        // moves of several light paxos groups.
        let weights: Vec<i128> = self.alike.keys().rev().copied().collect();
        loop {
            let mut improved = false;
            for &weight in &weights {
                while let Some(cycle) = self.improving_cycle(weight) {
                    cycle
                        .iter()
                        .filter_map(|edge| Some((edge.group?, edge.to)))
                        .for_each(|(group, to)| self.shift(group, to));
                    improved = true;
                }
            }
            if !improved {
                return;
            }
        }
    }

    /// Returns a cycle of negative cost among the edges for paxos groups with the weight `weight`, or `None` if no such
    /// cycle exists. Each member on the cycle takes one paxos group from the member before it and gives one to the
    /// member after it, so its load does not change. If the cycle passes through the node `outside`, the member after
    /// `outside` only gives a paxos group, and the member before `outside` only takes one.
    fn improving_cycle(&self, weight: i128) -> Option<Vec<Edge>> {
        let outside = self.planned.len();
        let mut edges: Vec<Edge> = Vec::new();
        for (at, member) in self.planned.iter().enumerate() {
            let now = member.cost(member.load);
            edges.push(Edge { from: at, to: outside, cost: member.cost(member.load + weight) - now, group: None });
            edges.push(Edge { from: outside, to: at, cost: member.cost(member.load - weight) - now, group: None });
        }
        let mut cheapest: BTreeMap<(usize, usize), (i128, usize)> = BTreeMap::new();
        for &group in &self.alike[&weight] {
            let placed = &self.groups[group];
            for &to in placed.may.iter().filter(|to| **to != placed.at) {
                let moves = i128::from(placed.current != Some(to)) - i128::from(placed.current != Some(placed.at));
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
        self.planned[placed.at].load -= placed.weight;
        self.planned[to].load += placed.weight;
        placed.at = to;
    }
}

impl PlannedMember {
    fn cost(&self, load: i128) -> i128 {
        let distance = (load - self.high).max(self.low - load).max(0);
        distance * distance * FINE / self.capacity * BALANCE
    }
}

fn scale(groups: &mut [Placed]) {
    let sum: i128 = groups.iter().map(|placed| placed.weight).sum();
    for placed in groups {
        // If the sum of the weights is 0, all paxos groups get the same weight.
        placed.weight = (placed.weight * WHOLE).checked_div(sum).unwrap_or(1 << 10).max(1);
    }
}

/// Returns a cycle of negative cost, or `None` if no such cycle exists. The function is a Bellman-Ford search that
/// starts from all nodes at once. The number of its rounds is the number of nodes. If the cost of a node still
/// decreases in the last round, a path leads to this node from a cycle of negative cost.
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
    let before = |node: usize| by[node].expect("a node whose cost decreased was reached by an edge");
    let on_cycle = (0..nodes).fold(last?, |node, _| edges[before(node)].from);
    let mut cycle = BTreeSet::new();
    let mut node = on_cycle;
    while cycle.insert(before(node)) {
        node = edges[before(node)].from;
    }
    Some(edges.into_iter().enumerate().filter(|(at, _)| cycle.contains(at)).map(|(_, edge)| edge).collect())
}
