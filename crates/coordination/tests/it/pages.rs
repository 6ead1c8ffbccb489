//! Code examples of docs/recipes.md. `cargo xtask index` copies each part of this file between `// [NAME]` and
//! `// [end]` into the page. `cargo xtask tidy` compares the page with these parts.

use std::error::Error;
use std::sync::Arc;

use reveille_coordination::memory::{MemoryOptions, MemoryTrees};
use reveille_coordination::recipes::Client;
use reveille_coordination::runtime::Runtime;
use reveille_coordination::tree::{Credentials, SessionOptions};

/// Opens a client of a tree in memory, like the first example of docs/recipes.md.
fn client() -> Client {
    let runtime = Runtime::real();
    let trees = Arc::new(MemoryTrees::new(runtime.clone(), MemoryOptions::default()));
    let credentials = vec![Credentials { name: "shop".to_owned(), password: "secret".to_owned() }];
    Client::new(&runtime, trees, SessionOptions { credentials, ..SessionOptions::default() })
}

#[tokio::test]
async fn client_acquires_and_releases_a_lock() -> Result<(), Box<dyn Error>> {
    // [getting-started]
    use reveille_coordination::memory::{MemoryOptions, MemoryTrees};
    use reveille_coordination::recipes::{Client, Lock};
    use reveille_coordination::runtime::Runtime;
    use reveille_coordination::tree::{Acl, Credentials, NodePath, SessionOptions};
    use std::sync::Arc;

    let runtime = Runtime::real();
    let trees = Arc::new(MemoryTrees::new(runtime.clone(), MemoryOptions::default()));
    // Read the password from a file that only the processes of this group can read.
    let credentials = vec![Credentials { name: "shop".to_owned(), password: "secret".to_owned() }];
    let client = Client::new(&runtime, trees, SessionOptions { credentials, ..SessionOptions::default() });

    // Only processes with the same credentials can access the nodes of the lock.
    let lock = Lock::new(&client, NodePath::new("/locks/report")?, Acl::Creator);
    let held = lock.acquire().await?;
    assert!(held.is_valid());
    held.release().await;
    // [end]
    Ok(())
}

#[tokio::test]
async fn selector_runs_a_task_while_it_leads() -> Result<(), Box<dyn Error>> {
    let client = client();
    // [leader-selector]
    use reveille_coordination::recipes::{Candidate, LeaderSelector, Leading};
    use reveille_coordination::tree::NodePath;
    use tokio_util::sync::CancellationToken;

    let group = NodePath::new("/leaders/mail")?;
    let selector = LeaderSelector::new(&client, group, Candidate::new("host-7"));
    let stop = CancellationToken::new();
    selector
        .run(&stop, |leading: Leading| {
            let stop = stop.clone();
            async move {
                // Work here until `leading.over` is cancelled. Send `leading.term` or `leading.fence` with each write.
                // Check again before a step that you cannot undo, because this process may have been paused:
                assert!(leading.is_valid());
                stop.cancel();
            }
        })
        .await?;
    // [end]
    Ok(())
}

#[tokio::test]
async fn read_lock_and_semaphore_can_have_several_holders() -> Result<(), Box<dyn Error>> {
    let client = client();
    // [locks]
    use reveille_coordination::recipes::{RwLock, Semaphore};
    use reveille_coordination::tree::{Acl, NodePath};

    let catalogue = RwLock::new(&client, NodePath::new("/locks/catalogue")?, Acl::Creator);
    let (one, other) = (catalogue.read().await?, catalogue.read().await?);
    one.release().await;
    other.release().await;
    let alone = catalogue.write().await?;
    alone.release().await;

    let four_at_once = Semaphore::new(&client, &NodePath::new("/pools/printers")?, 4, Acl::Creator)?;
    let lease = four_at_once.acquire().await?;
    lease.release().await;
    // [end]
    Ok(())
}

#[tokio::test]
async fn second_candidate_leads_after_the_first_leaves_the_queue() -> Result<(), Box<dyn Error>> {
    let client = client();
    // [leader-queue]
    use reveille_coordination::recipes::{LeaderQueue, Position};
    use reveille_coordination::tree::{Acl, NodePath};

    let queue = LeaderQueue::new(&client, &NodePath::new("/queues/model")?, Acl::Creator)?;
    let (first, second) = (queue.join("host-1".into()).await?, queue.join("host-2".into()).await?);
    let mut position = second.follow().await;
    position.until(|at| *at == Position::Queued(1)).await;
    let mut spare = queue.follow_spare().await?;
    spare.until(|spare| *spare == 1).await;
    first.leave().await;
    let led = second.lead().await?;
    led.release().await;
    // [end]
    Ok(())
}

#[tokio::test]
async fn process_passes_barriers_and_adds_to_a_counter() -> Result<(), Box<dyn Error>> {
    let client = client();
    // [barriers]
    use reveille_coordination::recipes::{Barrier, Counter, DoubleBarrier};
    use reveille_coordination::tree::{Acl, NodePath};

    let gate = Barrier::new(&client, NodePath::new("/gates/import")?, Acl::Creator);
    gate.close().await?;
    gate.open().await?;
    gate.passed().await?;

    let all_of_one = DoubleBarrier::new(&client, NodePath::new("/rounds/7")?, 1, Acl::Creator)?;
    let entered = all_of_one.enter().await?;
    entered.leave().await?;

    let served = Counter::new(&client, NodePath::new("/counts/served")?, Acl::Creator);
    assert_eq!(served.add(3).await?, 3);
    // [end]
    Ok(())
}

