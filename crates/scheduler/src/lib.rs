//! The service: from a schedule that is asked for to a callback that is made and booked.
//!
//! [`Scheduler`] is what fronts call. Behind it an owner (`owner`) reads due rows a short way ahead into a `window`, a
//! timing `wheel` says when, `dispatch` says who goes next, `starter` makes the attempts through [`Deliver`], and
//! `bookkeeper` books what came of them. `supervisor` keeps it running.
//!
//! What it does not do: HTTP (`server` in front, `callback` behind), storing (`store`), deciding (`domain::decide`).
//! Window, wheel and dispatch are pure. Always true here: nothing is told to a caller that is not durable.

mod bookkeeper;
mod changes;
mod cluster;
mod creator;
pub mod deliver;
mod dispatch;
mod in_flight;
mod known_tenants;
mod lease;
mod metrics;
mod news;
mod options;
mod owner;
pub mod peers;
mod route;
pub mod service;
mod shards;
mod shared;
mod starter;
mod steady;
mod supervisor;
mod tenants;
mod wheel;
mod window;

pub use deliver::{Deliver, Delivered, Delivery};
pub use options::Options;
pub use peers::{Ask, PeerError, Peers, Reply};
pub use prometheus_client::registry::Registry;
pub use service::{CancelAnswer, Create, CreateRefusal, Peering, PutAnswer, RedriveAnswer, Scheduler, Timing};
pub use tenants::Tenants;
