//! Case with a configuration that changes continuously.

use futures_util::future::{join, try_join_all};
use serde_json::Value;

use super::*;
use coordination::recipes::{Client, Config, Effective};

/// Number of changes of the service's values. The instance's values change equally often.
const CHANGES: u64 = 5_000;
/// Number of concurrent requests of a writer. The engine applies the changes of a session in the order of the requests.
const AT_ONCE: usize = 50;

async fn count_up(subject: &dyn Subject, tree: &dyn Tree, at: &str, key: &str, numbers: std::ops::Range<u64>) {
    let at = path(at);
    for some in numbers.collect::<Vec<_>>().chunks(AT_ONCE) {
        let writing = some.iter().map(|number| {
            let text = Bytes::from(format!("{key}: {}", number + 1));
            tree.set(&at, text, Expected::Any)
        });
        try_join_all(writing).await.expect("the engine responds");
        // Without this pause, an engine that responds immediately would leave no time for the readers.
        subject.runtime().sleep(Duration::from_millis(1)).await;
    }
}

fn count(now: &Effective, key: &str) -> u64 {
    now.values.get(key).and_then(Value::as_u64).unwrap_or(0)
}

/// Follows the configuration until both counters have their last value. Returns the number of changes that the reader
/// received.
async fn read(config: &Config) -> usize {
    let mut now = config.follow("host").await.expect("the open ACL permits every session to access the node");
    let (mut last, mut changes) = (now.now(), 0);
    while count(&last, "service") < CHANGES || count(&last, "own") < CHANGES {
        let next = now.changed().await;
        assert!(next.service >= last.service && next.instance >= last.instance, "{last:?}, then {next:?}");
        for key in ["service", "own"] {
            assert!(count(&next, key) >= count(&last, key), "{last:?}, then {next:?}");
        }
        (last, changes) = (next, changes + 1);
    }
    changes
}

/// Writes ten thousand changes in total. One process increments a counter in the service's values, and another process
/// increments a counter in the instance's values. One of two followers stays connected. The other follower loses its
/// connection, and later its session.
pub(super) async fn ten_thousand_config_changes_arrive_in_order(subject: &dyn Subject) {
    let ((_one, one), (_two, two)) = (open(subject).await, open(subject).await);
    for at in ["/config", "/config/mail", "/config/mail/host"] {
        create(&*one, at).await;
    }
    two.sync().await.expect("the engine responds");
    let mut readers = Vec::new();
    for timeout in [Duration::from_secs(20), subject.timeout()] {
        let process = subject.process().await;
        let client = Client::new(&subject.runtime(), process.clone(), options(timeout));
        client.session().await.expect("the engine opens a session").sync().await.expect("the engine responds");
        readers.push((process, Config::new(&client, path("/config/mail"), Acl::Open), client));
    }
    let [(_, steady, _), (process, cut_off, client)] = &readers[..] else { panic!("there are two readers") };
    let write = async |quarter: u64| {
        let numbers = quarter * CHANGES / 4..(quarter + 1) * CHANGES / 4;
        let service = count_up(subject, &*one, "/config/mail", "service", numbers.clone());
        join(service, count_up(subject, &*two, "/config/mail/host", "own", numbers)).await;
    };
    let writing = async {
        write(0).await;
        process.cut(true);
        write(1).await;
        process.cut(false);
        write(2).await;
        let session = client.session().await.expect("the engine opens a session").session().clone();
        process.cut(true);
        write(3).await;
        session.lost().await;
        process.cut(false);
    };
    let all = join(writing, join(read(steady), read(cut_off)));
    let ((), changes) = within(subject, "the writers and the readers finish", all).await;
    assert!(
        changes.0 > 4 && changes.1 > 2,
        "each follower receives intermediate values; numbers of received changes: {changes:?}"
    );
}
