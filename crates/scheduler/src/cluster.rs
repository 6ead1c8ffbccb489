//! This member among the others: which shards it owns, and how requests reach the owner of a shard.

pub(crate) mod assignment;
pub(crate) mod events;
pub(crate) mod forwarding;
pub(crate) mod lease;
pub(crate) mod ownership;
pub mod peers;
pub(crate) mod shards;
