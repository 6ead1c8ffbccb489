//! Cases with sessions that have many nodes and watches.

use super::*;

pub(super) async fn session_with_fifty_thousand_ephemerals_ends(subject: &dyn Subject) {
    const COUNT: usize = 50_000;
    let ((_process, dying), (_other, other)) = (open(subject).await, open(subject).await);
    create(&*other, "/e").await;
    let created = |number: usize| {
        let (path, mode) = (path(&format!("/e/{number:05}")), CreateMode::Ephemeral);
        Op::Create { path, data: Bytes::new(), mode, acl: Acl::Open }
    };
    dying.sync().await.expect("the engine responds");
    within(subject, "the session creates all nodes", change_all(&*dying, (0..COUNT).map(created))).await;
    let mode = CreateMode::Ephemeral;
    let kept = other
        .create(&path("/e/kept"), Bytes::new(), mode, Acl::Open)
        .await
        .expect("the open ACL permits every session to create a node");
    let there = other.children(&path("/e")).await.expect("the node exists");
    assert_eq!((there.names.len(), there.stat.children), (COUNT + 1, COUNT + 1));
    let (_, watch) = other.exists_and_watch(&path("/e/49999")).await.expect("the engine responds");
    let ending = async {
        dying.close().await.expect("the engine responds");
        assert_eq!(watch.await, Ok(Event::Deleted(path("/e/49999"))));
    };
    let mut changes = 0;
    let others = async {
        let (_process, third) = open(subject).await;
        loop {
            third.set(&path("/e"), Bytes::new(), Expected::Any).await.expect("the engine responds to other sessions");
            changes += 1;
            subject.runtime().sleep(Duration::from_millis(5)).await;
        }
    };
    let ended = async {
        tokio::select! {
            biased;
            () = ending => {}
            () = others => unreachable!("the loop of the third session never ends"),
        }
    };
    within(subject, "the session ends", ended).await;
    let gone = async {
        loop {
            other.sync().await.expect("the engine responds");
            let names = other.children(&path("/e")).await.expect("the node exists").names;
            if names == ["kept"] {
                return;
            }
        }
    };
    within(subject, "only the other session's node remains", gone).await;
    assert_eq!(other.exists(&path("/e/kept")).await, Ok(Some(kept.stat)));
    other.delete(&path("/e/kept"), Expected::Any).await.expect("the session is open");
}

/// Opens as many sessions as the engine requires for the watches.
pub(super) async fn one_megabyte_of_watches_survives_a_lost_connection(subject: &dyn Subject) {
    const COUNT: usize = 1_150;
    let ((process, first), (_process, other)) = (open(subject).await, open(subject).await);
    let at = |number: usize| path(&format!("/{number:0920}"));
    assert!(COUNT * at(0).as_str().len() > 1 << 20);
    let created = |number: usize| {
        let (path, mode) = (at(number), CreateMode::Persistent);
        Op::Create { path, data: Bytes::new(), mode, acl: Acl::Open }
    };
    within(subject, "the other session creates all nodes", change_all(&*other, (0..COUNT).map(created))).await;
    first.sync().await.expect("the engine responds");
    let (mut sessions, mut watches) = (vec![first], Vec::new());
    while watches.len() < COUNT {
        let last = sessions.last().expect("the list of sessions is not empty");
        match last.get_and_watch(&at(watches.len())).await {
            Ok((_, watch)) => watches.push(watch),
            Err(TreeError::Invalid(text)) => {
                assert!(text.contains("open another session"), "{text}");
                let next = process.open(options(Duration::from_secs(20))).await.expect("the engine opens a session");
                next.sync().await.expect("the engine responds");
                sessions.push(next);
            }
            Err(error) => panic!("{error}"),
        }
    }
    process.cut(true);
    let is_early = |number: &usize| number.is_multiple_of(3);
    let set = |number| Op::Set { path: at(number), data: "x".into(), expected: Expected::Any };
    change_all(&*other, (0..COUNT).filter(is_early).map(set)).await;
    process.cut(false);
    let delete = |number| Op::Delete { path: at(number), expected: Expected::Any };
    let firing = async {
        // The early watches report a change that happened while the connection was cut. The other watches report a
        // change that happened after the connection was restored.
        let mut late = Vec::new();
        for (number, watch) in watches.into_iter().enumerate() {
            if is_early(&number) {
                assert_eq!(watch.await, Ok(Event::Changed(at(number))));
            } else {
                late.push((number, watch));
            }
        }
        change_all(&*other, (0..COUNT).map(delete)).await;
        for (number, watch) in late {
            assert_eq!(watch.await, Ok(Event::Deleted(at(number))));
        }
    };
    within(subject, "all watches fire", firing).await;
    for session in &sessions {
        assert!(
            session.session().is_valid(subject.runtime().monotonic()),
            "the session is still valid after the connection was cut"
        );
    }
}
