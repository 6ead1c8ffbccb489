//! Whom the callbacks go to: quick, slow, failing, and now and then the end of the task that calls it.

use std::time::Duration;

use domain::AttemptResult;
use futures_util::future::BoxFuture;
use runtime::Runtime;
use scheduler::{Deliver, Delivered, Delivery};

use super::engine::MEMBER;
use crate::{Handle, Ledger};

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
            let takes_millis = sim.draw(|random| match random.below(20) {
                0 => 500 + random.below(2_500),
                _ => random.below(60),
            });
            member.sleep(Duration::from_millis(takes_millis)).await;
            let answer = sim.draw(|random| random.below(20));
            ledger.callback_ended(callback, answer > 2);
            let result = match answer {
                0 => panic!("a receiver that brings down who calls it, on purpose"),
                1 => AttemptResult::TimedOut,
                2 => AttemptResult::Answered(503),
                _ => AttemptResult::Answered(200),
            };
            Some(Delivered { result, retry_after: None })
        })
    }
}
