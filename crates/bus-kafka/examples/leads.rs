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
use runtime::Runtime;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, name] = arguments.as_slice() else { return Err("usage: leads URL NAME".into()) };
    let (runtime, topic) = (Runtime::real(), TopicName::new("leads")?);
    let bus = Arc::new(KafkaBus::open(runtime.clone(), KafkaUrl::parse(url)?).await?);
    match bus.create_topic(&topic, TopicOptions { is_compacted: true, ..TopicOptions::with_partitions(1) }).await {
        Ok(()) | Err(BusError::TopicExists(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let candidate = LeaderCandidate::open(&runtime, bus, LeaderOptions::new(topic, "leads", name)).await?;
    let work = async |leading: Leading| {
        println!("{name} leads, term {}", leading.term);
        // Do the work of the leader here. Send the term with each write, and start no action after `closing`.
        while leading.is_valid() && !leading.closing.is_cancelled() {
            runtime.sleep(Duration::from_millis(100)).await;
        }
        println!("{name} no longer leads");
    };
    let stop = CancellationToken::new();
    let stopping = async {
        tokio::signal::ctrl_c().await?;
        stop.cancel();
        Ok::<_, std::io::Error>(())
    };
    let (led, stopped) = tokio::join!(candidate.run(&stop, work), stopping);
    stopped?;
    Ok(led?)
}
