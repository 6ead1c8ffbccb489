//! Nemesis of the cluster scenario. It injects random faults into the test cluster.

use std::time::Duration;

use futures_util::future::{join, select};

use super::FAULT_TIME;
use super::net::{ENGINE, STORE};
use super::test_cluster::TestCluster;

/// Largest clock offset, in milliseconds, that must not affect a member.
const AHEAD_MILLIS_MAX: u64 = 400;
const MEMBERS_MAX: usize = 5;
const MEMBERS_MIN: usize = 2;

/// Injects faults, at most two at the same time, until [`FAULT_TIME`] has passed.
pub(super) async fn run(cluster: &TestCluster) {
    for name in cluster.names() {
        cluster.set_clock(&name, within_the_bound(cluster));
    }
    let supervisor = async {
        loop {
            cluster.start_due_members().await;
            cluster.sim.sleep(Duration::from_millis(50)).await;
        }
    };
    let faults = std::pin::pin!(join(inject_faults(cluster), inject_faults(cluster)));
    select(faults, std::pin::pin!(supervisor)).await;
}

async fn inject_faults(cluster: &TestCluster) {
    while cluster.sim.elapsed() < FAULT_TIME {
        cluster.sim.sleep(millis(cluster, 100, 3_000)).await;
        inject_fault(cluster).await;
    }
}

/// Ends all faults and starts all members.
pub(super) async fn stop(cluster: &TestCluster) {
    cluster.net.heal();
    // The nemesis may have paused a member just before this call. The longest pause takes 4 s.
    cluster.sim.sleep(Duration::from_secs(4)).await;
    for name in cluster.names() {
        cluster.set_clock(&name, 0);
        cluster.start_soon(&name);
    }
    cluster.start_members().await;
}

async fn inject_fault(cluster: &TestCluster) {
    let names = cluster.up();
    if names.is_empty() {
        return;
    }
    let name = &names[cluster.sim.draw(|random| random.index(names.len()))];
    let other = &names[cluster.sim.draw(|random| random.index(names.len()))];
    match cluster.sim.draw(|random| random.below(19)) {
        0 => {
            cluster.sim.crash(name);
            cluster.restart_after(name, millis(cluster, 0, 3_000));
        }
        1 => {
            cluster.sim.kill(name);
            cluster.restart_after(name, millis(cluster, 0, 3_000));
        }
        2 | 3 => cluster.sim.pause(name, millis(cluster, 0, 4_000)),
        // The members must keep all promises during an orderly stop.
        4 | 5 if cluster.may_stop(name) => {
            if cluster.stop(name).await {
                cluster.restart_after(name, millis(cluster, 0, 2_000));
            }
        }
        6 if cluster.names().len() < MEMBERS_MAX => cluster.add(),
        7 if cluster.names().len() > MEMBERS_MIN && cluster.may_stop(name) => {
            if cluster.stop(name).await {
                cluster.remove_member(name);
            }
        }
        8 => cluster.net.cut(name, other, millis(cluster, 200, 4_000)),
        9 | 16 | 17 => {
            let duration = millis(cluster, 200, 4_000);
            cluster.net.cut(name, other, duration);
            cluster.net.cut(other, name, duration);
        }
        10 => cut_off(cluster, name, STORE),
        11 => cut_off(cluster, name, ENGINE),
        12 | 13 => cluster.set_clock(name, within_the_bound(cluster)),
        14 => {
            let millis = i64::try_from(cluster.sim.draw(|random| 1_000 + random.below(3_000))).unwrap_or(0);
            // A hardware clock that stores the local time is off by an hour or more.
            let millis = if millis % 3 == 0 { 1_000 * millis } else { millis };
            cluster.set_clock(name, if cluster.sim.draw(|random| random.coin()) { millis } else { -millis });
        }
        _ => cluster.net.lose_some(millis(cluster, 200, 2_000)),
    }
}

/// Cuts the link between a member and the store or the coordination engine, in one or both directions. As a result, the
/// member's lease may end during the cut, or up to one lease duration after the end of the cut.
fn cut_off(cluster: &TestCluster, name: &str, server: &str) {
    let duration = millis(cluster, 200, 4_000);
    let way = cluster.sim.draw(|random| random.below(3));
    if way != 0 {
        cluster.net.cut(name, server, duration);
    }
    if way != 1 {
        cluster.net.cut(server, name, duration);
    }
    let now = cluster.sim.elapsed();
    cluster.record.record_interruption(name, now..=now + duration + cluster.lease());
}

fn within_the_bound(cluster: &TestCluster) -> i64 {
    let millis = cluster.sim.draw(|random| random.below(2 * AHEAD_MILLIS_MAX));
    i64::try_from(millis).unwrap_or(0) - i64::try_from(AHEAD_MILLIS_MAX).unwrap_or(0)
}

fn millis(cluster: &TestCluster, least: u64, most: u64) -> Duration {
    Duration::from_millis(cluster.sim.draw(|random| least + random.below(most - least)))
}
