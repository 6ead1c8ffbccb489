//! Tests of the quotas of tenants, and of their effect on other tenants.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::{AttemptResult, Audit, Quota, Quotas, Tenant, TenantId, Timestamp, When};
use scheduler::{Create, Options};

use crate::harness::{Call, Harness, TENANT, ok, simulate, spec, tenant};

const OTHER: TenantId = TenantId(2);

impl Harness {
    /// Changes the quotas of the first tenant, as its admin does.
    pub(crate) async fn set_quotas(&self, version: u64, quotas: Quotas) -> Tenant {
        let mut changed = Tenant { version, quotas, ..tenant(TENANT) };
        changed.grow_pollers(4);
        let entry = Audit::of(&changed, self.runtime.now(), "test", "quotas.update", "");
        self.scheduler.tenants().put(changed.clone(), entry).await.unwrap().unwrap();
        changed
    }

    /// Creates `count` one-shot schedules with generated ids. One schedule is due per `step`.
    async fn create_spread(&self, of: &Tenant, from: Timestamp, step: Duration, count: u32, url: &str) {
        let request = |n| {
            let spec = spec(When::At(from + step * n), url);
            Create { tenant: Arc::new(of.clone()), id: None, incarnation: None, spec, by: None }
        };
        let created = self.scheduler.create((0..count).map(request).collect()).await.unwrap();
        assert!(created.iter().all(Result::is_ok));
    }

    /// Returns the current value of the metric `name`.
    fn metric(&self, name: &str) -> u64 {
        let text = self.scheduler.metrics_text();
        let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        line.expect("the metric exists").rsplit(' ').next().unwrap().parse().unwrap()
    }
}

fn lateness(call: &Call) -> Duration {
    call.at.since(call.occurrence.nominal)
}

/// Asserts that the receiver got exactly one call for each of `count` schedules.
fn assert_each_called_once(calls: &[Call], count: usize) {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for call in calls {
        *times.entry(&call.id).or_default() += 1;
    }
    assert_eq!((times.len(), times.values().max()), (count, Some(&1)), "lost or duplicate calls");
}

/// Asserts that the number of calls in every minute is at most twice the rate. In one minute, a tenant can use the
/// tokens of that minute and the tokens that its bucket collected before that minute.
fn assert_rate(calls: &[Call], per_minute: usize) {
    for (at, call) in calls.iter().enumerate() {
        let minute = calls[at..].iter().take_while(|later| later.at.since(call.at) < Duration::from_secs(60)).count();
        assert!(minute <= 2 * per_minute, "{minute} calls in a minute");
    }
}

#[test]
fn tenant_above_its_rate_quota_gets_late_callbacks_but_loses_none() {
    simulate(async |runtime| {
        let harness = Harness::open(runtime, Options::default(), ok).await;
        let busy = harness.set_quotas(2, Quotas::NONE.with(Quota::CallbacksPerMinute, 600)).await;
        harness.runtime.sleep(Duration::from_secs(1)).await;
        let start = harness.in_ms(3_000);
        // In one minute, ten times as many schedules are due as the quota permits. At the start, the tenant's bucket
        // contains the tokens of one minute.
        harness.create_spread(&busy, start, Duration::from_millis(10), 6_000, "http://receiver.test/a").await;
        harness.create_spread(&tenant(OTHER), start, Duration::from_millis(100), 3_000, "http://receiver.test/b").await;
        harness.runtime.sleep(Duration::from_secs(60)).await;
        assert!(harness.metric("reveille_window_keys") < 2_000, "waiting rows stay in the store");
        harness.wait_for_calls(9_000).await;
        let calls = harness.calls();
        assert_each_called_once(&calls, 9_000);
        let is_busy = |call: &&Call| !call.occurrence.nominal.since(start).as_millis().is_multiple_of(100);
        let others: Vec<&Call> = calls.iter().filter(|call| !is_busy(call)).collect();
        assert!(others.len() >= 3_000);
        let mine: Vec<Call> = calls.iter().filter(is_busy).cloned().collect();
        assert_rate(&mine, 600);
        let last = mine.last().unwrap();
        assert!(lateness(last) > Duration::from_secs(400) && lateness(last) < Duration::from_secs(600), "{last:?}");
        // The calls of one poller are in the order of their due instants. Calls of different pollers may be out of
        // order by at most 10 s.
        let mut latest = Timestamp::MIN;
        for call in &mine {
            assert!(latest.since(call.occurrence.nominal) < Duration::from_secs(10), "{call:?} after {latest:?}");
            latest = latest.max(call.occurrence.nominal);
        }
        let throttled = harness.metric("reveille_callbacks_throttled_total");
        assert!((4_500..6_000).contains(&throttled), "{throttled}");
        harness.scheduler.stop().await;
    });
}

#[test]
fn tenant_far_above_its_rate_quota_does_not_delay_other_tenants() {
    simulate(async |runtime| {
        let harness = Harness::open(runtime, Options::default(), ok).await;
        let busy = harness.set_quotas(2, Quotas::NONE.with(Quota::CallbacksPerMinute, 600)).await;
        harness.runtime.sleep(Duration::from_secs(1)).await;
        let start = harness.in_ms(3_000);
        harness.create_spread(&busy, start, Duration::ZERO, 5_000, "http://receiver.test/a").await;
        let from = start + Duration::from_micros(500);
        harness.create_spread(&tenant(OTHER), from, Duration::from_millis(20), 1_000, "http://receiver.test/b").await;
        harness.runtime.sleep(Duration::from_secs(30)).await;
        let calls = harness.calls();
        let late = calls.iter().filter(|call| call.occurrence.nominal > start).map(lateness).max().unwrap();
        assert!(late < Duration::from_millis(10), "{late:?}");
        harness.scheduler.stop().await;
    });
}

