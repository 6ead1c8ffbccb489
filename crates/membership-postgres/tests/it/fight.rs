//! Processes compete for 256 claims while the test kills processes and makes the server fail. All processes share one
//! clock. By this clock, no two processes ever own the same claim at the same time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::ShardId;
use domain::id::SHARDS;
use futures_util::FutureExt as _;
use membership::{
    BeforeRenewal, ClaimName, Lease, MemberId, Membership, Options as MembershipOptions, Ownership as _, Profile,
    assign,
};
use membership_postgres::{Options, PostgresOwnership};
use runtime::{Monotonic, Runtime, TaskSet};
use test_servers::postgres::Postgres;

use crate::support::{member, on_real, open, own_server};

const LEASE: Duration = Duration::from_millis(1_500);

/// A period in which a member owned a claim.
#[derive(Clone, Copy, Debug)]
struct Tenure {
    shard: ShardId,
    member: MemberId,
    from: Monotonic,
    until: Monotonic,
}

/// All periods of ownership that the processes have recorded so far.
#[derive(Clone, Default)]
struct Records(Arc<Mutex<Vec<Tenure>>>);

impl Records {
    fn overlaps(&self) -> Vec<(Tenure, Tenure)> {
        let mut tenures = self.0.lock().unwrap().clone();
        tenures.sort_by_key(|tenure| (tenure.shard, tenure.from));
        let pairs = tenures.windows(2).map(|pair| (pair[0], pair[1]));
        pairs.filter(|(one, next)| one.shard == next.shard && next.from < one.until).collect()
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

struct Process {
    _tasks: TaskSet,
    membership: Membership,
}

/// Starts a process. Returns `None` if the server does not respond in time.
async fn start(runtime: &Runtime, url: &str, name: &str, records: &Records) -> Option<Process> {
    let coordination = PostgresOwnership::open(runtime, url, &Options::with_lease(LEASE)).await.ok()?;
    let tasks = TaskSet::new(runtime);
    let profile = Profile { name: name.to_owned(), address: String::new(), owns: true, build: String::new() };
    let before: BeforeRenewal = Arc::new(|| async { true }.boxed());
    let options = MembershipOptions { view_period: Duration::from_millis(200), ..MembershipOptions::with_lease(LEASE) };
    let membership = Membership::join(runtime, &tasks, Arc::new(coordination), profile, options, before);
    let owner = Owner {
        membership: membership.clone(),
        runtime: runtime.clone(),
        owned: BTreeMap::new(),
        records: records.clone(),
    };
    tasks.spawn("owner", owner.run());
    Some(Process { _tasks: tasks, membership })
}

/// Owner that records the period for which it owns each claim. When the test kills the process, the drop of this value
/// records the periods of the claims that the owner still owns.
struct Owner {
    membership: Membership,
    runtime: Runtime,
    owned: BTreeMap<ShardId, (Lease, Monotonic, Monotonic)>,
    records: Records,
}

impl Owner {
    async fn run(mut self) {
        let mut view = self.membership.view();
        loop {
            self.check_leases();
            let seen = view.borrow_and_update().clone();
            if let Some(lease) = self.membership.lease() {
                let plan = assign::plan(&seen.shards(), &seen.owners(), SHARDS);
                let is_mine = |shard: &ShardId| plan.get(shard) == Some(&lease.member());
                let surplus =
                    seen.shards().into_iter().filter(|(shard, holder)| *holder == lease.member() && !is_mine(shard));
                let surplus: Vec<ShardId> = surplus.map(|(shard, _)| shard).collect();
                self.release(|shard, _| surplus.contains(&shard));
                if !surplus.is_empty() {
                    let _retried = self.membership.release(surplus.into_iter().map(ClaimName::shard).collect()).await;
                }
                let is_missing = |shard: &ShardId| is_mine(shard) && !self.owned.contains_key(shard);
                let names: Vec<ShardId> = (0..SHARDS).map(ShardId).filter(is_missing).collect();
                if !names.is_empty() {
                    self.take(names).await;
                }
            }
            self.runtime.timeout(Duration::from_millis(20), view.changed()).await;
        }
    }

    async fn take(&mut self, shards: Vec<ShardId>) {
        let Ok(claimed) = self.membership.claim(shards.iter().copied().map(ClaimName::shard).collect()).await else {
            return;
        };
        let now = self.runtime.monotonic();
        if claimed.lease.is_valid(now) {
            for (shard, _) in shards.into_iter().zip(claimed.held).filter(|(_, held)| *held) {
                self.owned.insert(shard, (claimed.lease.clone(), now, now));
            }
        }
    }

    /// Behaves like an owner that fires schedules: it checks each lease, and records the last instant at which it owned
    /// the claims.
    fn check_leases(&mut self) {
        let now = self.runtime.monotonic();
        for (lease, _, until) in self.owned.values_mut() {
            if lease.is_valid(now) {
                *until = now;
            }
        }
        self.release(|_, lease| !lease.is_valid(now));
    }

    fn release(&mut self, is_released: impl Fn(ShardId, &Lease) -> bool) {
        let now = self.runtime.monotonic();
        let records = self.records.clone();
        self.owned.retain(|shard, (lease, from, until)| {
            let is_released = is_released(*shard, lease);
            if is_released {
                let until = if lease.is_valid(now) { now } else { *until };
                records.0.lock().unwrap().push(Tenure { shard: *shard, member: lease.member(), from: *from, until });
            }
            !is_released
        });
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.check_leases();
        self.release(|_, _| true);
    }
}

/// Waits until live members own all shards evenly, and returns the duration of the wait.
async fn wait_until_balanced(runtime: &Runtime, processes: &[Option<Process>], limit: Duration) -> Duration {
    let began = runtime.monotonic();
    let living: Vec<&Process> = processes.iter().flatten().collect();
    loop {
        let members: Option<Vec<MemberId>> =
            living.iter().map(|process| process.membership.lease().map(|lease| lease.member())).collect();
        if let (Some(members), Ok(view)) = (members, living[0].membership.refresh().await) {
            let shards = view.shards();
            let share = usize::from(SHARDS) / living.len();
            let has_share = |member: &MemberId| shards.values().filter(|owner| *owner == member).count() >= share;
            if shards.len() == usize::from(SHARDS) && members.iter().all(has_share) {
                return runtime.monotonic().since(began);
            }
        }
        assert!(runtime.monotonic().since(began) < limit, "shards without an owner");
        runtime.sleep(Duration::from_millis(10)).await;
    }
}

async fn inject_fault(
    runtime: &Runtime,
    server: &Postgres,
    url: &str,
    processes: &mut [Option<Process>],
    records: &Records,
    kind: u32,
) {
    let victim = usize::try_from(kind).unwrap() % processes.len();
    match kind % 5 {
        // The test kills a process here and starts another process later.
        0 | 1 => {
            processes[victim] = None;
            runtime.sleep(Duration::from_millis(300)).await;
        }
        2 => {
            server.pause().unwrap();
            runtime.sleep(LEASE * 3 / 2).await;
            server.resume().unwrap();
        }
        3 => {
            server.kill().unwrap();
            server.restart().unwrap();
        }
        _ => {
            if let Some(process) = processes[victim].take() {
                process.membership.leave().await;
            }
        }
    }
    for (at, slot) in processes.iter_mut().enumerate() {
        if slot.is_none() {
            *slot = start(runtime, url, &format!("process-{at}"), records).await;
        }
    }
}

#[test]
fn claim_never_has_two_owners_under_faults() {
    on_real(async |runtime| {
        let (server, url) = own_server(&runtime).await;
        let records = Records::default();
        let mut processes = Vec::new();
        for at in 0..3 {
            processes.push(start(&runtime, &url, &format!("process-{at}"), &records).await);
        }
        wait_until_balanced(&runtime, &processes, LEASE * 10).await;
        for kind in 0..7 {
            inject_fault(&runtime, &server, &url, &mut processes, &records, kind).await;
            runtime.sleep(Duration::from_millis(runtime.random() % 400)).await;
        }
        wait_until_balanced(&runtime, &processes, LEASE * 10).await;
        drop(processes);
        assert!(records.count() > 600, "too few claims moved: {}", records.count());
        let overlaps = records.overlaps();
        if let Some((one, next)) = overlaps.first() {
            let by = next.from.since(one.until).max(one.until.since(next.from));
            let count = overlaps.len();
            panic!(
                "{count} overlaps: {:?} was owned by {} and {:?} by {} at the same time for {by:?}",
                one.shard, one.member, next.shard, next.member
            );
        }
    });
}

#[test]
#[ignore = "a measurement"]
fn measurement_prints_how_long_claims_take_to_change_owners() {
    on_real(async |runtime| {
        let (_server, url) = own_server(&runtime).await;
        let records = Records::default();
        let mut processes =
            vec![start(&runtime, &url, "a", &records).await, start(&runtime, &url, "b", &records).await];
        println!("two join: {:?}", wait_until_balanced(&runtime, &processes, LEASE * 10).await);
        processes.push(start(&runtime, &url, "c", &records).await);
        println!("a third joins: {:?}", wait_until_balanced(&runtime, &processes, LEASE * 10).await);
        let leaver = processes.remove(0).unwrap();
        let began = runtime.monotonic();
        leaver.membership.leave().await;
        wait_until_balanced(&runtime, &processes, LEASE * 10).await;
        println!("one leaves: {:?}", runtime.monotonic().since(began));
        drop(processes.remove(0));
        println!("one is killed, lease {LEASE:?}: {:?}", wait_until_balanced(&runtime, &processes, LEASE * 10).await);
        drop(processes);
        assert!(records.overlaps().is_empty());
        let times = measure_claim_transfers(&runtime, &url).await;
        println!("release to claim: p50 {:?}, p99 {:?}", times[100], times[198]);
    });
}

/// Measures the time from the start of a release until another member has the claim. The engine notifies that member of
/// the release.
async fn measure_claim_transfers(runtime: &Runtime, url: &str) -> Vec<Duration> {
    let mut peers = Vec::new();
    for id in [1, 2] {
        let coordination = open(runtime, url).await;
        coordination.join(member(id), Duration::from_secs(60)).await.unwrap();
        peers.push((MemberId(id), coordination));
    }
    let name = || vec![ClaimName::new("leader").unwrap()];
    assert_eq!(peers[0].1.claim(peers[0].0, name()).await, Ok(vec![true]));
    let mut times = Vec::new();
    for round in 0..200 {
        let [(holder, from), (next, to)] = [&peers[round % 2], &peers[(round + 1) % 2]];
        let changed = to.changed();
        let began = runtime.monotonic();
        let taking = async {
            changed.await;
            while to.claim(*next, name()).await != Ok(vec![true]) {}
            runtime.monotonic().since(began)
        };
        times.push(futures_util::future::join(from.release(*holder, name()), taking).await.1);
        // The sleep lets both members receive the notification of the claim before the next round.
        runtime.sleep(Duration::from_millis(5)).await;
    }
    times.sort();
    times
}
