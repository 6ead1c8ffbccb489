//! Fetches the events of changes for the watches of this process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, Weak};
use std::time::Duration;

use coordination::tree::session::{Session, SessionId};
use coordination::tree::{Event, NodePath, TreeError, Watchers};
use futures_util::FutureExt as _;
use postgres_client::tokio_postgres::Row;

use super::{Inner, rows};

/// Interval between two polls if no NOTIFY arrives. It limits the delay of an event after a lost notification, and the
/// delay until this process ends an expired session.
const POLL_PERIOD: Duration = Duration::from_millis(250);
/// Interval between removals of watches that no caller awaits any more.
const SWEEP_PERIOD: Duration = Duration::from_secs(5);
/// Largest number of events in one read.
const PAGE: i64 = 5_000;

#[derive(Default)]
pub(super) struct Feed {
    turn: tokio::sync::Mutex<Position>,
    /// Number of the last change for which this process has delivered all events.
    delivered: AtomicI64,
    inner: Mutex<Listeners>,
}

#[derive(Default)]
struct Listeners {
    watchers: Watchers,
    sessions: BTreeMap<SessionId, Session>,
}

/// Position in the stream of events: the number of a change, and a step of this change. This process has delivered all
/// events up to this step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Position {
    zxid: i64,
    step: i32,
}

impl Position {
    fn after(zxid: i64) -> Self {
        Position { zxid, step: i32::MAX }
    }
}

/// Exclusive right to fetch events. While a task has this right, no other task fetches events.
pub(super) type Turn<'a> = tokio::sync::MutexGuard<'a, Position>;

impl Feed {
    pub(super) fn join(&self, session: Session) {
        self.lock().sessions.insert(session.id(), session);
    }

    /// Removes the session and ends its watches.
    pub(super) fn leave(&self, session: SessionId) {
        let mut listeners = self.lock();
        listeners.sessions.remove(&session);
        listeners.watchers.end(session);
    }

