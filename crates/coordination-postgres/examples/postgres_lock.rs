//! Holds a lock of a tree in PostgreSQL. The program creates the schema of the tree if it is missing.
//!
//! ```sh
//! cargo run --example postgres_lock -- postgres://postgres@127.0.0.1/postgres
//! ```

#![expect(clippy::print_stdout, reason = "the example reports its progress")]

// [example]
use std::error::Error;
use std::sync::Arc;

use reveille_coordination_postgres::coordination::recipes::{Client, Lock};
use reveille_coordination_postgres::coordination::runtime::Runtime;
use reveille_coordination_postgres::coordination::tree::{Acl, NodePath, SessionOptions};
use reveille_coordination_postgres::{Options, PostgresTrees, migrate};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("missing argument: pass a URL such as postgres://127.0.0.1/postgres")?;
    let runtime = Runtime::real();
    let options = Options::default();
    migrate(&runtime, &url, &options).await?;
    let trees = Arc::new(PostgresTrees::open(&runtime, &url, &options).await?);
    let client = Client::new(&runtime, trees, SessionOptions::default());
    let lock = Lock::new(&client, NodePath::new("/locks/report")?, Acl::Open);
    let held = lock.acquire().await?;
    println!("the lock is valid: {}", held.is_valid());
    held.release().await;
    Ok(())
}
// [end]
