//! Cases about configuration and discovery.

use serde_json::{Value, json};

use super::*;
use coordination::recipes::{Config, Discovery, Followed, Instances, Service, Source, Values};
use coordination::tree::CreateMode;

fn config(peer: &Peer<'_>) -> Config {
    Config::new(&peer.client, path("/config/mail"), Acl::Open)
}

fn values(value: Value) -> Values {
    let Value::Object(values) = value else { panic!("the configuration is a JSON object") };
    values
}

pub(super) async fn instance_values_override_service_values(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let mut now = config(&one).follow("host-1").await.expect("every session may access the node");
    assert_eq!((now.now().values, now.now().service, now.now().instance), (Values::new(), None, None));
    let write = |values: &mut Values| *values = self::values(json!({"rate": 5, "hosts": ["a", "b"]}));
    config(&two).update(write).await.expect("every session may access the node");
    let seen = now.until(|now| now.values == values(json!({"rate": 5, "hosts": ["a", "b"]})));
    within(subject, "the follower receives the service's values", seen).await;
    let write = |values: &mut Values| drop(values.insert("rate".to_owned(), json!(9)));
    config(&two).update_instance("host-1", write).await.expect("every session may access the node");
    config(&two)
        .update_instance("host-2", |values| drop(values.insert("rate".to_owned(), json!(1))))
        .await
        .expect("every session may access the node");
    let seen = now.until(|now| now.values == values(json!({"rate": 9, "hosts": ["a", "b"]})));
    within(subject, "the instance's values override the service's values", seen).await;
    let own =
        config(&two).override_while_alive("host-3", &values(json!({"rate": 0}))).expect("the instance's name is valid");
    within(subject, "the node exists", own.present()).await.expect("every session may access the node");
    let mut third = config(&one).follow("host-3").await.expect("every session may access the node");
    let seen = third.until(|now| now.values["rate"] == json!(0));
    within(subject, "the instance's values override the service's values", seen).await;
    drop(own);
    within(subject, "the override ends after its handle is dropped", third.until(|now| now.values["rate"] == json!(5)))
        .await;
}

pub(super) async fn invalid_configuration_is_reported_and_the_last_one_kept(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    config(&two)
        .update(|values| drop(values.insert("rate".to_owned(), json!(5))))
        .await
        .expect("every session may access the node");
    one.tree().await.sync().await.expect("the engine responds");
    let mut now = config(&one).follow("host-1").await.expect("every session may access the node");
    let tree = two.tree().await;
    let set = tree.set(&path("/config/mail"), Bytes::from_static(b"[1, 2"), Expected::Any);
    set.await.expect("every session may access the node");
    let invalid =
        within(subject, "the follower reports the invalid configuration", now.until(|now| now.problem.is_some())).await;
    assert_eq!(invalid.values, values(json!({"rate": 5})));
    assert!(matches!(config(&two).update(Values::clear).await, Err(TreeError::Invalid(_))));
    tree.set(&path("/config/mail"), Bytes::from_static(b"rate: 6"), Expected::Any).await.expect("the node exists");
    let valid = within(subject, "the configuration is valid again", now.until(|now| now.problem.is_none())).await;
    assert_eq!(valid.values, values(json!({"rate": 6})));
    tree.set(&path("/config/mail"), Bytes::new(), Expected::Any).await.expect("the node exists");
    let emptied =
        within(subject, "the follower reports the emptied node", now.until(|now| now.problem.is_some())).await;
    assert_eq!(emptied.values, values(json!({"rate": 6})));
    config(&two).update(Values::clear).await.expect("an empty node is a valid map");
    let cleared = within(subject, "the values are removed", now.until(|now| now.problem.is_none())).await;
    assert_eq!(cleared.values, Values::new());
}

pub(super) async fn follower_never_receives_an_older_configuration(subject: &dyn Subject) {
    const CHANGES: u64 = 300;
    let (one, two, reader) = (Peer::open(subject).await, Peer::open(subject).await, Peer::open(subject).await);
    let count = |values: &mut Values| {
        let next = values.get("count").and_then(Value::as_u64).unwrap_or(0) + 1;
        values.insert("count".to_owned(), next.into());
    };
    let count_own = |values: &mut Values| {
        let next = values.get("own").and_then(Value::as_u64).unwrap_or(0) + 1;
        values.insert("own".to_owned(), next.into());
    };
    let (services, instances) = (config(&one), config(&two));
    let writing = async {
        for _ in 0..CHANGES {
            services.update(count).await.expect("the engine responds");
        }
    };
    let writing_own = async {
        for _ in 0..CHANGES {
            instances.update_instance("host", count_own).await.expect("the engine responds");
        }
    };
    let mut now = config(&reader).follow("host").await.expect("every session may access the node");
    let reading = async {
        let number = |values: &Values, key: &str| values.get(key).and_then(Value::as_u64).unwrap_or(0);
        let (mut last, mut seen) = (now.now(), 0_u64);
        while number(&last.values, "count") < CHANGES || number(&last.values, "own") < CHANGES {
            let next = now.changed().await;
            assert!(next.service >= last.service && next.instance >= last.instance, "{last:?}, then {next:?}");
            for key in ["count", "own"] {
                assert!(number(&next.values, key) >= number(&last.values, key), "{last:?}, then {next:?}");
            }
            (last, seen) = (next, seen + 1);
        }
        seen
    };
    let all = futures_util::future::join3(writing, writing_own, reading);
    let ((), (), seen) = within_long(subject, "the writers and the reader finish", all).await;
    assert!(seen > 1, "the reader receives intermediate values");
}

