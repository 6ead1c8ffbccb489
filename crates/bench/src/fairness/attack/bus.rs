//! Callbacks to a topic while the broker of the message bus is away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use domain::ScheduleId;
use runtime::TaskSet;

use super::schedules::AttackSchedules;
use super::{Attack, Stage};
use crate::fire::{self, Due};
use crate::message::{Head, Targets};
use crate::server::Metrics;
use crate::tenant::unlimited_except;
use crate::topic::broker::Order;
use crate::topic::{ATTACK_TOPIC, TOPICS};

/// Number of callbacks, which are all due at one instant.
const COUNT: u64 = 50_000;
/// Longest time of an attempt: the default timeout of a bus target.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time until the first callbacks are due, which reach the topic before the broker goes away.
const WARM_UP: Duration = Duration::from_secs(2);
/// Number of the first callbacks.
const WARM_UP_COUNT: u64 = 100;
/// Longest wait for the first callbacks.
const WARM_UP_MAX: Duration = Duration::from_secs(30);
/// Time from the start of the observed run to the due instant of the attack.
const AFTER_START: Duration = Duration::from_secs(1);
/// Time in which the attack creates its schedules, beyond the time that [`fire::lead`] returns.
const SPARE: Duration = Duration::from_secs(2);

pub(super) async fn start(stage: &Stage<'_>) -> anyhow::Result<Attack> {
    let Stage { runtime, server, equipment, .. } = *stage;
    let broker = equipment.broker.clone();
    let broker =
        broker.context("the attack `bus` needs a broker; use `cargo xtask bench-bus fairness --attack bus`")?;
    let tenant = stage.tenant_with_topics("bus", unlimited_except(None), &[TOPICS]).await?;
    let head = || tenant.head("application/x-ndjson");
    let targets = || Targets::Topic(ATTACK_TOPIC.to_owned());
    let watched = server.head("application/json");

    // The first callbacks open the connections. A broker that goes away later leaves records in their queues.
    crate::topic::create_attack_topic(runtime, &broker).await?;
    let before = attempts(&watched, "success").await?;
    let due = Due::AtOnce { count: WARM_UP_COUNT };
    fire::plan_from(runtime, head(), due, runtime.now() + WARM_UP, targets()).await?;
    let began = runtime.monotonic();
    while attempts(&watched, "success").await? < before + WARM_UP_COUNT {
        ensure!(
            runtime.monotonic().since(began) < WARM_UP_MAX,
            "the topic did not receive the first callbacks within {WARM_UP_MAX:?}"
        );
        runtime.sleep(Duration::from_millis(50)).await;
    }
    broker.order(Order::Kill).await?;

    let due = Due::AtOnce { count: COUNT };
    let ready_at = runtime.now() + fire::lead(COUNT) + SPARE + stage.lead;
    let incarnations = fire::plan_from(runtime, head(), due, ready_at + AFTER_START, targets()).await?;
    let ids = incarnations.into_iter().map(|one| ScheduleId::from_incarnation(one).to_string()).collect();
    let failed_before = attempts(&watched, "").await? - attempts(&watched, "success").await?;
    let failed = Arc::new(AtomicU64::new(0));
    let (tasks, clock, seen) = (TaskSet::new(runtime), runtime.clone(), failed.clone());
    tasks.spawn("bus-attack-effect", async move {
        loop {
            clock.sleep(Duration::from_secs(1)).await;
            if let (Ok(all), Ok(stored)) = (attempts(&watched, "").await, attempts(&watched, "success").await) {
                seen.store(all.saturating_sub(stored + failed_before), Ordering::Relaxed);
            }
        }
    });
    let effect = move || {
        let failed = failed.load(Ordering::Relaxed);
        ensure!(failed > 0, "no callback to the topic failed, so the trial is invalid; choose a longer --duration");
        Ok(format!("bus: {COUNT} callbacks to a topic were due while the broker was away; {failed} attempts failed"))
    };
    let schedules = Some(AttackSchedules { tenant, ids, takes: TIMEOUT });
    Ok(Attack { schedules, ready_at: Some(ready_at), killed: Some(broker), ..Attack::new(tasks, effect) })
}

/// Returns the number of attempts to topics that had the given result, or any result if `result` is empty.
async fn attempts(head: &Head, result: &str) -> anyhow::Result<u64> {
    let metrics = Metrics::read(head).await?;
    let name = "reveille_callback_attempts_total";
    Ok(match result {
        "" => metrics.sum(name, "protocol=\"bus\""),
        result => metrics.one(&format!("{name}{{protocol=\"bus\",result=\"{result}\"}}")).unwrap_or(0),
    })
}
