//! Test that makes the same calls on the PostgreSQL engine and on the in-memory engine, which is the model. The test
//! compares the results and the views of both engines.

use std::time::Duration;

use domain::ShardId;
use membership::memory::{EngineOptions, MemoryOwnership};
use membership::{ClaimName, MemberId, Ownership, View};
use runtime::Runtime;

use crate::support::{database, member, on_real, open_with_long_timeout};

const LONG: Duration = Duration::from_secs(600);
const CALLS: usize = 600;

/// Pseudorandom numbers that are the same on every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn names(&mut self) -> Vec<ClaimName> {
        let shard = |number| ClaimName::shard(ShardId(u16::try_from(number).unwrap()));
        (0..self.below(6)).map(|_| shard(self.below(8))).collect()
    }
}

/// Formats the parts of a view that must be equal in both engines.
fn shown(view: View) -> String {
    format!("{:?} {:?} {}", view.members, view.claims, view.first_end.is_some())
}

async fn call(ownership: &dyn Ownership, kind: u64, id: MemberId, names: Vec<ClaimName>) -> String {
    match kind {
        0 | 1 => format!("joined: {:?}", ownership.join(member(id.0), LONG).await.map(drop)),
        2 => format!("left: {:?}", ownership.leave(id).await),
        3 => format!("renewed: {:?}", ownership.renew(id, LONG).await.map(drop)),
        4..=8 => format!("claimed: {:?}", ownership.claim(id, names).await),
        9 | 10 => format!("released: {:?}", ownership.release(id, names).await),
        _ => format!("viewed: {:?}", ownership.view().await.map(shown)),
    }
}

#[test]
fn database_engine_behaves_like_the_in_memory_model() {
    let url = database();
    on_real(async |runtime: Runtime| {
        let model = MemoryOwnership::new(runtime.clone(), EngineOptions::default());
        let engine = open_with_long_timeout(&runtime, &url).await;
        let mut numbers = Numbers(1);
        let mut lives = [0_u128; 4];
        let mut granted = 0;
        for at in 0..CALLS {
            let (kind, who) = (numbers.below(13), usize::try_from(numbers.below(4)).unwrap());
            let id = MemberId(lives[who] * 4 + u128::try_from(who).unwrap());
            let names = numbers.names();
            let expected = call(&model, kind, id, names.clone()).await;
            assert_eq!(call(&engine, kind, id, names.clone()).await, expected, "call {at}, {names:?}");
            granted += usize::from(expected.contains("true"));
            // The test uses another id after a leave, because an engine opens no session with the id of an ended
            // session.
            lives[who] += u128::from(kind == 2);
        }
        assert!(granted > CALLS / 10, "too few claims were granted: {granted}");
        assert_eq!(shown(engine.view().await.unwrap()), shown(model.view().await.unwrap()));
    });
}
