//! Record of one batch: the counts of its lines, and the reason for an early end of the batch. The response and the
//! task that reads the lines share the record.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::rejection::Code;
use crate::spool::Reader;
use crate::state::AppState;

pub(super) struct Record {
    app: Arc<AppState>,
    tenant: u32,
    counts: Mutex<Counts>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    /// Number of lines that the server read.
    pub(super) read: u64,
    pub(super) created: u64,
    /// Number of lines whose schedule an earlier batch created.
    pub(super) replayed: u64,
    pub(super) rejected: u64,
    /// Reason for which the server stopped reading before the end of the body.
    pub(super) stopped: Option<Code>,
    /// True if the HTTP library took all results. Some of them may not have arrived at the client.
    is_delivered: bool,
}

impl Record {
    pub(super) fn new(app: Arc<AppState>, tenant: u32) -> Self {
        Record { app, tenant, counts: Mutex::default() }
    }

    pub(super) fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().expect("no holder of this lock panics")
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let Counts { read, created, replayed, rejected, stopped, is_delivered } = *self.counts();
        if is_delivered && stopped.is_none() {
            return;
        }
        self.app.metrics.batches_broken_off.inc();
        let (tenant, reason) = (self.tenant, stopped.map_or("client_gone", Code::code));
        tracing::info!(tenant, reason, read, created, replayed, rejected, "batch broke off");
    }
}

/// Source of a batch's response: the reader of the spooled results, and the batch's record.
pub(super) struct Delivery {
    pub(super) reader: Reader,
    pub(super) record: Arc<Record>,
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.record.counts().is_delivered = self.reader.is_drained();
    }
}