#[test]
fn all_due_rows_fire_even_if_their_number_exceeds_the_window_size() {
    simulate(async |runtime| {
        let options = Options { window_keys_max: 4_096, ..Options::default() };
        let harness = Harness::open(runtime, options, ok).await;
        let busy = harness.set_quotas(2, Quotas::NONE.with(Quota::CallbacksPerMinute, 6_000)).await;
        harness.runtime.sleep(Duration::from_secs(1)).await;
        let at = harness.in_ms(3_000);
        harness.create_spread(&busy, at, Duration::ZERO, 10_000, "http://receiver.test/a").await;
        harness.create_spread(&tenant(OTHER), at, Duration::ZERO, 10_000, "http://receiver.test/a").await;
        harness.wait_for_calls(20_000).await;
        let calls = harness.calls();
        assert_each_called_once(&calls, 20_000);
        assert!(calls[15_000].at.since(at) < Duration::from_secs(20), "{:?}", calls[15_000]);
        // The tenant's bucket permits 6,000 callbacks at once, and the other 4,000 callbacks take forty seconds. If
        // this small window has no capacity for a row, the owner defers the row by up to a minute.
        assert!(lateness(&calls[19_999]) < Duration::from_secs(100), "{:?}", calls[19_999]);
        harness.scheduler.stop().await;
    });
}

#[test]
fn quota_change_neither_loses_nor_repeats_runs_of_pending_rows() {
    simulate(async |runtime| {
        let harness = Harness::open(runtime, Options::default(), ok).await;
        let mut pending = 0;
        let numbers = [600, 60_000, 0, 1_200, 6_000, 1_000_000];
        for (version, number) in (2..).zip(numbers) {
            let quotas = Quotas::NONE.with(Quota::CallbacksPerMinute, number);
            let before = tenant(TENANT);
            let changed = harness.set_quotas(version, quotas).await;
            for of in [changed, before] {
                // A member creates schedules in pollers of the old generation until it knows the new quotas.
                let from = harness.in_ms(500);
                harness.create_spread(&of, from, Duration::from_millis(7), 500, "http://receiver.test/a").await;
                pending += 500;
            }
            harness.runtime.sleep(Duration::from_secs(2)).await;
        }
        harness.wait_for_calls(pending).await;
        harness.runtime.sleep(Duration::from_secs(120)).await;
        assert_each_called_once(&harness.calls(), pending);
        harness.scheduler.stop().await;
    });
}

#[test]
fn rows_delayed_by_a_rate_quota_fire_after_a_restart() {
    simulate(async |runtime| {
        let harness = Harness::open(runtime.clone(), Options::default(), ok).await;
        let busy = harness.set_quotas(2, Quotas::NONE.with(Quota::CallbacksPerMinute, 600)).await;
        harness.runtime.sleep(Duration::from_secs(1)).await;
        harness
            .create_spread(&busy, harness.in_ms(100), Duration::from_millis(1), 2_000, "http://receiver.test/a")
            .await;
        harness.runtime.sleep(Duration::from_secs(10)).await;
        let Harness { store, scheduler, calls, .. } = harness;
        scheduler.stop().await;
        let mut calls = calls.lock().unwrap().clone();
        assert!((600..800).contains(&calls.len()), "{}", calls.len());
        let again = Harness::reopen(runtime, store, Options::default(), ok).await.unwrap();
        again.wait_for_calls(2_000 - calls.len()).await;
        again.runtime.sleep(Duration::from_secs(5)).await;
        calls.extend(again.calls());
        assert_each_called_once(&calls, 2_000);
        again.scheduler.stop().await;
    });
}

#[test]
fn unavailable_target_gets_only_probes_until_it_recovers() {
    simulate(async |runtime| {
        let is_unavailable = Arc::new(AtomicBool::new(true));
        let flag = is_unavailable.clone();
        let harness = Harness::open(runtime, Options::default(), move |_| {
            let is_unavailable = flag.load(Ordering::Relaxed);
            (Duration::from_millis(3), AttemptResult::Answered(if is_unavailable { 503 } else { 200 }))
        })
        .await;
        let start = harness.in_ms(1_000);
        harness.create_spread(&tenant(TENANT), start, Duration::from_millis(10), 3_000, "http://receiver.test/a").await;
        harness.runtime.sleep(Duration::from_secs(31)).await;
        let tried = harness.calls().len();
        assert!(tried < 120, "{tried} attempts on an unavailable target");
        assert_eq!(harness.metric("reveille_open_circuits"), 1);
        is_unavailable.store(false, Ordering::Relaxed);
        let back = harness.runtime.now();
        harness.runtime.sleep(Duration::from_secs(90)).await;
        let calls = harness.calls();
        assert!(calls[tried].at.since(back) <= Duration::from_secs(16), "a probe finds the target within 16 s");
        let mut created: BTreeMap<&str, (usize, bool)> = BTreeMap::new();
        for call in &calls {
            let (attempts, is_answered) = created.entry(&call.id).or_default();
            *attempts += 1;
            *is_answered |= call.at >= back;
        }
        assert_eq!(created.len(), 3_000);
        let failed: Vec<&usize> = created.values().filter(|(_, answered)| !answered).map(|(count, _)| count).collect();
        assert!(failed.len() < 40 && failed.iter().all(|attempts| **attempts == 3), "{failed:?}");
        assert_eq!(harness.metric("reveille_open_circuits"), 0);
        harness.scheduler.stop().await;
    });
}
