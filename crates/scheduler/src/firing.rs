//! Firing of the due rows of the owned shards. Each row fires at its due instant.

pub(crate) mod context;
pub(crate) mod dispatch;
pub(crate) mod governor;
pub(crate) mod in_flight;
pub(crate) mod messages;
pub(crate) mod outcome_writer;
pub(crate) mod owner;
pub(crate) mod run_executor;
pub(crate) mod steady;
pub(crate) mod supervisor;
pub(crate) mod wheel;
pub(crate) mod window;
