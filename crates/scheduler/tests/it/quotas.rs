//! What tenants may use, and what of it others notice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::{AttemptResult, Audit, Quota, Quotas, Tenant, TenantId, Timestamp, When};
use scheduler::{Create, Options};

use crate::house::{Call, House, TENANT, ok, simulate, spec, tenant};

const OTHER: TenantId = TenantId(2);

impl House {
    /// Changes the first tenant as an admin would.
    async fn set(&self, version: u64, quotas: Quotas) -> Tenant {
        let mut changed = Tenant { version, quotas, ..tenant(TENANT) };
        changed.grow_pollers(4);
        let entry = Audit::of(&changed, self.runtime.now(), "test", "quotas.update", "");
        self.scheduler.tenants().put(changed.clone(), entry).await.unwrap().unwrap();
        changed
    }

    /// One-shots under made ids, one each `step`.
    async fn spread(&self, of: &Tenant, from: Timestamp, step: Duration, count: u32, url: &str) {
        let request = |n| {
            let spec = spec(When::At(from + step * n), url);
            Create { tenant: Arc::new(of.clone()), id: None, incarnation: None, spec }
        };
        let made = self.scheduler.create((0..count).map(request).collect()).await.unwrap();
        assert!(made.iter().all(Result::is_ok));
    }

    /// A number of /metrics.
    fn metric(&self, name: &str) -> u64 {
        let text = self.scheduler.metrics_text();
        let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        line.expect("it is there").rsplit(' ').next().unwrap().parse().unwrap()
    }
}

fn lateness(call: &Call) -> Duration {
    call.at.since(call.occurrence.nominal)
}

/// Each schedule was called once.
fn each_once(calls: &[Call], count: usize) {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for call in calls {
        *times.entry(&call.id).or_default() += 1;
    }
    assert_eq!((times.len(), times.values().max()), (count, Some(&1)), "lost or doubled");
}

/// In no minute more than came in it and a rest before gives.
fn within(calls: &[Call], per_minute: usize) {
    for (at, call) in calls.iter().enumerate() {
        let minute = calls[at..].iter().take_while(|later| later.at.since(call.at) < Duration::from_secs(60)).count();
        assert!(minute <= 2 * per_minute, "{minute} in a minute");
    }
}

#[test]
fn callbacks_above_the_quota_go_late_in_due_order_and_nobody_else_is_late() {
    simulate(async |runtime| {
        let house = House::open(runtime, Options::default(), ok).await;
        let busy = house.set(2, Quotas::NONE.with(Quota::CallbacksPerMinute, 600)).await;
        house.runtime.sleep(Duration::from_secs(1)).await;
        let start = house.in_ms(3_000);
        // Ten times its quota for a minute, of which a minute's worth goes at once.
        house.spread(&busy, start, Duration::from_millis(10), 6_000, "http://receiver.test/a").await;
        house.spread(&tenant(OTHER), start, Duration::from_millis(100), 3_000, "http://receiver.test/b").await;
        house.runtime.sleep(Duration::from_secs(60)).await;
        assert!(house.metric("reveille_window_keys") < 2_000, "what waits lies in the store");
        house.wait_for_calls(9_000).await;
        let calls = house.calls();
        each_once(&calls, 9_000);
        let is_busy = |call: &&Call| !call.occurrence.nominal.since(start).as_millis().is_multiple_of(100);
        let others: Vec<&Call> = calls.iter().filter(|call| !is_busy(call)).collect();
        assert!(others.len() >= 3_000);
        let mine: Vec<Call> = calls.iter().filter(is_busy).cloned().collect();
        within(&mine, 600);
        let last = mine.last().unwrap();
        assert!(lateness(last) > Duration::from_secs(400) && lateness(last) < Duration::from_secs(600), "{last:?}");
        // In due order, but for what several pollers bring at a time.
        let mut latest = Timestamp::MIN;
        for call in &mine {
            assert!(latest.since(call.occurrence.nominal) < Duration::from_secs(10), "{call:?} after {latest:?}");
            latest = latest.max(call.occurrence.nominal);
        }
        let throttled = house.metric("reveille_callbacks_throttled_total");
        assert!((4_500..6_000).contains(&throttled), "{throttled}");
        house.scheduler.stop().await;
    });
}

#[test]
fn others_are_on_time_beside_a_tenant_that_is_far_above_its_quota() {
    simulate(async |runtime| {
        let house = House::open(runtime, Options::default(), ok).await;
        let busy = house.set(2, Quotas::NONE.with(Quota::CallbacksPerMinute, 600)).await;
        house.runtime.sleep(Duration::from_secs(1)).await;
        let start = house.in_ms(3_000);
        house.spread(&busy, start, Duration::ZERO, 5_000, "http://receiver.test/a").await;
        let from = start + Duration::from_micros(500);
        house.spread(&tenant(OTHER), from, Duration::from_millis(20), 1_000, "http://receiver.test/b").await;
        house.runtime.sleep(Duration::from_secs(30)).await;
        let calls = house.calls();
        let late = calls.iter().filter(|call| call.occurrence.nominal > start).map(lateness).max().unwrap();
        assert!(late < Duration::from_millis(10), "{late:?}");
        house.scheduler.stop().await;
    });
}

