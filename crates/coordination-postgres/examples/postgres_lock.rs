//! Holds a lock of a tree in PostgreSQL. The program creates the schema of the tree if it is missing.
//!
//! ```sh
//! cargo run --example postgres_lock -- postgres://postgres@127.0.0.1/postgres report.password
//! ```

#![expect(clippy::print_stdout, reason = "the example reports its progress")]

// [example]
use std::error::Error;
use std::sync::Arc;

use reveille_coordination_postgres::coordination::recipes::{Client, Lock};
use reveille_coordination_postgres::coordination::runtime::Runtime;
use reveille_coordination_postgres::coordination::tree::{Acl, Credentials, NodePath, SessionOptions};
use reveille_coordination_postgres::{Options, PostgresTrees, migrate};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(file)) = (arguments.next(), arguments.next()) else {
        return Err(
            "missing argument: pass a URL such as postgres://127.0.0.1/postgres, and a file with a password".into()
        );
    };
    // Only clients with the same credentials can access the nodes of the lock.
    let password = std::fs::read_to_string(file)?.trim_end().to_owned();
    let credentials = vec![Credentials { name: "report".to_owned(), password }];
    let session = SessionOptions { credentials, ..SessionOptions::default() };
    let runtime = Runtime::real();
    let options = Options::default();
    migrate(&runtime, &url, &options).await?;
    let trees = Arc::new(PostgresTrees::open(&runtime, &url, &options).await?);
    let client = Client::new(&runtime, trees, session);
    let lock = Lock::new(&client, NodePath::new("/locks/report")?, Acl::Creator);
    let held = lock.acquire().await?;
    println!("the lock is valid: {}", held.is_valid());
    held.release().await;
    Ok(())
}
// [end]
