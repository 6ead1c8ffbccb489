use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use runtime::{TaskEnd, TaskSet};
use simulator::{EPOCH, Faults, Incident, Simulation};
use tokio::sync::{Notify, mpsc, oneshot};

const SECOND: Duration = Duration::from_secs(1);

fn panic_of(run: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(run)).expect_err("the closure panics");
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => (*payload.downcast::<&'static str>().expect("a panic has a message")).to_owned(),
    }
}

/// Runs ten tasks. Each task sends its number to a channel five times, after random delays. Returns the numbers in the
/// order in which the receiver got them.
fn busy(sim: &Simulation) -> Vec<u64> {
    let written = Arc::new(Mutex::new(Vec::new()));
    sim.run_until(async {
        let a = sim.member("a");
        let tasks = TaskSet::new(&a);
        let (sender, mut receiver) = mpsc::channel(4);
        for number in 0..10_u64 {
            let (a, sender) = (a.clone(), sender.clone());
            tasks.spawn("writer", async move {
                for _ in 0..5 {
                    a.sleep(Duration::from_micros(a.random() % 3)).await;
                    sender.send(number).await.unwrap();
                }
            });
        }
        drop(sender);
        let out = written.clone();
        tasks.spawn("reader", async move {
            while let Some(number) = receiver.recv().await {
                out.lock().unwrap().push(number);
            }
        });
        tasks.join().await;
    });
    let order = written.lock().unwrap().clone();
    assert_eq!(order.len(), 50);
    order
}

#[test]
fn seed_of_a_simulation_determines_its_trace() {
    let (first, again, other) = (Simulation::new(1), Simulation::new(1), Simulation::new(2));
    let orders = [busy(&first), busy(&again), busy(&other)];
    assert_eq!(orders[0], orders[1]);
    assert_eq!(first.trace_hash(), again.trace_hash());
    assert_ne!(orders[0], orders[2]);
    assert_ne!(first.trace_hash(), other.trace_hash());
}

#[test]
fn trace_hash_covers_notes_and_written_bytes() {
    let hash = |text: &'static str, bytes: &'static [u8]| {
        let sim = Simulation::new(1);
        sim.run_until(async {
            let file = crate::durable_file(&sim.member("a"), "/log").await;
            file.write_at(0, bytes).await.unwrap();
        });
        sim.note(text);
        sim.trace_hash()
    };
    assert_eq!(hash("note", b"bytes"), hash("note", b"bytes"));
    assert_ne!(hash("note", b"bytes"), hash("note", b"other"));
    assert_ne!(hash("note", b"bytes"), hash("mark", b"bytes"));
}

#[test]
fn sleep_takes_at_least_its_duration_in_simulated_time() {
    let sim = Simulation::new(0);
    sim.set_faults(Faults { timer_late_max: Duration::from_millis(3), ..Faults::default() });
    sim.run_until(async {
        let a = sim.member("a");
        for millis in [0, 1, 1_000, 3_600_000] {
            let (wanted, before) = (Duration::from_millis(millis), a.monotonic());
            a.sleep(wanted).await;
            let slept = a.monotonic().since(before);
            assert!(slept >= wanted && slept <= wanted + Duration::from_millis(3), "{slept:?} for {wanted:?}");
        }
    });
}

#[test]
fn clock_jump_affects_only_its_own_member() {
    let sim = Simulation::new(0);
    let (a, b) = (sim.member("a"), sim.member("b"));
    sim.run_for(SECOND);
    let monotonic = a.monotonic();
    sim.jump_clock("a", 3_600_000);
    assert_eq!(a.now(), EPOCH + Duration::from_secs(3_601));
    sim.jump_clock("a", -7_200_000);
    assert_eq!(a.now(), EPOCH + SECOND - Duration::from_secs(3_600));
    assert_eq!(b.now(), EPOCH + SECOND);
    assert_eq!(a.monotonic(), monotonic);
}

#[test]
fn scenario_sets_the_wall_clock_at_the_start() {
    let sim = Simulation::new(0);
    let start = EPOCH + Duration::from_secs(86_400);
    sim.start_at(start);
    let a = sim.member("a");
    sim.run_for(SECOND);
    assert_eq!((a.now(), sim.outside().now(), sim.epoch()), (start + SECOND, start + SECOND, start));
}

#[test]
fn crash_of_a_member_drops_only_its_own_tasks() {
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let sim = Simulation::new(0);
    let dropped = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let ends = [sim.member("a"), sim.member("b")].map(|member| {
        let flag = Flag(dropped[usize::from(member.now() != EPOCH)].clone());
        member.spawn("waits", async move {
            let _kept = flag;
            std::future::pending().await
        })
    });
    let [a, b] = ends;
    sim.run_until(async {
        sim.sleep(SECOND).await;
        assert!(!dropped[0].load(Ordering::Relaxed));
        sim.crash("a");
        assert_eq!(a.end.await, TaskEnd::Aborted);
        assert!(!sim.is_up("a") && sim.is_up("b"));
    });
    drop(b);
    assert_eq!(sim.incidents().count(Incident::Crash), 1);
}

