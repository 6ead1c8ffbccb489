//! Epochs of the database, and the admission of new connections.
//!
//! A database may return to an earlier state: after a fail-over to a standby that lagged, a recovery to a point in time,
//! or a restore. It then lacks writes that it acknowledged, and also terms. The store therefore starts an *epoch*: it
//! raises the terms of all shards above every term that the database may have lost. Every owner loses its shards, takes
//! them again, and reads their state from the database.
//!
//! A database cannot return to an earlier state under an open connection. The store therefore checks each new connection
//! before any call uses it:
//! - If the timeline of the write-ahead log differs from the recorded timeline, or if the database lacks the positions
//!   that this process wrote last, the store starts an epoch.
//! - If the database is another database than the recorded one, for example a restored dump, the store rejects the
//!   connection until an operator runs `reveille store new-epoch`. Only the operator knows whether the original still
//!   runs.
//! - If the database has an earlier epoch than this process has seen, it is the former primary or an old copy. The store
//!   rejects the connection.
//!
//! A process knows the newest epoch of all its connections. When it learns of a later epoch, it closes the connections
//! that it opened before, and forgets its cursors.
//!
//! docs/decisions/0216-start-an-epoch-when-the-database-went-back.md gives the reasons for the design.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::{PollerId, Term};
use futures_util::future::BoxFuture;
use postgres_client::tokio_postgres::Row;
use postgres_client::{Failure, Server, Session};
use prometheus_client::metrics::counter::Counter;
use store::Positions;
use tokio_util::sync::CancellationToken;

use crate::cancellations::RecordCursors;
use crate::connections::query;
use crate::error::OpenError;
use crate::insert_log::{Cursors, Snapshot};
use crate::partition::Partitions;
use crate::rows::poller_number;

/// Reads the state of the database that the admission checks. The last column is true if the database lacks the
/// positions ($4, $5) of the poller $1, which an owner wrote under the term $3 of the shard $2. A later owner may have set
/// them back.
const STATE: &str = "select m.epoch, m.database_id = reveille.database_id(), m.timeline = reveille.timeline(),
        pg_current_snapshot()::text,
        coalesce((
            select s.term < $3 or s.term = $3 and not exists (
                select from reveille.position p where p.poller = $1 and p.closed >= $4 and p.done >= $5)
            from reveille.shard s where s.shard = $2), false)
    from reveille.meta m";
const START: &str = "select newest, is_started from reveille.start_epoch($1, $2)";
/// Reads the epoch of the database and a snapshot, for [`Epochs::learn_from`].
pub(crate) const NEWEST: &str = "select epoch, pg_current_snapshot()::text from reveille.meta";

/// Epoch of the database, as far as this process knows it, and the state of the process that is valid only in this epoch.
pub(crate) struct Epochs {
    server: Arc<Server>,
    known: Mutex<Known>,
    pub(crate) insert_log: Cursors,
    pub(crate) cancellations: RecordCursors,
    pub(crate) partitions: Partitions,
    /// Number of epochs that this process has started.
    pub(crate) started: Counter,
}

struct Known {
    epoch: u64,
    /// Token of the connections that the process opened in this epoch.
    connections: CancellationToken,
    /// Positions that the process wrote last in this epoch.
    written: Option<Written>,
}

/// Positions that an owner wrote.
#[derive(Clone, Copy)]
pub(crate) struct Written {
    pub(crate) poller: PollerId,
    pub(crate) term: Term,
    pub(crate) positions: Positions,
}

/// State of the database.
struct State {
    epoch: u64,
    is_recorded_database: bool,
    is_recorded_timeline: bool,
    snapshot: Snapshot,
    lacks_written: bool,
}

