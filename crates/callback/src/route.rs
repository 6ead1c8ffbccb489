//! Selection of the transport by the kind of the target.

use domain::{AttemptResult, BUS_NOT_CONFIGURED, Target};
use futures_util::future::BoxFuture;
use scheduler::{Deliver, Delivered, Delivery};

use crate::{BusDeliver, HttpDeliver, failed};

/// Transport for targets of every kind.
pub struct Route {
    pub http: HttpDeliver,
    /// Transport for bus targets; `None` if the service has no message bus.
    pub bus: Option<BusDeliver>,
}

impl Deliver for Route {
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'static, Option<Delivered>> {
        match (&delivery.schedule.spec.target, &self.bus) {
            (Target::Http(_), _) => self.http.deliver(delivery),
            (Target::Bus(_), Some(bus)) => bus.deliver(delivery),
            (Target::Bus(_), None) => {
                let reason = format!("{BUS_NOT_CONFIGURED}: this member was started without --bus");
                Box::pin(std::future::ready(Some(failed(AttemptResult::Unreachable(reason)))))
            }
        }
    }
}