async fn within_long<T>(subject: &dyn Subject, what: &str, future: impl Future<Output = T>) -> T {
    let limited = subject.runtime().timeout(LIMIT * 4, future).await;
    limited.unwrap_or_else(|| panic!("the condition did not become true within {:?}: {what}", LIMIT * 4))
}

fn discovery(peer: &Peer<'_>) -> Discovery {
    Discovery::new(&peer.client, path(Discovery::ROOT), Acl::Open)
}

fn service(class: &str, name: &str) -> Service {
    Service { class: class.to_owned(), name: name.to_owned() }
}

async fn wait_for_instances(subject: &dyn Subject, instances: &mut Followed<Instances>, keys: &[&str]) {
    let are = instances.until(|now| {
        now.source == Source::Engine && now.all.iter().map(|instance| instance.key.as_str()).eq(keys.iter().copied())
    });
    within(subject, &format!("the instances are {keys:?}"), are).await;
}

pub(super) async fn instances_are_found_while_they_are_alive(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let platform = service("queues/kestrel", "platform");
    let mut found = discovery(&one).follow(&platform).await.expect("every session may access the node");
    let mut below = discovery(&one).follow_class("queues").await.expect("every session may access the node");
    wait_for_instances(subject, &mut found, &[]).await;
    let payload =
        values(json!({"host": "localhost", "port": 22133, "header": {"metadata": {"protocol": "memcached"}}}));
    let first =
        discovery(&two).register(&platform, "10.0.0.1", payload.clone()).expect("the payload's header is a map");
    let second = discovery(&one).register(&platform, "10.0.0.2", payload).expect("the payload's header is a map");
    let other = discovery(&two)
        .register(&service("queues", "rabbit"), "r", Values::new())
        .expect("the payload's header is a map");
    wait_for_instances(subject, &mut found, &["10.0.0.1", "10.0.0.2"]).await;
    wait_for_instances(subject, &mut below, &["10.0.0.1", "10.0.0.2", "r"]).await;
    // The service `kestrel` of the class `queues` has the same path as the class `queues/kestrel`. The services of the
    // class `queues/kestrel` must not count as instances of the service `kestrel`.
    let mut queues =
        discovery(&one).follow(&service("queues", "kestrel")).await.expect("every session may access the node");
    wait_for_instances(subject, &mut queues, &[]).await;
    assert_eq!(
        discovery(&one)
            .follow_one(&service("queues", "kestrel"))
            .await
            .expect("every session may access the node")
            .now(),
        None
    );
    let says = &found.now().all[0];
    assert_eq!(says.service, platform);
    let header = json!({
        "metadata": {"protocol": "memcached", "service_name": "platform", "key": "10.0.0.1"},
        "service_class": "queues/kestrel",
    });
    assert_eq!((&says.payload["header"], &says.payload["port"]), (&header, &json!(22133)));
    drop(first);
    wait_for_instances(subject, &mut found, &["10.0.0.2"]).await;
    drop(second);
    wait_for_instances(subject, &mut found, &[]).await;
    wait_for_instances(subject, &mut below, &["r"]).await;
    drop(other);
    wait_for_instances(subject, &mut below, &[]).await;
    let bad = values(json!({"header": 7}));
    assert!(matches!(discovery(&one).register(&platform, "k", bad), Err(TreeError::Invalid(_))));
    for (name, key) in [("..", "k"), ("a/b", "k"), ("x", "a/b"), ("x", "")] {
        assert!(discovery(&one).register(&service("kestrel", name), key, Values::new()).is_err());
    }
}

