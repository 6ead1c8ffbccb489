//! Holds a lock on the engine that the URL names: ZooKeeper or PostgreSQL.
//!
//! ```sh
//! cargo run --example connect_lock -- zookeeper://127.0.0.1:2181
//! ```

#![expect(clippy::print_stdout, reason = "the example reports its progress")]

// [example]
use std::error::Error;

use reveille_coordination_connect::coordination::recipes::{Client, Lock};
use reveille_coordination_connect::coordination::runtime::Runtime;
use reveille_coordination_connect::coordination::tree::{Acl, NodePath, SessionOptions};
use reveille_coordination_connect::{migrate, trees};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("missing argument: pass a URL such as zookeeper://127.0.0.1:2181")?;
    let runtime = Runtime::real();
    migrate(&runtime, &url, None).await?;
    let trees = trees(&runtime, &url, None).await?;
    let client = Client::new(&runtime, trees, SessionOptions::default());
    let lock = Lock::new(&client, NodePath::new("/locks/report")?, Acl::Open);
    let held = lock.acquire().await?;
    println!("the lock is valid: {}", held.is_valid());
    held.release().await;
    Ok(())
}
// [end]
