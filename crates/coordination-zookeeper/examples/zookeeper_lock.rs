//! Acquires and releases a lock of a coordination tree in ZooKeeper.
//!
//! ```sh
//! cargo run --example zookeeper_lock -- zookeeper://127.0.0.1:2181 report.password
//! ```

#![expect(clippy::print_stdout, reason = "the example reports its progress")]

// [example]
use std::error::Error;
use std::sync::Arc;

use reveille_coordination_zookeeper::coordination::recipes::{Client, Lock};
use reveille_coordination_zookeeper::coordination::runtime::Runtime;
use reveille_coordination_zookeeper::coordination::tree::{Acl, Credentials, NodePath, SessionOptions};
use reveille_coordination_zookeeper::{ZookeeperTrees, ZookeeperUrl};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(file)) = (arguments.next(), arguments.next()) else {
        return Err(
            "missing argument: pass a URL such as zookeeper://127.0.0.1:2181, and a file with a password".into()
        );
    };
    // Only clients with the same credentials can access the nodes of the lock.
    let password = std::fs::read_to_string(file)?.trim_end().to_owned();
    let credentials = vec![Credentials { name: "report".to_owned(), password }];
    let session = SessionOptions { credentials, ..SessionOptions::default() };
    let runtime = Runtime::real();
    let trees = Arc::new(ZookeeperTrees::new(runtime.clone(), ZookeeperUrl::parse(&url)?));
    let client = Client::new(&runtime, trees, session);
    let lock = Lock::new(&client, NodePath::new("/locks/report")?, Acl::Creator);
    let held = lock.acquire().await?;
    println!("the lock is valid: {}", held.is_valid());
    held.release().await;
    Ok(())
}
// [end]
