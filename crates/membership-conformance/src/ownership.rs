//! Cases about sessions, claims and the view.

use std::collections::BTreeMap;
use std::time::Duration;

use conformance::until;
use futures_util::future::{join, join_all};
use membership::{ClaimName, Member, MemberId, OwnershipError};

use super::Subject;
use super::fixtures::{LONG, Peer, member, shard};

pub(super) async fn view_shows_members_as_they_joined(subject: &dyn Subject) {
    let ownership = subject.open().await;
    let text = "ä".repeat(Member::TEXT_LEN_MAX / 2);
    let far = Member { id: MemberId(u128::MAX), address: text.clone(), build: text.clone(), name: text, owns: false };
    let near = Member { name: String::new(), address: String::new(), build: String::new(), ..member(1 << 127) };
    for member in [&far, &near] {
        ownership.join(member.clone(), LONG).await.expect("the engine accepts a new member");
    }
    let view = subject.open().await.view().await.expect("the engine responds");
    assert_eq!(view.members, [near.clone(), far], "the view lists the members in the order of their ids");
    assert_eq!(view.owners().into_iter().collect::<Vec<_>>(), [near.id]);
    assert!(view.claims.is_empty());
}

pub(super) async fn repeated_join_renews_the_session(subject: &dyn Subject) {
    // The case sends two requests before it renews the lease, so a busy machine needs more time than in other cases.
    let short = subject.lease() * 2;
    let peer = Peer::join(subject, 1, short).await;
    assert_eq!(peer.claim(&[shard(1)]).await, [true]);
    if !subject.leases_may_grow() {
        let longer = peer.ownership.join(member(1), LONG).await;
        assert!(matches!(longer, Err(OwnershipError::Rejected(_))), "{longer:?}");
        subject.runtime().sleep(short / 2).await;
        peer.ownership.join(member(1), short).await.expect("a repeated join succeeds");
        subject.runtime().sleep(short * 3 / 4).await;
        assert_eq!(peer.holder(&shard(1)).await, Some(peer.id));
        return;
    }
    peer.ownership.join(member(1), LONG).await.expect("a repeated join succeeds");
    subject.runtime().sleep(short * 2).await;
    assert_eq!(peer.view().await.members.len(), 1);
    assert_eq!(peer.holder(&shard(1)).await, Some(peer.id));
}

pub(super) async fn repeated_join_updates_the_member(subject: &dyn Subject) {
    let (peer, other) = (Peer::join(subject, 1, LONG).await, Peer::join(subject, 2, LONG).await);
    assert_eq!(peer.claim(&[shard(1)]).await, [true]);
    for owns in [false, true] {
        let updated = Member { owns, name: format!("owns: {owns}"), ..member(1) };
        peer.ownership.join(updated.clone(), LONG).await.expect("the session is open");
        assert_eq!(other.view().await.members, [updated, member(2)]);
        assert_eq!(other.holder(&shard(1)).await, Some(peer.id), "the claims stay");
    }
    peer.leave().await;
    assert_eq!(peer.ownership.join(member(1), LONG).await, Err(OwnershipError::Lost));
}

pub(super) async fn member_with_a_too_long_text_is_rejected(subject: &dyn Subject) {
    let ownership = subject.open().await;
    let long = "a".repeat(Member::TEXT_LEN_MAX + 1);
    let members = [
        Member { name: long.clone(), ..member(1) },
        Member { address: long.clone(), ..member(1) },
        Member { build: long, ..member(1) },
        Member { name: "a\0b".to_owned(), ..member(1) },
    ];
    for member in members {
        let rejected = ownership.join(member, LONG).await;
        assert!(matches!(&rejected, Err(error @ OwnershipError::Rejected(_)) if !error.is_retryable()), "{rejected:?}");
    }
    assert!(ownership.view().await.expect("the engine responds").members.is_empty());
}

