//! Processes of the test `cargo xtask chaos-recipes`: a candidate for a leadership, a member of a job that several members
//! share, and a buffered producer. The first two report to a witness. The name of their group is the name of the topic.
//!
//! ```text
//! bus_recipes create URL TOPIC PARTITIONS
//! bus_recipes grow URL TOPIC PARTITIONS
//! bus_recipes lead URL TOPIC NAME WITNESS SESSION_MS [late]
//! bus_recipes share URL TOPIC NAME WITNESS SESSION_MS IDS PASSES
//! bus_recipes buffer URL TOPIC FOLDER FIRST RECORDS_PER_SECOND
//! bus_recipes check URL TOPIC FIRST END FIRST END
//! ```
//!
//! `lead`, `share` and `buffer` stop at the end of their input. With `late`, `lead` has a deliberate bug. `check` checks the
//! records of two processes `buffer`, which have accepted the records from FIRST to the one before END.

#![expect(clippy::print_stdout, reason = "the output is the effect of the example")]

mod buffer;
mod leader;
mod shards;
mod witness;

use std::sync::Arc;
use std::time::Duration;

use bus::{Bus as _, TopicName, TopicOptions};
use bus_kafka::{KafkaBus, KafkaUrl};
use runtime::Runtime;

use crate::witness::Witness;

type Failure = Box<dyn std::error::Error>;

/// Parts that each process has.
struct Process {
    runtime: Runtime,
    bus: Arc<KafkaBus>,
    topic: TopicName,
    name: String,
    witness: Arc<Witness>,
    session: Duration,
}

impl Process {
    async fn open(url: &str, topic: &str, name: &str, witness: &str, session: &str) -> Result<Self, Failure> {
        let runtime = Runtime::real();
        Ok(Process {
            bus: Arc::new(KafkaBus::open(runtime.clone(), KafkaUrl::parse(url)?).await?),
            topic: TopicName::new(topic)?,
            name: name.to_owned(),
            witness: Arc::new(Witness::connect(witness)?),
            session: Duration::from_millis(session.parse()?),
            runtime,
        })
    }

    fn margin(&self) -> Duration {
        self.session / 10
    }

    fn grace(&self) -> Duration {
        self.session / 3
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["create", url, topic, partitions] => {
            let bus = KafkaBus::open(Runtime::real(), KafkaUrl::parse(url)?).await?;
            let options = TopicOptions::with_partitions(partitions.parse()?);
            Ok(bus.create_topic(&TopicName::new(topic)?, options).await?)
        }
        ["grow", url, topic, partitions] => {
            let bus = KafkaBus::open(Runtime::real(), KafkaUrl::parse(url)?).await?;
            Ok(bus.grow_topic(&TopicName::new(topic)?, partitions.parse()?).await?)
        }
        ["lead", url, topic, name, witness, session] => {
            leader::run(Process::open(url, topic, name, witness, session).await?, false).await
        }
        ["lead", url, topic, name, witness, session, "late"] => {
            leader::run(Process::open(url, topic, name, witness, session).await?, true).await
        }
        ["share", url, topic, name, witness, session, ids, passes] => {
            let process = Process::open(url, topic, name, witness, session).await?;
            shards::run(process, ids.parse()?, passes.parse()?).await
        }
        ["buffer", url, topic, folder, first, per_second] => {
            buffer::send(url, TopicName::new(topic)?, folder, first.parse()?, per_second.parse()?).await
        }
        ["check", url, topic, first, end, next_first, next_end] => {
            let accepted = [first.parse()?..end.parse()?, next_first.parse()?..next_end.parse()?];
            buffer::check(url, TopicName::new(topic)?, accepted).await
        }
        _ => Err("the arguments are wrong; the first lines of the example's source list them".into()),
    }
}