pub(super) async fn picks_spread_and_move_when_their_instance_ends(subject: &dyn Subject) {
    const PICKS: usize = 60;
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let platform = service("kestrel", "platform");
    let register =
        |key: &str| discovery(&two).register(&platform, key, Values::new()).expect("the payload's header is a map");
    let first = register("a");
    within(subject, "the node exists", first.present()).await.expect("every session may access the node");
    one.tree().await.sync().await.expect("the engine responds");
    let mut picks = Vec::new();
    for _ in 0..PICKS {
        picks.push(discovery(&one).follow_one(&platform).await.expect("every session may access the node"));
    }
    let key = |pick: &Option<coordination::recipes::Instance>| pick.as_ref().map(|instance| instance.key.clone());
    for pick in &mut picks {
        within(
            subject,
            "every follower picks the first instance",
            pick.until(|pick| key(pick).as_deref() == Some("a")),
        )
        .await;
    }
    let second = register("b");
    let on = |picks: &[Followed<Option<coordination::recipes::Instance>>], at: &str| {
        picks.iter().filter(|pick| key(&pick.now()).as_deref() == Some(at)).count()
    };
    // Each of the sixty followers selects one of the two instances at random. The probability that at most ten
    // followers select the second instance is about one in ten million.
    until(subject, "more than ten followers move to the second instance", async || on(&picks, "b") > 10).await;
    short_wait(subject).await;
    assert!(on(&picks, "a") > 10, "more than ten followers stay with the first instance");
    drop(first);
    for pick in &mut picks {
        within(
            subject,
            "every follower moves to the second instance",
            pick.until(|pick| key(pick).as_deref() == Some("b")),
        )
        .await;
    }
    drop(second);
    for pick in &mut picks {
        within(subject, "no follower has an instance after the last instance ends", pick.until(Option::is_none)).await;
    }
}

pub(super) async fn damaged_instances_show_their_problem_and_rewrites_cause_no_gap(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let tree = two.tree().await;
    for at in ["/discovery", "/discovery/kestrel", "/discovery/kestrel/platform"] {
        let created = tree.create(&path(at), Bytes::new(), CreateMode::Persistent, Acl::Open).await;
        created.expect("every session may create nodes in the root");
    }
    let put = async |key: &str, text: String| {
        let at = path(&format!("/discovery/kestrel/platform/{key}"));
        let created = tree.create(&at, Bytes::from(text), CreateMode::Ephemeral, Acl::Open).await;
        created.expect("the parent exists");
        at
    };
    let good = |port: u32| format!("header: {{service_class: kestrel}}\nport: {port}");
    for (key, bad) in [("x", "no: [yaml"), ("y", "port: 1"), ("z", "header: {service_class: other}")] {
        put(key, bad.to_owned()).await;
    }
    let mut at = put("good", good(0)).await;
    one.tree().await.sync().await.expect("the engine responds");
    let mut found =
        discovery(&one).follow(&service("kestrel", "platform")).await.expect("every session may access the node");
    wait_for_instances(subject, &mut found, &["good", "x"]).await;
    let damaged = found.now().all[1].clone();
    assert!(damaged.problem.is_some_and(|problem| problem.contains("/discovery/kestrel/platform/x")));
    assert!(damaged.payload.is_empty());
    let (mut reader, mut quick) = (found.clone(), 0);
    for port in 1..=100 {
        let started = subject.runtime().monotonic();
        // To update an instance, Petting Zoo's writers delete the node and create it again.
        tree.delete(&at, Expected::Any).await.expect("the node exists");
        at = put("good", good(port)).await;
        let mut has_gap = false;
        let follows = async {
            let shows_new_payload = |found: &Instances| {
                has_gap |= !found.all.iter().any(|instance| instance.key == "good");
                found.all.iter().any(|instance| instance.payload.get("port") == Some(&json!(port)))
            };
            reader.until(shows_new_payload).await;
        };
        within(subject, "the follower receives the new payload", follows).await;
        // If the engine was slow, the follower may report that the instance is gone.
        if subject.runtime().monotonic().since(started) < Discovery::MISSING_MAX {
            assert!(!has_gap, "the follower knows the instance while its node is missing for a moment");
            quick += 1;
        }
        if quick == 5 {
            break;
        }
    }
    assert_eq!(quick, 5, "the engine completes five quick updates");
    let last = tree.get(&at).await.expect("the node exists").data;
    tree.set(&at, Bytes::from_static(b"port: [1"), Expected::Any).await.expect("the node exists");
    let is_damaged = |instances: &Instances| instances.all.iter().any(|one| one.key == "good" && one.problem.is_some());
    let shown = within(subject, "the follower shows the problem", found.until(is_damaged)).await;
    let shown = shown.all.iter().find(|one| one.key == "good").map(|one| one.payload["port"].clone());
    assert!(String::from_utf8_lossy(&last).contains(&format!("port: {}", shown.expect("the instance is listed"))));
    tree.set(&at, last, Expected::Any).await.expect("the node exists");
    let is_valid = |instances: &Instances| instances.all.iter().any(|one| one.key == "good" && one.problem.is_none());
    within(subject, "the follower shows the valid data", found.until(is_valid)).await;
    tree.delete(&at, Expected::Any).await.expect("the node exists");
    wait_for_instances(subject, &mut found, &["x"]).await;
}