pub(super) async fn claim_has_one_holder(subject: &dyn Subject) {
    let (a, b) = (Peer::join(subject, 1, LONG).await, Peer::join(subject, 2, LONG).await);
    assert_eq!(a.claim(&[shard(1)]).await, [true]);
    assert_eq!(b.claim(&[shard(1)]).await, [false]);
    for peer in [&a, &b] {
        assert_eq!(peer.view().await.claims, BTreeMap::from([(shard(1), a.id)]));
    }
}

pub(super) async fn concurrent_claims_give_each_name_one_holder(subject: &dyn Subject) {
    let mut peers = Vec::new();
    for id in 1..=4 {
        peers.push(Peer::join(subject, id, LONG).await);
    }
    for round in 0..12 {
        let names: Vec<ClaimName> = (0..16).map(|number| shard(round * 16 + number)).collect();
        // Each member lists the names in a different order. An engine that locks rows in the order of the list
        // deadlocks.
        let claims = peers.iter().enumerate().map(|(at, peer)| {
            let mut names = names.clone();
            names.rotate_left(at * 5);
            if at % 2 == 1 {
                names.reverse();
            }
            async move {
                let held = peer.claim(&names).await;
                names
                    .into_iter()
                    .zip(held)
                    .filter(|(_, held)| *held)
                    .map(|(name, _)| (name, peer.id))
                    .collect::<Vec<_>>()
            }
        });
        let mut held: Vec<(ClaimName, MemberId)> = join_all(claims).await.concat();
        held.sort();
        let mut view = peers[0].view().await.claims;
        view.retain(|name, _| names.contains(name));
        assert_eq!(held, view.into_iter().collect::<Vec<_>>(), "the results of the claims match the view");
        assert_eq!(held.len(), names.len(), "exactly one member holds the claim of each name");
    }
}

pub(super) async fn repeated_claim_by_its_holder_is_granted(subject: &dyn Subject) {
    let peer = Peer::join(subject, 1, LONG).await;
    assert_eq!(peer.claim(&[shard(1)]).await, [true]);
    assert_eq!(peer.claim(&[shard(2), shard(1)]).await, [true, true]);
    assert_eq!(peer.claim(&[shard(1), shard(3), shard(1)]).await, [true, true, true]);
    assert_eq!(peer.view().await.claims.len(), 3);
}

pub(super) async fn similar_claim_names_are_distinct(subject: &dyn Subject) {
    let (a, b) = (Peer::join(subject, 1, LONG).await, Peer::join(subject, 2, LONG).await);
    let names = ["leader", "Leader", "leader/1", "leader-1", "leader_1", "leader.1", "l"];
    let names: Vec<ClaimName> = names.iter().map(|name| ClaimName::new(name).expect("valid")).collect();
    for (at, name) in names.iter().enumerate() {
        let claims = if at % 2 == 0 { &a } else { &b };
        assert_eq!(claims.claim(std::slice::from_ref(name)).await, [true], "{name}");
    }
    let view = a.view().await;
    for (at, name) in names.iter().enumerate() {
        assert_eq!(view.claims[name], if at % 2 == 0 { a.id } else { b.id });
    }
    assert_eq!(view.claims.len(), names.len());
}

pub(super) async fn claim_batch_returns_all_results_in_order(subject: &dyn Subject) {
    let (a, b) = (Peer::join(subject, 1, LONG).await, Peer::join(subject, 2, LONG).await);
    let thirds: Vec<ClaimName> = (0..256).filter(|number| number % 3 == 1).map(shard).collect();
    assert!(a.claim(&thirds).await.into_iter().all(|held| held));
    let all: Vec<ClaimName> = (0..256).rev().map(shard).collect();
    let expected: Vec<bool> = (0..256).rev().map(|number| number % 3 != 1).collect();
    assert_eq!(b.claim(&all).await, expected);
    let view = a.view().await;
    for (name, is_bs) in all.iter().zip(expected) {
        assert_eq!(view.claims[name], if is_bs { b.id } else { a.id });
    }
    b.release(&all).await;
    assert_eq!(a.view().await.claims.into_keys().collect::<Vec<_>>().len(), thirds.len());
    assert!(a.claim(&all).await.into_iter().all(|held| held));
}

