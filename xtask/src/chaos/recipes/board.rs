//! Claims of processes, as a witness receives them, and the rules for claims.
//!
//! A process holds a key, for example a leadership, or the partition 3 of 8, during a term. It reports these lines, each of
//! which begins with the name of a fact:
//! - `claim KEY NAME TERM AT UNTIL`: the process held the key at the time `AT`, and it may hold the key until the time
//!   `UNTIL` without contact to the bus. `UNTIL` is `AT` if the process does not know this time.
//! - `end KEY NAME TERM AT`: the process has ended its work at the time `AT`. A process that was killed reports no end.
//! - `set KEY NAME TERM COUNT DIGEST`: the number of the ids of the key, and their digest. The digest is the sum of the first
//!   random number for each seed that is the number of an id.
//! - `done - NAME 0`: the process has done its work.
//!
//! The times are nanoseconds of the monotonic clock, which all processes share.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context, bail};

/// Claims of all processes so far.
#[derive(Default, Debug)]
pub(super) struct Board {
    /// Holders of each key, in the order of their terms.
    holders: BTreeMap<String, BTreeMap<(u64, String), Holder>>,
    /// Greatest term of each key.
    fences: BTreeMap<String, u64>,
    /// Names of the processes that have done their work.
    done: BTreeSet<String>,
    /// Number of claims that the witness accepted.
    pub(super) accepted: u64,
    /// Number of claims with an old term, which the witness rejected.
    pub(super) rejected: u64,
}

/// Claims of a process to a key in one term.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Holder {
    /// Time of the first claim.
    pub(super) first: u64,
    /// Time of the last claim.
    last: u64,
    until: u64,
    pub(super) ended: Option<u64>,
    pub(super) set: Option<Set>,
    /// True if a claim came after the time until which the process could hold the key.
    is_expired: bool,
}

/// Number of ids of a key, and their digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Set {
    pub(super) count: u64,
    pub(super) digest: u64,
}

impl Holder {
    /// Returns the latest time at which the process may have held the key.
    fn end(&self) -> u64 {
        // A process that was paused reports its end late.
        self.ended.unwrap_or(u64::MAX).min(self.until).max(self.last)
    }
}

impl Board {
    /// Adds a line.
    ///
    /// # Errors
    /// Returns an error if the line is malformed.
    pub(super) fn add(&mut self, line: &str) -> anyhow::Result<()> {
        let malformed = || format!("a process reported the malformed line `{line}`");
        let fields: Vec<&str> = line.split(' ').collect();
        let [fact, key, name, ref numbers @ ..] = fields[..] else { bail!(malformed()) };
        let numbers: Result<Vec<u64>, _> = numbers.iter().map(|number| number.parse()).collect();
        match (fact, &numbers.with_context(malformed)?[..]) {
            ("claim", [term, at, until]) => self.claim(key, name, *term, *at, *until),
            ("end", [term, at]) => {
                if let Some(holder) = self.holder(key, name, *term) {
                    holder.ended = Some(*at);
                }
            }
            ("set", [term, count, digest]) => {
                let holder = self.holder(key, name, *term).with_context(malformed)?;
                holder.set = Some(Set { count: *count, digest: *digest });
            }
            ("done", [_]) => _ = self.done.insert(name.to_owned()),
            _ => bail!(malformed()),
        }
        Ok(())
    }

    fn claim(&mut self, key: &str, name: &str, term: u64, at: u64, until: u64) {
        let fence = self.fences.entry(key.to_owned()).or_default();
        if term < *fence {
            self.rejected += 1;
        } else {
            *fence = term;
            self.accepted += 1;
        }
        let new = Holder { first: at, last: at, until, ended: None, set: None, is_expired: false };
        let holders = self.holders.entry(key.to_owned()).or_default();
        let holder = holders.entry((term, name.to_owned())).or_insert(new);
        holder.last = at;
        holder.until = holder.until.max(until);
        holder.is_expired |= until < at;
    }

    fn holder(&mut self, key: &str, name: &str, term: u64) -> Option<&mut Holder> {
        self.holders.get_mut(key)?.get_mut(&(term, name.to_owned()))
    }

