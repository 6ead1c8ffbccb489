//! Expected sets of ids of the partitions. This module does not use Reveille's own code, because that code is under test.

use std::collections::BTreeMap;

use anyhow::ensure;

use crate::chaos::random::Random;
use crate::chaos::recipes::board::{Board, Set};

/// Set of each partition. The index of a set is the number of its partition.
pub(super) struct Sets(Vec<Set>);

impl Sets {
    /// Computes the sets of `ids` ids in a topic.
    pub(super) fn new(ids: u32, partitions: u32) -> Sets {
        let mut sets = vec![Set::default(); partitions as usize];
        for number in 0..ids {
            let id = if number % 10 == 0 { format!("größe-{number}") } else { format!("item-{number}") };
            let hash = id.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
            let partition = i64::from(hash).rem_euclid(i64::from(partitions));
            let set = &mut sets[usize::try_from(partition).expect("a remainder is not negative")];
            set.count += 1;
            set.digest = set.digest.wrapping_add(Random::new(u64::from(number)).next());
        }
        Sets(sets)
    }

    pub(super) fn partitions(&self) -> u32 {
        u32::try_from(self.0.len()).expect("a test has few partitions")
    }

    /// Checks that one member holds each partition with the expected set, and that no member holds a partition of another
    /// number of partitions.
    pub(super) fn check(&self, board: &Board) -> anyhow::Result<()> {
        let own = |partition| format!("{}/{partition}", self.0.len());
        for (partition, expected) in self.0.iter().enumerate() {
            let key = own(partition);
            let holders: Vec<_> = board.holders(&key).filter(|one| one.2.ended.is_none()).collect();
            ensure!(holders.len() == 1, "{} members hold the partition {key} at the same time", holders.len());
            let set = holders[0].2.set;
            ensure!(
                set == Some(*expected),
                "the ids of the partition {key} are {set:?} instead of {expected:?}, at the member {}",
                holders[0].1
            );
        }
        let mut others = board.keys().filter(|key| (0..self.0.len()).all(|partition| own(partition) != *key));
        let held = others.find(|key| board.holders(key).any(|one| one.2.ended.is_none()));
        ensure!(
            held.is_none(),
            "a member holds the partition {} of {} partitions",
            held.unwrap_or_default(),
            self.0.len()
        );
        Ok(())
    }
}

/// Returns the number of partitions that each member holds.
pub(super) fn shares(board: &Board, partitions: u32) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for partition in 0..partitions {
        for (_, name, _) in board.holders(&format!("{partitions}/{partition}")).filter(|one| one.2.ended.is_none()) {
            *shares.entry(name.to_owned()).or_default() += 1;
        }
    }
    shares
}

/// Returns true if two partitions of the same topic, which has grown by a multiple, have ids in common.
pub(super) fn has_common_ids(one: &str, other: &str) -> bool {
    let parts = |key: &str| {
        let (partitions, partition) = key.split_once('/')?;
        Some((partitions.parse::<u32>().ok()?, partition.parse::<u32>().ok()?))
    };
    let (Some((few, one)), Some((many, other))) = (parts(one), parts(other)) else { return false };
    few < many && other % few == one
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines of a correct run with two members and 8 partitions.
    fn lines(sets: &Sets) -> Vec<String> {
        let line = |(partition, set): (usize, &Set)| {
            let (key, name) = (format!("8/{partition}"), if partition < 4 { "a" } else { "b" });
            [format!("claim {key} {name} 5 10 10"), format!("set {key} {name} 5 {} {}", set.count, set.digest)]
        };
        sets.0.iter().enumerate().flat_map(line).collect()
    }

    /// Checks the lines, and returns the text of the error.
    fn check(sets: &Sets, lines: &[String]) -> String {
        let mut board = Board::default();
        lines.iter().for_each(|line| board.add(line).unwrap());
        sets.check(&board).map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn sets_of_all_partitions_contain_each_id_once() {
        let sets = Sets::new(1_000, 8);
        assert_eq!(sets.0.iter().map(|set| set.count).sum::<u64>(), 1_000);
        assert_eq!(check(&sets, &lines(&sets)), "");
        let mut board = Board::default();
        lines(&sets).iter().for_each(|line| board.add(line).unwrap());
        assert_eq!(shares(&board, 8), BTreeMap::from([("a".to_owned(), 4), ("b".to_owned(), 4)]));
    }

    #[test]
    fn check_finds_a_missing_id_and_a_wrong_id() {
        let sets = Sets::new(1_000, 8);
        let mut bad = lines(&sets);
        bad[1] = format!("set 8/0 a 5 {} {}", sets.0[0].count - 1, sets.0[0].digest);
        assert!(check(&sets, &bad).contains("the ids of the partition 8/0"));
        bad[1] = format!("set 8/0 a 5 {} {}", sets.0[0].count, sets.0[0].digest.wrapping_add(1));
        assert!(check(&sets, &bad).contains("the ids of the partition 8/0"));
        bad.remove(1);
        assert!(check(&sets, &bad).contains("the ids of the partition 8/0"));
    }

    #[test]
    fn check_finds_a_partition_without_a_member_or_with_two() {
        let sets = Sets::new(1_000, 8);
        let mut bad = lines(&sets);
        bad.push("end 8/7 b 5 20".to_owned());
        assert!(check(&sets, &bad).contains("0 members hold the partition 8/7"));
        bad.push("claim 8/7 a 6 30 30".to_owned());
        bad.push(format!("set 8/7 a 6 {} {}", sets.0[7].count, sets.0[7].digest));
        assert_eq!(check(&sets, &bad), "");
        bad.push("claim 8/7 b 7 40 40".to_owned());
        assert!(check(&sets, &bad).contains("2 members hold the partition 8/7"));
    }

    #[test]
    fn check_finds_a_member_that_has_not_noticed_a_growth() {
        let sets = Sets::new(1_000, 8);
        let mut bad = lines(&sets);
        bad.push("claim 16/9 b 7 40 40".to_owned());
        assert!(check(&sets, &bad).contains("the partition 16/9 of 8 partitions"));
    }

    #[test]
    fn only_partitions_of_different_sizes_have_common_ids() {
        assert!(has_common_ids("8/1", "16/9") && has_common_ids("8/1", "16/1"));
        assert!(!has_common_ids("8/1", "16/2") && !has_common_ids("16/9", "8/1") && !has_common_ids("8/1", "8/1"));
    }
}
