//! Election of a leader among three processes in Rust and one in Java, while the leaders fail.

use std::fmt::Write as _;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::Signal;
use test_servers::kafka::Door;

use super::board::Board;
use super::processes::{Harness, Language, Process};
use super::witness::{Witness, now};
use super::{Mutant, Outcome};
use crate::chaos::random::Random;

const TOPIC: &str = "election";
/// Key of the claims.
const KEY: &str = "leader";
const SESSION: Duration = Duration::from_secs(2);
/// Time after which a paused process continues. The session has ended then.
const PAUSE: Duration = Duration::from_millis(2_500);
const CANDIDATES: [(&str, Language); 4] =
    [("a", Language::Rust), ("b", Language::Rust), ("c", Language::Rust), ("java", Language::Java)];
/// Longest time until another candidate leads.
const HAND_OVER_MAX: Duration = Duration::from_secs(60);
/// Range of the times between two hand-overs, in milliseconds.
const CALM: (u64, u64) = (1_000, 2_500);
/// Range of the times for which a cut continues after the hand-over, in milliseconds.
const CUT: (u64, u64) = (0, 1_000);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Graceful,
    Killed,
    Paused,
    CutOff,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Graceful, Kind::Killed, Kind::Paused, Kind::CutOff];

    fn name(self) -> &'static str {
        match self {
            Kind::Graceful => "graceful",
            Kind::Killed => "killed",
            Kind::Paused => "paused",
            Kind::CutOff => "cut off",
        }
    }
}

/// Measured hand-over.
struct HandOver {
    kind: Kind,
    from: Language,
    to: Language,
    /// Time from the end of a leader's work to the first claim of the next leader, if the hand-over is graceful; otherwise the
    /// time from the fault to this claim, minus the session timeout.
    millis: f64,
}

/// Parts that all candidates share.
struct Election<'a> {
    harness: &'a Harness,
    witness: Witness,
    mutant: Option<Mutant>,
}

struct Candidate {
    name: &'static str,
    language: Language,
    /// Proxy between this candidate and the broker.
    door: Door,
    /// Number of processes of this candidate so far.
    starts: usize,
    process: Process,
}

/// # Errors
/// Returns an error if the election does not start or does not complete.
pub(super) fn run(
    harness: &Harness,
    hand_overs: u32,
    mutant: Option<Mutant>,
    random: &mut Random,
) -> anyhow::Result<Outcome> {
    harness.topic("create", TOPIC, 1)?;
    let witness = Witness::start(&harness.folder.join("election.log"))?;
    let election = Election { harness, witness, mutant };
    let candidates = CANDIDATES.map(|(name, language)| election.candidate(name, language));
    let mut candidates = candidates.into_iter().collect::<anyhow::Result<Vec<Candidate>>>()?;
    let (mut measured, mut failures, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..hand_overs {
        thread::sleep(Duration::from_millis(random.between(CALM.0, CALM.1)));
        for candidate in &mut candidates {
            failures.extend(election.restart_if_dead(candidate)?);
        }
        if kinds.is_empty() {
            kinds = Kind::ALL.to_vec();
            random.shuffle(&mut kinds);
        }
        let kind = kinds.pop().context("the list of kinds is not empty")?;
        let cut = Duration::from_millis(random.between(CUT.0, CUT.1));
        measured.push(election.hand_over(&mut candidates, kind, cut)?);
    }
    let unplanned = election.witness.look(|board| board.holders(KEY).count()).saturating_sub(1 + measured.len());
    for candidate in &mut candidates {
        candidate.stop()?;
    }
    let (verdict, accepted, rejected) = election.witness.look(|board| (board.judge(), board.accepted, board.rejected));
    failures.extend(election.witness.failures());
    failures.extend(verdict.broken.iter().map(|(rule, (count, _))| format!("election: {rule:?}, {count} times")));
    let mut text = table(&measured);
    writeln!(text, "{unplanned:>10}  changes of the leader without a fault of the leader")?;
    writeln!(text, "{accepted:>10}  claims that the witness accepted")?;
    writeln!(text, "{rejected:>10}  late claims that the witness rejected by their terms")?;
    write!(text, "{verdict}")?;
    Ok(Outcome { text, failures })
}

impl Election<'_> {
    fn candidate(&self, name: &'static str, language: Language) -> anyhow::Result<Candidate> {
        let door = self.harness.kafka.door();
        let process = self.process(name, language, 1, &door)?;
        Ok(Candidate { name, language, door, starts: 1, process })
    }

    fn process(&self, name: &str, language: Language, starts: usize, door: &Door) -> anyhow::Result<Process> {
        let (address, witness) = (door.address().to_string(), self.witness.address.to_string());
        let (name, session) = (format!("{name}-{starts}"), SESSION.as_millis().to_string());
        let mut arguments = vec![TOPIC, &name, &witness, &session];
        if self.mutant == Some(Mutant::LateLeader) && language == Language::Rust {
            arguments.push("late");
        }
        let mut command = self.harness.command(language, "lead", &address, &arguments)?;
        Process::start(command.stdin(Stdio::piped()))
    }

    fn restart(&self, candidate: &mut Candidate) -> anyhow::Result<()> {
        candidate.starts += 1;
        candidate.process = self.process(candidate.name, candidate.language, candidate.starts, &candidate.door)?;
        Ok(())
    }

    /// Restarts a process that has ended by itself, and returns a description of this failure.
    fn restart_if_dead(&self, candidate: &mut Candidate) -> anyhow::Result<Option<String>> {
        let Some(status) = candidate.process.0.try_wait()? else { return Ok(None) };
        self.restart(candidate)?;
        let output = self.harness.output();
        Ok(Some(format!("the candidate {} ended by itself: {status}; see {}", candidate.name, output.display())))
    }

    /// Lets the leader hand over or fail, waits for the next leader, and ends the fault.
    fn hand_over(&self, candidates: &mut [Candidate], kind: Kind, cut: Duration) -> anyhow::Result<HandOver> {
        let (term, name) = self.witness.wait(HAND_OVER_MAX, leader).context("no candidate leads")?;
        let leads = |candidate: &&mut Candidate| name.rsplit_once('-').is_some_and(|(of, _)| of == candidate.name);
        let leading = candidates.iter_mut().find(leads).context("the leader is no candidate")?;
        self.harness.print(&format!("the leader {name} with the term {term}: {}", kind.name()));
        let (began, since) = (now(), Instant::now());
        match kind {
            Kind::Graceful => drop(leading.process.0.stdin.take()),
            Kind::Killed => leading.process.signal(Signal::KILL)?,
            Kind::Paused => leading.process.signal(Signal::STOP)?,
            Kind::CutOff => leading.door.cut(true),
        }
        let next = self.witness.wait(HAND_OVER_MAX, |board| leader_after(board, term));
        let (to, first) = next.with_context(|| format!("no candidate leads after {name}"))?;
        match kind {
            Kind::Graceful => {
                leading.ended_gracefully()?;
                self.restart(leading)?;
            }
            Kind::Killed => self.restart(leading)?,
            Kind::Paused => {
                thread::sleep(PAUSE.saturating_sub(since.elapsed()));
                leading.process.signal(Signal::CONT)?;
            }
            Kind::CutOff => {
                thread::sleep(cut);
                leading.door.cut(false);
            }
        }
        let start = if kind == Kind::Graceful {
            let ended = self.witness.look(|board| ended(board, term));
            ended.with_context(|| format!("the leader {name} reported no end"))?
        } else {
            began + u64::try_from(SESSION.as_nanos())?
        };
        let language = |name: &str| if name.starts_with("java") { Language::Java } else { Language::Rust };
        let millis = (first as f64 - start as f64) / 1e6;
        Ok(HandOver { kind, from: language(&name), to: language(&to), millis })
    }
}

