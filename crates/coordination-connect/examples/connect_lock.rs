//! Holds a lock on the engine that the URL names: ZooKeeper or PostgreSQL.
//!
//! ```sh
//! cargo run --example connect_lock -- zookeeper://127.0.0.1:2181 report.credentials
//! ```

#![expect(clippy::print_stdout, reason = "the example reports its progress")]

// [example]
use std::error::Error;

use reveille_coordination_connect::coordination::recipes::Lock;
use reveille_coordination_connect::{Access, connect};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(file)) = (arguments.next(), arguments.next()) else {
        return Err("pass a URL such as zookeeper://127.0.0.1:2181, and a file of `reveille credentials`".into());
    };
    // Only clients with the same credentials can access the nodes of the lock.
    let client = connect(&url, Access::from_file(file)?).await?;
    let lock = Lock::new(&client, "/locks/report".parse()?, client.default_acl());
    let held = lock.acquire().await?;
    println!("the lock is valid: {}", held.is_valid());
    held.release().await;
    Ok(client.close().await?)
}
// [end]