#[test]
fn more_due_at_one_instant_than_the_window_holds_of_a_tenant_all_fire() {
    simulate(async |runtime| {
        let options = Options { window_keys_max: 4_096, ..Options::default() };
        let house = House::open(runtime, options, ok).await;
        let busy = house.set(2, Quotas::NONE.with(Quota::CallbacksPerMinute, 6_000)).await;
        house.runtime.sleep(Duration::from_secs(1)).await;
        let at = house.in_ms(3_000);
        house.spread(&busy, at, Duration::ZERO, 10_000, "http://receiver.test/a").await;
        house.spread(&tenant(OTHER), at, Duration::ZERO, 10_000, "http://receiver.test/a").await;
        house.wait_for_calls(20_000).await;
        let calls = house.calls();
        each_once(&calls, 20_000);
        assert!(calls[15_000].at.since(at) < Duration::from_secs(20), "{:?}", calls[15_000]);
        // Forty seconds by the rate, and what found no room in so small a window is put off by up to a minute.
        assert!(lateness(&calls[19_999]) < Duration::from_secs(100), "{:?}", calls[19_999]);
        house.scheduler.stop().await;
    });
}

#[test]
fn a_quota_changed_with_much_pending_loses_and_doubles_nothing() {
    simulate(async |runtime| {
        let house = House::open(runtime, Options::default(), ok).await;
        let mut pending = 0;
        let numbers = [600, 60_000, 0, 1_200, 6_000, 1_000_000];
        for (version, number) in (2..).zip(numbers) {
            let quotas = Quotas::NONE.with(Quota::CallbacksPerMinute, number);
            let before = tenant(TENANT);
            let changed = house.set(version, quotas).await;
            for of in [changed, before] {
                // Who has not heard of the change yet makes schedules of the old generation.
                let from = house.in_ms(500);
                house.spread(&of, from, Duration::from_millis(7), 500, "http://receiver.test/a").await;
                pending += 500;
            }
            house.runtime.sleep(Duration::from_secs(2)).await;
        }
        house.wait_for_calls(pending).await;
        house.runtime.sleep(Duration::from_secs(120)).await;
        each_once(&house.calls(), pending);
        house.scheduler.stop().await;
    });
}

#[test]
fn what_waits_for_its_rate_survives_a_crash() {
    simulate(async |runtime| {
        let house = House::open(runtime.clone(), Options::default(), ok).await;
        let busy = house.set(2, Quotas::NONE.with(Quota::CallbacksPerMinute, 600)).await;
        house.runtime.sleep(Duration::from_secs(1)).await;
        house.spread(&busy, house.in_ms(100), Duration::from_millis(1), 2_000, "http://receiver.test/a").await;
        house.runtime.sleep(Duration::from_secs(10)).await;
        let House { store, scheduler, calls, .. } = house;
        scheduler.stop().await;
        let mut calls = calls.lock().unwrap().clone();
        assert!((600..800).contains(&calls.len()), "{}", calls.len());
        let again = House::reopen(runtime, store, Options::default(), ok).await.unwrap();
        again.wait_for_calls(2_000 - calls.len()).await;
        again.runtime.sleep(Duration::from_secs(5)).await;
        calls.extend(again.calls());
        each_once(&calls, 2_000);
        again.scheduler.stop().await;
    });
}

#[test]
fn a_target_that_is_away_is_left_alone_and_what_was_due_goes_once_it_is_back() {
    simulate(async |runtime| {
        let is_away = Arc::new(AtomicBool::new(true));
        let away = is_away.clone();
        let house = House::open(runtime, Options::default(), move |_| {
            let is_away = away.load(Ordering::Relaxed);
            (Duration::from_millis(3), AttemptResult::Answered(if is_away { 503 } else { 200 }))
        })
        .await;
        let start = house.in_ms(1_000);
        house.spread(&tenant(TENANT), start, Duration::from_millis(10), 3_000, "http://receiver.test/a").await;
        house.runtime.sleep(Duration::from_secs(31)).await;
        let tried = house.calls().len();
        assert!(tried < 120, "{tried} attempts on a target that is away");
        assert_eq!(house.metric("reveille_open_circuits"), 1);
        is_away.store(false, Ordering::Relaxed);
        let back = house.runtime.now();
        house.runtime.sleep(Duration::from_secs(90)).await;
        let calls = house.calls();
        assert!(calls[tried].at.since(back) <= Duration::from_secs(16), "it is noticed");
        let mut made: BTreeMap<&str, (usize, bool)> = BTreeMap::new();
        for call in &calls {
            let (attempts, is_answered) = made.entry(&call.id).or_default();
            *attempts += 1;
            *is_answered |= call.at >= back;
        }
        assert_eq!(made.len(), 3_000);
        let given_up: Vec<&usize> = made.values().filter(|(_, answered)| !answered).map(|(count, _)| count).collect();
        assert!(given_up.len() < 40 && given_up.iter().all(|attempts| **attempts == 3), "{given_up:?}");
        assert_eq!(house.metric("reveille_open_circuits"), 0);
        house.scheduler.stop().await;
    });
}
