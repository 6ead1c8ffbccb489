//! Tests of a server whose clock is ahead until an operator corrects it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use domain::Timestamp;
use server::Options;
use tokio::sync::mpsc;

use crate::set_clock::{Report, with_clock};
use crate::support::World;

/// Number of schedules that the test creates before and after the correction of the clock.
const COUNT: usize = 20;
/// Time within which every schedule must fire after its instant.
const LATE_MAX: Duration = Duration::from_secs(10);

/// Creates schedules that are due in a second by the server's clock.
async fn create(world: &World, prefix: &str) -> BTreeSet<(String, Timestamp)> {
    let at = world.runtime.now() + Duration::from_secs(1);
    let mut created = BTreeSet::new();
    for number in 0..COUNT {
        let id = format!("{prefix}-{number}");
        let target = serde_json::json!({ "http": { "url": "http://127.0.0.1:9/hook" } });
        let body = serde_json::json!({ "id": id, "at": at.to_string(), "target": target });
        let response = world.send("POST", "/v1/schedules", &body.to_string()).await;
        assert_eq!(response.status, 201, "{}", response.body);
        created.insert((id, at));
    }
    created
}

#[tokio::test]
async fn schedules_fire_on_time_after_a_fast_clock_is_corrected() {
    let ahead_secs = Arc::new(AtomicU64::new(3_600));
    let reading = ahead_secs.clone();
    let runtime = with_clock(move |real| real + Duration::from_secs(reading.load(Ordering::SeqCst)));
    let (sender, mut callbacks) = mpsc::unbounded_channel();
    let world = World::start_on(runtime, Arc::new(Report(sender)), Options::default()).await;
    for prefix in ["fast", "correct"] {
        let expected = create(&world, prefix).await;
        let mut fired = BTreeSet::new();
        while fired != expected {
            let callback = world.runtime.timeout(LATE_MAX, callbacks.recv()).await;
            let callback = callback.unwrap_or_else(|| panic!("{} of {COUNT} schedules fired", fired.len()));
            assert!(fired.insert(callback.expect("the target is connected")), "a schedule fires once");
        }
        ahead_secs.store(0, Ordering::SeqCst);
    }
    world.stop().await;
}
