//! Job that several members share: its sets of ids, its processor time and its memory.

mod sets;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::Signal;

use self::sets::{Sets, has_common_ids, shares};
use super::Outcome;
use super::board::Board;
use super::processes::{Harness, Language, Process};
use super::witness::Witness;

const SESSION: Duration = Duration::from_secs(3);
const PARTITIONS: u32 = 8;
const GROWN: u32 = 16;
/// Number of passes over all ids whose processor time is measured.
const PASSES: &str = "3";
/// Numbers of members whose costs are measured.
const MEMBERS: [usize; 3] = [1, 2, 4];
/// Largest processor time and memory of one of `n` members, as a multiple of the `n`th part of a single member's.
const COST_MAX: f64 = 1.25;
/// Longest time until the members have shared all partitions, or have done their work.
const SHARED_MAX: Duration = Duration::from_secs(60);
/// Longest time from the growth of the topic until the members have shared all ids again. A client notices a growth within
/// 5 s, and a member within 5 s more. Then the group changes, and the members list their ids.
const GROWTH_MAX: Duration = Duration::from_secs(30);
/// Wait before a measurement, so that the group is at rest.
const CALM: Duration = Duration::from_secs(2);

/// Largest costs of the members of a group.
struct Costs {
    members: usize,
    processor_seconds: f64,
    memory_mib: f64,
}

/// Group of members with a topic of its own.
struct Group {
    topic: String,
    witness: Witness,
    members: BTreeMap<String, Process>,
}

/// # Errors
/// Returns an error if a group does not start or does not share the ids.
pub(super) fn run(harness: &Harness, ids: u32) -> anyhow::Result<Outcome> {
    let mut failures = Vec::new();
    harness.print("the memory of an idle member");
    let mut idle = Group::start(harness, "idle", 0, &[Language::Rust])?;
    idle.share(&Sets::new(0, PARTITIONS))?;
    let idle_mib = idle.memory_mib()?;
    failures.extend(idle.stop()?);

    let sets = Sets::new(ids, PARTITIONS);
    let mut all = Vec::new();
    for members in MEMBERS {
        harness.print(&format!("{ids} ids, {members} members"));
        let mut group = Group::start(harness, &format!("shards-{members}"), ids, &vec![Language::Rust; members])?;
        group.share(&sets)?;
        let memory_mib = group.memory_mib()? - idle_mib;
        all.push(Costs { members, processor_seconds: group.work()?, memory_mib });
        failures.extend(group.stop()?);
    }
    let mut text = table(&all, idle_mib, &mut failures);

    harness.print(&format!("{ids} ids, 4 members, of which one is killed and one is paused"));
    let mut group = Group::start(harness, "shards-faults", ids, &[Language::Rust; 4])?;
    group.share(&sets)?;
    let (killed, paused) = ("rust-0", "rust-1");
    let began = Instant::now();
    group.kill(killed)?;
    group.wait(&sets, SHARED_MAX).context("after the kill of a member")?;
    writeln!(text, "all ids shared {:.1} s after the kill of a member", began.elapsed().as_secs_f64())?;
    group.members[paused].signal(Signal::STOP)?;
    let began = Instant::now();
    // The newest claims of all partitions belong to other members while the member is paused, and not any more after it.
    let has_paused = |board: &Board| {
        let newest = |partition| board.holders(&format!("{PARTITIONS}/{partition}")).next_back();
        (0..PARTITIONS).any(|one| newest(one).is_none_or(|(_, name, _)| name == paused))
    };
    let taken = group.witness.wait(SHARED_MAX, |board| (!has_paused(board)).then_some(()));
    taken.context("no member has taken the partitions of a paused member")?;
    writeln!(text, "all partitions at other members {:.1} s after a pause began", began.elapsed().as_secs_f64())?;
    group.members[paused].signal(Signal::CONT)?;
    let returned = group.witness.wait(SHARED_MAX, |board| has_paused(board).then_some(()));
    returned.context("the paused member has no partitions again")?;
    group.wait(&sets, SHARED_MAX).context("after the pause of a member")?;
    failures.extend(group.stop()?);

    harness.print(&format!("{ids} ids, 2 members in Rust and 1 in Java"));
    let languages = [Language::Rust, Language::Rust, Language::Java];
    let mut group = Group::start(harness, "shards-java", ids, &languages)?;
    let shares = group.share(&sets)?;
    writeln!(text, "{PARTITIONS} partitions: all ids shared with Java: {shares:?}")?;
    let began = Instant::now();
    harness.topic("grow", &group.topic, GROWN)?;
    harness.print("the topic has grown");
    let grown = group.wait(&Sets::new(ids, GROWN), GROWTH_MAX);
    let seconds = began.elapsed().as_secs_f64();
    match grown {
        Ok(shares) => writeln!(text, "{GROWN} partitions: all ids shared {seconds:.1} s after the growth: {shares:?}")?,
        Err(error) => failures.push(format!("{GROWTH_MAX:?} after the growth of the topic: {error:#}")),
    }
    thread::sleep(CALM);
    let overlap = group.witness.look(|board| board.overlap_max(has_common_ids));
    writeln!(text, "ids at two members with different numbers of partitions: at most {:.2} s", overlap as f64 / 1e9)?;
    failures.extend(group.stop()?);
    Ok(Outcome { text, failures })
}

