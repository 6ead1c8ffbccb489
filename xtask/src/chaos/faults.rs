//! Injects the faults of a chaos test, and logs the start and the end of each fault.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::Signal;
use test_servers::zookeeper::Zookeeper;

use super::clients::Workload;
use super::database::Database;
use super::log::{Fault, Kind, Log, Loss, now_millis};
use super::member::Member;
use super::plan::{GUEST, MEMBERS, Plan, Step};
use super::topic::Topic;

pub(super) struct Cluster {
    pub(super) database: Database,
    /// Ensemble that holds the members and claims. `None` if the database holds them.
    pub(super) ensemble: Option<Zookeeper>,
    /// Topic that some schedules have as target. `None` if the cluster has no message bus.
    pub(super) topic: Option<Topic>,
    /// Members of [`MEMBERS`], then [`GUEST`].
    pub(super) members: Vec<Member>,
    pub(super) workload: Arc<Workload>,
    pub(super) log: Log,
    pub(super) began: Instant,
    pub(super) count: AtomicUsize,
    /// Failures other than violated guarantees. For example, a member exited by itself or did not start.
    pub(super) failures: Mutex<Vec<String>>,
}

impl Cluster {
    /// Injects faults until `end`. When this function returns, all faults have ended.
    pub(super) fn run(&self, plan: &mut Plan, end: Instant) {
        let mut next = plan.next();
        loop {
            thread::sleep(next.after);
            if Instant::now() >= end {
                return;
            }
            let first = next;
            next = plan.next();
            if next.overlaps {
                let second = next;
                next = plan.next();
                thread::scope(|scope| {
                    scope.spawn(|| self.inject(&first));
                    thread::sleep(second.after);
                    scope.spawn(|| self.inject(&second));
                });
            } else {
                self.inject(&first);
            }
            self.restart_dead_members();
        }
    }

    fn inject(&self, step: &Step) {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let member = &self.members[if step.kind == Kind::JoinedAndLeft { MEMBERS.len() } else { step.member }];
        let affected = if step.kind.is_of_all() { String::new() } else { format!(" {}", member.name) };
        let at = self.began.elapsed().as_secs_f64();
        eprintln!("{at:7.1} s  fault {number}:{affected} {}, {} ms", step.kind.name(), step.lasts.as_millis());
        let start_ms = now_millis();
        let injected = match step.kind {
            kind if kind.is_of_database() => self.disturb_database(step),
            kind if kind.is_of_ensemble() => self.disturb_ensemble(step).map(|end_ms| (end_ms, None)),
            kind if kind.is_of_bus() => self.disturb_bus(step).map(|end_ms| (end_ms, None)),
            _ => self.disturb_member(step, member).map(|end_ms| (end_ms, None)),
        };
        let healed_ms = now_millis();
        let (end_ms, lost) = injected.unwrap_or_else(|error| {
            self.fail(format!("fault {number},{affected} {}: {error:#}", step.kind.name()));
            (healed_ms, None)
        });
        let address = if step.kind.is_of_all() { String::new() } else { member.ip.to_string() };
        self.log.write(&Fault { number, kind: step.kind, member: address, start_ms, end_ms, healed_ms, lost });
    }

    pub(super) fn fail(&self, failure: String) {
        eprintln!("{failure}");
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
    }

