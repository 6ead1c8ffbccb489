//! Members and helpers that the cases share.

use std::sync::Arc;
use std::time::Duration;

use domain::ShardId;
use membership::{ClaimName, Member, MemberId, Ownership, OwnershipError, View};
use runtime::Monotonic;

use super::Subject;

/// Length of a lease that does not end during a case.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// Member process with an open session.
pub(super) struct Peer {
    pub(super) id: MemberId,
    pub(super) ownership: Arc<dyn Ownership>,
    /// Time just before the last join or renewal.
    pub(super) renewed: Monotonic,
}

pub(super) fn member(id: u128) -> Member {
    Member {
        id: MemberId(id),
        name: format!("host-{id}"),
        address: format!("10.0.0.{id}:8081"),
        owns: true,
        build: "1.2.3".to_owned(),
    }
}

pub(super) fn shard(number: u16) -> ClaimName {
    ClaimName::shard(ShardId(number))
}

impl Peer {
    pub(super) async fn join(subject: &dyn Subject, id: u128, lease: Duration) -> Peer {
        let ownership = subject.open().await;
        let renewed = subject.runtime().monotonic();
        ownership.join(member(id), lease).await.expect("the engine accepts a new member");
        Peer { id: MemberId(id), ownership, renewed }
    }

    pub(super) async fn claim(&self, names: &[ClaimName]) -> Vec<bool> {
        self.ownership.claim(self.id, names.to_vec()).await.expect("the session is open")
    }

    pub(super) async fn try_claim(&self, names: &[ClaimName]) -> Result<Vec<bool>, OwnershipError> {
        self.ownership.claim(self.id, names.to_vec()).await
    }

    pub(super) async fn release(&self, names: &[ClaimName]) {
        self.ownership.release(self.id, names.to_vec()).await.expect("the engine responds");
    }

    pub(super) async fn leave(&self) {
        self.ownership.leave(self.id).await.expect("the engine responds");
    }

    pub(super) async fn view(&self) -> View {
        self.ownership.view().await.expect("the engine responds")
    }

    pub(super) async fn holder(&self, name: &ClaimName) -> Option<MemberId> {
        self.view().await.claims.get(name).copied()
    }
}
