//! Processes of the test `cargo xtask chaos-bus`: a producer, and members of a group that log each record.
//!
//! ```text
//! bus_chaos create URL TOPIC PARTITIONS
//! bus_chaos produce URL TOPIC RECORDS KEYS RECORDS_PER_SECOND
//! bus_chaos consume URL TOPIC LOG
//! ```

mod log;
mod member;
mod producer;

use bus::{Bus as _, TopicName, TopicOptions};
use bus_kafka::{KafkaBus, KafkaUrl};
use runtime::Runtime;

type Failure = Box<dyn std::error::Error>;

/// Number of brokers that store each record.
const REPLICAS: u16 = 3;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = Runtime::real();
    match arguments[..] {
        ["create", url, topic, partitions] => {
            let bus = KafkaBus::open(runtime, KafkaUrl::parse(url)?).await?;
            let options =
                TopicOptions { replicas: Some(REPLICAS), ..TopicOptions::with_partitions(partitions.parse()?) };
            Ok(bus.create_topic(&TopicName::new(topic)?, options).await?)
        }
        ["produce", url, topic, records, keys, per_second] => {
            let bus = KafkaBus::open(runtime.clone(), KafkaUrl::parse(url)?).await?;
            let (records, keys, per_second) = (records.parse()?, keys.parse()?, per_second.parse()?);
            producer::send(&runtime, &bus, &TopicName::new(topic)?, records, keys, per_second).await
        }
        ["consume", url, topic, log] => member::run(&runtime, KafkaUrl::parse(url)?, TopicName::new(topic)?, log).await,
        _ => Err("the arguments are wrong; the first lines of the example's source list them".into()),
    }
}
