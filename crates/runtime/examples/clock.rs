//! Reads the clocks of the machine. A test can give the same code a runtime with simulated time.

#![expect(clippy::print_stdout, reason = "the example prints its result")]

// [example]
use std::time::Duration;

use reveille_runtime::Runtime;

/// Returns how long a sleep of 50 ms took.
async fn nap(runtime: &Runtime) -> Duration {
    let start = runtime.monotonic();
    runtime.sleep(Duration::from_millis(50)).await;
    runtime.monotonic().since(start)
}

#[tokio::main]
async fn main() {
    let runtime = Runtime::real();
    println!("{}: slept for {:?}", runtime.now(), nap(&runtime).await);
}
// [end]
