//! Cases about bags.

use std::collections::BTreeSet;

use super::*;
use coordination::recipes::{Bag, BagChange, BagListener, OwnItem};

fn bag(peer: &Peer<'_>) -> Bag {
    Bag::new(&peer.client, &path("/bag"), Acl::Open).expect("the path is within the length limit")
}

async fn add(peer: &Peer<'_>, data: &'static str) -> Sequence {
    bag(peer)
        .add(Bytes::from_static(data.as_bytes()))
        .await
        .expect("the open ACL permits every session to access the bag")
}

async fn add_own(peer: &Peer<'_>) -> OwnItem {
    bag(peer).add_own(Bytes::new()).await.expect("the open ACL permits every session to access the bag")
}

async fn remove(peer: &Peer<'_>, id: Sequence) {
    assert_eq!(bag(peer).remove(id).await, Ok(true));
}

/// Receives changes until the known items equal `what`. The listener must report each change once. It must report the
/// additions in the order of the items' numbers.
async fn receive_until(
    subject: &dyn Subject,
    listener: &mut BagListener,
    known: &mut BTreeSet<Sequence>,
    what: &BTreeSet<Sequence>,
) {
    while known != what {
        match within(subject, &format!("{known:?} changes to {what:?}"), listener.next()).await {
            BagChange::Added(id) => {
                assert!(known.insert(id), "the listener reported the item {id:?} twice");
                assert_eq!(known.last(), Some(&id), "the listener reports additions in order");
            }
            BagChange::Removed(id) => {
                assert!(known.remove(&id), "the listener reported the removal of item {id:?} without its addition")
            }
        }
    }
}

pub(super) async fn bag_numbers_are_never_reused(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    let (first, second) = (add(&one, "first").await, add(&two, "second").await);
    assert_eq!((first, second), (Sequence(0), Sequence(1)));
    remove(&one, first).await;
    remove(&one, second).await;
    assert_eq!(bag(&two).remove(second).await, Ok(false));
    let third = add(&one, "third").await;
    assert_eq!(third, Sequence(2));
    two.tree().await.sync().await.expect("the engine responds");
    assert_eq!(bag(&two).get(third).await, Ok(Some(Bytes::from_static(b"third"))));
    assert_eq!(bag(&two).get(first).await, Ok(None));
    assert_eq!(bag(&two).ids().await, Ok(BTreeSet::from([third])));
}

pub(super) async fn items_and_tokens_have_petting_zoos_layout(subject: &dyn Subject) {
    let (one, two) = (Peer::open(subject).await, Peer::open(subject).await);
    for peer in [&one, &two, &one] {
        add(peer, "").await;
    }
    let own = add_own(&two).await;
    assert_eq!(one.line("/bag/item").await, [0, 1, 2, 3].map(|id| format!("item{id:010}")));
    assert_eq!(one.line("/bag/token").await, ["token0000000003"], "the bag retains only the token of its latest item");
    assert_eq!(own.id(), Sequence(3));
}

pub(super) async fn listener_receives_each_change_exactly_once(subject: &dyn Subject) {
    const ADDED: i32 = 40;
    let (writer, reader) = (Peer::open(subject).await, Peer::open(subject).await);
    // Listeners start while the writer adds and removes items.
    let writing = async {
        for number in 0..ADDED {
            let id = add(&writer, "").await;
            if number % 3 == 0 {
                remove(&writer, id).await;
            }
        }
    };
    let listening = async {
        let mut listeners = Vec::new();
        for _ in 0..8 {
            listeners.push(bag(&reader).listen().await.expect("the open ACL permits every session to access the bag"));
            subject.runtime().sleep(Duration::from_millis(9)).await;
        }
        listeners
    };
    let ((), listeners) =
        within(subject, "the writer finishes all changes", futures_util::future::join(writing, listening)).await;
    let last = add(&writer, "").await;
    let left = bag(&writer).ids().await.expect("the open ACL permits every session to access the bag");
    assert!(left.contains(&last) && left.len() < usize::try_from(ADDED).unwrap_or(0));
    for mut listener in listeners {
        let mut known = listener.present().clone();
        receive_until(subject, &mut listener, &mut known, &left).await;
    }
}

pub(super) async fn own_items_end_with_their_session_and_are_reported(subject: &dyn Subject) {
    let (listening, dying) = (Peer::open(subject).await, Peer::open_short(subject).await);
    let stays = add(&dying, "").await;
    let (own, dropped) = (add_own(&dying).await, add_own(&dying).await);
    let mut listener = bag(&listening).listen().await.expect("the open ACL permits every session to access the bag");
    let mut known = listener.present().clone();
    receive_until(subject, &mut listener, &mut known, &BTreeSet::from([stays, own.id(), dropped.id()])).await;
    drop(dropped);
    receive_until(subject, &mut listener, &mut known, &BTreeSet::from([stays, own.id()])).await;
    dying.process.cut(true);
    receive_until(subject, &mut listener, &mut known, &BTreeSet::from([stays])).await;
    within(subject, "the owner of the item notices the removal", own.gone()).await;
    remove(&listening, stays).await;
    receive_until(subject, &mut listener, &mut known, &BTreeSet::new()).await;
}

pub(super) async fn listener_continues_in_another_session(subject: &dyn Subject) {
    let (writer, reader) = (Peer::open(subject).await, Peer::open_short(subject).await);
    let (first, second) = (add(&writer, "").await, add(&writer, "").await);
    reader.tree().await.sync().await.expect("the engine responds");
    let mut listener = bag(&reader).listen().await.expect("the open ACL permits every session to access the bag");
    let mut known = listener.present().clone();
    assert_eq!(known, BTreeSet::from([first, second]));
    let session = reader.tree().await.session().clone();
    reader.process.cut(true);
    within(subject, "the session is lost", session.lost()).await;
    remove(&writer, first).await;
    let third = add(&writer, "").await;
    reader.process.cut(false);
    receive_until(subject, &mut listener, &mut known, &BTreeSet::from([second, third])).await;
    let fourth = add(&writer, "").await;
    receive_until(subject, &mut listener, &mut known, &BTreeSet::from([second, third, fourth])).await;
}

pub(super) async fn recreated_bag_is_reported_completely(subject: &dyn Subject) {
    let (writer, reader) = (Peer::open(subject).await, Peer::open_short(subject).await);
    let tree = writer.tree().await;
    let recreate = async || {
        for id in bag(&writer).ids().await.expect("the open ACL permits every session to access the bag") {
            remove(&writer, id).await;
        }
        tree.delete(&path("/bag/item"), Expected::Any).await.expect("the bag is empty");
    };
    let ids = |count: i32| (0..count).map(Sequence).collect::<BTreeSet<_>>();
    for _ in 0..3 {
        add(&writer, "").await;
    }
    reader.tree().await.sync().await.expect("the engine responds");
    let mut listener = bag(&reader).listen().await.expect("the open ACL permits every session to access the bag");
    let mut known = listener.present().clone();
    recreate().await;
    receive_until(subject, &mut listener, &mut known, &ids(0)).await;
    add(&writer, "").await;
    add(&writer, "").await;
    receive_until(subject, &mut listener, &mut known, &ids(2)).await;
    // The listener is disconnected while the writer creates the bag again.
    let session = reader.tree().await.session().clone();
    reader.process.cut(true);
    within(subject, "the session is lost", session.lost()).await;
    recreate().await;
    add(&writer, "").await;
    reader.process.cut(false);
    receive_until(subject, &mut listener, &mut known, &ids(1)).await;
    add(&writer, "").await;
    receive_until(subject, &mut listener, &mut known, &ids(2)).await;
}