impl Group {
    fn start(harness: &Harness, topic: &str, ids: u32, languages: &[Language]) -> anyhow::Result<Self> {
        harness.topic("create", topic, PARTITIONS)?;
        let witness = Witness::start(&harness.folder.join(format!("{topic}.log")))?;
        let mut group = Group { topic: topic.to_owned(), witness, members: BTreeMap::new() };
        for (at, language) in languages.iter().enumerate() {
            let name = format!("{}-{at}", if *language == Language::Java { "java" } else { "rust" });
            let (servers, address) = (harness.kafka.addresses(), group.witness.address.to_string());
            let (session, ids) = (SESSION.as_millis().to_string(), ids.to_string());
            let arguments = [topic, &name, &address, &session, &ids, PASSES];
            let mut command = harness.command(*language, "share", &servers, &arguments)?;
            let process = Process::start(command.stdin(Stdio::piped()))?;
            group.members.insert(name, process);
        }
        Ok(group)
    }

    /// Waits until the members own about the same number of partitions. Then they list their ids, and this function waits
    /// until they have shared all ids.
    fn share(&mut self, expected: &Sets) -> anyhow::Result<BTreeMap<String, usize>> {
        let least = usize::try_from(expected.partitions())? / self.members.len();
        let names: Vec<&str> = self.members.keys().map(String::as_str).collect();
        let owned = self.witness.wait(SHARED_MAX, |board| {
            let owned = shares(board, expected.partitions());
            names.iter().all(|name| owned.get(*name).is_some_and(|count| *count >= least)).then_some(())
        });
        owned.with_context(|| format!("the members of {} do not share the partitions", self.topic))?;
        thread::sleep(CALM);
        self.command("list")?;
        self.wait(expected, SHARED_MAX)
    }

    /// Waits until each id is at one member. Returns the number of partitions of each member.
    fn wait(&self, expected: &Sets, limit: Duration) -> anyhow::Result<BTreeMap<String, usize>> {
        let shared = self
            .witness
            .wait(limit, |board| expected.check(board).is_ok().then(|| shares(board, expected.partitions())));
        match shared {
            Some(shared) => Ok(shared),
            None => self.witness.look(|board| expected.check(board)).map(|()| BTreeMap::new()),
        }
    }

    /// Kills a member.
    fn kill(&mut self, name: &str) -> anyhow::Result<()> {
        let mut process = self.members.remove(name).context("the member exists")?;
        process.signal(Signal::KILL)?;
        process.ended()?;
        self.witness.end_killed(name);
        Ok(())
    }

    /// Lets the members work. Returns the largest processor time of a member in seconds.
    fn work(&mut self) -> anyhow::Result<f64> {
        let times = |members: &BTreeMap<String, Process>| {
            members.values().map(Process::processor_seconds).collect::<anyhow::Result<Vec<f64>>>()
        };
        let before = times(&self.members)?;
        self.command("work")?;
        let done =
            self.witness.wait(SHARED_MAX, |board| self.members.keys().all(|name| board.is_done(name)).then_some(()));
        done.with_context(|| format!("the members of {} have not done their work in {SHARED_MAX:?}", self.topic))?;
        let after = times(&self.members)?;
        Ok(after.iter().zip(before).map(|(after, before)| after - before).fold(0.0, f64::max))
    }

    /// Returns the largest memory of a member.
    fn memory_mib(&self) -> anyhow::Result<f64> {
        let memory = self.members.values().map(Process::memory_mib).collect::<anyhow::Result<Vec<f64>>>()?;
        Ok(memory.into_iter().fold(0.0, f64::max))
    }

    fn command(&mut self, command: &str) -> anyhow::Result<()> {
        for process in self.members.values_mut() {
            let input = process.0.stdin.as_mut().context("a member has no input")?;
            writeln!(input, "{command}").context("a member ended by itself")?;
        }
        Ok(())
    }

    /// Stops the members. Returns the failures.
    fn stop(mut self) -> anyhow::Result<Vec<String>> {
        let mut failures = self.witness.failures();
        for (name, process) in &mut self.members {
            drop(process.0.stdin.take());
            let status = process.ended().with_context(|| format!("the member {name} of {}", self.topic))?;
            if !status.success() {
                failures.push(format!("the member {name} of {} failed: {status}", self.topic));
            }
        }
        let verdict = self.witness.look(Board::judge);
        let broken = verdict.broken.values();
        failures.extend(broken.map(|(count, first)| format!("{}: {count} violations: {first}", self.topic)));
        Ok(failures)
    }
}

/// Returns a table of the costs, and adds a failure for each cost above its limit.
fn table(all: &[Costs], idle_mib: f64, failures: &mut Vec<String>) -> String {
    let mut text = format!("{:>10}{:>16}{:>8}{:>14}{:>8}\n", "members", "processor s", "ratio", "memory MiB", "ratio");
    let Some(single) = all.first() else { return text };
    for costs in all {
        let of = |cost: f64, single: f64| cost * costs.members as f64 / single;
        let processor = of(costs.processor_seconds, single.processor_seconds);
        let memory = of(costs.memory_mib, single.memory_mib);
        text += &format!(
            "{:>10}{:>16.2}{processor:>8.2}{:>14.1}{memory:>8.2}\n",
            costs.members, costs.processor_seconds, costs.memory_mib
        );
        for (name, ratio) in [("processor time", processor), ("memory", memory)] {
            if ratio > COST_MAX {
                let members = costs.members;
                failures.push(format!(
                    "the {name} of one of {members} members is {ratio:.2} of its part; the limit is {COST_MAX}"
                ));
            }
        }
    }
    text + &format!(
        "(largest of the members; memory above the {idle_mib:.1} MiB of an idle member; ratio to an equal part of a single member's \
         cost)\n"
    )
}