    /// Injects a fault into a member. Returns the instant at which the fault ended. The member may recover later.
    fn disturb_member(&self, step: &Step, member: &Member) -> anyhow::Result<u64> {
        let network = &member.config().network;
        match step.kind {
            Kind::KilledAndLeftDead | Kind::KilledAndRestarted => {
                member.kill()?;
                let end_ms = now_millis();
                self.hide(member);
                thread::sleep(step.lasts);
                member.start()?;
                self.show(member);
                return Ok(end_ms);
            }
            Kind::Paused => {
                member.signal(Signal::STOP)?;
                thread::sleep(step.lasts);
                member.signal(Signal::CONT)?;
            }
            Kind::CutOff => {
                network.cut_off(member.name)?;
                thread::sleep(step.lasts);
                network.rejoin(member.name)?;
            }
            Kind::CutFromDatabase
            | Kind::CutFromEnsemble
            | Kind::CutFromPeers
            | Kind::CutFromReceiver
            | Kind::CutFromBus => {
                let from = match step.kind {
                    Kind::CutFromDatabase => network.databases().to_vec(),
                    Kind::CutFromEnsemble => vec![network.ensemble()],
                    Kind::CutFromReceiver => vec![network.receiver()],
                    Kind::CutFromBus => vec![network.bus()],
                    _ => self.members.iter().map(|other| other.ip).filter(|ip| *ip != member.ip).collect(),
                };
                network.cut_from(member.name, &from, step.is_unreachable)?;
                thread::sleep(step.lasts);
                network.join_with(member.name, &from)?;
            }
            Kind::Stopped => {
                self.hide(member);
                let stopped = member.stop();
                let end_ms = now_millis();
                thread::sleep(step.lasts);
                member.start()?;
                self.show(member);
                return stopped.map(|()| end_ms);
            }
            _ => {
                assert_eq!(member.name, GUEST, "only the guest member may join during the test");
                member.start()?;
                self.show(member);
                thread::sleep(step.lasts);
                self.hide(member);
                member.stop()?;
            }
        }
        Ok(now_millis())
    }

    /// Injects a fault into the ensemble, which has one server. Returns the instant at which the fault ended.
    fn disturb_ensemble(&self, step: &Step) -> anyhow::Result<u64> {
        let ensemble = self.ensemble.as_ref().context("the cluster has no ensemble")?;
        if step.kind == Kind::EnsembleKilled {
            ensemble.kill(0)?;
            thread::sleep(step.lasts);
            ensemble.restart(0)?;
        } else {
            ensemble.pause(0)?;
            thread::sleep(step.lasts);
            ensemble.resume(0)?;
        }
        Ok(now_millis())
    }

    /// Injects a fault into the message bus, which has one broker. Returns the instant at which the fault ended.
    fn disturb_bus(&self, step: &Step) -> anyhow::Result<u64> {
        let kafka = self.topic.as_ref().context("the cluster has no message bus")?.kafka();
        if step.kind == Kind::BusKilled {
            kafka.kill(0)?;
            thread::sleep(step.lasts);
            kafka.restart(0)?;
        } else {
            kafka.pause(0)?;
            thread::sleep(step.lasts);
            kafka.resume(0)?;
        }
        Ok(now_millis())
    }

    /// Injects a fault into the database. Returns the instant at which the fault ended, and the commits that the database
    /// may have lost.
    fn disturb_database(&self, step: &Step) -> anyhow::Result<(u64, Option<Loss>)> {
        let primary = self.database.primary();
        let mut lost = None;
        match step.kind {
            Kind::DatabaseRestarted => primary.restart()?,
            Kind::DatabaseKilled => {
                primary.kill()?;
                primary.restart()?;
            }
            Kind::DatabaseFailedOver => {
                lost = Some(self.database.fail_over(step.lasts)?);
                self.workload.failovers.fetch_add(1, Ordering::Relaxed);
            }
            _ => {
                primary.pause()?;
                thread::sleep(step.lasts);
                primary.resume()?;
            }
        }
        Ok((now_millis(), lost))
    }

    pub(super) fn show(&self, member: &Member) {
        self.workload.lock_members().insert(member.name, member.address());
    }

    fn hide(&self, member: &Member) {
        self.workload.lock_members().remove(member.name);
    }

    /// Restarts members that exited by themselves, and records each exit as a failure.
    pub(super) fn restart_dead_members(&self) {
        for member in &self.members[..MEMBERS.len()] {
            if member.has_died() {
                self.fail(format!(
                    "member {} exited although the test did not stop it; \
                     see its log {}",
                    member.name,
                    member.log_path().display()
                ));
                self.hide(member);
                match member.start() {
                    Ok(()) => self.show(member),
                    Err(error) => self.fail(format!("{error:#}")),
                }
            }
        }
    }
}

/// Waits until `is_done` returns true, at most for `limit`. Returns false after the limit.
pub(super) fn wait_until(limit: Duration, mut is_done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !is_done() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(100));
    }
    true
}
