//! Receiver of callbacks. It is sometimes fast and sometimes slow. It sometimes fails, and sometimes panics in the task
//! that calls it.

use domain::Target;
use futures_util::future::BoxFuture;
use runtime::Runtime;
use scheduler::{Deliver, Delivered, Delivery};

use super::MEMBER;
use crate::topics::Sender;
use crate::{Handle, History, user};

pub(super) struct Receiver {
    pub(super) sim: Handle,
    pub(super) member: Runtime,
    pub(super) history: History,
    /// Transport to the topics of bus targets.
    pub(super) sender: Sender,
}

impl Deliver for Receiver {
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'static, Option<Delivered>> {
        if let Target::Bus(_) = delivery.schedule.spec.target {
            return self.sender.deliver(delivery);
        }
        let (sim, member, history) = (self.sim.clone(), self.member.clone(), self.history.clone());
        let callback = history.callback_began(MEMBER, delivery.occurrence, delivery.attempt);
        Box::pin(async move {
            let takes = sim.draw(user::response_time);
            member.sleep(takes).await;
            let response = sim.draw(|random| random.below(20));
            history.callback_ended(callback, response > 2);
            assert!(response != 0, "the receiver deliberately panics in 1 of 20 callbacks");
            Some(Delivered { result: user::result_of(response), retry_after: None, excerpt: None })
        })
    }
}
