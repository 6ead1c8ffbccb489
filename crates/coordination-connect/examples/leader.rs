//! One of several processes leads at a time. The file `leader.credentials` contains the credentials of the group, in a
//! line NAME:PASSWORD.
//!
//! ```sh
//! cargo run --example leader -- zookeeper://127.0.0.1:2181
//! ```

// [example]
use reveille_coordination_connect::coordination::recipes::{Candidate, LeaderSelector, Leading};
use reveille_coordination_connect::{Access, connect, stop_signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or("zookeeper://127.0.0.1:2181".to_owned());
    let client = connect(&url, Access::from_file("leader.credentials")?).await?;
    let selector = LeaderSelector::new(&client, "/leaders/mail".parse()?, Candidate::new("host-7"));
    let work = async |leading: Leading| leading.over.cancelled().await; // Work here until the leadership ends.
    selector.run(&stop_signal()?, work).await?;
    Ok(client.close().await?)
}
// [end]
