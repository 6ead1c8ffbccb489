//! Test of one client with 10,000 nodes: at rest it only sends pings, and it keeps its nodes through faults.

use std::time::Duration;

use bytes::Bytes;
use coordination::recipes::{Bag, Client, Discovery, Group, LeaderQueue, PresenceState, Service, Values};
use coordination::tree::{Acl, Expected, NodePath, Op, SessionOptions, SessionState};
use coordination_conformance::tree::Subject as _;
use futures_util::future::join_all;
use futures_util::{FutureExt as _, StreamExt as _, stream};

use crate::support::{Forest, ensemble, messages, with_real_runtime};

const LIMIT: Duration = Duration::from_secs(60);
const SESSION: Duration = Duration::from_secs(12);
/// Number of members, of instances, of candidates and of items.
const EACH: usize = 2_500;
/// Number of candidates in one queue.
const QUEUE: usize = 50;
/// Number of members in one group.
const GROUP: usize = 500;

#[test]
fn client_with_ten_thousand_nodes_sends_only_pings_at_rest_and_keeps_its_nodes() {
    with_real_runtime(async |runtime| {
        let forest = Forest::new(runtime.clone(), ensemble());
        let process = forest.process().await;
        let options = SessionOptions { timeout: SESSION, ..SessionOptions::default() };
        let client = Client::new(&runtime, process.clone(), options);
        let node = |text: &str| NodePath::new(text).unwrap();
        let limited = |what: &'static str| move |done: Option<()>| done.expect(what);

        let groups: Vec<Group> =
            (0..EACH / GROUP).map(|number| Group::new(&client, node(&format!("/group{number}")), Acl::Open)).collect();
        let members: Vec<_> =
            (0..EACH).map(|number| groups[number / GROUP].join(&format!("m{number}"), Bytes::new()).unwrap()).collect();
        let discovery = Discovery::new(&client, node("/discovery"), Acl::Open);
        let service = Service { class: "kestrel".to_owned(), name: "platform".to_owned() };
        let instances: Vec<_> = (0..EACH)
            .map(|number| discovery.register(&service, &format!("i{number}"), Values::default()).unwrap())
            .collect();
        let queues: Vec<LeaderQueue> = (0..EACH / QUEUE)
            .map(|number| LeaderQueue::new(&client, &node(&format!("/queue{number}")), Acl::Open).unwrap())
            .collect();
        let candidates = join_all((0..EACH).map(|number| queues[number % queues.len()].join(Bytes::new()))).await;
        let waiting = candidates.into_iter().map(|candidate| candidate.unwrap().lead().boxed());
        let mut waiting = Box::pin(join_all(waiting.map(|lead| async {
            let _held = lead.await;
        })));
        let bag = Bag::new(&client, &node("/bag"), Acl::Open).unwrap();
        // Each new item removes the tokens of the items before it, so the test adds only a few at a time.
        let items = stream::iter(0..EACH).map(|_| bag.add_own(Bytes::new())).buffered(8);
        let items: Vec<_> = items.map(Result::unwrap).collect().await;
        let all_present = async || {
            join_all(members.iter().map(|member| member.present())).await;
            join_all(instances.iter().map(|instance| instance.present())).await;
        };
        limited("members and instances appear")(runtime.timeout(LIMIT, all_present()).await);
        // The candidates send their requests.
        drop(runtime.timeout(Duration::from_secs(2), &mut waiting).await);

        let tree = client.session().await.unwrap();
        let session = tree.session().id().to_string();
        let mut before = messages(&session).0;
        let at_rest = async {
            loop {
                runtime.sleep(SESSION / 12).await;
                let now = messages(&session).0;
                if now <= std::mem::replace(&mut before, now) + 1 {
                    return;
                }
            }
        };
        limited("the client comes to rest")(runtime.timeout(LIMIT, at_rest).await);
        runtime.sleep(SESSION / 2).await;
        let requests = messages(&session).0 - before;
        assert!(requests <= 4, "{requests} requests in half of the timeout; the client sends a ping in each sixth");

        let mut state = tree.session().state();
        process.cut(true);
        runtime.sleep(SESSION * 6 / 10).await;
        process.cut(false);
        let connected = state.wait_for(|state| *state != SessionState::Suspended).map(|state| *state.unwrap());
        assert_eq!(runtime.timeout(LIMIT, connected).await, Some(SessionState::Connected));
        tree.sync().await.unwrap();
        for (path, count) in [("/group4", GROUP), ("/discovery/kestrel/platform", EACH), ("/bag/item", EACH)] {
            assert_eq!(tree.children(&node(path)).await.unwrap().names.len(), count, "{path}");
        }

        // Another client deletes a group's node with all of its members. The members create it again.
        let elsewhere = forest.process().await;
        let other = elsewhere.open(SessionOptions::default()).await.unwrap();
        other.sync().await.unwrap();
        let mut states: Vec<_> = members[..GROUP].iter().map(|member| member.follow()).collect();
        let names = other.children(&node("/group0")).await.unwrap().names;
        let paths = names.iter().map(|name| node(&format!("/group0/{name}"))).chain([node("/group0")]);
        other.multi(paths.map(|path| Op::Delete { path, expected: Expected::Any }).collect()).await.unwrap();
        let returned = join_all(states.iter_mut().map(|state| async {
            state.changed().await;
            state.until(|state| *state == PresenceState::Present).await;
        }));
        limited("members come back")(runtime.timeout(LIMIT, returned.map(drop)).await);
        tree.sync().await.unwrap();
        assert_eq!(tree.children(&node("/group0")).await.unwrap().names.len(), GROUP);
        drop((items, waiting));
    });
}
