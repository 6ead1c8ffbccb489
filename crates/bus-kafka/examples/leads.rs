//! One of several processes leads at a time. The processes elect the leader by a topic with one partition. Start the program
//! on several hosts, each with another name:
//!
//! ```sh
//! cargo run -p bus-kafka --example leads -- kafka://127.0.0.1:9092 host-7
//! ```

#![expect(clippy::print_stdout, reason = "the output is the effect of the example")]

use std::sync::Arc;
use std::time::Duration;

use bus::leader::{LeaderCandidate, LeaderOptions, Leading};
use bus::{Bus as _, BusError, TopicName, TopicOptions};
use bus_kafka::{KafkaBus, KafkaUrl};
use coordination_connect::stop_signal;
use runtime::Runtime;

/// Reports the end of a leadership when it is dropped.
struct Farewell<'a>(&'a str);

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        println!("{} no longer leads", self.0);
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, name] = arguments.as_slice() else {
        anyhow::bail!("usage: leads URL NAME, for example: leads kafka://127.0.0.1:9092 host-7");
    };
    let (runtime, topic) = (Runtime::real(), TopicName::new("leads")?);
    let bus = Arc::new(KafkaBus::open(runtime.clone(), KafkaUrl::parse(url)?).await?);
    match bus.create_topic(&topic, TopicOptions { is_compacted: true, ..TopicOptions::with_partitions(1) }).await {
        Ok(()) | Err(BusError::TopicExists(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let candidate = LeaderCandidate::open(&runtime, bus, LeaderOptions::new(topic, "leads", name)).await?;
    let work = async |leading: Leading| {
        println!("{name} leads, term {}", leading.term);
        // `run` drops this future when the leadership ends without contact to Kafka.
        let _ended = Farewell(name);
        // Do the work of the leader here. Send the term with each write, and start no action after `closing`.
        while leading.is_valid() && !leading.closing.is_cancelled() {
            runtime.sleep(Duration::from_millis(100)).await;
        }
    };
    // After SIGTERM or Ctrl-C, the process leaves the group at once.
    Ok(candidate.run(&stop_signal()?, work).await?)
}
