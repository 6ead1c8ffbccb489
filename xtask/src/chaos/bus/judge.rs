//! Checks the guarantees of the consumer runtime in the logs of its processes.
//!
//! A duplicate is a call of the handler for a record that an earlier call has handled. Duplicates are permitted only
//! after the last commit. The judge therefore compares each assignment with the commits before it, and each call with its
//! assignment.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::log::{Handled, Process, State};

/// Time in nanoseconds in which a process notices, after a pause, that it has lost a partition.
const NOTICE_NANOS: u64 = 1_000_000_000;
/// Size of metadata that may be too small for all finished records. The limit of Kafka is 4,096 bytes.
const FULL_BYTES: usize = 4_000;

/// Records that the producer sent: the record `number` of the key `key` has the index `number * keys + key`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) records: u32,
    pub(super) keys: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Rule {
    Lost,
    Inverted,
    CommittedAgain,
    CommitForgotten,
    TwiceInAssignment,
    FormerOwner,
    FormerOwnersCommit,
    StoredTwice,
    Unknown,
    Uncommitted,
}

impl Rule {
    const ALL: [Rule; 10] = [
        Rule::Lost,
        Rule::Inverted,
        Rule::CommittedAgain,
        Rule::CommitForgotten,
        Rule::TwiceInAssignment,
        Rule::FormerOwner,
        Rule::FormerOwnersCommit,
        Rule::StoredTwice,
        Rule::Unknown,
        Rule::Uncommitted,
    ];

    fn name(self) -> &'static str {
        match self {
            Rule::Lost => "lost records",
            Rule::Inverted => "inversions: calls that started before the key's record before was handled",
            Rule::CommittedAgain => "calls for records that were committed at the start of the assignment",
            Rule::CommitForgotten => "assignments that lack a record of the last commit",
            Rule::TwiceInAssignment => "records that were handled twice in one assignment",
            Rule::FormerOwner => "calls of a member that another member had replaced, without a pause",
            Rule::FormerOwnersCommit => "accepted commits of a member that another member had replaced",
            Rule::StoredTwice => "records that the bus stored twice",
            Rule::Unknown => "calls for records that the producer did not send, or without an assignment",
            Rule::Uncommitted => "partitions with a handled record that no member had committed at the end",
        }
    }
}

/// Result of the check.
#[derive(Default, Debug)]
pub(super) struct Verdict {
    pub(super) handled: u64,
    pub(super) duplicates: u64,
    /// Largest number of duplicates of one assignment.
    pub(super) duplicates_max: u64,
    pub(super) assignments: usize,
    /// Number of assignments with duplicates.
    pub(super) repeating: usize,
    pub(super) commits: usize,
    /// Number of calls that ended after another member had received the partition, because a pause delayed their end.
    pub(super) late: u64,
    /// For each broken rule, the number of violations and a description of the first one.
    pub(super) broken: BTreeMap<Rule, (u64, String)>,
}

impl Verdict {
    fn add(&mut self, rule: Rule, describe: impl FnOnce() -> String) {
        self.broken.entry(rule).or_insert_with(|| (0, describe())).0 += 1;
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>10}  records handled", self.handled)?;
        writeln!(f, "{:>10}  duplicates", self.duplicates)?;
        writeln!(f, "{:>10}  assignments of a partition, {} with duplicates", self.assignments, self.repeating)?;
        writeln!(f, "{:>10}  duplicates at most in one assignment", self.duplicates_max)?;
        writeln!(f, "{:>10}  commits of a partition", self.commits)?;
        writeln!(f, "{:>10}  calls that ended late after a pause, when another member had the partition", self.late)?;
        for rule in Rule::ALL {
            let (count, first) = self.broken.get(&rule).map_or((0, ""), |(count, first)| (*count, first));
            writeln!(f, "{count:>10}  {}{}{first}", rule.name(), if count > 0 { "; the first: " } else { "" })?;
        }
        Ok(())
    }
}

/// Assignment of a partition to a process.
struct Assignment<'a> {
    process: usize,
    state: &'a State,
    /// Time at which another process received the partition after this assignment.
    replaced: Option<u64>,
}

/// All assignments of each partition, in the order of their times.
struct Assignments<'a>(BTreeMap<u32, Vec<Assignment<'a>>>);

impl<'a> Assignments<'a> {
    fn new(processes: &'a [Process]) -> Self {
        let mut all = BTreeMap::<u32, Vec<Assignment<'_>>>::new();
        for (process, log) in processes.iter().enumerate() {
            for state in &log.assigned {
                all.entry(state.partition).or_default().push(Assignment { process, state, replaced: None });
            }
        }
        for list in all.values_mut() {
            list.sort_by_key(|one| one.state.end);
            for at in 0..list.len() {
                let next = list[at..].iter().find(|next| next.process != list[at].process);
                let replaced = next.map(|next| next.state.end);
                list[at].replaced = replaced;
            }
        }
        Assignments(all)
    }

    /// Returns the assignment under which a process acted at `time`, and its index among those of the partition.
    fn at(&self, process: usize, partition: u32, time: u64) -> Option<(usize, &Assignment<'a>)> {
        let list = self.0.get(&partition)?;
        let later = list.partition_point(|one| one.state.end <= time);
        list[..later].iter().enumerate().rev().find(|(_, one)| one.process == process)
    }
}

/// First handling of a record.
#[derive(Clone, Copy)]
struct First {
    end: u64,
    partition: u32,
    offset: u64,
    calls: u32,
}

pub(super) fn judge(processes: &[Process], sent: Sent) -> Verdict {
    let mut verdict = Verdict::default();
    let assignments = Assignments::new(processes);
    let firsts = firsts(processes, sent, &mut verdict);
    judge_calls(processes, &assignments, &firsts, sent, &mut verdict);
    judge_commits(processes, &assignments, &mut verdict);
    verdict
}