impl Candidate {
    fn stop(&mut self) -> anyhow::Result<()> {
        drop(self.process.0.stdin.take());
        self.ended_gracefully()
    }

    fn ended_gracefully(&mut self) -> anyhow::Result<()> {
        let status = self.process.ended().with_context(|| format!("the candidate {}", self.name))?;
        ensure!(status.success(), "the candidate {} failed during its graceful stop: {status}", self.name);
        Ok(())
    }
}

/// Returns the term and the name of the present leader.
fn leader(board: &Board) -> Option<(u64, String)> {
    let (term, name, holder) = board.holders(KEY).next_back()?;
    holder.ended.is_none().then(|| (term, name.to_owned()))
}

/// Returns the name of the first leader after a term, and the time of its first claim.
fn leader_after(board: &Board, term: u64) -> Option<(String, u64)> {
    let (_, name, holder) = board.holders(KEY).find(|(later, _, _)| *later > term)?;
    Some((name.to_owned(), holder.first))
}

fn ended(board: &Board, term: u64) -> Option<u64> {
    board.holders(KEY).find(|(one, _, _)| *one == term)?.2.ended
}

/// Returns a table of the times without a leader.
fn table(measured: &[HandOver]) -> String {
    let mut text = format!("{:<30}{:>6}{:>12}{:>9}\n", "hand-overs", "count", "median ms", "max ms");
    let directions = [
        ("", None),
        (", Rust to Rust", Some((Language::Rust, Language::Rust))),
        (", Rust to Java", Some((Language::Rust, Language::Java))),
        (", Java to Rust", Some((Language::Java, Language::Rust))),
    ];
    for kind in Kind::ALL {
        for (label, direction) in directions {
            let is_in = |one: &&HandOver| one.kind == kind && direction.is_none_or(|pair| pair == (one.from, one.to));
            let mut millis: Vec<f64> = measured.iter().filter(is_in).map(|one| one.millis).collect();
            millis.sort_by(f64::total_cmp);
            let name = format!("{}{label}", kind.name());
            let (Some(median), Some(max)) = (millis.get(millis.len() / 2), millis.last()) else { continue };
            text += &format!("{name:<30}{:>6}{median:>12.0}{max:>9.0}\n", millis.len());
        }
    }
    text + "(killed, paused, cut off: time from the fault, minus the session timeout)\n"
}
