//! A configuration that changes all the time.

use futures_util::future::{join, try_join_all};
use serde_json::Value;

use super::*;
use coordination::recipes::{Client, Config, Effective};

/// Of the service's values, and as many of the instance's.
const CHANGES: u64 = 5_000;
/// So many are asked for before the first is answered: a session's changes are made in the order of asking.
const AT_ONCE: usize = 50;

async fn count_up(subject: &dyn Subject, tree: &dyn Tree, at: &str, key: &str, numbers: std::ops::Range<u64>) {
    let at = path(at);
    for some in numbers.collect::<Vec<_>>().chunks(AT_ONCE) {
        let writing = some.iter().map(|number| {
            let text = Bytes::from(format!("{key}: {}", number + 1));
            tree.set(&at, text, Expected::Any)
        });
        try_join_all(writing).await.expect("the engine answers");
        // An engine that answers at once leaves the readers no time.
        subject.runtime().sleep(Duration::from_millis(1)).await;
    }
}

fn count(now: &Effective, key: &str) -> u64 {
    now.values.get(key).and_then(Value::as_u64).unwrap_or(0)
}

/// Until both are the last; how often it was told of something.
async fn read(config: &Config) -> usize {
    let mut now = config.follow("host").await.expect("it is open to all");
    let (mut last, mut told) = (now.now(), 0);
    while count(&last, "service") < CHANGES || count(&last, "own") < CHANGES {
        let next = now.changed().await;
        assert!(next.service >= last.service && next.instance >= last.instance, "{last:?}, then {next:?}");
        for key in ["service", "own"] {
            assert!(count(&next, key) >= count(&last, key), "{last:?}, then {next:?}");
        }
        (last, told) = (next, told + 1);
    }
    told
}

/// Ten thousand in all: one process writes the service's values and another the instance's, each counting up, as fast as the engine
/// takes them. Of two who follow, one stays connected, and the other loses its connection meanwhile, and later its session.
pub(super) async fn of_ten_thousand_changes_no_older_pair_comes_after_a_newer(subject: &dyn Subject) {
    let ((_one, one), (_two, two)) = (open(subject).await, open(subject).await);
    for at in ["/config", "/config/mail", "/config/mail/host"] {
        make(&*one, at).await;
    }
    two.sync().await.expect("the engine answers");
    let mut readers = Vec::new();
    for timeout in [Duration::from_secs(20), subject.timeout()] {
        let process = subject.process().await;
        let client = Client::new(&subject.runtime(), process.clone(), options(timeout));
        client.session().await.expect("the engine opens a session").sync().await.expect("the engine answers");
        readers.push((process, Config::new(&client, path("/config/mail"), Acl::Open), client));
    }
    let [(_, steady, _), (process, cut_off, client)] = &readers[..] else { panic!("there are two") };
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
    let ((), told) = within(subject, "all is written and read", all).await;
    assert!(told.0 > 4 && told.1 > 2, "they are told of what is between, too: {told:?}");
}
