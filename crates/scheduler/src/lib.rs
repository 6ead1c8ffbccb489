//! The service: from a schedule that is asked for to a callback that is made and booked.
pub mod deliver;
pub mod service;
pub use deliver::{Deliver, Delivered, Delivery};
