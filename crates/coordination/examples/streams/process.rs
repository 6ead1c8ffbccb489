//! A process that holds shards of both models.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use futures_util::future::try_join_all;
use reveille_coordination::recipes::{BagChange, Client, Job};
use reveille_coordination::tree::Sequence;
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;

use crate::model::{Model, Parameter, Shard};

/// Interval between two reads of the inbox, and time that this process waits before it repeats a failed request.
const PERIOD: Duration = Duration::from_millis(100);
/// Time in which a holder must stop its work after it has lost its shard. During this time the fence rejects the
/// holder's writes.
const GRACE: Duration = Duration::from_secs(1);

pub(crate) struct Process {
    name: String,
    client: Client,
    socket: UdpSocket,
    sides: [Side; 2],
}

/// State of a model in this process.
struct Side {
    model: Model,
    /// Addresses of the processes that follow this model's parameters, by the number of the subscription.
    subscribers: Mutex<BTreeMap<Sequence, SocketAddr>>,
    /// Latest parameter that this process knows for each key of the model.
    parameters: Mutex<BTreeMap<String, Parameter>>,
}

impl Process {
    pub(crate) fn new(name: String, client: &Client, socket: UdpSocket, models: [Model; 2]) -> Self {
        let sides = models.map(|model| Side { model, subscribers: Mutex::default(), parameters: Mutex::default() });
        Process { name, client: client.clone(), socket, sides }
    }

    /// Works until Ctrl-C.
    pub(crate) async fn work(&self, hands: usize) -> anyhow::Result<()> {
        let stop = CancellationToken::new();
        let ([one, two], stop) = (&self.sides, &stop);
        let holders = (0..hands).flat_map(|_| [self.hold_shards(one, two, stop), self.hold_shards(two, one, stop)]);
        let stopped = async {
            tokio::signal::ctrl_c().await?;
            stop.cancel();
            std::future::pending().await
        };
        tokio::select! {
            held = try_join_all(holders) => held.map(drop),
            failed = self.publish(one) => failed,
            failed = self.publish(two) => failed,
            failed = stopped => failed,
            () = self.subscribe(one) => Ok(()),
            () = self.subscribe(two) => Ok(()),
            () = self.listen() => Ok(()),
        }
    }

    /// Holds one shard at a time. When a process removes this shard, or this process loses it, the function applies for
    /// another shard.
    async fn hold_shards(&self, side: &Side, other: &Side, stop: &CancellationToken) -> anyhow::Result<()> {
        let name = Bytes::from(self.name.clone());
        side.model.shards.run(stop, &name, GRACE, |job| self.hold(side, other, job)).await?;
        Ok(())
    }

    async fn hold(&self, side: &Side, other: &Side, job: Job) {
        let (model, over) = (side.model.name, &job.leading.over);
        let Some(shard) = Shard::parse(&job.description) else {
            eprintln!(
                "{model}: the description of a job does not name a shard; this process holds the job but does no work"
            );
            return over.cancelled().await;
        };
        println!("{model}: shard {shard} is held by {}, term {}", self.name, job.leading.term.0);
        while !over.is_cancelled() {
            let worked = self.learn_waiting(side, other, shard, &job).await;
            if let Err(error) = worked
                && !over.is_cancelled()
            {
                eprintln!("{model} {shard}: {error:#}");
            }
            let _over = self.client.runtime().timeout(PERIOD, over.cancelled()).await;
        }
        println!("{model}: shard {shard} is no longer held by {}", self.name);
    }