#[test]
fn task_that_crashes_its_own_member_stops_at_its_next_await() {
    let sim = Simulation::new(0);
    let steps = Arc::new(AtomicU64::new(0));
    let (control, a, counted) = (sim.clone(), sim.member("a"), steps.clone());
    let task = sim.member("a").spawn("crashes", async move {
        counted.fetch_add(1, Ordering::Relaxed);
        control.crash("a");
        a.sleep(SECOND).await;
        counted.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(sim.run_until(task.end), TaskEnd::Aborted);
    sim.run_for(SECOND * 5);
    assert_eq!(steps.load(Ordering::Relaxed), 1);
}

#[test]
fn abort_drops_task_unless_the_task_has_its_own_thread() {
    let sim = Simulation::new(0);
    sim.run_until(async {
        let a = sim.member("a");
        let task = a.spawn("aborted", std::future::pending());
        (task.abort)();
        assert_eq!(task.end.await, TaskEnd::Aborted);

        let (tasks, (done, ended)) = (TaskSet::new(&a), oneshot::channel());
        let thread = a.clone();
        tasks.spawn_thread("thread", async move {
            thread.sleep(SECOND).await;
            done.send(()).unwrap();
        });
        tasks.spawn("shared", async move {
            let _dropped = std::future::pending::<()>().await;
        });
        drop(tasks);
        ended.await.expect("a thread ends by itself");
    });
}

#[test]
fn halt_ends_the_member_and_records_the_reason() {
    let sim = Simulation::new(0);
    let a = sim.member("a");
    a.clone().spawn("halts", async move { a.halt("the disk lies").await });
    sim.run_until(sim.down("a"));
    assert_eq!(sim.halts("a"), ["the disk lies"]);
    let again = sim.restart("a");
    let response = sim.run_until(sim.call("a", async move { again.sleep(SECOND).await }));
    assert_eq!(response, Some(()));
}

#[test]
fn tasks_and_timers_from_before_a_member_restart_have_no_effect() {
    let sim = Simulation::new(0);
    let old = sim.member("a");
    sim.crash("a");
    let new = sim.restart("a");
    let ran = Arc::new(AtomicBool::new(false));
    let flag = ran.clone();
    let ghost = old.spawn("ghost", async move { flag.store(true, Ordering::Relaxed) });
    assert_eq!(sim.run_until(ghost.end), TaskEnd::Aborted);
    assert!(!ran.load(Ordering::Relaxed));
    let sleeps = sim.run_until(async { sim.outside().timeout(SECOND * 9, old.sleep(SECOND)).await });
    assert_eq!(sleeps, None, "a timer of an earlier start never fires");
    assert!(sim.run_until(async { sim.outside().timeout(SECOND * 9, new.sleep(SECOND)).await }).is_some());
}

#[test]
fn paused_member_runs_no_task_while_time_advances() {
    let sim = Simulation::new(3);
    let beats = Arc::new(AtomicU64::new(0));
    let (a, counted) = (sim.member("a"), beats.clone());
    sim.member("a").spawn("beats", async move {
        loop {
            a.sleep(SECOND).await;
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    sim.run_for(SECOND * 5 + SECOND / 2);
    assert_eq!(beats.load(Ordering::Relaxed), 5);
    sim.pause("a", SECOND * 10);
    sim.pause("a", SECOND * 20);
    sim.run_for(SECOND * 19);
    assert_eq!(beats.load(Ordering::Relaxed), 5);
    sim.run_for(SECOND * 2);
    assert_eq!(beats.load(Ordering::Relaxed), 6, "the overdue timer fires at once and the next one a second later");
}

#[test]
fn restart_of_a_crashed_member_ends_its_earlier_pause() {
    let sim = Simulation::new(3);
    let _a = sim.member("a");
    sim.pause("a", SECOND * 3_600);
    sim.run_for(SECOND);
    sim.crash("a");
    let down_for_ever = SECOND..=Duration::MAX;
    assert_eq!(sim.interruptions("a"), [Duration::ZERO..=SECOND, down_for_ever]);
    sim.run_for(SECOND);
    let a = sim.restart("a");
    assert_eq!(sim.interruptions("a"), [Duration::ZERO..=SECOND, SECOND..=SECOND * 2]);
    let task = sim.call("a", async move { a.sleep(SECOND).await });
    assert_eq!(sim.run_until(sim.outside().timeout(SECOND * 2, task)), Some(Some(())));
}

#[test]
fn call_returns_none_if_the_called_member_goes_down() {
    let sim = Simulation::new(0);
    sim.run_until(async {
        let a = sim.member("a");
        let response = sim.call("a", async move {
            a.sleep(SECOND).await;
            1
        });
        let crash = async {
            sim.sleep(SECOND / 2).await;
            sim.kill("a");
        };
        assert_eq!(futures_util::join!(response, crash).0, None);
        assert_eq!(sim.call("a", async { 2 }).await, None);
        let _up = sim.restart("a");
        assert_eq!(sim.call("a", async { 3 }).await, Some(3));
    });
}

#[test]
fn deadlock_message_names_the_waiting_tasks() {
    let sim = Simulation::new(0);
    let (_kept, never) = oneshot::channel::<()>();
    sim.member("a").spawn("stuck-task", async move {
        let _closed = never.await;
    });
    let message = panic_of(|| sim.run_until(std::future::pending()));
    assert!(message.starts_with("deadlock") && message.contains("a/stuck-task#"), "{message}");
}

#[test]
fn run_fails_if_a_task_wakes_itself_endlessly() {
    let sim = Simulation::new(0);
    sim.member("a").spawn("spinner", async {
        let again = Notify::new();
        loop {
            again.notify_one();
            again.notified().await;
            futures_util::future::poll_fn(|context| {
                context.waker().wake_by_ref();
                if std::hint::black_box(true) { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
            })
            .await;
        }
    });
    let message = panic_of(|| sim.run_for(SECOND));
    assert!(message.contains("time does not advance") && message.contains("a/spinner"), "{message}");
}

#[test]
fn run_fails_if_a_task_waits_endlessly_for_past_instants() {
    let sim = Simulation::new(0);
    let a = sim.member("a");
    sim.member("a").spawn("spinner", async move {
        loop {
            a.sleep_until(a.monotonic()).await;
        }
    });
    let message = panic_of(|| sim.run_for(SECOND));
    assert!(message.contains("time does not advance"), "{message}");
}

#[test]
fn run_fails_if_it_exceeds_its_time_limit() {
    let sim = Simulation::new(0);
    sim.set_time_limit(SECOND * 60);
    let message = panic_of(|| sim.run_for(SECOND * 61));
    assert!(message.contains("exceeded 60s"), "{message}");
}

#[test]
fn run_fails_if_a_loop_that_advances_time_exceeds_the_poll_limit() {
    let sim = Simulation::new(0);
    sim.set_poll_limit(10_000);
    let a = sim.member("a");
    sim.member("a").spawn("retries", async move {
        loop {
            a.sleep(Duration::from_nanos(1)).await;
        }
    });
    let message = panic_of(|| sim.run_for(SECOND));
    assert!(message.contains("exceeded 10000 polls") && message.contains("a/retries "), "{message}");
}

#[test]
fn task_panic_fails_the_run_unless_the_panic_is_tolerated() {
    let sim = Simulation::new(0);
    let bad = |sim: &Simulation| sim.member("a").spawn("bad", async { panic!("{} is broken", "it") });
    let task = bad(&sim);
    assert_eq!(panic_of(|| sim.run_for(SECOND)), "it is broken");
    assert_eq!(sim.run_until(task.end), TaskEnd::Panicked);
    sim.tolerate_panics();
    assert_eq!(sim.run_until(bad(&sim).end), TaskEnd::Panicked);
    assert_eq!(sim.panics(), ["a: task bad panicked: it is broken"; 2]);
}

#[test]
fn message_of_a_timed_out_wait_names_the_awaited_condition() {
    let sim = Simulation::new(0);
    let message = panic_of(|| sim.run_until(sim.wait_until("the tide", SECOND, || false)));
    assert_eq!(message, "timed out after 1s waiting for the tide");
}

#[test]
fn slow_polls_of_a_task_advance_the_simulated_time() {
    let sim = Simulation::new(0);
    sim.set_faults(Faults { poll_time_max: Duration::from_millis(2), ..Faults::default() });
    let (a, spins) = (sim.member("a"), Arc::new(AtomicU64::new(0)));
    let counted = spins.clone();
    sim.member("a").spawn("spins", async move {
        loop {
            counted.fetch_add(1, Ordering::Relaxed);
            let mut yielded = false;
            futures_util::future::poll_fn(|context| {
                context.waker().wake_by_ref();
                if std::mem::replace(&mut yielded, true) {
                    std::task::Poll::Ready(())
                } else {
                    std::task::Poll::Pending
                }
            })
            .await;
        }
    });
    sim.run_until(async { a.sleep(SECOND).await });
    assert!((500..3_000).contains(&spins.load(Ordering::Relaxed)));
}
