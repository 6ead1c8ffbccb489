//! Prints the body of a request that creates a schedule, for a program with its own HTTP client.

#![expect(clippy::print_stdout, reason = "the example prints the request's body")]

// [example]
use std::time::Duration;

use reveille_api::ScheduleRequest;

fn main() -> Result<(), serde_json::Error> {
    let request = ScheduleRequest::every(Duration::from_secs(3_600), "https://shop.example/reconcile")
        .label("team", "billing")
        .retry(5, Duration::from_secs(1));
    println!("{}", serde_json::to_string_pretty(&request)?);
    Ok(())
}
// [end]
