//! Configuration of a run. The simulation draws the configuration from the seed before the run begins, and prints it if
//! the run fails.

use std::fmt;
use std::time::Duration;

use paxos::system::Scheme;
use paxos::{Defence, Deviation, Mutant, Options, mover};
use simulator::Random;

/// Kind of fault. A developer can disable kinds of faults, to find the faults that cause a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    Loss,
    Doubling,
    Tails,
    Partitions,
    Crashes,
    Pauses,
    SlowSyncs,
    FailedSyncs,
    BitFlips,
    Drift,
    Moves,
    Snapshots,
    Members,
    /// Targeted faults: the simulation crashes or isolates a node that has just become leader or master.
    Ambushes,
}

impl Fault {
    pub const ALL: [Fault; 14] = [
        Fault::Loss,
        Fault::Doubling,
        Fault::Tails,
        Fault::Partitions,
        Fault::Crashes,
        Fault::Pauses,
        Fault::SlowSyncs,
        Fault::FailedSyncs,
        Fault::BitFlips,
        Fault::Drift,
        Fault::Moves,
        Fault::Snapshots,
        Fault::Members,
        Fault::Ambushes,
    ];

    #[must_use]
    pub fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// Configuration of a run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    pub seed: u64,
    /// Minimum number of events that the run handles.
    pub steps: u64,
    pub nodes: u32,
    pub groups: u32,
    /// True if the run also has a system group. Idle masters renew their leases through the system group.
    pub has_system: bool,
    /// Range of message delays, in microseconds. The other integer times of this configuration are also in
    /// microseconds.
    pub delay: (u64, u64),
    pub sync: (u64, u64),
    pub tick: u64,
    pub proposal: u64,
    pub fault_interval: u64,
    pub loss: f64,
    pub duplication: f64,
    pub tail: f64,
    /// Probability that a message with the orders of a move has a long delay. For such a message, the simulation uses
    /// the larger of this value and `tail`. For all other messages, it uses `tail`.
    pub late_orders: f64,
    pub targeted_fault: f64,
    /// True if the simulation isolates masters one after another. It repairs all links before it isolates the next
    /// master.
    pub isolates_masters: bool,
    /// True if about every second fault is a move of a master.
    pub moves: bool,
    /// Maximum difference between a clock's rate and the true rate, in millionths. It is about half of the drift that
    /// the options of the program permit between two clocks.
    pub drift_ppm: u32,
    /// True if a clock's rate may differ from the true rate by more than `drift_ppm`. Two nodes may then be master at
    /// the same time, and two moves may be in progress at the same time, but all other rules must hold.
    pub is_clock_broken: bool,
    /// True if the simulation ends all faults among a quorum of nodes at the end of the run, and then checks that these
    /// nodes make progress.
    pub heals: bool,
    /// Bit set of the disabled [`Fault`]s.
    pub without: u32,
    pub options: Options,
    pub mutant: Mutation,
}

/// Deliberate bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mutation {
    #[default]
    None,
    /// Bug in the crate `paxos`.
    Core(Mutant),
    /// Bug: the program measures leases by the wall clock, which jumps.
    WallClock,
}

impl Mutation {
    /// Returns all deliberate bugs.
    pub fn all() -> impl Iterator<Item = Mutation> {
        Mutant::ALL.into_iter().map(Mutation::Core).chain([Mutation::WallClock])
    }
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mutation::Core(mutant) => write!(f, "{mutant:?}"),
            Mutation::None | Mutation::WallClock => write!(f, "{self:?}"),
        }
    }
}