impl Epochs {
    /// Checks the database on its first connection.
    pub(crate) async fn open(server: &Arc<Server>, session: &Session) -> Result<Self, OpenError> {
        let started = Counter::default();
        let state = current(server, session, None, 0, &started).await?;
        let known = Known { epoch: state.epoch, connections: CancellationToken::new(), written: None };
        Ok(Epochs {
            server: server.clone(),
            known: Mutex::new(known),
            insert_log: Cursors::new(state.snapshot),
            cancellations: RecordCursors::default(),
            partitions: Partitions::default(),
            started,
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn newest(&self) -> u64 {
        self.known().epoch
    }

    /// Records positions that the database has acknowledged.
    pub(crate) fn record_written(&self, written: Written) {
        let known = &mut *self.known();
        if written.term.epoch() == known.epoch {
            known.written = Some(written);
        }
    }

    /// Records the epoch of the database, and a snapshot that the database took in this epoch. Forgets the state of the
    /// process that was valid in an earlier epoch. Every read of an owner that takes a shard in the epoch must begin
    /// after this call.
    pub(crate) fn learn(&self, epoch: u64, snapshot: Snapshot) {
        let known = &mut *self.known();
        if epoch > known.epoch {
            known.epoch = epoch;
            known.written = None;
            self.insert_log.restart(snapshot);
            self.cancellations.forget();
            self.partitions.forget();
            std::mem::take(&mut known.connections).cancel();
        }
    }

    /// Records the epoch in the first two columns of a row, which are those of [`NEWEST`].
    pub(crate) fn learn_from(&self, row: &Row) {
        self.learn(row.get::<_, i64>(0).cast_unsigned(), Snapshot::of(row.get(1)));
    }

    /// Checks a new connection, as the documentation of the module describes.
    pub(crate) fn admit(
        self: Arc<Self>,
        session: Arc<Session>,
    ) -> BoxFuture<'static, Result<CancellationToken, Failure>> {
        Box::pin(async move {
            let not_admitted = |reason| Failure::NotAdmitted { server: self.server.to_string(), reason };
            let (known_epoch, written) = {
                let known = self.known();
                (known.epoch, known.written)
            };
            let state = match current(&self.server, &session, written, known_epoch, &self.started).await {
                Ok(state) => state,
                Err(OpenError::Server(failure)) => return Err(failure),
                Err(error) => return Err(not_admitted(error.to_string())),
            };
            self.insert_log.limit(&state.snapshot);
            self.learn(state.epoch, state.snapshot);
            let known = self.known();
            if state.epoch < known.epoch {
                return Err(not_admitted(format!(
                    "its epoch {} is earlier than the epoch {} that this member has seen, so it is the former primary or \
                     an earlier copy; connect to the present primary, or run `reveille store new-epoch --store …` if \
                     this database is to continue",
                    state.epoch, known.epoch
                )));
            }
            Ok(known.connections.clone())
        })
    }
}

/// Reads the state of the database, and starts an epoch if the database may have returned to an earlier state.
async fn current(
    server: &Server,
    session: &Session,
    written: Option<Written>,
    known_epoch: u64,
    started: &Counter,
) -> Result<State, OpenError> {
    let state = read(session, written).await?;
    if !state.is_recorded_database {
        return Err(OpenError::OtherDatabase { server: server.to_string() });
    }
    let lacks_written = state.lacks_written && state.epoch == known_epoch;
    if state.is_recorded_timeline && !lacks_written {
        return Ok(state);
    }
    let (epoch, is_started) = start(session, state.epoch, known_epoch).await?;
    if is_started {
        started.inc();
        tracing::warn!(
            %server,
            epoch,
            "the database was promoted or recovered, and may have lost the last writes; a new epoch begins, and all \
             members take their shards again"
        );
    }
    // The state must be from the new epoch, because another session may have started the epoch.
    Ok(read(session, None).await?)
}

async fn read(session: &Session, written: Option<Written>) -> Result<State, Failure> {
    let poller = written.map(|written| poller_number(written.poller));
    let shard = written.map(|written| written.poller.shard().0.cast_signed());
    let term = written.map(|written| written.term.0.cast_signed());
    let closed = written.map(|written| written.positions.closed.as_millis());
    let done = written.map(|written| written.positions.done.as_millis());
    let rows = query(session, STATE, &[&poller, &shard, &term, &closed, &done]).await?;
    let row = rows.first().expect("the check of the schema has found the row of the table `meta`");
    Ok(State {
        epoch: row.get::<_, i64>(0).cast_unsigned(),
        is_recorded_database: row.get(1),
        is_recorded_timeline: row.get(2),
        snapshot: Snapshot::of(row.get(3)),
        lacks_written: row.get(4),
    })
}

/// Starts an epoch above `earlier`, and records the database as the one that the cluster uses. Returns the new epoch.
pub(crate) async fn start_above(session: &Session, earlier: u64) -> Result<u64, Failure> {
    loop {
        let seen = read(session, None).await?.epoch;
        if let (epoch, true) = start(session, seen, earlier).await? {
            return Ok(epoch);
        }
    }
}

/// Starts an epoch above `earlier`, unless another session has started an epoch after `seen`. Returns the newest epoch,
/// and whether this call started it.
async fn start(session: &Session, seen: u64, earlier: u64) -> Result<(u64, bool), Failure> {
    let rows = query(session, START, &[&seen.cast_signed(), &earlier.cast_signed()]).await?;
    let row = rows.first().expect("the function `start_epoch` returns one row");
    Ok((row.get::<_, i64>(0).cast_unsigned(), row.get(1)))
}

/// Checks that the database is the recorded one.
pub(crate) async fn check_database(server: &Server, session: &Session) -> Result<(), OpenError> {
    let is_recorded = read(session, None).await?.is_recorded_database;
    if is_recorded { Ok(()) } else { Err(OpenError::OtherDatabase { server: server.to_string() }) }
}
