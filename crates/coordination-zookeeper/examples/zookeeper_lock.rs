//! Acquires and releases a lock of a coordination tree in ZooKeeper.
//!
//! ```sh
//! cargo run --example zookeeper_lock -- zookeeper://127.0.0.1:2181
//! ```

#![expect(clippy::print_stdout, reason = "the example reports its progress")]

// [example]
use std::error::Error;
use std::sync::Arc;

use reveille_coordination_zookeeper::coordination::recipes::{Client, Lock};
use reveille_coordination_zookeeper::coordination::runtime::Runtime;
use reveille_coordination_zookeeper::coordination::tree::{Acl, NodePath, SessionOptions};
use reveille_coordination_zookeeper::{ZookeeperTrees, ZookeeperUrl};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("missing argument: pass a URL such as zookeeper://127.0.0.1:2181")?;
    let runtime = Runtime::real();
    let trees = Arc::new(ZookeeperTrees::new(runtime.clone(), ZookeeperUrl::parse(&url)?));
    let client = Client::new(&runtime, trees, SessionOptions::default());
    let lock = Lock::new(&client, NodePath::new("/locks/report")?, Acl::Open);
    let held = lock.acquire().await?;
    println!("the lock is valid: {}", held.is_valid());
    held.release().await;
    Ok(())
}
// [end]
