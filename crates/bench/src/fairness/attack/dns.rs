//! Callbacks to host names whose DNS server never responds.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use runtime::{Runtime, TaskSet};
use tokio::net::UdpSocket;

use super::schedules::{AttackSchedules, Series};
use super::{Attack, Stage};
use crate::tenant::unlimited_except;

const SCHEDULES: u32 = 1_000;
/// Longest time for which the service waits for a DNS server.
const LOOKUP_MAX: Duration = Duration::from_secs(5);

/// DNS server that counts the queries that it receives, and responds to none of them.
pub(super) struct NameServer {
    pub(super) address: SocketAddr,
    questions: Arc<AtomicU64>,
    _tasks: TaskSet,
}

impl NameServer {
    pub(super) async fn start(runtime: &Runtime) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot open a socket for DNS")?;
        let address = socket.local_addr()?;
        let questions: Arc<AtomicU64> = Arc::default();
        let (tasks, seen) = (TaskSet::new(runtime), questions.clone());
        tasks.spawn("name-server", async move {
            let mut buffer = [0; 1_500];
            while socket.recv_from(&mut buffer).await.is_ok() {
                seen.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ok(NameServer { address, questions, _tasks: tasks })
    }
}

pub(super) async fn start(stage: &Stage<'_>) -> anyhow::Result<Attack> {
    let tenant = stage.tenant("dns", unlimited_except(None)).await?;
    let questions = stage.equipment.name_server.questions.clone();
    let before = questions.load(Ordering::Relaxed);
    let series = Series { count: SCHEDULES, every: Duration::from_secs(1), takes: LOOKUP_MAX };
    let target = |number| format!("http://host-{number}.attack.test/callback");
    let schedules = AttackSchedules::create(stage.runtime, tenant, series, target).await?;
    let effect = move || {
        let count = questions.load(Ordering::Relaxed) - before;
        ensure!(count > 0, "the service sent no question to the DNS server of the attack");
        Ok(format!("dns: the DNS server received {count} questions about {SCHEDULES} names and answered none"))
    };
    Ok(Attack { schedules: Some(schedules), ..Attack::new(TaskSet::new(stage.runtime), effect) })
}
