//! Holds a lock on the engine that the URL names: ZooKeeper or PostgreSQL.
//!
//! ```sh
//! cargo run --example connect_lock -- zookeeper://127.0.0.1:2181 report.password
//! ```

#![expect(clippy::print_stdout, reason = "the example reports its progress")]

// [example]
use std::error::Error;

use reveille_coordination_connect::coordination::recipes::{Client, Lock};
use reveille_coordination_connect::coordination::runtime::Runtime;
use reveille_coordination_connect::coordination::tree::{Acl, Credentials, NodePath, SessionOptions};
use reveille_coordination_connect::{migrate, trees};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(file)) = (arguments.next(), arguments.next()) else {
        return Err(
            "missing argument: pass a URL such as zookeeper://127.0.0.1:2181, and a file with a password".into()
        );
    };
    // Only clients with the same credentials can access the nodes of the lock.
    let credentials = vec![Credentials { name: "report".to_owned(), password: std::fs::read_to_string(file)? }];
    let session = SessionOptions { credentials, ..SessionOptions::default() };
    let runtime = Runtime::real();
    migrate(&runtime, &url, None).await?;
    let trees = trees(&runtime, &url, None).await?;
    let client = Client::new(&runtime, trees, session);
    let lock = Lock::new(&client, NodePath::new("/locks/report")?, Acl::Creator);
    let held = lock.acquire().await?;
    println!("the lock is valid: {}", held.is_valid());
    held.release().await;
    Ok(())
}
// [end]