#[tokio::test]
async fn bag_listener_receives_an_added_item() -> Result<(), Box<dyn Error>> {
    let client = client();
    // [bag]
    use reveille_coordination::recipes::{Bag, BagChange};
    use reveille_coordination::tree::{Acl, NodePath};

    let bag = Bag::new(&client, &NodePath::new("/bags/subscriptions")?, Acl::Creator)?;
    let first = bag.add("prices".into()).await?;
    let mut listener = bag.listen().await?;
    assert!(listener.present().contains(&first));
    let own = bag.add_own("weather".into()).await?; // The engine removes this item when this process ends.
    assert_eq!(listener.next().await, BagChange::Added(own.id()));
    own.remove().await;
    // [end]
    Ok(())
}

#[tokio::test]
async fn applicant_receives_an_open_job() -> Result<(), Box<dyn Error>> {
    let client = client();
    // [role-match]
    use reveille_coordination::recipes::RoleMatch;
    use reveille_coordination::tree::{Acl, NodePath};

    let roles = RoleMatch::new(&client, &NodePath::new("/roles/shards")?, Acl::Creator)?;
    let job = roles.jobs().add("shard 3 of 8".into()).await?;
    let role = roles.apply(&"host-7".into()).await?;
    assert_eq!((role.job, &role.description[..]), (job, &b"shard 3 of 8"[..]));
    assert_eq!(roles.assignments().await?[&job].holder, "host-7");
    roles.jobs().remove(job).await?; // Removes the job, which notifies its holder.
    role.held.cancelled().await;
    // [end]
    Ok(())
}

#[tokio::test]
async fn discovery_finds_a_registered_instance() -> Result<(), Box<dyn Error>> {
    let client = client();
    // [discovery]
    use reveille_coordination::recipes::{Discovery, Service};
    use reveille_coordination::tree::{Acl, NodePath};
    use serde_json::json;

    let discovery = Discovery::new(&client, NodePath::new(Discovery::ROOT)?, Acl::Creator);
    let service = Service { class: "kestrel".to_owned(), name: "platform".to_owned() };
    let payload = json!({"host": "10.0.0.1", "port": 22133}).as_object().cloned().unwrap_or_default();
    let registration = discovery.register(&service, "10.0.0.1", payload)?;

    let mut instances = discovery.follow(&service).await?;
    let found = instances.until(|found| !found.all.is_empty()).await;
    assert_eq!(found.all[0].payload["port"], 22133);
    let one_at_random = discovery.follow_one(&service).await?;
    assert!(one_at_random.now().is_some());
    drop(registration);
    // [end]
    Ok(())
}

#[tokio::test]
async fn instance_overrides_a_value_of_its_service() -> Result<(), Box<dyn Error>> {
    let client = client();
    // [configuration]
    use reveille_coordination::recipes::Config;
    use reveille_coordination::tree::{Acl, NodePath};
    use serde_json::json;

    let config = Config::new(&client, NodePath::new("/config/mail")?, Acl::Creator);
    config.update(|values| drop(values.insert("rate".to_owned(), json!(5)))).await?;
    let mut in_force = config.follow("host-7").await?;
    config.update_instance("host-7", |values| drop(values.insert("rate".to_owned(), json!(9)))).await?;
    in_force.until(|now| now.values["rate"] == json!(9)).await;
    // [end]
    Ok(())
}

#[tokio::test]
async fn ring_of_group_members_returns_the_owner_of_a_key() -> Result<(), Box<dyn Error>> {
    let client = client();
    // [groups]
    use reveille_coordination::recipes::Group;
    use reveille_coordination::ring::Ring;
    use reveille_coordination::tree::{Acl, NodePath};

    let group = Group::new(&client, NodePath::new("/groups/cache")?, Acl::Creator);
    let here = group.join("host-7", "10.0.0.7:8080".into())?;
    here.present().await?;
    let mut members = group.follow().await?;
    let now = members.until(|now| now.is_current && !now.members.is_empty()).await;
    let ring = Ring::new(now.members.keys().cloned());
    assert_eq!(ring.owner(b"customer/42"), Some("host-7"));
    // [end]
    Ok(())
}

#[tokio::test]
async fn replica_leads_until_its_lease_ends() -> Result<(), Box<dyn Error>> {
    let client = client();
    // [electors]
    use reveille_coordination::Elector;
    use reveille_coordination::recipes::{Form, TreeElector};
    use reveille_coordination::tree::{Acl, NodePath};
    use std::time::Duration;

    let elector = TreeElector::new(&client, NodePath::new("/nodes")?, Form::Polling, Acl::Creator);
    let leadership = elector.is_leader("replica-1", Duration::from_secs(5)).await?;
    assert!(leadership.leads); // The replica leads for five seconds from the start of the call.
    assert_eq!(elector.followers().await?[0].replica, "replica-1");
    // [end]
    Ok(())
}
