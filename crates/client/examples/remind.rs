//! Creates a reminder that is due in ten minutes, reads it and cancels it. Before you run the example, start a server
//! with `reveille serve`.
//!
//! ```sh
//! REVEILLE_KEY=$(cat data/admin.key) cargo run --example remind
//! ```

#![expect(clippy::print_stdout, reason = "the example reports its progress")]
#![expect(clippy::disallowed_methods, reason = "the example reads its settings from environment variables")]

// [example]
use std::error::Error;
use std::time::{Duration, SystemTime};

use reveille_client::{Client, Options, ScheduleRequest, Time};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REVEILLE_URL").unwrap_or_else(|_| "http://127.0.0.1:8080".to_owned());
    let client = Client::new(&url, &std::env::var("REVEILLE_KEY")?, Options::default())?;
    let at = Time::from(SystemTime::now()) + Duration::from_secs(600);
    let reminder = ScheduleRequest::at(at, "https://shop.example/remind")
        .payload(&serde_json::json!({ "order": 17 }))?
        .retry(5, Duration::from_secs(1));
    let created = client.create(&reminder).await?;
    println!("created {}", created.id);
    println!("it fires at {}", client.get(&created.id).await?.next.ok_or("the schedule has ended")?);
    println!("{:?}", client.cancel(&created.id).await?.result);
    Ok(())
}
// [end]
