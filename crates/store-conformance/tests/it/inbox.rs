//! Tests of the in-memory engine's inbox, and tests that the suite of the inbox port detects bugs.

use std::sync::Arc;

use domain::ShardId;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use runtime::Runtime;
use simulator::Simulation;
use store::memory::{MemoryOptions, MemoryStore};
use store::{Answer, Inbox, InboxEntry, InboxRead, InboxRequest, InboxState, Store};
use store_conformance::Case;
use store_conformance::inbox::InboxSubject;

use crate::support::{on_real, weak_and_slow};

struct Memory {
    runtime: Runtime,
    store: MemoryStore,
    bug: Option<Bug>,
}

impl Memory {
    fn new(runtime: Runtime, options: MemoryOptions, bug: Option<Bug>) -> Self {
        Memory { store: MemoryStore::new(runtime.clone(), options), runtime, bug }
    }

    fn reopen(&self) -> Arc<MemoryStore> {
        Arc::new(self.store.reopen(self.runtime.clone()))
    }
}

impl InboxSubject for Memory {
    fn open(&self) -> BoxFuture<'_, (Arc<dyn Store>, Arc<dyn Inbox>)> {
        let inbox: Arc<dyn Inbox> = match self.bug {
            Some(bug) => Arc::new(Broken { inbox: self.reopen(), bug }),
            None => self.reopen(),
        };
        let store: Arc<dyn Store> = self.reopen();
        std::future::ready((store, inbox)).boxed()
    }

    fn request(&self, requests: Vec<InboxRequest>) -> BoxFuture<'_, Result<(), String>> {
        let made = self.store.request(requests).map(drop).map_err(|rejection| rejection.to_string());
        std::future::ready(made).boxed()
    }

    fn dead_letters(&self) -> BoxFuture<'_, Vec<(String, String)>> {
        let letters = self.store.inbox_dead_letters();
        let letters = letters.into_iter().map(|letter| (letter.entry.id, letter.reason)).collect();
        std::future::ready(letters).boxed()
    }
}

mod atomic {
    use super::*;

    store_conformance::inbox_conformance_tests!(run);

    fn run(case: Case<dyn InboxSubject>) {
        on_real(async |runtime| case.run(&Memory::new(runtime, MemoryOptions::default(), None)).await);
    }
}

mod weak {
    use super::*;

    store_conformance::inbox_conformance_tests!(run);

    fn run(case: Case<dyn InboxSubject>) {
        for seed in 0..8 {
            let sim = Simulation::new(seed);
            sim.run_until(async { case.run(&Memory::new(sim.member("a"), weak_and_slow(), None)).await });
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    DeadLettersAreLost,
    EntriesAreDeletedByARead,
    ExceptionsAreIgnored,
    OldestEntriesStarveOtherTenants,
    SettledEntriesStay,
    ShardsAreIgnored,
    WaitingEntriesAreNotCounted,
}

const CAUGHT_BY: &[(Bug, &str)] = &[
    (Bug::DeadLettersAreLost, "rejected_entry_becomes_a_dead_letter"),
    (Bug::EntriesAreDeletedByARead, "entry_contains_the_request_and_its_poller"),
    (Bug::ExceptionsAreIgnored, "excepted_tenants_are_omitted"),
    (Bug::OldestEntriesStarveOtherTenants, "tenants_take_turns_in_a_read"),
    (Bug::SettledEntriesStay, "settled_entries_are_deleted"),
    (Bug::ShardsAreIgnored, "read_returns_only_entries_of_the_shards"),
    (Bug::WaitingEntriesAreNotCounted, "state_counts_entries_and_dead_letters"),
];

#[test]
fn each_deliberate_bug_of_an_inbox_is_detected_by_its_case() {
    let case = |name: &str| *store_conformance::inbox::CASES.iter().find(|case| case.name == name).unwrap();
    let missed: Vec<_> = CAUGHT_BY.iter().filter(|(bug, name)| !detects(*bug, case(name))).collect();
    assert!(missed.is_empty(), "not detected: {missed:?}");
}

fn detects(bug: Bug, case: Case<dyn InboxSubject>) -> bool {
    let run = || on_real(async |runtime| case.run(&Memory::new(runtime, MemoryOptions::default(), Some(bug))).await);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
}

/// Inbox with a deliberate bug.
struct Broken {
    inbox: Arc<MemoryStore>,
    bug: Bug,
}

impl Broken {
    fn all_shards() -> Arc<[ShardId]> {
        (0..domain::id::SHARDS).map(ShardId).collect()
    }
}

impl Inbox for Broken {
    fn read_inbox(&self, read: InboxRead) -> Answer<'_, Vec<InboxEntry>> {
        Box::pin(async move {
            let mut read = read;
            match self.bug {
                Bug::ExceptionsAreIgnored => read.except.clear(),
                Bug::ShardsAreIgnored => read.shards = Self::all_shards(),
                Bug::OldestEntriesStarveOtherTenants => {
                    let limit = std::mem::replace(&mut read.limit, usize::MAX);
                    let mut entries = self.inbox.read_inbox(read).await?;
                    entries.truncate(limit);
                    return Ok(entries);
                }
                _ => {}
            }
            let entries = self.inbox.read_inbox(read).await?;
            if self.bug == Bug::EntriesAreDeletedByARead {
                let numbers = entries.iter().map(|entry| entry.number).collect();
                self.inbox.settle_inbox(numbers, Vec::new()).await?;
            }
            Ok(entries)
        })
    }

    fn settle_inbox(&self, moved: Vec<u64>, rejected: Vec<(u64, String)>) -> Answer<'_, ()> {
        match self.bug {
            Bug::SettledEntriesStay => self.inbox.settle_inbox(Vec::new(), rejected),
            Bug::DeadLettersAreLost => {
                let all = moved.into_iter().chain(rejected.into_iter().map(|(number, _)| number)).collect();
                self.inbox.settle_inbox(all, Vec::new())
            }
            _ => self.inbox.settle_inbox(moved, rejected),
        }
    }

    fn publish_usage(&self) -> Answer<'_, InboxState> {
        Box::pin(async move {
            let state = self.inbox.publish_usage().await?;
            let is_counted = self.bug != Bug::WaitingEntriesAreNotCounted;
            Ok(InboxState { waiting: if is_counted { state.waiting } else { 0 }, ..state })
        })
    }
}