    async fn learn_waiting(&self, side: &Side, other: &Side, shard: Shard, job: &Job) -> anyhow::Result<()> {
        let model = &side.model;
        for name in model.waiting(shard).await? {
            if job.leading.over.is_cancelled() {
                break;
            }
            let other = |key: &str| lock(&other.parameters).get(key).copied().unwrap_or_default();
            // If this process cannot learn an observation now, it continues with the other observations.
            let (key, parameter) = match model.learn(job, &self.name, &name, other).await {
                Ok(learnt) => learnt,
                Err(error) => {
                    eprintln!("{model} {shard} {name}: {error:#}", model = model.name);
                    continue;
                }
            };
            let message = format!("{} {key} {parameter}", model.name);
            for subscriber in lock(&side.subscribers).values() {
                // The next message about the same parameter replaces a lost message.
                drop(self.socket.try_send_to(message.as_bytes(), *subscriber));
            }
        }
        Ok(())
    }

    /// Updates the list of subscribers after each change of the bag that contains their addresses.
    async fn publish(&self, side: &Side) -> anyhow::Result<()> {
        let mut changes = side.model.subscribers.listen().await?;
        for id in changes.present().clone() {
            self.subscribed(side, id).await;
        }
        loop {
            match changes.next().await {
                BagChange::Added(id) => self.subscribed(side, id).await,
                BagChange::Removed(id) => {
                    if let Some(gone) = lock(&side.subscribers).remove(&id) {
                        println!("{gone} no longer follows {}", side.model.name);
                    }
                }
            }
        }
    }

    async fn subscribed(&self, side: &Side, id: Sequence) {
        let address = loop {
            match side.model.subscribers.get(id).await {
                Ok(address) => break address,
                Err(error) => eprintln!("{}: {error}", side.model.name),
            }
            self.client.runtime().sleep(PERIOD).await;
        };
        // The address is `None` if the subscriber has already left.
        if let Some(address) = address.and_then(|address| std::str::from_utf8(&address).ok()?.parse().ok()) {
            println!("{address} follows {}", side.model.name);
            lock(&side.subscribers).insert(id, address);
        }
    }

    /// Subscribes this process to a model. Subscribes it again after each lost session.
    async fn subscribe(&self, side: &Side) {
        loop {
            if let Err(error) = self.subscribe_once(side).await {
                eprintln!("{}: {error:#}", side.model.name);
            }
            self.client.runtime().sleep(PERIOD).await;
        }
    }

    async fn subscribe_once(&self, side: &Side) -> anyhow::Result<()> {
        let address = self.socket.local_addr()?;
        let subscription = side.model.subscribers.add_own(address.to_string().into()).await?;
        // This process reads the parameters after it has subscribed. It may miss a change that happens before a
        // publisher knows the subscription. The next message about the same parameter replaces the missed message.
        for (key, parameter) in side.model.parameters().await? {
            side.update(&key, parameter);
        }
        subscription.gone().await;
        Ok(())
    }

    async fn listen(&self) {
        let mut message = [0; 1_024];
        loop {
            let update = match self.socket.recv(&mut message).await {
                Ok(count) => parsed(&message[..count]),
                // On some operating systems, `recv` returns an error because an earlier message went to a subscriber
                // that has left.
                Err(_refused) => continue,
            };
            if let Ok((model, key, parameter)) = update
                && let Some(side) = self.sides.iter().find(|side| side.model.name == model)
            {
                side.update(key, parameter);
            }
        }
    }
}

impl Side {
    fn update(&self, key: &str, parameter: Parameter) {
        let mut parameters = lock(&self.parameters);
        let known = parameters.entry(key.to_owned()).or_default();
        if parameter.count > known.count {
            *known = parameter;
        }
    }
}

/// Parses a message `MODEL KEY VALUE COUNT`.
fn parsed(message: &[u8]) -> anyhow::Result<(&str, &str, Parameter)> {
    let parts = std::str::from_utf8(message)?.split_once(' ');
    let (model, rest) = parts.context("the message has no model; its form is MODEL KEY VALUE COUNT")?;
    let (key, parameter) = rest.split_once(' ').context("the message has no key; its form is MODEL KEY VALUE COUNT")?;
    Ok((model, key, Parameter::parse(parameter.as_bytes())?))
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().expect("no code panics while it holds this mutex")
}