pub(super) async fn empty_claim_batch_is_accepted(subject: &dyn Subject) {
    let peer = Peer::join(subject, 1, LONG).await;
    assert_eq!(peer.claim(&[]).await, [false; 0]);
    peer.release(&[]).await;
    peer.leave().await;
    assert_eq!(peer.try_claim(&[]).await, Err(OwnershipError::Lost));
}

pub(super) async fn released_claim_is_free(subject: &dyn Subject) {
    let (a, b) = (Peer::join(subject, 1, LONG).await, Peer::join(subject, 2, LONG).await);
    a.claim(&[shard(1), shard(2)]).await;
    a.release(&[shard(1)]).await;
    assert_eq!(b.view().await.claims, BTreeMap::from([(shard(2), a.id)]));
    assert_eq!(b.claim(&[shard(1), shard(2)]).await, [true, false]);
}

pub(super) async fn release_of_another_members_claim_has_no_effect(subject: &dyn Subject) {
    let (a, b) = (Peer::join(subject, 1, LONG).await, Peer::join(subject, 2, LONG).await);
    a.claim(&[shard(1)]).await;
    b.release(&[shard(1), shard(9)]).await;
    b.leave().await;
    b.release(&[shard(1)]).await;
    assert_eq!(a.holder(&shard(1)).await, Some(a.id));
}

pub(super) async fn leave_frees_all_claims_of_the_member(subject: &dyn Subject) {
    let (a, b) = (Peer::join(subject, 1, LONG).await, Peer::join(subject, 2, LONG).await);
    a.claim(&[shard(1), shard(2)]).await;
    b.claim(&[shard(3)]).await;
    a.leave().await;
    let view = b.view().await;
    assert_eq!(view.members, [member(2)]);
    assert_eq!(view.claims, BTreeMap::from([(shard(3), b.id)]));
    assert_eq!(b.claim(&[shard(1)]).await, [true]);
    a.leave().await;
    assert_eq!(b.view().await.claims.len(), 2, "a second call to leave the cluster has no effect");
}

pub(super) async fn claims_become_free_exactly_when_the_lease_ends(subject: &dyn Subject) {
    let short = subject.lease();
    let runtime = subject.runtime();
    let b = Peer::join(subject, 2, LONG).await;
    let a = Peer::join(subject, 1, short).await;
    a.claim(&[shard(1)]).await;
    until(&runtime, "the claim of member a becomes free", async || b.claim(&[shard(1)]).await == [true]).await;
    let kept = runtime.monotonic().since(a.renewed);
    assert!(
        kept >= short,
        "the engine granted the claim of member a to b after {kept:?}, before a's lease of {short:?} ended"
    );
    assert_eq!(b.holder(&shard(1)).await, Some(b.id));
}

pub(super) async fn renewal_extends_the_session(subject: &dyn Subject) {
    let short = subject.lease();
    let runtime = subject.runtime();
    let (a, b) = (Peer::join(subject, 1, short).await, Peer::join(subject, 2, LONG).await);
    a.claim(&[shard(1)]).await;
    for _ in 0..5 {
        runtime.sleep(short / 4).await;
        a.ownership.renew(a.id, short).await.expect("the renewal arrives before the lease ends");
        assert_eq!(b.claim(&[shard(1)]).await, [false]);
    }
    // The last renewal determines the length of the lease.
    if subject.leases_may_grow() {
        a.ownership.renew(a.id, LONG).await.expect("the renewal arrives before the lease ends");
        runtime.sleep(short * 5 / 4).await;
        assert_eq!(b.holder(&shard(1)).await, Some(a.id));
    } else {
        let longer = a.ownership.renew(a.id, LONG).await;
        assert!(matches!(longer, Err(OwnershipError::Rejected(_))), "{longer:?}");
    }
    a.ownership.renew(a.id, short).await.expect("the renewal arrives before the lease ends");
    until(&runtime, "a's session ends", async || b.view().await.members.len() == 1).await;
}

