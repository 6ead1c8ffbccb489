//! Processes that fight for 256 claims while some of them are killed and the server fails: no two ever hold one, by the
//! one clock that all of them share.

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

/// From when until when a member relied on a claim.
#[derive(Clone, Copy, Debug)]
struct Held {
    shard: ShardId,
    member: MemberId,
    from: Monotonic,
    until: Monotonic,
}

/// What all processes have held so far.
#[derive(Clone, Default)]
struct Records(Arc<Mutex<Vec<Held>>>);

impl Records {
    fn overlaps(&self) -> Vec<(Held, Held)> {
        let mut held = self.0.lock().unwrap().clone();
        held.sort_by_key(|held| (held.shard, held.from));
        let pairs = held.windows(2).map(|pair| (pair[0], pair[1]));
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

/// `None`: the server did not answer in time to open.
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

/// Relies on its claims, and writes down for how long. Dropped (killed), it writes down what it still relied on.
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
            self.work();
            let seen = view.borrow_and_update().clone();
            if let Some(lease) = self.membership.lease() {
                let plan = assign::plan(&seen.shards(), &seen.owners(), SHARDS);
                let is_mine = |shard: &ShardId| plan.get(shard) == Some(&lease.member());
                let lets_go =
                    seen.shards().into_iter().filter(|(shard, holder)| *holder == lease.member() && !is_mine(shard));
                let lets_go: Vec<ShardId> = lets_go.map(|(shard, _)| shard).collect();
                self.let_go(|shard, _| lets_go.contains(&shard));
                if !lets_go.is_empty() {
                    let _retried = self.membership.release(lets_go.into_iter().map(ClaimName::shard).collect()).await;
                }
                let wants = |shard: &ShardId| is_mine(shard) && !self.owned.contains_key(shard);
                let names: Vec<ShardId> = (0..SHARDS).map(ShardId).filter(wants).collect();
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

    /// As an owner that fires: the lease is looked at each time, and what was held until now is known.
    fn work(&mut self) {
        let now = self.runtime.monotonic();
        for (lease, _, until) in self.owned.values_mut() {
            if lease.is_valid(now) {
                *until = now;
            }
        }
        self.let_go(|_, lease| !lease.is_valid(now));
    }

    fn let_go(&mut self, which: impl Fn(ShardId, &Lease) -> bool) {
        let now = self.runtime.monotonic();
        let records = self.records.clone();
        self.owned.retain(|shard, (lease, from, until)| {
            let goes = which(*shard, lease);
            if goes {
                let until = if lease.is_valid(now) { now } else { *until };
                records.0.lock().unwrap().push(Held { shard: *shard, member: lease.member(), from: *from, until });
            }
            !goes
        });
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.work();
        self.let_go(|_, _| true);
    }
}

/// Every shard is claimed by a living member, evenly.
async fn settled(runtime: &Runtime, processes: &[Option<Process>], limit: Duration) -> Duration {
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

async fn strike(
    runtime: &Runtime,
    server: &Postgres,
    url: &str,
    processes: &mut [Option<Process>],
    records: &Records,
    kind: u32,
) {
    let victim = usize::try_from(kind).unwrap() % processes.len();
    match kind % 5 {
        // A process is killed, and another comes.
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
    for (at, place) in processes.iter_mut().enumerate() {
        if place.is_none() {
            *place = start(runtime, url, &format!("process-{at}"), records).await;
        }
    }
}

#[test]
fn no_two_hold_one_of_256_claims_whatever_fails() {
    on_real(async |runtime| {
        let (server, url) = own_server(&runtime).await;
        let records = Records::default();
        let mut processes = Vec::new();
        for at in 0..3 {
            processes.push(start(&runtime, &url, &format!("process-{at}"), &records).await);
        }
        settled(&runtime, &processes, LEASE * 10).await;
        for kind in 0..7 {
            strike(&runtime, &server, &url, &mut processes, &records, kind).await;
            runtime.sleep(Duration::from_millis(runtime.random() % 400)).await;
        }
        settled(&runtime, &processes, LEASE * 10).await;
        drop(processes);
        assert!(records.count() > 600, "the claims hardly moved: {}", records.count());
        let overlaps = records.overlaps();
        if let Some((one, next)) = overlaps.first() {
            let by = next.from.since(one.until).max(one.until.since(next.from));
            let count = overlaps.len();
            panic!(
                "{count} overlaps; {:?} was held by {} and {:?} by {}, {by:?} at once",
                one.shard, one.member, next.shard, next.member
            );
        }
    });
}

#[test]
#[ignore = "a measurement"]
fn how_long_hand_overs_take() {
    on_real(async |runtime| {
        let (_server, url) = own_server(&runtime).await;
        let records = Records::default();
        let mut processes =
            vec![start(&runtime, &url, "a", &records).await, start(&runtime, &url, "b", &records).await];
        println!("two join: {:?}", settled(&runtime, &processes, LEASE * 10).await);
        processes.push(start(&runtime, &url, "c", &records).await);
        println!("a third joins: {:?}", settled(&runtime, &processes, LEASE * 10).await);
        let leaver = processes.remove(0).unwrap();
        let began = runtime.monotonic();
        leaver.membership.leave().await;
        settled(&runtime, &processes, LEASE * 10).await;
        println!("one leaves: {:?}", runtime.monotonic().since(began));
        drop(processes.remove(0));
        println!("one is killed, lease {LEASE:?}: {:?}", settled(&runtime, &processes, LEASE * 10).await);
        drop(processes);
        assert!(records.overlaps().is_empty());
        let times = one_claim_changes_hands(&runtime, &url).await;
        println!("release to claim: p50 {:?}, p99 {:?}", times[100], times[198]);
    });
}

/// From the moment that one asks to release to the moment that another, who hears of it, has the claim.
async fn one_claim_changes_hands(runtime: &Runtime, url: &str) -> Vec<Duration> {
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
        // The claim's own change is heard, too, before the next round.
        runtime.sleep(Duration::from_millis(5)).await;
    }
    times.sort();
    times
}
