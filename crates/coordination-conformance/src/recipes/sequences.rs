//! Case about sequence numbers that overflow in a lock or a bag.

use std::collections::BTreeSet;

use super::*;
use coordination::recipes::{Bag, BagChange};
use coordination::tree::CreateMode;

/// Tests the order of locks and bags on an engine where `set_next` can set the sequence number of a node's next child.
/// A test on ZooKeeper cannot set this number and would have to create two billion nodes.
///
/// # Panics
/// Panics if the locks or the bags lose their order.
pub async fn locks_and_bags_keep_their_order_when_sequence_numbers_overflow(
    subject: &dyn Subject,
    set_next: impl Fn(&NodePath, i32),
) {
    let mut peers = Vec::new();
    for _ in 0..5 {
        peers.push(Peer::open(subject).await);
    }
    let tree = peers[0].tree().await;
    for at in ["/locks", "/locks/one", "/bag", "/bag/item"] {
        let created = tree.create(&path(at), Bytes::new(), CreateMode::Persistent, Acl::Open).await;
        created.expect("every session may create nodes in the root");
        set_next(&path(at), i32::MAX - 1);
    }
    // The nodes of the lock get the two greatest signed 32-bit numbers, and then the three smallest numbers.
    let mut holder = peers[0].acquired().await;
    let locks: Vec<Lock> = peers.iter().skip(1).map(Peer::lock).collect();
    let mut waiting = Vec::new();
    for (at, lock) in locks.iter().enumerate() {
        waiting.push(faults::behind_others(&peers[0], lock, at + 2).await);
    }
    let mut numbers: Vec<Sequence> =
        peers[0].line("/locks/one").await.iter().filter_map(|name| Sequence::after(name, "-lock-")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [i32::MIN, i32::MIN + 1, i32::MIN + 2, i32::MAX - 1, i32::MAX].map(Sequence));
    for (at, next) in waiting.into_iter().enumerate() {
        let term = holder.term();
        holder.release().await;
        let held = within(subject, "the next holder", next).await.expect("the acquisition succeeds");
        assert!(held.term() > term && held.is_valid(), "terms rise although sequence numbers overflow");
        assert_eq!(peers[0].line("/locks/one").await.len(), 4 - at);
        holder = held;
    }
    holder.release().await;

    let bag = Bag::new(&peers[0].client, &path("/bag"), Acl::Open).expect("the path is within the length limit");
    let mut listener = bag.listen().await.expect("every session may access the bag");
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(bag.add(Bytes::new()).await.expect("every session may access the bag"));
    }
    assert_eq!(ids, [i32::MAX - 1, i32::MAX, i32::MIN, i32::MIN + 1].map(Sequence));
    for id in &ids {
        assert_eq!(within(subject, "a change", listener.next()).await, BagChange::Added(*id));
    }
    assert_eq!(bag.ids().await, Ok(ids.into_iter().collect::<BTreeSet<_>>()));
}
