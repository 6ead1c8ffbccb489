//! What changes did, read for the watches of this process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, Weak};
use std::time::Duration;

use coordination::tree::session::{Session, SessionId};
use coordination::tree::{Event, NodePath, TreeError, Watchers};
use futures_util::FutureExt as _;
use postgres_client::tokio_postgres::Row;

use super::{Inner, rows};

/// How long nobody looks if NOTIFY says nothing: what a notice that was lost, and the end of a dead session, wait for.
const POLL_PERIOD: Duration = Duration::from_millis(250);
/// How often watches are looked for that nobody waits for any more.
const SWEEP_PERIOD: Duration = Duration::from_secs(5);
/// Events of one read.
const PAGE: i64 = 5_000;

#[derive(Default)]
pub(super) struct Feed {
    turn: tokio::sync::Mutex<Place>,
    /// The last change of which all events were told.
    told: AtomicI64,
    inner: Mutex<Listeners>,
}

#[derive(Default)]
struct Listeners {
    watchers: Watchers,
    sessions: BTreeMap<SessionId, Session>,
}

/// Events up to this were told: of this change, to this step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Place {
    zxid: i64,
    step: i32,
}

impl Place {
    fn after(zxid: i64) -> Self {
        Place { zxid, step: i32::MAX }
    }
}

/// Who has it alone fetches events, or sees to it that none is fetched.
pub(super) type Turn<'a> = tokio::sync::MutexGuard<'a, Place>;

impl Feed {
    pub(super) fn join(&self, session: Session) {
        self.lock().sessions.insert(session.id(), session);
    }

    /// Its watches end.
    pub(super) fn leave(&self, session: SessionId) {
        let mut listeners = self.lock();
        listeners.sessions.remove(&session);
        listeners.watchers.end(session);
    }

    pub(super) async fn turn(&self) -> Turn<'_> {
        self.turn.lock().await
    }

    /// To be called by who has the turn, and has fetched what happened until a read.
    pub(super) fn watch<W>(&self, session: SessionId, watch: impl FnOnce(&mut Watchers) -> W) -> Result<W, TreeError> {
        let mut listeners = self.lock();
        // After it has left nobody would end its watches.
        if !listeners.sessions.contains_key(&session) {
            return Err(TreeError::SessionLost);
        }
        Ok(watch(&mut listeners.watchers))
    }

    /// As [`Feed::fetch`], of a read that was made under this turn: one of an earlier state than others before it shows that the database
    /// was put back in time.
    pub(super) async fn follow(&self, turn: &mut Turn<'_>, inner: &Inner, zxid: i64) -> Result<(), TreeError> {
        if turn.zxid > zxid {
            tracing::warn!(
                from = turn.zxid,
                to = zxid,
                "the database was put back in time: this process's sessions end"
            );
            self.lose_all(&mut self.lock());
            self.reached(turn, Place::after(zxid));
            return Err(TreeError::SessionLost);
        }
        self.fetch(turn, inner, zxid).await
    }

    fn lose_all(&self, listeners: &mut Listeners) {
        listeners.sessions.values().for_each(Session::lose);
        listeners.watchers = Watchers::default();
    }

    /// Returns when all that happened up to `zxid` was told.
    pub(super) async fn catch_up(&self, inner: &Inner, zxid: i64) -> Result<(), TreeError> {
        if self.told.load(Ordering::Acquire) >= zxid {
            return Ok(());
        }
        self.fetch(&mut self.turn().await, inner, zxid).await
    }

    /// Tells what happened up to `to`, and nothing of what happened after it.
    async fn fetch(&self, turn: &mut Turn<'_>, inner: &Inner, to: i64) -> Result<(), TreeError> {
        while **turn < Place::after(to) {
            if self.lock().watchers.is_empty() {
                self.reached(turn, Place::after(to));
                break;
            }
            let rows = inner.read(rows::EVENTS, &[&turn.zxid, &turn.step, &to, &PAGE]).await?;
            let place = self.tell(&rows, **turn).ok_or_else(rows::unexpected)?;
            let is_whole = i64::try_from(rows.len()).unwrap_or(PAGE) < PAGE;
            self.reached(turn, if is_whole { Place::after(to) } else { place });
        }
        Ok(())
    }

    fn reached(&self, turn: &mut Turn<'_>, place: Place) {
        **turn = place;
        let whole = if place == Place::after(place.zxid) { place.zxid } else { place.zxid - 1 };
        self.told.store(whole, Ordering::Release);
    }

    /// The place of the last; `None` if a row is not of its form.
    fn tell(&self, rows: &[Row], mut place: Place) -> Option<Place> {
        let mut listeners = self.lock();
        for row in rows {
            let forgotten: i64 = row.try_get(0).ok()?;
            if forgotten > place.zxid {
                // Longer than any session can have been without an answer: whoever listens here has stood still.
                tracing::warn!("this process has slept for longer than events are kept: its sessions end");
                self.lose_all(&mut listeners);
            }
            let Some(zxid) = row.try_get(1).ok()? else { continue };
            place = Place { zxid, step: row.try_get(2).ok()? };
            let path = NodePath::new(row.try_get(4).ok()?).ok()?;
            listeners.watchers.tell(&match row.try_get::<_, i16>(3).ok()? {
                1 => Event::Created(path),
                2 => Event::Changed(path),
                3 => Event::Deleted(path),
                _ => return None,
            });
        }
        Some(place)
    }

    fn lock(&self) -> MutexGuard<'_, Listeners> {
        self.inner.lock().expect("no holder of this lock panics")
    }
}

/// Tells what happens, and ends the sessions of the dead, for as long as there is somebody to do it for.
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
        if is_needed && let Err(error) = look(&inner).await {
            tracing::debug!(%error, "the tree cannot be looked at now");
        }
        drop(inner);
        let changed = changes.changed().map(|changed| changed.is_ok());
        if runtime.timeout(POLL_PERIOD, changed).await == Some(false) {
            return;
        }
    }
}

async fn look(inner: &Inner) -> Result<(), TreeError> {
    let mut turn = inner.feed.turn().await;
    let rows = inner.read(rows::LOOK, &[]).await?;
    let row = rows.first().ok_or_else(rows::unexpected)?;
    let (last, is_due) = (row.try_get(0).ok(), row.try_get(1).ok());
    inner.feed.follow(&mut turn, inner, last.ok_or_else(rows::unexpected)?).await?;
    drop(turn);
    if is_due.ok_or_else(rows::unexpected)? {
        let reaped = inner.ask_until_done(&inner.database.work, rows::REAP, &[]).await;
        reaped.inspect_err(|error| tracing::warn!(%error, "sessions that are over cannot be ended now"))?;
    }
    Ok(())
}
