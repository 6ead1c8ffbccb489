//! Task that sends the records of the journal.

use std::pin::pin;
use std::sync::Arc;

use bus::NewRecord;
use journal::Reader;

use crate::entry::{Entry, decode};
use crate::{RETRY_WAIT, Shared};

/// Largest number of records that the task hands over at once.
const BATCH_MAX: usize = 500;

impl Shared {
    /// Sends the records of the journal until the caller closes the producer.
    pub(crate) async fn drain(self: Arc<Self>, mut reader: Reader) {
        loop {
            let mut woken = pin!(self.woken.notified());
            woken.as_mut().enable();
            let (first_failed, is_idle) = {
                let state = self.state();
                if state.is_closed {
                    return;
                }
                (state.first_failed(), state.is_idle())
            };
            match first_failed {
                // The records after the failed one have their outcomes first, so that it does not overtake them once more.
                Some(_) if !is_idle => {}
                Some(index) => {
                    self.runtime.sleep(RETRY_WAIT).await;
                    // A producer that is closed in the meantime hands over no record.
                    reader = self.journal.reader(index);
                    self.hand_over(&mut reader).await;
                    continue;
                }
                None => {
                    if self.hand_over(&mut reader).await {
                        continue;
                    }
                    self.end_buffering(&mut reader).await;
                }
            }
            tokio::select! {
                biased;
                () = woken => {}
                () = self.runtime.sleep(self.options.patience) => {}
            }
        }
    }

    /// Hands over the next records. Returns false if the journal has no further durable record, or if the bus has received
    /// as many records as it may.
    async fn hand_over(self: &Arc<Self>, reader: &mut Reader) -> bool {
        let in_flight_max = self.options.in_flight_max;
        // A busy bus receives few large batches instead of many small ones.
        if self.state().room(in_flight_max) < in_flight_max.div_ceil(2) {
            return false;
        }
        let (mut numbers, mut records) = (Vec::new(), Vec::<NewRecord>::new());
        let has_room = || {
            let state = self.state();
            !state.is_closed && state.room(in_flight_max) > 0
        };
        let mut has_more = true;
        while has_more && records.len() < BATCH_MAX {
            let next = if has_room() { self.next_entry(reader).await } else { None };
            has_more = next.is_some();
            if let Some((index, Entry::Record(number, record))) = next {
                let bytes = record.bytes() as u64;
                if self.state().hand_over(self.runtime.monotonic(), number, index, bytes) {
                    numbers.push(number);
                    records.push(record);
                }
            }
        }
        if !records.is_empty() {
            let sending = self.producer.send(records);
            self.follow(numbers, sending);
        }
        has_more
    }

    /// Reads the next entry with its index. Returns `None` after the last durable entry.
    async fn next_entry(&self, reader: &mut Reader) -> Option<(u64, Entry)> {
        let read = match reader.next().await {
            Ok(Some((index, entry))) => decode(entry).map(|entry| (index, entry)).map_err(|error| error.to_string()),
            Ok(None) => return None,
            Err(error) => Err(error.to_string()),
        };
        match read {
            Ok(entry) => Some(entry),
            Err(error) => self.runtime.halt(&format!("cannot read the buffer of a producer: {error}")).await,
        }
    }

    /// Returns to the direct way if the bus responds and soon has received all records.
    async fn end_buffering(self: &Arc<Self>, reader: &mut Reader) {
        let patience = self.options.patience;
        let now = self.runtime.monotonic();
        if !self.state().may_end_buffering(now, self.options.in_flight_max, patience) {
            return;
        }
        // No new record arrives during this turn.
        let Some(_turn) = self.runtime.timeout(patience, self.turns.lock()).await else { return };
        let deadline = self.runtime.monotonic() + patience;
        loop {
            let mut advanced = pin!(self.advanced.notified());
            advanced.as_mut().enable();
            while self.hand_over(reader).await {}
            let is_over = {
                let mut state = self.state();
                state.is_closed || state.end_buffering()
            };
            if is_over {
                return;
            }
            tokio::select! {
                biased;
                () = advanced => {}
                () = self.runtime.sleep_until(deadline) => return,
            }
        }
    }
}
