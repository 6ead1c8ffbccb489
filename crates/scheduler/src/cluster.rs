//! Membership of this process in a cluster. This module manages the ownership of shards, and forwards requests to the
//! owner of a shard.

pub(crate) mod assignment;
pub(crate) mod client;
pub(crate) mod event_handler;
pub(crate) mod events;
pub(crate) mod forwarding;
pub(crate) mod lease;
pub mod operations;
pub(crate) mod ownership;
pub(crate) mod peers;
pub(crate) mod serving;
pub(crate) mod shards;