impl RunConfig {
    #[must_use]
    pub fn draw(seed: u64, mutant: Mutation) -> Self {
        let random = &mut Random::new(seed);
        let micros = |random: &mut Random, least, most| least + random.below(most - least + 1);
        let of = |random: &mut Random, choices: &[u64]| choices[random.index(choices.len())];
        let slowest = of(random, &[500, 2_000, 8_000]);
        let slowest_sync = of(random, &[200, 1_000, 10_000]);
        let has_system = random.coin();
        let moves = has_system && random.below(3) == 0;
        // Leases are often short in runs with moves, because each move waits for the end of a lease. With a long lease,
        // a run contains fewer moves.
        let is_short = random.coin() || moves && random.below(3) > 0;
        let lease = if is_short { micros(random, 5_000, 20_000) } else { micros(random, 20_000, 150_000) };
        // In most runs, members can decide a slot before the end of the lease that the slot renews.
        let lease = if random.below(8) == 0 { lease } else { lease + 2 * slowest + 2 * slowest_sync };
        let drift_ppm =
            u32::try_from(of(random, &[0, 200, 10_000])).expect("a clock drift in millionths fits into 32 bits");
        let count = |random: &mut Random, choices: &[u64]| {
            usize::try_from(of(random, choices)).expect("the value of an option fits into a `usize`")
        };
        let options = Options {
            lease: Duration::from_micros(lease),
            drift_ppm: 2 * drift_ppm + drift_ppm / 50,
            resend: Duration::from_micros(micros(random, 3_000, 20_000)),
            stagger: Duration::from_micros(micros(random, 1_000, 10_000)),
            consent: Duration::from_micros(micros(random, 5_000, 40_000)),
            window_slots: count(random, &[1, 2, 8, 64]),
            window_bytes: count(random, &[1, 200, 8 << 20]),
            batch_entries: count(random, &[1, 2, 16]),
            batch_bytes: count(random, &[1, 64, 1 << 16]),
            linger: Duration::from_micros(of(random, &[0, 1_000, 5_000])),
            waiting_bytes: count(random, &[250, 1 << 16]),
            system_slots: of(random, &[5, 30, 1_000]),
            chunk_bytes: count(random, &[16, 100, 1 << 16]),
            report: Duration::ZERO,
            mover: mover::Options::default(),
            deviation: Deviation {
                defence: match random.below(4) {
                    0 => Defence::Acceptors,
                    1 => Defence::Log,
                    _ => Defence::Both,
                },
                mutant: match mutant {
                    Mutation::Core(mutant) => Some(mutant),
                    Mutation::None | Mutation::WallClock => None,
                },
            },
        };
        let options = Options { mover: draw_mover(random, &options), report: 2 * options.resend, ..options };
        RunConfig {
            seed,
            // Runs with moves have more steps, because moves begin only after the system group has a master.
            steps: 2_000
                + random.below(1_000)
                + if moves { 4_000 } else { 0 }
                + if random.below(8) == 0 { 10_000 } else { 0 },
            nodes: if random.below(3) == 0 { 5 } else { 3 },
            // Runs with moves have several paxos groups, so that one move waits for another move.
            groups: u32::try_from(1 + u64::from(moves) + random.below(if has_system { 4 } else { 2 }))
                .expect("the number of paxos groups fits into 32 bits"),
            has_system,
            delay: (50, slowest),
            sync: (20, slowest_sync),
            tick: micros(random, 1_000, 5_000.max(lease / 10)),
            proposal: of(random, &[300, 1_000, 5_000, 100_000]),
            fault_interval: of(random, &[3_000, 10_000, 40_000]),
            loss: [0.0, 0.01, 0.1][random.index(3)],
            duplication: [0.0, 0.02, 0.2][random.index(3)],
            tail: [0.0, 0.01, 0.1][if moves { 1 + random.index(2) } else { random.index(3) }],
            targeted_fault: [0.0, 0.2, 0.5][random.index(3)],
            isolates_masters: has_system && random.below(4) == 0,
            moves,
            drift_ppm,
            is_clock_broken: random.below(20) == 0 && drift_ppm > 0,
            // With `Defence::Log` alone, nodes may depose each other again and again. The nodes may then make no
            // progress, even without faults.
            heals: random.below(4) == 0 && options.deviation.defence != Defence::Log,
            without: 0,
            late_orders: [0.0, 0.3, 0.8][random.index(3)],
            options,
            mutant,
        }
    }

    #[must_use]
    pub fn has(&self, fault: Fault) -> bool {
        self.without & fault.bit() == 0
    }
}

fn draw_mover(random: &mut Random, options: &Options) -> mover::Options {
    let times = |random: &mut Random, most: u64| options.resend * u32::try_from(1 + random.below(most)).unwrap_or(1);
    let lease = times(random, 2);
    let remaining = options.lease / 4;
    let (prepare_within, handover_within) = (options.resend + times(random, 4), remaining + times(random, 12) / 4);
    let lease_within = options.lease + times(random, 8) / 4;
    let drawn = mover::Options {
        scheme: [Scheme::Consent, Scheme::Shorten, Scheme::Wait][random.index(3)],
        lag_most: [2, 1_000][random.index(2)],
        lease,
        retry: lease / 4,
        prepare_within,
        handover_within,
        lease_within,
        remaining,
        interval: times(random, 2) / 4,
        backoff: times(random, 2),
        backoff_most: options.resend * 8,
        ..mover::Options::default()
    };
    let wait = options.stretched(drawn.in_flight()) + Duration::from_micros(1);
    mover::Options { wait, ..drawn }
}
