//! Tests of the inbox: owners carry out the requests that applications committed in their own transactions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use domain::{PollerId, Quota, ScheduleId, Status, Tenant, TenantId, Timestamp, When};
use scheduler::{ReadSpec, Scheduler};
use simulator::Simulation;
use store::memory::MemoryOptions;
use store::{InboxRequest, Store};

use crate::cluster::both_engines;
use crate::harness::{TENANT, put_tenant, spec, tenant};
use crate::test_cluster::*;

/// Spec that makes the test's parser panic.
const PANICS: &str = "panic";

/// Returns a parser for specs that consist of an instant in milliseconds.
fn read_spec() -> ReadSpec {
    Arc::new(|text, _, _| {
        assert_ne!(text, PANICS);
        let at = text.parse().map_err(|_| format!("{text:?} is not an instant"))?;
        Ok(spec(When::At(Timestamp::from_millis(at)), "http://target.test/"))
    })
}

fn create(id: &str, at: Timestamp) -> InboxRequest {
    let tenant = tenant(TENANT).name;
    InboxRequest { tenant, id: id.to_owned(), spec: Some(at.as_millis().to_string()) }
}

fn cancel(id: &str) -> InboxRequest {
    InboxRequest { spec: None, ..create(id, Timestamp::MIN) }
}

impl TestCluster {
    /// Starts a member that moves the entries of the inbox.
    async fn join_with_inbox(&self, name: &str) -> Scheduler {
        let scheduler = self.join(name).await;
        let (mover, runtime) = (scheduler.clone(), self.sim.member(name));
        let inbox = Arc::new(self.store.reopen(runtime.clone()));
        drop(runtime.spawn("inbox", async move { mover.move_inbox(inbox, read_spec()).await }));
        scheduler
    }

    fn local(&self) -> store::memory::MemoryStore {
        self.store.reopen(self.sim.outside()).with_options(MemoryOptions::default())
    }

    fn request(&self, requests: Vec<InboxRequest>) {
        self.local().request(requests).unwrap();
    }

    async fn waiting(&self) -> u64 {
        store::Inbox::publish_usage(&self.local()).await.unwrap().waiting
    }

    async fn wait_until_empty(&self) {
        for _ in 0..2_000 {
            if self.waiting().await == 0 {
                return;
            }
            self.sleep(Duration::from_millis(5)).await;
        }
        panic!("{} entries stay in the inbox", self.waiting().await);
    }

    /// Returns the id and the reason of each dead letter.
    fn dead_letters(&self) -> Vec<(String, String)> {
        let letters = self.local().inbox_dead_letters();
        letters.into_iter().map(|letter| (letter.entry.id, letter.reason)).collect()
    }
}

fn moved_by(member: &Scheduler) -> u64 {
    let text = member.metrics_text();
    let line = text.lines().find_map(|line| line.strip_prefix("reveille_inbox_moved_total "));
    line.unwrap().parse().unwrap()
}

#[test]
fn each_owner_moves_the_entries_of_its_own_shards() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, quick).await;
        let (a, b) = (cluster.join_with_inbox("a").await, cluster.join_with_inbox("b").await);
        cluster.wait_until_balanced(&[&a, &b]).await;
        let due = cluster.in_ms(3_000);
        let ids: BTreeSet<String> = (0..200).map(|n| format!("n{n}")).collect();
        cluster.request(ids.iter().map(|id| create(id, due)).collect());
        cluster.wait_until_empty().await;
        assert!(cluster.sim.outside().now() < due);
        cluster.sleep(Duration::from_secs(10)).await;
        cluster.assert_each_called_once(&ids);
        let moved = [&a, &b].map(moved_by);
        assert!(moved.iter().all(|moved| *moved > 20) && moved.iter().sum::<u64>() == 200, "{moved:?}");
        assert_eq!(cluster.dead_letters(), []);
    });
}

#[test]
fn unreachable_owner_delays_only_the_entries_of_its_own_shards() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, quick).await;
        let (a, b) = (cluster.join_with_inbox("a").await, cluster.join_with_inbox("b").await);
        cluster.wait_until_balanced(&[&a, &b]).await;
        let owned_by_a: BTreeSet<_> = a.owned().into_iter().collect();
        let ids: BTreeSet<String> = (0..60).map(|n| format!("n{n}")).collect();
        let is_of_a = |id: &&String| {
            let id = ScheduleId::new(id).unwrap();
            owned_by_a.contains(&PollerId::of(TENANT, 0, 64, &id).shard())
        };
        let of_a: BTreeSet<String> = ids.iter().filter(is_of_a).cloned().collect();
        assert!(!of_a.is_empty() && of_a.len() < ids.len());
        cluster.sim.pause("b", Duration::from_millis(1_200));
        cluster.request(ids.iter().map(|id| create(id, cluster.in_ms(0))).collect());
        cluster.sleep(Duration::from_secs(1)).await;
        let called: BTreeSet<String> = cluster.calls().into_iter().map(|call| call.id).collect();
        assert_eq!(called, of_a, "the other member moved its own entries during the pause");
        cluster.sleep(Duration::from_secs(10)).await;
        cluster.assert_each_called_once(&ids);
    });
}

