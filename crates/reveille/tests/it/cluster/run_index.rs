//! Test of a database whose runs an earlier build wrote without an index.

use super::{TestCluster, run};
use crate::until;

const RUNS: &str = "/v1/runs?from=1970-01-01T00:00:00Z";

#[test]
fn member_warns_until_store_migrate_indexes_the_runs() {
    let cluster = TestCluster::new();
    cluster.sql("drop index reveille.run_time");
    cluster.sql(include_str!("../../../../store-postgres/migrations/0012-run-time.sql"));
    let member = cluster.start("a");
    let warning = "the index of runs is incomplete, so listings of all runs are unavailable";
    assert_eq!(member.log.text().matches(warning).count(), 1, "{}", member.log.text());
    let mut client = member.client();
    let rejected = client.get(RUNS);
    assert!(rejected.status == 503 && rejected.body.contains("reveille store migrate"), "{}", rejected.body);

    let migrated = run(&mut cluster.migrate());
    let message = String::from_utf8_lossy(&migrated.stdout);
    let lines =
        ["members can start", "indexing the runs in run_rest; partitions left: ", "the index of runs is complete"];
    assert!(migrated.status.success() && lines.iter().all(|line| message.contains(line)), "{message}");
    until("the member lists runs", || client.get(RUNS).status == 200);
    let again = run(&mut cluster.migrate());
    assert!(!String::from_utf8_lossy(&again.stdout).contains("index"), "the index is already complete");
    assert!(member.stop().success());
    let member = cluster.start("a");
    assert!(!member.log.text().contains(warning), "{}", member.log.text());
    assert!(member.stop().success());
}
