//! What goes wrong in a cluster, by chance.

use std::time::Duration;

use futures_util::future::{join, select};

use super::TROUBLE;
use super::net::{ENGINE, STORE};
use super::town::Town;

/// A clock is off by no more than this, if it is within the bound.
const AHEAD_MILLIS_MAX: u64 = 400;
const MEMBERS_MAX: usize = 5;
const MEMBERS_MIN: usize = 2;

/// Until [`TROUBLE`] is over. Two things may go wrong at once.
pub(super) async fn make(town: &Town) {
    for name in town.names() {
        town.set_clock(&name, within_the_bound(town));
    }
    let supervisor = async {
        loop {
            town.start_those_due().await;
            town.sim.sleep(Duration::from_millis(50)).await;
        }
    };
    let trouble = std::pin::pin!(join(one_after_another(town), one_after_another(town)));
    select(trouble, std::pin::pin!(supervisor)).await;
}

async fn one_after_another(town: &Town) {
    while town.sim.elapsed() < TROUBLE {
        town.sim.sleep(millis(town, 100, 3_000)).await;
        one(town).await;
    }
}

/// All is well again, and everyone serves.
pub(super) async fn end(town: &Town) {
    town.net.heal();
    // The last pause.
    town.sim.sleep(Duration::from_secs(4)).await;
    for name in town.names() {
        town.set_clock(&name, 0);
        town.want_now(&name);
    }
    for _ in 0..100 {
        town.start_those_due().await;
        if town.serving().len() == town.names().len() {
            return;
        }
    }
    panic!("stuck: a member does not come up any more");
}

async fn one(town: &Town) {
    let names = town.up();
    if names.is_empty() {
        return;
    }
    let name = &names[town.sim.draw(|random| random.index(names.len()))];
    let other = &names[town.sim.draw(|random| random.index(names.len()))];
    match town.sim.draw(|random| random.below(19)) {
        0 => {
            town.sim.crash(name);
            town.restart_after(name, millis(town, 0, 3_000));
        }
        1 => {
            town.sim.kill(name);
            town.restart_after(name, millis(town, 0, 3_000));
        }
        2 | 3 => town.sim.pause(name, millis(town, 0, 4_000)),
        // In good order; without effect on what is promised.
        4 | 5 if town.may_stop(name) => {
            if town.stop(name).await {
                town.restart_after(name, millis(town, 0, 2_000));
            }
        }
        6 if town.names().len() < MEMBERS_MAX => town.add(),
        7 if town.names().len() > MEMBERS_MIN && town.may_stop(name) => {
            if town.stop(name).await {
                town.forget(name);
            }
        }
        8 => town.net.cut(name, other, millis(town, 200, 4_000)),
        9 | 16 | 17 => {
            let duration = millis(town, 200, 4_000);
            town.net.cut(name, other, duration);
            town.net.cut(other, name, duration);
        }
        10 => cut_off(town, name, STORE),
        11 => cut_off(town, name, ENGINE),
        12 | 13 => town.set_clock(name, within_the_bound(town)),
        14 => {
            let millis = i64::try_from(town.sim.draw(|random| 1_000 + random.below(3_000))).unwrap_or(0);
            town.set_clock(name, if town.sim.draw(|random| random.coin()) { millis } else { -millis });
        }
        _ => town.net.lose_some(millis(town, 200, 2_000)),
    }
}

/// From the store or the engine, one way or both. Its lease may end by that, a while after.
fn cut_off(town: &Town, name: &str, server: &str) {
    let duration = millis(town, 200, 4_000);
    let way = town.sim.draw(|random| random.below(3));
    if way != 0 {
        town.net.cut(name, server, duration);
    }
    if way != 1 {
        town.net.cut(server, name, duration);
    }
    let now = town.sim.elapsed();
    town.record.interrupted(name, now..=now + duration + town.lease());
}

fn within_the_bound(town: &Town) -> i64 {
    let millis = town.sim.draw(|random| random.below(2 * AHEAD_MILLIS_MAX));
    i64::try_from(millis).unwrap_or(0) - i64::try_from(AHEAD_MILLIS_MAX).unwrap_or(0)
}

fn millis(town: &Town, least: u64, most: u64) -> Duration {
    Duration::from_millis(town.sim.draw(|random| least + random.below(most - least)))
}
