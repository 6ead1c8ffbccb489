//! Code example of docs/bus.md. `cargo xtask index` copies the part of this file between `// [NAME]` and `// [end]` to the
//! page.

use std::error::Error;
use std::time::Duration;

use bus::NewRecord;
use bus_buffer::{BufferOptions, BufferedProducer};

use crate::support::{new_bus, simulate};

#[test]
fn buffer_page_works() {
    simulate(async |sim| {
        let (bus, runtime) = (new_bus(sim).await, sim.member("a"));
        let bus = bus.reopen(runtime.clone());
        let example = async || {
            // [buffer]
            let options = BufferOptions::new("/var/lib/shop/outbox");
            let producer = BufferedProducer::open(&runtime, &bus, options).await?;
            let record = NewRecord::new(&"orders".parse()?, "customer-7", "two books");
            for outcome in producer.send(vec![record]).await {
                let accepted = outcome?; // From here on, the record survives a crash of this process.
                let position = accepted.stored().await?; // Most callers do not wait for the bus.
                println!("stored at {position}");
            }
            let remaining = producer.close(Duration::from_secs(10)).await;
            println!("{remaining} records wait for the next start");
            // [end]
            assert_eq!(remaining, 0);
            Ok::<(), Box<dyn Error>>(())
        };
        example().await.unwrap();
    });
}
