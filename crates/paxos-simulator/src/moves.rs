//! Measurement of moves of a master: the duration of a move, and the time without a master, for each kind of move.
//!
//! The measurement uses the same simulation as a run of a seed, but without faults. It has three nodes, clocks without
//! drift, and a client that proposes once per millisecond to the master. The seed determines the delays of messages and
//! syncs, and the instant at which the move begins.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Duration;

use paxos::{GroupId, Options};
use simulator::Random;

use crate::checks::{Rule, Violation};
use crate::config::{Mutation, RunConfig};
use crate::core_program::Core;
use crate::program::{Input, Program, Request};
use crate::world::World;

#[cfg(test)]
mod tests;

const NODES: u32 = 3;
/// Number of ids from which the measurement draws the id of the paxos group. The id determines how long each candidate
/// delays its campaign, so that candidates do not compete.
const IDS: u32 = 64;
const LEASES: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(10)];

// The following times are in microseconds. With these delays of messages and durations of syncs, a commit takes about
// two milliseconds.
const DELAY: (u64, u64) = (200, 400);
const SYNC: (u64, u64) = (600, 1_200);
/// Interval between ticks.
const TICK: u64 = 2_000;
const PROPOSAL: u64 = 1_000;
const SHORTENED: u64 = 500_000;
/// Time for which a run continues after the next master begins to serve, so that the run also measures the first
/// acknowledgements of this master.
const AFTER: u64 = 500_000;
const NEVER: u64 = 1 << 50;

/// Way in which the mastership moves to the next master.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveKind {
    /// The master stops renewing its lease, and the next master waits for the whole lease.
    Waits,
    /// The master shortens its lease to half a second.
    Shortens,
    /// The next master requests the consent of the present master.
    Consents,
    /// The next master requests the consent of the present master, and at that moment a fault isolates the present
    /// master from all other nodes.
    ConsentsCutOff,
    /// The master crashes without a request for a move, and does not restart.
    Crashes,
}

impl MoveKind {
    pub const ALL: [MoveKind; 5] =
        [MoveKind::Waits, MoveKind::Shortens, MoveKind::Consents, MoveKind::ConsentsCutOff, MoveKind::Crashes];

    fn name(self) -> &'static str {
        match self {
            MoveKind::Waits => "1: the lease ends",
            MoveKind::Shortens => "2: shortened to 500 ms",
            MoveKind::Consents => "3: the master consents",
            MoveKind::ConsentsCutOff => "3: the master is cut off",
            MoveKind::Crashes => "the master crashes",
        }
    }

    /// Returns the predicted duration of a move and the predicted time without a master, each with its median and its
    /// 99th percentile. For `Consents`, the prediction is from the plan of this project. For `Waits` and `Shortens`,
    /// the prediction describes phxpaxos, another Paxos implementation. In phxpaxos, the next master polls the state of
    /// the lease, at intervals that are proportional to the lease. For `Waits`, the master of phxpaxos also stops
    /// serving 100 ms before its lease ends.
    fn predicted(self, lease: Duration) -> Option<[[u64; 2]; 2]> {
        let lease = micros(lease);
        let polling = |late: [u64; 2]| late.map(|part| lease * part / 1_000);
        match self {
            MoveKind::Waits => Some([polling([1_250, 1_560]), polling([124, 340]).map(|late| 100_000 + late)]),
            MoveKind::Shortens => Some([polling([125, 350]).map(|gap| 400_000 + gap), polling([125, 350])]),
            MoveKind::Consents => Some([[3_500; 2], [3_200; 2]]),
            MoveKind::ConsentsCutOff | MoveKind::Crashes => None,
        }
    }
}

/// Result of one move. All times are in microseconds of true time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MeasuredMove {
    /// Time from the start of the move until another node serves as master.
    pub took: u64,
    /// Longest time during which no node served as master.
    pub gap: u64,
    /// Longest time between two successive acknowledgements of proposals.
    pub silence: u64,
    /// Time for which two nodes served as master concurrently.
    pub doubled: u64,
    /// Median time from a proposal to its acknowledgement, before the move begins.
    pub commit: u64,
}