    pub(super) async fn turn(&self) -> Turn<'_> {
        self.turn.lock().await
    }

    /// Registers a watch. The caller must hold the [`Turn`], and the caller must already have fetched all events up to
    /// the state that it read.
    pub(super) fn watch<W>(&self, session: SessionId, watch: impl FnOnce(&mut Watchers) -> W) -> Result<W, TreeError> {
        let mut listeners = self.lock();
        // The removal of a session ends its watches. A watch that is registered after the removal would never end.
        if !listeners.sessions.contains_key(&session) {
            return Err(TreeError::SessionLost);
        }
        Ok(watch(&mut listeners.watchers))
    }

    /// Delivers the events up to the change `zxid`. The caller holds the [`Turn`], and has just read the state after
    /// this change. If an earlier read returned a later state, the database has returned to an earlier state. In this
    /// case the function ends all sessions of this process and returns an error.
    pub(super) async fn follow(&self, turn: &mut Turn<'_>, inner: &Inner, zxid: i64) -> Result<(), TreeError> {
        if turn.zxid > zxid {
            tracing::warn!(
                from = turn.zxid,
                to = zxid,
                "database returned to an earlier state; ending all sessions of this process"
            );
            self.lose_all(&mut self.lock());
            self.reached(turn, Position::after(zxid));
            return Err(TreeError::SessionLost);
        }
        self.fetch(turn, inner, zxid).await
    }

    fn lose_all(&self, listeners: &mut Listeners) {
        listeners.sessions.values().for_each(Session::lose);
        listeners.watchers = Watchers::default();
    }

    /// Delivers the events up to the change `zxid`, if this process has not delivered them yet.
    pub(super) async fn catch_up(&self, inner: &Inner, zxid: i64) -> Result<(), TreeError> {
        if self.delivered.load(Ordering::Acquire) >= zxid {
            return Ok(());
        }
        self.fetch(&mut self.turn().await, inner, zxid).await
    }

    /// Delivers the events up to the change `to`, and no later events.
    async fn fetch(&self, turn: &mut Turn<'_>, inner: &Inner, to: i64) -> Result<(), TreeError> {
        while **turn < Position::after(to) {
            if self.lock().watchers.is_empty() {
                self.reached(turn, Position::after(to));
                break;
            }
            let rows = inner.read(rows::EVENTS, &[&turn.zxid, &turn.step, &to, &PAGE]).await?;
            let position = self.deliver(&rows, **turn).ok_or_else(rows::unexpected)?;
            let is_whole = i64::try_from(rows.len()).unwrap_or(PAGE) < PAGE;
            self.reached(turn, if is_whole { Position::after(to) } else { position });
        }
        Ok(())
    }

    fn reached(&self, turn: &mut Turn<'_>, position: Position) {
        **turn = position;
        let is_whole = position == Position::after(position.zxid);
        let whole = if is_whole { position.zxid } else { position.zxid - 1 };
        self.delivered.store(whole, Ordering::Release);
    }

    /// Delivers the events in `rows`, and returns the position of the last event. Returns `None` if a row is malformed.
    fn deliver(&self, rows: &[Row], mut position: Position) -> Option<Position> {
        let mut listeners = self.lock();
        for row in rows {
            let forgotten: i64 = row.try_get(0).ok()?;
            if forgotten > position.zxid {
                // The database has deleted events that this process had not read. The database stores events for longer
                // than a session can live without a response. This process was therefore paused, and its sessions have
                // expired.
                tracing::warn!(
                    "database deleted events before this paused process read them; ending all sessions of this process"
                );
                self.lose_all(&mut listeners);
            }
            let Some(zxid) = row.try_get(1).ok()? else { continue };
            position = Position { zxid, step: row.try_get(2).ok()? };
            let path = NodePath::new(row.try_get(4).ok()?).ok()?;
            listeners.watchers.tell(&match row.try_get::<_, i16>(3).ok()? {
                1 => Event::Created(path),
                2 => Event::Changed(path),
                3 => Event::Deleted(path),
                _ => return None,
            });
        }
        Some(position)
    }

    fn lock(&self) -> MutexGuard<'_, Listeners> {
        self.inner.lock().expect("no code panics while it holds this mutex")
    }
}

/// Delivers events and ends expired sessions while this process has sessions.
pub(super) async fn run(inner: Weak<Inner>) {
    let Some(mut changes) = inner.upgrade().map(|inner| inner.database.changes.subscribe()) else { return };
    let mut swept = None;
    while let Some(inner) = inner.upgrade() {
        let runtime = inner.database.runtime.clone();
        let now = runtime.monotonic();
        if swept.is_none_or(|swept| now.since(swept) >= SWEEP_PERIOD) {
            swept = Some(now);
            inner.feed.lock().watchers.sweep();
        }
        let is_needed = !inner.feed.lock().sessions.is_empty();
        if is_needed && let Err(error) = poll(&inner).await {
            tracing::debug!(%error, "cannot poll the database for events; retrying");
        }
        drop(inner);
        let changed = changes.changed().map(|changed| changed.is_ok());
        if runtime.timeout(POLL_PERIOD, changed).await == Some(false) {
            return;
        }
    }
}

async fn poll(inner: &Inner) -> Result<(), TreeError> {
    let mut turn = inner.feed.turn().await;
    let rows = inner.read(rows::POLL, &[]).await?;
    let row = rows.first().ok_or_else(rows::unexpected)?;
    let (last, is_due) = (row.try_get(0).ok(), row.try_get(1).ok());
    inner.feed.follow(&mut turn, inner, last.ok_or_else(rows::unexpected)?).await?;
    drop(turn);
    if is_due.ok_or_else(rows::unexpected)? {
        let reaped = inner.query_until_done(&inner.database.serial, rows::REAP, &[]).await;
        reaped.inspect_err(|error| tracing::warn!(%error, "cannot end expired sessions; retrying"))?;
    }
    Ok(())
}