pub(super) async fn ended_session_is_lost_for_all_calls(subject: &dyn Subject) {
    let short = subject.lease();
    let runtime = subject.runtime();
    let watcher = Peer::join(subject, 9, LONG).await;
    let (left, late) = (Peer::join(subject, 1, LONG).await, Peer::join(subject, 2, short).await);
    for peer in [&left, &late] {
        peer.claim(&[shard(u16::try_from(peer.id.0).expect("the id fits into 16 bits"))]).await;
    }
    left.leave().await;
    until(&runtime, "the session ends", async || watcher.view().await.members.len() == 1).await;
    for peer in [&left, &late] {
        // The engine reports the session as lost, even though no other member took the session's claim.
        assert_eq!(peer.ownership.renew(peer.id, LONG).await.map(|_| ()), Err(OwnershipError::Lost));
        assert_eq!(peer.try_claim(&[shard(5)]).await, Err(OwnershipError::Lost));
        peer.release(&[shard(5)]).await;
    }
    let never = watcher.ownership.renew(MemberId(77), LONG).await.map(|_| ());
    assert_eq!(never, Err(OwnershipError::Lost), "the engine rejects the renewal of a member that never joined");
    let view = watcher.view().await;
    assert!(view.claims.is_empty() && view.members.len() == 1, "{view:?}");
}

pub(super) async fn renewal_and_claim_at_the_end_of_a_lease_are_consistent(subject: &dyn Subject) {
    let may_grow = subject.leases_may_grow();
    let mut lease = if may_grow { Duration::from_millis(60) } else { subject.lease() };
    let longer = if may_grow { LONG } else { lease };
    let runtime = subject.runtime();
    let mut outcomes = BTreeMap::new();
    for round in 0..20 {
        let a = Peer::join(subject, 100 + u128::from(round), lease).await;
        let b = Peer::join(subject, 200 + u128::from(round), LONG).await;
        let name = shard(u16::try_from(round).expect("the number of the round fits into 16 bits"));
        match a.try_claim(std::slice::from_ref(&name)).await {
            Ok(held) => assert_eq!(held, [true]),
            Err(OwnershipError::Lost) => {
                // The machine was busy, so the lease ended before the claim.
                lease = if may_grow { lease * 2 } else { lease };
                continue;
            }
            Err(error) => panic!("{error}"),
        }
        // By the local clock, the renewal and the claim start at most a few milliseconds before or after the end of the
        // lease.
        runtime.sleep_until(a.renewed + (lease - Duration::from_millis(6)) + Duration::from_millis(round)).await;
        // On a busy machine, the engine may not respond in time, so the member repeats the call.
        let renewal = async {
            loop {
                match a.ownership.renew(a.id, longer).await {
                    Err(error) if error.is_retryable() => runtime.sleep(Duration::from_millis(1)).await,
                    renewed => return renewed,
                }
            }
        };
        let (renewed, claimed) = join(renewal, b.claim(std::slice::from_ref(&name))).await;
        match (renewed, claimed[0]) {
            (Ok(_), false) => assert_eq!(b.holder(&name).await, Some(a.id)),
            (Ok(_), true) => panic!("the engine renewed the session of member a, but granted a's claim to member b"),
            (Err(OwnershipError::Lost), true) => assert_eq!(b.holder(&name).await, Some(b.id)),
            // The engine executed the claim before the end of the lease, and the renewal after the end. ZooKeeper rejects
            // the session slightly before it removes the session's claims.
            (Err(OwnershipError::Lost), false) => {
                until(&runtime, "the engine frees a's claim", async || b.holder(&name).await.is_none()).await;
            }
            (Err(error), _) => panic!("{error}"),
        }
        *outcomes.entry(claimed[0]).or_insert(0) += 1;
        join(a.leave(), b.leave()).await;
    }
    assert!(!outcomes.is_empty(), "in every round, the lease of member a ended before the engine executed a's claim");
}

