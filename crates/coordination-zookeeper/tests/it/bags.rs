//! Test that counts the messages of a bag on a real server.

use std::time::Duration;

use bytes::Bytes;
use coordination::recipes::{Bag, BagChange, Client};
use coordination::tree::{Acl, CreateMode, NodePath, Op, SessionOptions};
use coordination_conformance::tree::Subject as _;
use futures_util::future::join_all;

use crate::support::{Forest, ensemble, messages, with_real_runtime};

const LIMIT: Duration = Duration::from_secs(25);
/// Number of items that the test adds and then removes.
const CHANGED: u64 = 20;
/// Largest number of pings that a client sends within [`LIMIT`]: one in a sixth of the timeout of 40 s.
const PINGS_MAX: u64 = 4;

/// Messages that the server received from a client, and messages that it sent to the client.
#[derive(Debug)]
struct Messages {
    received: u64,
    sent: u64,
}

impl Messages {
    fn since(session: &str, before: &Messages) -> Self {
        let now = messages(session);
        Messages { received: now.0 - before.received, sent: now.1 - before.sent }
    }

    /// Checks that the counts exceed the expected counts only by pings and their responses.
    fn check(&self, received: u64, sent: u64, what: &str) {
        let allowed = (received..=received + PINGS_MAX, sent..=sent + PINGS_MAX);
        assert!(allowed.0.contains(&self.received) && allowed.1.contains(&self.sent), "{what}: {self:?}, {allowed:?}");
    }
}

#[test]
fn number_of_messages_per_change_of_a_bag_does_not_depend_on_its_size() {
    with_real_runtime(async |runtime| {
        let forest = Forest::new(runtime.clone(), ensemble());
        let client = async || {
            let options = SessionOptions { timeout: Duration::from_secs(40), ..SessionOptions::default() };
            Client::new(&runtime, forest.process().await, options)
        };
        for size in [10, 1_000] {
            let (writer, readers) = (client().await, [client().await, client().await]);
            let path = NodePath::new(&format!("/bag-{size}")).unwrap();
            let bag = |client: &Client| Bag::new(client, &path, Acl::Open).unwrap();
            bag(&writer).add(Bytes::new()).await.unwrap();
            let tree = writer.session().await.unwrap();
            let item = path.join("item/item").unwrap();
            let (mode, acl) = (CreateMode::PersistentSequential, Acl::Open);
            let create = || Op::Create { path: item.clone(), data: Bytes::new(), mode, acl: acl.clone() };
            tree.multi((1..size).map(|_| create()).collect()).await.unwrap();
            let mut listeners = Vec::new();
            for reader in &readers {
                reader.session().await.unwrap().sync().await.unwrap();
                listeners.push(bag(reader).listen().await.unwrap());
            }
            assert!(listeners.iter().all(|listener| listener.present().len() == size));
            // The token of the first item is the only token. Each later item replaces the token before it.
            let last = bag(&writer).add(Bytes::new()).await.unwrap();
            join_all(listeners.iter_mut().map(|listener| listener.next())).await;

            let mut sessions = vec![tree.session().id().to_string()];
            for reader in &readers {
                sessions.push(reader.session().await.unwrap().session().id().to_string());
            }
            let count = |session: &String| messages(session);
            let before: Vec<Messages> =
                sessions.iter().map(count).map(|(received, sent)| Messages { received, sent }).collect();
            let changing = async {
                let mut ids = vec![last];
                for _ in 1..CHANGED {
                    ids.push(bag(&writer).add(Bytes::new()).await.unwrap());
                }
                for id in ids {
                    assert_eq!(bag(&writer).remove(id).await, Ok(true));
                }
                let changed = 2 * CHANGED - 1;
                join_all(listeners.iter_mut().map(async |listener| {
                    for _ in 0..changed {
                        assert!(matches!(listener.next().await, BagChange::Added(_) | BagChange::Removed(_)));
                    }
                }))
                .await;
                changed
            };
            let changed = runtime.timeout(LIMIT, changing).await.expect("the listeners receive all changes");
            // An addition creates the item and its token, lists the tokens and deletes the token before it. A removal
            // deletes the item. Each request has one response.
            let requests = 4 * (CHANGED - 1) + CHANGED;
            let all = sessions.iter().zip(&before).map(|(session, before)| Messages::since(session, before));
            for (at, messages) in all.enumerate() {
                match at {
                    0 => messages.check(requests, requests, &format!("writer of {size} items")),
                    // A listener sends no requests, and receives one event for each change.
                    _ => messages.check(0, changed, &format!("listener of {size} items")),
                }
            }
            for client in readers.iter().chain([&writer]) {
                client.close().await.unwrap();
            }
        }
    });
}
