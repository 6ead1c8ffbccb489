//! Tests of requests between members: long requests, unknown operations, and the metric that counts the requests.

use bytes::Bytes;
use domain::{PollerId, ScheduleId, ShardId};
use scheduler::{Create, InvalidRequest, Options, Scheduler};
use simulator::Simulation;
use store::memory::MemoryOptions;

use crate::harness::{Harness, TENANT, ok, simulate};
use crate::test_cluster::{TestCluster, named, quick};

/// Returns schedule ids with one common home shard, which `owner` owns.
fn ids_of(owner: &Scheduler, count: usize) -> Vec<String> {
    let shard_of = |id: &String| PollerId::of(TENANT, 0, 64, &ScheduleId::new(id).unwrap()).shard();
    let owned = owner.owned();
    let all = || (0..).map(|number| format!("n{number}"));
    let shard: ShardId = all().map(|id| shard_of(&id)).find(|shard| owned.contains(shard)).unwrap();
    all().filter(|id| shard_of(id) == shard).take(count).collect()
}

fn lines(member: &Scheduler, family: &str) -> Vec<String> {
    let text = member.metrics_text();
    text.lines().filter(|line| line.starts_with(family)).map(str::to_owned).collect()
}

#[test]
fn member_sends_long_create_request_in_parts() {
    let sim = Simulation::new(1);
    sim.run_until(async {
        let cluster = TestCluster::new(&sim, MemoryOptions::default(), quick).await;
        let (a, b) = (cluster.join("a").await, cluster.join("b").await);
        cluster.wait_until_balanced(&[&a, &b]).await;
        let ids = ids_of(&b, 10);
        let at = cluster.in_ms(60_000);
        let requests: Vec<Create> = (ids.iter().map(|id| named(id, at)))
            .map(|mut request| {
                request.spec.payload = Bytes::from(vec![b'x'; 1_000_000]);
                request
            })
            .collect();
        let requester = a.clone();
        let created = cluster.at("a", async move { requester.create(requests).await }).await.unwrap();
        let created: Vec<String> = created.into_iter().map(|created| created.unwrap().id.to_string()).collect();
        assert_eq!(created, ids, "all schedules in order");
        let parts = r#"reveille_peer_asks_total{ask="create",outcome="answered"} 4"#;
        assert!(lines(&a, "reveille_peer_asks_total").contains(&parts.to_owned()), "{:?}", lines(&a, "reveille_peer"));
    });
}

#[test]
fn member_rejects_unknown_operation_and_malformed_request() {
    let sim = Simulation::new(1);
    sim.run_until(async {
        let cluster = TestCluster::new(&sim, MemoryOptions::default(), quick).await;
        let a = cluster.join("a").await;
        assert_eq!(a.handle("dance", &[1]).await, Err(InvalidRequest::UnknownOperation));
        assert!(matches!(a.handle("put", &[1]).await, Err(InvalidRequest::Malformed(_))));
        assert!(matches!(a.handle("nudge", &[1, 0]).await, Err(InvalidRequest::Malformed(_))));
        a.handle("nudge", &[1]).await.unwrap();
    });
}

#[test]
fn process_without_peers_rejects_every_peer_operation() {
    simulate(async |runtime| {
        let harness = Harness::open(runtime, Options::default(), ok).await;
        assert_eq!(harness.scheduler.handle("nudge", &[1]).await, Err(InvalidRequest::UnknownOperation));
        assert_eq!(lines(&harness.scheduler, "reveille_peer"), [""; 0]);
    });
}
