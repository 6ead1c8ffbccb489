//! Prints an instant of the wall clock.

#![expect(clippy::print_stdout, reason = "the example prints its result")]

// [example]
use std::time::Duration;

use reveille_instants::Timestamp;

fn main() {
    let instant = Timestamp::from_millis(1_900_000_000_000);
    println!("{} is one minute after {instant}", instant + Duration::from_secs(60));
}
// [end]