/// Runs one move and measures its times.
///
/// # Errors
/// Returns an error if the run breaks a rule, or if no new master serves within 60 seconds of simulated time.
pub fn measure(scheme: MoveKind, lease: Duration, seed: u64) -> Result<MeasuredMove, Violation> {
    let mut random = Random::new(seed);
    let group = GroupId(1 + u32::try_from(random.below(IDS.into())).expect("the number is small"));
    let mut world = World::new(config(lease, random.bits()), false);
    world.groups = vec![group];
    let mut run = Run::new(world, group);
    run.until(|run| run.server().is_some())?;
    let measured_from = run.world.now + 200_000 + random.below(100_000);
    run.until(|run| run.world.now >= measured_from)?;
    let [commit, _] = percentiles(run.commits.clone());
    let master = run.server().expect("without faults, a master continues to serve");
    let next = (master + 1 + random.index(2)) % NODES as usize;
    let begun = run.world.now;
    run.order(scheme, lease, master, next)?;
    run.until(|run| run.server().is_some_and(|node| node != master))?;
    let took = run.world.now - begun;
    let end = run.world.now + AFTER;
    run.until(|run| run.world.now >= end)?;
    Ok(MeasuredMove { took, gap: run.gap, silence: run.silence, doubled: run.doubled, commit })
}

/// Run of one move: the simulation, the state of its client, and the measurements.
struct Run {
    world: World<Core>,
    group: GroupId,
    proposed: u64,
    next_proposal: u64,
    /// Instant of each proposal that is not yet acknowledged. For each acknowledged proposal, `commits` contains the
    /// time from the proposal to its acknowledgement.
    waiting: VecDeque<u64>,
    commits: Vec<u64>,
    acknowledged: u64,
    acknowledged_last: u64,
    silence: u64,
    looked: u64,
    /// End of the time for which each node serves as master, if no further event changes this end.
    serve_until: [u64; NODES as usize],
    served_last: u64,
    gap: u64,
    doubled: u64,
}

impl Run {
    fn new(world: World<Core>, group: GroupId) -> Self {
        Run {
            world,
            group,
            proposed: 0,
            next_proposal: PROPOSAL,
            waiting: VecDeque::new(),
            commits: Vec::new(),
            acknowledged: 0,
            acknowledged_last: 0,
            silence: 0,
            looked: 0,
            serve_until: [0; NODES as usize],
            served_last: 0,
            gap: 0,
            doubled: 0,
        }
    }

    fn order(&mut self, scheme: MoveKind, lease: Duration, master: usize, next: usize) -> Result<(), Violation> {
        (self.silence, self.gap, self.doubled) = (0, 0, 0);
        let to = self.world.nodes[next].id;
        match scheme {
            MoveKind::Waits => self.world.request(master, self.group, Request::Shorten(to, micros(lease)))?,
            MoveKind::Shortens => self.world.request(master, self.group, Request::Shorten(to, SHORTENED))?,
            MoveKind::Consents => self.world.request(next, self.group, Request::Take)?,
            MoveKind::ConsentsCutOff => {
                self.world.request(next, self.group, Request::Take)?;
                self.world.isolate(master);
            }
            MoveKind::Crashes => self.world.crash(master)?,
        }
        self.look();
        Ok(())
    }

