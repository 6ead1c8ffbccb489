//! Whom the callbacks go to: quick, slow, failing, and now and then the end of the task that calls it.

use futures_util::future::BoxFuture;
use runtime::Runtime;
use scheduler::{Deliver, Delivered, Delivery};

use super::MEMBER;
use crate::{Handle, Ledger, user};

pub(super) struct Receiver {
    pub(super) sim: Handle,
    pub(super) member: Runtime,
    pub(super) ledger: Ledger,
}

impl Deliver for Receiver {
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'static, Option<Delivered>> {
        let (sim, member, ledger) = (self.sim.clone(), self.member.clone(), self.ledger.clone());
        let callback = ledger.callback_began(MEMBER, delivery.occurrence, delivery.attempt);
        Box::pin(async move {
            let takes = sim.draw(user::answer_time);
            member.sleep(takes).await;
            let answer = sim.draw(|random| random.below(20));
            ledger.callback_ended(callback, answer > 2);
            assert!(answer != 0, "a receiver that brings down who calls it, on purpose");
            Some(Delivered { result: user::answer(answer), retry_after: None })
        })
    }
}