pub(super) async fn view_shows_only_live_members(subject: &dyn Subject) {
    let short = subject.lease();
    let runtime = subject.runtime();
    let watcher = Peer::join(subject, 3, LONG).await;
    let dead = Peer::join(subject, 1, short).await;
    dead.claim(&[shard(1), shard(2)]).await;
    assert_eq!(watcher.view().await.members, [member(1), member(3)]);
    // The live member only reads the view, so the engine must end the dead member's session without any other call.
    until(&runtime, "the view omits the dead member", async || watcher.view().await.members == [member(3)]).await;
    assert!(runtime.monotonic().since(dead.renewed) >= short);
    assert!(watcher.view().await.claims.is_empty());
}

pub(super) async fn view_contains_the_end_of_the_first_session(subject: &dyn Subject) {
    let empty = subject.open().await.view().await.expect("the engine responds");
    assert_eq!(empty.first_end, None, "the view names no end of a session if no session is open");
    let first = Peer::join(subject, 1, LONG).await;
    let end = first.view().await.first_end.expect("the view contains the end of the only session");
    assert!(end > LONG / 2 && end <= LONG, "{end:?}");
    let second = Peer::join(subject, 2, LONG / 2).await;
    let end = first.view().await.first_end.expect("the view contains the earliest session end");
    assert!(end > LONG / 4 && end <= LONG / 2, "{end:?}");
    if !subject.leases_may_grow() {
        return;
    }
    second.ownership.renew(second.id, LONG).await.expect("the session is open");
    assert!(first.view().await.first_end.expect("the view contains the earliest session end") > LONG / 2);
}

pub(super) async fn renewal_returns_the_engines_clock(subject: &dyn Subject) {
    let runtime = subject.runtime();
    let peer = Peer::join(subject, 1, LONG).await;
    let pause = Duration::from_millis(100);
    let before = peer.ownership.renew(peer.id, LONG).await.expect("the session is open").engine_now;
    runtime.sleep(pause).await;
    let called = runtime.monotonic();
    let after = peer.ownership.renew(peer.id, LONG).await.expect("the session is open").engine_now;
    let shown = after.since(before);
    let most = runtime.monotonic().since(called) + pause + Duration::from_millis(500);
    assert!(shown + Duration::from_millis(1) >= pause && shown < most, "{shown:?} of {pause:?}");
}

pub(super) async fn change_wakes_waiting_processes(subject: &dyn Subject) {
    let runtime = subject.runtime();
    let (a, b) = (Peer::join(subject, 1, LONG).await, subject.open().await);
    // An engine may lose a hint of a change, but must deliver most hints.
    let mut woken = [0; 4];
    for round in 0..5_u128 {
        let guest = Peer { id: MemberId(10 + round), ownership: a.ownership.clone(), renewed: a.renewed };
        for (kind, woken) in woken.iter_mut().enumerate() {
            let changed = b.changed();
            match kind {
                0 => {
                    guest.ownership.join(member(guest.id.0), LONG).await.expect("the engine accepts a new member");
                }
                1 => drop(guest.claim(&[shard(1)]).await),
                2 => guest.release(&[shard(1)]).await,
                _ => guest.leave().await,
            }
            *woken += u32::from(runtime.timeout(Duration::from_millis(500), changed).await.is_some());
        }
    }
    assert!(
        woken.iter().all(|woken| *woken >= 3),
        "fewer than 3 of 5 changes of one kind woke the process; joins, claims, releases, leaves: {woken:?}"
    );
}
