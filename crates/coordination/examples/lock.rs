//! Acquires and releases a lock of a coordination tree in memory. With the crate `reveille-coordination-zookeeper` or
//! `reveille-coordination-postgres`, a program differs from this example only in the creation of `trees`.

#![expect(clippy::print_stdout, reason = "the example reports its progress")]

// [example]
use std::error::Error;
use std::sync::Arc;

use reveille_coordination::memory::{MemoryOptions, MemoryTrees};
use reveille_coordination::recipes::{Client, Lock};
use reveille_coordination::runtime::Runtime;
use reveille_coordination::tree::{Acl, Credentials, NodePath, SessionOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::real();
    let trees = Arc::new(MemoryTrees::new(runtime.clone(), MemoryOptions::default()));
    // Only clients with the same credentials can access the nodes of the lock.
    let credentials = vec![Credentials { name: "report".to_owned(), password: "secret".to_owned() }];
    let client = Client::new(&runtime, trees, SessionOptions { credentials, ..SessionOptions::default() });
    let lock = Lock::new(&client, NodePath::new("/locks/report")?, Acl::Creator);
    let held = lock.acquire().await?;
    println!("the lock is valid: {}", held.is_valid());
    held.release().await;
    Ok(())
}
// [end]
