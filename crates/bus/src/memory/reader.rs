//! Reader of the engine in memory. Each call of [`Reader::next`] fetches records.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use super::{Connection, RETRY_WAIT};
use crate::consumer::RecordBatch;
use crate::topic::{Offset, Partition};
use crate::{Answer, Reader};

/// Longest time until the reader repeats a request without a response.
const REQUEST_MAX: Duration = Duration::from_secs(1);
/// Largest number of records in a batch.
const BATCH_RECORDS_MAX: usize = 1_000;

pub(super) struct MemoryReader {
    connection: Connection,
    /// Offset of the next record of each partition.
    positions: Mutex<BTreeMap<Partition, Offset>>,
}

impl MemoryReader {
    pub(super) fn new(connection: Connection, positions: BTreeMap<Partition, Offset>) -> Self {
        MemoryReader { connection, positions: Mutex::new(positions) }
    }
}

impl Reader for MemoryReader {
    fn next(&self) -> Answer<'_, RecordBatch> {
        Box::pin(async move {
            let positions = || self.positions.lock().expect("no code panics while it holds this mutex");
            let runtime = self.connection.runtime();
            loop {
                let mut appended = std::pin::pin!(self.connection.engine.appended.notified());
                appended.as_mut().enable();
                let wanted: Vec<(Partition, Offset)> =
                    positions().iter().map(|(partition, offset)| (partition.clone(), *offset)).collect();
                let request = self.connection.call(|broker, _| Ok(broker.fetch(&wanted, BATCH_RECORDS_MAX)));
                match runtime.timeout(REQUEST_MAX, request).await {
                    Some(Ok(Some(batch))) => {
                        let end = batch.records.last().map_or(Offset(0), |last| last.offset.next());
                        positions().insert(batch.partition.clone(), end);
                        return Ok(batch);
                    }
                    Some(Ok(None)) => appended.await,
                    Some(Err(_)) | None => runtime.sleep(RETRY_WAIT).await,
                }
            }
        })
    }
}