#[test]
fn rejected_entries_become_dead_letters_and_stop_no_other_entry() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, quick).await;
        let a = cluster.join_with_inbox("a").await;
        cluster.wait_until_balanced(&[&a]).await;
        let bad = |id: &str, spec: &str| InboxRequest { spec: Some(spec.to_owned()), ..create(id, Timestamp::MIN) };
        let mut requests: Vec<InboxRequest> = (0..600).map(|n| bad(&format!("bad{n}"), "never")).collect();
        requests.push(bad("fatal", PANICS));
        requests.push(create("good", cluster.in_ms(500)));
        requests.push(create("good", cluster.in_ms(600)));
        cluster.request(requests);
        cluster.wait_until_empty().await;
        cluster.sleep(Duration::from_secs(5)).await;
        cluster.assert_each_called_once(&BTreeSet::from(["good".to_owned()]));
        let letters = cluster.dead_letters();
        assert_eq!(letters.len(), 602);
        assert_eq!(letters[0], ("bad0".to_owned(), "\"never\" is not an instant".to_owned()));
        assert_eq!(letters[600], ("fatal".to_owned(), "the check of the spec panicked".to_owned()));
        assert!(letters[601].0 == "good" && letters[601].1.contains("already exists"), "{:?}", letters[601]);
        assert!(a.metrics_text().contains("\nreveille_inbox_rejected_total 602\n"), "{}", a.metrics_text());
    });
}

#[test]
fn requests_for_one_id_take_effect_in_their_order() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, quick).await;
        let (a, b) = (cluster.join_with_inbox("a").await, cluster.join_with_inbox("b").await);
        cluster.wait_until_balanced(&[&a, &b]).await;
        let (first, second) = (cluster.in_ms(4_000), cluster.in_ms(4_500));
        let ids: Vec<String> = (0..20).map(|n| format!("n{n}")).collect();
        for id in &ids {
            cluster.request(vec![create(id, first), cancel(id), create(id, second)]);
        }
        cluster.request(vec![create("gone", first)]);
        // The tenant gets more pollers, and most ids another home shard.
        let grown = Tenant { version: 2, generations: vec![64, 128], ..cluster_tenant() };
        put_tenant(&cluster.local(), grown).await.unwrap();
        cluster.request(vec![cancel("gone")]);
        cluster.wait_until_empty().await;
        cluster.sleep(Duration::from_secs(15)).await;
        let calls: Vec<_> = cluster.calls().into_iter().map(|call| (call.id, call.nominal)).collect();
        assert_eq!(calls.len(), 20, "{calls:?}");
        assert!(calls.iter().all(|(id, at)| ids.contains(id) && *at == second), "{calls:?}");
        let gone = cluster.local().get(vec![(TENANT, ScheduleId::new("gone").unwrap())]).await.unwrap().remove(0);
        assert_eq!(gone.unwrap().status, Status::Cancelled);
        assert_eq!(cluster.dead_letters(), []);
    });
}

#[test]
fn request_takes_effect_once_while_calls_of_the_store_fail() {
    for seed in 0..10 {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let options = MemoryOptions { fail_one_in: Some(5), ..MemoryOptions::weak() };
            let cluster = TestCluster::new(&sim, options, quick).await;
            let (a, b) = (cluster.join_with_inbox("a").await, cluster.join_with_inbox("b").await);
            cluster.wait_until_balanced(&[&a, &b]).await;
            let due = cluster.in_ms(20_000);
            let ids: BTreeSet<String> = (0..40).map(|n| format!("n{n}")).collect();
            for id in &ids {
                cluster.request(vec![create(id, due)]);
                cluster.sleep(Duration::from_millis(20)).await;
            }
            cluster.request(vec![cancel("n0")]);
            cluster.sleep(Duration::from_secs(90)).await;
            assert_eq!(cluster.waiting().await, 0);
            let called: BTreeSet<String> = cluster.calls().into_iter().map(|call| call.id).collect();
            assert_eq!(called.len(), 39);
            assert!(!called.contains("n0"));
            assert_eq!(cluster.dead_letters(), [], "a repeated create is not rejected");
        });
    }
}

#[test]
fn tenant_above_its_creates_per_second_delays_only_its_own_requests() {
    both_engines(async |sim, options| {
        let cluster = TestCluster::new(sim, options, quick).await;
        let mut limited = Tenant { version: 2, ..cluster_tenant() };
        limited.quotas.set(Quota::CreatesPerSecond, Some(10));
        limited.ceilings.set(Quota::CreatesPerSecond, Some(10));
        put_tenant(&cluster.local(), limited).await.unwrap();
        put_tenant(&cluster.local(), tenant(TenantId(2))).await.unwrap();
        let a = cluster.join_with_inbox("a").await;
        cluster.wait_until_balanced(&[&a]).await;
        let due = cluster.in_ms(60_000);
        cluster.request((0..700).map(|n| create(&format!("n{n}"), due)).collect());
        cluster.request(vec![InboxRequest { tenant: tenant(TenantId(2)).name, ..create("other", cluster.in_ms(100)) }]);
        cluster.sleep(Duration::from_secs(1)).await;
        assert_eq!(cluster.calls().len(), 1, "the other tenant's request does not wait");
        let waiting = cluster.waiting().await;
        assert!((675..=690).contains(&waiting), "{waiting} requests wait");
        cluster.sleep(Duration::from_secs(10)).await;
        let moved = waiting - cluster.waiting().await;
        assert!((90..=110).contains(&moved), "{moved} requests in ten seconds");
    });
}