/// Finds the first handling of each record, by the index of the record.
fn firsts(processes: &[Process], sent: Sent, verdict: &mut Verdict) -> Vec<Option<First>> {
    let mut firsts = vec![None::<First>; sent.records as usize];
    for call in processes.iter().flat_map(|process| &process.handled) {
        let Some(index) = sent.index(call) else {
            verdict.add(Rule::Unknown, || format!("{call:?}"));
            continue;
        };
        let new = First { end: call.end, partition: call.partition, offset: call.offset, calls: 0 };
        let first = firsts[index].get_or_insert(new);
        first.calls += 1;
        first.end = first.end.min(call.end);
        if (first.partition, first.offset) != (call.partition, call.offset) {
            verdict.add(Rule::StoredTwice, || format!("{call:?}, and at the offset {}", first.offset));
        }
    }
    for (index, first) in firsts.iter().enumerate() {
        match first {
            Some(first) => {
                verdict.handled += 1;
                verdict.duplicates += u64::from(first.calls - 1);
            }
            None => verdict.add(Rule::Lost, || {
                let keys = sent.keys as usize;
                format!("the record {} of the key {}", index / keys, index % keys)
            }),
        }
    }
    firsts
}

fn judge_calls(
    processes: &[Process],
    assignments: &Assignments<'_>,
    firsts: &[Option<First>],
    sent: Sent,
    verdict: &mut Verdict,
) {
    // Records that were handled more than once, in each assignment.
    let mut repeated = BTreeMap::<(u32, usize), BTreeSet<u64>>::new();
    let mut duplicates = BTreeMap::<(u32, usize), u64>::new();
    for (number, process) in processes.iter().enumerate() {
        let describe = |call: &Handled| format!("{call:?} in {}", process.name);
        for call in &process.handled {
            let Some(index) = sent.index(call) else { continue };
            let before = index.checked_sub(sent.keys as usize).and_then(|before| firsts[before]);
            if before.is_some_and(|before| call.start < before.end) {
                verdict.add(Rule::Inverted, || describe(call));
            }
            let Some((at, assignment)) = assignments.at(number, call.partition, call.start) else {
                verdict.add(Rule::Unknown, || describe(call));
                continue;
            };
            if assignment.state.covers(call.offset, call.offset + 1) {
                verdict.add(Rule::CommittedAgain, || describe(call));
            }
            if assignment.replaced.is_some_and(|time| time < call.end) {
                if process.is_after_pause(call.end) {
                    verdict.late += 1;
                } else {
                    verdict.add(Rule::FormerOwner, || describe(call));
                }
            }
            let Some(first) = firsts[index].filter(|first| first.calls > 1) else { continue };
            *duplicates.entry((call.partition, at)).or_default() += u64::from(call.end > first.end);
            if !repeated.entry((call.partition, at)).or_default().insert(call.offset) {
                verdict.add(Rule::TwiceInAssignment, || describe(call));
            }
        }
    }
    duplicates.retain(|_, count| *count > 0);
    verdict.repeating = duplicates.len();
    verdict.duplicates_max = duplicates.values().copied().max().unwrap_or(0);
}

fn judge_commits(processes: &[Process], assignments: &Assignments<'_>, verdict: &mut Verdict) {
    let mut commits = BTreeMap::<u32, Vec<&State>>::new();
    for (number, process) in processes.iter().enumerate() {
        for commit in &process.committed {
            commits.entry(commit.partition).or_default().push(commit);
            let assignment = assignments.at(number, commit.partition, commit.start);
            if assignment.is_none_or(|(_, one)| one.replaced.is_some_and(|time| time < commit.start)) {
                verdict.add(Rule::FormerOwnersCommit, || format!("{commit:?} in {}", process.name));
            }
        }
    }
    for (partition, list) in &assignments.0 {
        let commits = commits.entry(*partition).or_default();
        commits.sort_by_key(|commit| commit.end);
        verdict.commits += commits.len();
        verdict.assignments += list.len();
        for Assignment { process, state, .. } in list {
            let before = commits.partition_point(|commit| commit.end < state.end);
            let is_full = state.metadata_bytes >= FULL_BYTES;
            if let Some(last) = before.checked_sub(1).map(|last| commits[last])
                && !(state.contains(last) || is_full && state.offset >= last.offset)
            {
                verdict.add(Rule::CommitForgotten, || format!("{state:?} in {}: {last:?}", processes[*process].name));
            }
        }
    }
    let mut last = BTreeMap::<u32, u64>::new();
    for call in processes.iter().flat_map(|process| &process.handled) {
        let offset = last.entry(call.partition).or_default();
        *offset = call.offset.max(*offset);
    }
    for (partition, offset) in last {
        let committed = commits.get(&partition).and_then(|commits| commits.last());
        if committed.is_none_or(|committed| committed.offset <= offset) {
            verdict
                .add(Rule::Uncommitted, || format!("the offset {offset} of the partition {partition}: {committed:?}"));
        }
    }
}

impl Sent {
    fn index(self, call: &Handled) -> Option<usize> {
        let index = u64::from(call.number) * u64::from(self.keys) + u64::from(call.key);
        (call.key < self.keys && index < u64::from(self.records)).then(|| usize::try_from(index).ok())?
    }
}

impl Process {
    /// Returns true if the process was paused shortly before `time`.
    fn is_after_pause(&self, time: u64) -> bool {
        self.pauses.iter().any(|(start, end)| (*start..=end + NOTICE_NANOS).contains(&time))
    }
}
