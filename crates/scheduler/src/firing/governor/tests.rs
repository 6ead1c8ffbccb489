use std::sync::atomic::AtomicUsize;
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;

use super::*;

fn ready(governor: &Governor) -> usize {
    governor.ready.load(Ordering::SeqCst)
}

#[test]
fn owner_starts_keys_again_when_half_of_the_limit_is_free() {
    let governor = Arc::new(Governor::new(8));
    let mut started: Vec<Ready> = (0..8)
        .map(|_| {
            assert!(governor.admits(0));
            governor.count(1)
        })
        .collect();
    assert!(!governor.admits(0));
    for _ in 0..3 {
        started.pop();
        assert!(governor.has_room().now_or_never().is_none(), "more than half of the limit is in use");
    }
    started.pop();
    assert!(governor.has_room().now_or_never().is_some());
    assert!(governor.admits(3));
    assert!(!governor.admits(4), "keys that the owner has selected count too");
}

#[test]
fn owner_that_does_not_wait_receives_no_notification() {
    let governor = Arc::new(Governor::new(8));
    drop(governor.count(8));
    assert!(governor.has_room().now_or_never().is_none());
}

#[test]
fn attempt_counts_while_it_waits_for_a_poll() {
    let governor = Arc::new(Governor::new(8));
    let (respond, response) = oneshot::channel::<()>();
    let during_poll: Arc<AtomicUsize> = Arc::default();
    let (seen, seen_by) = (during_poll.clone(), governor.clone());
    let attempts = async move {
        seen.store(ready(&seen_by), Ordering::SeqCst);
        drop(response.await);
    };
    let mut task = Box::pin(governed(governor.clone(), governor.count(5), attempts));
    assert_eq!(ready(&governor), 5, "the attempts wait for their first poll");
    let context = &mut Context::from_waker(Waker::noop());
    assert!(task.poll_unpin(context).is_pending());
    assert_eq!((during_poll.load(Ordering::SeqCst), ready(&governor)), (5, 0));
    respond.send(()).unwrap();
    assert_eq!(ready(&governor), 1, "the response waits for a processor");
    assert!(task.poll_unpin(context).is_ready());
    assert_eq!(ready(&governor), 0);
}

#[test]
fn task_that_ends_while_it_is_ready_does_not_count_any_longer() {
    let governor = Arc::new(Governor::new(8));
    let (respond, response) = oneshot::channel::<()>();
    let mut task = Box::pin(governed(governor.clone(), governor.count(1), response.map(drop)));
    assert!(task.poll_unpin(&mut Context::from_waker(Waker::noop())).is_pending());
    respond.send(()).unwrap();
    assert_eq!(ready(&governor), 1);
    drop(task);
    assert_eq!(ready(&governor), 0);
}

#[test]
fn late_wake_of_an_ended_task_does_not_count() {
    let governor = Arc::new(Governor::new(8));
    let wakers: Arc<std::sync::Mutex<Vec<Waker>>> = Arc::default();
    let kept = wakers.clone();
    let attempts = futures_util::future::poll_fn(move |context| {
        kept.lock().unwrap().push(context.waker().clone());
        std::task::Poll::Ready(())
    });
    let task = governed(governor.clone(), governor.count(1), attempts);
    assert!(task.now_or_never().is_some());
    wakers.lock().unwrap().iter().for_each(Waker::wake_by_ref);
    assert_eq!(ready(&governor), 0);
}

/// Model of an executor with one thread, which runs tasks in the order in which they become ready, and of an owner that
/// starts due keys of two tenants. The demand of the tenants exceeds the processor.
mod model {
    use std::collections::{BTreeMap, VecDeque};

    use domain::{TargetKey, TenantId, Timestamp};
    use runtime::Monotonic;

    use super::*;
    use crate::firing::dispatch::{Dispatch, Now, TargetHealth};
    use crate::options::Options;

    /// Tenants with the time between two due keys and the processor time of an attempt, in microseconds.
    const QUIET: (TenantId, u64, u64) = (TenantId(1), 500, 100);
    const BUSY: (TenantId, u64, u64) = (TenantId(2), 250, 400);
    /// Parts of an attempt that the executor runs as separate tasks, one after the other.
    const PARTS: u64 = 2;

    struct Part {
        entry: u32,
        left: u64,
        _ready: Ready,
    }

    /// Returns the longest time from the due instant of a quiet tenant's key to the end of its attempt.
    fn longest_wait(limit: usize) -> Duration {
        let governor = Arc::new(Governor::new(limit));
        let mut dispatch = Dispatch::new(&Options::default());
        let (mut micros, mut longest) = (0, 0);
        let mut next_due = [(QUIET, 0), (BUSY, 0)];
        let mut keys: BTreeMap<u32, ((TenantId, u64, u64), u64)> = BTreeMap::new();
        let mut executor: VecDeque<Part> = VecDeque::new();
        while micros < 3_000_000 {
            let since_start = Duration::from_micros(micros);
            let wall = Timestamp::from_millis(i64::try_from(since_start.as_millis()).unwrap());
            let now = Now { wall, monotonic: Monotonic::from_start(Duration::from_secs(1_000) + since_start) };
            for (tenant, due) in &mut next_due {
                while *due <= micros {
                    let entry = u32::try_from(keys.len()).unwrap();
                    assert!(dispatch.push((tenant.0, TargetKey(entry % 64)), entry, wall));
                    keys.insert(entry, (*tenant, *due));
                    *due += tenant.1;
                }
            }
            while (!dispatch.is_shared(now.monotonic) || governor.admits(0))
                && let Some(entry) = dispatch.pop(now)
            {
                executor.push_back(Part { entry, left: PARTS, _ready: governor.count(1) });
            }
            let Some(part) = executor.pop_front() else {
                micros += 50;
                continue;
            };
            let ((tenant, _, cost), due) = keys[&part.entry];
            micros += cost / PARTS;
            if part.left > 1 {
                executor.push_back(Part { left: part.left - 1, ..part });
                continue;
            }
            if tenant == QUIET.0 {
                longest = longest.max(micros - due);
            }
            dispatch.record_cost(tenant, Duration::from_micros(cost));
            dispatch.ended((tenant, TargetKey(part.entry % 64)), now, Some(TargetHealth::Available));
            dispatch.resolved(tenant);
        }
        Duration::from_micros(longest)
    }

    #[test]
    fn quiet_tenant_waits_for_few_attempts_of_a_busy_tenant() {
        let longest = longest_wait(32);
        assert!(longest < Duration::from_millis(20), "{longest:?}");
    }

    #[test]
    fn without_a_limit_a_quiet_tenant_waits_for_all_attempts() {
        let longest = longest_wait(usize::MAX);
        assert!(longest > Duration::from_millis(200), "{longest:?}; the model does not saturate the processor");
    }
}