    fn until(&mut self, is_so: impl Fn(&Run) -> bool) -> Result<(), Violation> {
        let deadline = self.world.now + 60_000_000;
        while !is_so(self) {
            self.step()?;
            if self.world.now > deadline {
                let detail = format!("a move is not finished at {}", self.world.now);
                return Err(Violation { rule: Rule::Progress, detail });
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), Violation> {
        self.world.run(1, self.next_proposal)?;
        self.look();
        if self.world.now < self.next_proposal {
            return Ok(());
        }
        self.next_proposal += PROPOSAL;
        if let Some(server) = self.server() {
            self.proposed += 1;
            self.waiting.push_back(self.world.now);
            self.world.feed(server, Input::Propose(self.group, self.proposed))?;
            self.look();
        }
        Ok(())
    }

    /// Returns the node that serves as master at the present time, or `None` if there is no such node.
    fn server(&self) -> Option<usize> {
        (0..NODES as usize).find(|node| self.world.now < self.serve_until[*node])
    }

    /// Updates the measurements. Since the last update, a node may have stopped serving as master because its lease
    /// ended, but no node has become master.
    fn look(&mut self) {
        let now = self.world.now;
        let mut ends = self.serve_until.map(|until| until.min(now));
        ends.sort_unstable();
        let [.., second, last] = ends;
        self.doubled += second.saturating_sub(self.looked);
        if last > self.looked {
            self.gap = self.gap.max(self.looked - self.served_last);
            self.served_last = last;
        }
        for (node, until) in self.serve_until.iter_mut().enumerate() {
            let serves = self.world.nodes[node].program.as_ref().and_then(|program| program.view(self.group).serves);
            let clock = self.world.clock(node);
            // All clocks run at the true rate in this simulation.
            *until = serves.map_or(0, |(until, _)| now + micros(until.since(clock)));
        }
        self.looked = now;
        let acknowledged = self.world.checks.acknowledgements()[self.group.0 as usize];
        if acknowledged > self.acknowledged {
            let count =
                usize::try_from(acknowledged - self.acknowledged).expect("the number of acknowledgements is small");
            self.commits.extend(self.waiting.drain(..count).map(|proposed| now - proposed));
            self.silence = self.silence.max(now - self.acknowledged_last);
            (self.acknowledged, self.acknowledged_last) = (acknowledged, now);
        }
    }
}

fn config(lease: Duration, seed: u64) -> RunConfig {
    RunConfig {
        seed,
        steps: 0,
        nodes: NODES,
        groups: IDS,
        has_system: false,
        delay: DELAY,
        sync: SYNC,
        tick: TICK,
        // The interval `NEVER` disables the simulation's own client, because this client would propose to any node.
        proposal: NEVER,
        fault_interval: NEVER,
        loss: 0.0,
        duplication: 0.0,
        tail: 0.0,
        late_orders: 0.0,
        targeted_fault: 0.0,
        isolates_masters: false,
        moves: false,
        drift_ppm: 0,
        is_clock_broken: false,
        heals: false,
        without: u32::MAX,
        options: Options { lease, ..Options::default() },
        mutant: Mutation::None,
    }
}

/// Measures `count` moves of each kind. Returns the results and the predictions as a Markdown table.
///
/// # Errors
/// Returns an error if a run breaks a rule, or if no new master serves within 60 seconds of simulated time.
pub fn moves_table(count: u64) -> Result<String, Violation> {
    let mut table = String::from(HEAD);
    let mut commits = Vec::new();
    for lease in LEASES {
        for scheme in MoveKind::ALL {
            let moves = (0..count).map(|seed| measure(scheme, lease, seed)).collect::<Result<Vec<_>, _>>()?;
            commits.extend(moves.iter().map(|one| one.commit));
            let shown = |of: fn(&MeasuredMove) -> u64| show(percentiles(moves.iter().map(of).collect()));
            let predicted = scheme.predicted(lease).map(|predicted| predicted.map(show));
            let [took, gap] = predicted.unwrap_or_else(|| [String::new(), String::new()]);
            let doubled = moves.iter().map(|one| one.doubled).max().unwrap_or_default();
            let _ = writeln!(
                table,
                "| {} s | {} | {} | {took} | {} | {gap} | {} | {doubled} |",
                lease.as_secs(),
                scheme.name(),
                shown(|one| one.took),
                shown(|one| one.gap),
                shown(|one| one.silence),
            );
        }
    }
    let commit = show(percentiles(commits));
    let _ = writeln!(table, "\n{count} moves of each kind; a commit takes {commit} (p50 / p99 of the moves).");
    Ok(table)
}

const HEAD: &str = "\
| lease | scheme | move p50 / p99 | predicted | no master p50 / p99 | predicted | no acknowledgement p50 / p99 | two serve |
|---|---|---|---|---|---|---|---|
";

/// Returns the median and the 99th percentile of the values by the nearest-rank method.
fn percentiles(mut values: Vec<u64>) -> [u64; 2] {
    values.sort_unstable();
    [50, 99].map(|part| values.get((values.len() * part).div_ceil(100).max(1) - 1).copied().unwrap_or_default())
}

fn show([median, most]: [u64; 2]) -> String {
    let one = |micros: u64| match micros {
        0..1_000_000 => format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100),
        _ => format!("{}.{:03} s", micros / 1_000_000, micros % 1_000_000 / 1_000),
    };
    format!("{} / {}", one(median), one(most))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("the duration is short")
}
