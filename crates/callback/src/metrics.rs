//! Metrics of the connection pool. Each scrape reads their current values.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::Client;

pub(crate) struct PoolCollector(pub(crate) Arc<Client>);

impl fmt::Debug for PoolCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolCollector")
    }
}

impl Collector for PoolCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let connections = self.0.pool.connections();
        let opened = ConstCounter::new(connections.opened);
        let help = "Connections opened to targets.";
        let name = "reveille_callback_connections_opened";
        opened.encode(encoder.encode_descriptor(name, help, None, opened.metric_type())?)?;
        let idle = ConstGauge::new(i64::try_from(connections.idle).unwrap_or(i64::MAX));
        let help = "Idle HTTP/1.1 connections to targets, and all open HTTP/2 connections to targets.";
        idle.encode(encoder.encode_descriptor("reveille_callback_connections_idle", help, None, idle.metric_type())?)
    }
}