    /// Ends all claims of a process that was killed at the time `at`.
    pub(super) fn end_killed(&mut self, name: &str, at: u64) {
        let holders = self.holders.values_mut().flatten().filter(|((_, holder), _)| holder == name);
        for (_, holder) in holders {
            holder.ended.get_or_insert(at);
        }
    }

    /// Returns the keys.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.holders.keys().map(String::as_str)
    }

    /// Returns the terms, names and claims of the holders of a key, in the order of their terms.
    pub(super) fn holders(&self, key: &str) -> impl DoubleEndedIterator<Item = (u64, &str, &Holder)> {
        let holders = self.holders.get(key).into_iter().flatten();
        holders.map(|((term, name), holder)| (*term, name.as_str(), holder))
    }

    pub(super) fn is_done(&self, name: &str) -> bool {
        self.done.contains(name)
    }

    /// Checks the rules for each key.
    pub(super) fn judge(&self) -> Verdict {
        let mut verdict = Verdict::default();
        for key in self.keys() {
            let mut before: Option<(u64, &str, &Holder)> = None;
            let mut latest_end = 0;
            for (term, name, holder) in self.holders(key) {
                verdict.terms += 1;
                let describe = || format!("{key}: {name} with the term {term}: {holder:?}, and before it {before:?}");
                if holder.is_expired {
                    verdict.add(Rule::Expired, describe());
                }
                if before.is_some_and(|(earlier, _, _)| earlier == term) {
                    verdict.add(Rule::TermShared, describe());
                }
                if before.is_some_and(|(_, _, before)| holder.first < before.first) {
                    verdict.add(Rule::TermFell, describe());
                } else if holder.first < latest_end {
                    let millis = (latest_end - holder.first).div_ceil(1_000_000);
                    verdict.add(Rule::Overlap, format!("{millis} ms, {}", describe()));
                }
                latest_end = latest_end.max(holder.end());
                before = Some((term, name, holder));
            }
        }
        verdict
    }

    /// Returns the longest time for which two processes claimed two keys that have ids in common, in nanoseconds.
    pub(super) fn overlap_max(&self, have_common_ids: impl Fn(&str, &str) -> bool) -> u64 {
        let all: Vec<_> =
            self.keys().flat_map(|key| self.holders(key).map(move |(_, name, holder)| (key, name, holder))).collect();
        let overlap = |one: &(&str, &str, &Holder), other: &(&str, &str, &Holder)| {
            let is_shared = one.0 != other.0 && one.1 != other.1 && have_common_ids(one.0, other.0);
            let common = one.2.last.min(other.2.last).saturating_sub(one.2.first.max(other.2.first));
            if is_shared { common } else { 0 }
        };
        all.iter().flat_map(|one| all.iter().map(move |other| overlap(one, other))).max().unwrap_or(0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Rule {
    Overlap,
    TermShared,
    TermFell,
    Expired,
}

impl Rule {
    const ALL: [Rule; 4] = [Rule::Overlap, Rule::TermShared, Rule::TermFell, Rule::Expired];

    fn name(self) -> &'static str {
        match self {
            Rule::Overlap => "terms that began before the end of an earlier term",
            Rule::TermShared => "terms of two processes",
            Rule::TermFell => "terms that began before a smaller term",
            Rule::Expired => "terms with a claim after their end",
        }
    }
}

/// Result of the check.
#[derive(Default, Debug)]
pub(super) struct Verdict {
    terms: usize,
    /// For each broken rule, the number of violations and a description of the first one.
    pub(super) broken: BTreeMap<Rule, (u64, String)>,
}

impl Verdict {
    fn add(&mut self, rule: Rule, description: String) {
        self.broken.entry(rule).or_insert((0, description)).0 += 1;
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>10}  terms", self.terms)?;
        for rule in Rule::ALL {
            let (count, first) = self.broken.get(&rule).map_or((0, ""), |(count, first)| (*count, first));
            writeln!(f, "{count:>10}  {}{}{first}", rule.name(), if count > 0 { "; the first: " } else { "" })?;
        }
        Ok(())
    }
}
