//! What tells of changes.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, poll_fn};
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use tokio::sync::{mpsc, oneshot};

use super::{NodePath, TreeError};

/// Something happened to a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    Created(NodePath),
    /// Its data.
    Changed(NodePath),
    Deleted(NodePath),
    /// Told by [`Watch`]es of children only: [`Events`] tell of each child itself.
    ChildrenChanged(NodePath),
    /// Told by [`Events`] only: more may have happened than was told, so look at everything again.
    Gap,
}

/// A future of the first event after the read that it came with. [`TreeError::SessionLost`] if the session ended first. A connection that
/// was lost and found again loses no event. Dropped, it is taken back.
#[must_use = "a watch that is dropped tells nothing"]
pub struct Watch(BoxFuture<'static, Result<Event, TreeError>>);

/// The far side of a [`Watch`]; dropped, the session has ended.
#[derive(Debug)]
pub struct WatchSender(oneshot::Sender<Event>);

impl Watch {
    /// For engines: `event` is ready before a read shows what it tells of.
    pub fn of(event: impl Future<Output = Result<Event, TreeError>> + Send + 'static) -> Self {
        Watch(Box::pin(event))
    }

    /// For engines.
    pub fn new() -> (WatchSender, Self) {
        let (sender, receiver) = oneshot::channel();
        (WatchSender(sender), Watch::of(async { receiver.await.map_err(|_gone| TreeError::SessionLost) }))
    }
}

impl WatchSender {
    pub fn fire(self, event: Event) {
        // Nobody waits any more: that is theirs to say.
        drop(self.0.send(event));
    }

    #[must_use]
    pub fn is_wanted(&self) -> bool {
        !self.0.is_closed()
    }
}

impl Future for Watch {
    type Output = Result<Event, TreeError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// All that happens, in its order; ends with the session. As many events wait as [`Events::WAITING_MAX`]: to who is
/// slower the rest is told as one [`Event::Gap`].
#[must_use = "events that are not read tell nothing"]
pub struct Events(BoxStream<'static, Event>);

/// The far side of [`Events`]; dropped, the session has ended.
#[derive(Debug)]
pub struct EventSender {
    sender: mpsc::Sender<Event>,
    /// Events were left out since the last that was sent.
    is_behind: bool,
}

impl Events {
    pub const WAITING_MAX: usize = 4_096;

    /// For engines.
    pub fn of(events: impl Stream<Item = Event> + Send + 'static) -> Self {
        Events(events.boxed())
    }

    /// For engines.
    pub fn new() -> (EventSender, Self) {
        let (sender, mut receiver) = mpsc::channel(Self::WAITING_MAX);
        (EventSender { sender, is_behind: false }, Events::of(poll_fn(move |cx| receiver.poll_recv(cx))))
    }

    /// Without waiting: `None` if nothing is there yet, or any more; and now and then, in a long loop of one of tokio's tasks, which
    /// lets others have a turn.
    pub fn try_next(&mut self) -> Option<Event> {
        self.next().now_or_never().flatten()
    }
}

impl EventSender {
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        !self.sender.is_closed()
    }

    /// False if nobody listens any more.
    pub fn send(&mut self, event: Event) -> bool {
        // The last place is kept for the gap, so that it is told even if nothing more happens.
        if self.is_behind && self.sender.capacity() == Events::WAITING_MAX {
            self.is_behind = false;
        }
        if self.is_behind {
            return self.is_wanted();
        }
        let event = if self.sender.capacity() <= 1 { Event::Gap } else { event };
        self.is_behind = event == Event::Gap && self.sender.capacity() <= 1;
        self.sender.try_send(event).is_ok() || self.is_wanted()
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.0.poll_next_unpin(cx)
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: usize) -> Event {
        Event::Changed(NodePath::new(&format!("/{number}")).unwrap())
    }

    #[test]
    fn what_is_too_much_is_told_as_one_gap() {
        let (mut sender, mut events) = Events::new();
        for round in 0..2 {
            for number in 0..Events::WAITING_MAX + 10 {
                assert!(sender.send(event(number)), "somebody listens");
            }
            for number in 0..Events::WAITING_MAX - 1 {
                assert_eq!(events.try_next(), Some(event(number)), "round {round}");
            }
            assert_eq!(events.try_next(), Some(Event::Gap));
            assert_eq!(events.try_next(), None);
        }
        assert!(sender.send(event(7)));
        assert_eq!(events.try_next(), Some(event(7)), "what happens after a gap was read is told");
    }

    #[test]
    fn a_gap_stands_until_it_is_read() {
        let (mut sender, mut events) = Events::new();
        (0..Events::WAITING_MAX).for_each(|number| assert!(sender.send(event(number))));
        assert_eq!(events.try_next(), Some(event(0)));
        assert!(sender.send(event(7)), "it is left out: the gap comes after it");
        let rest = std::iter::from_fn(|| events.try_next());
        assert_eq!(rest.last(), Some(Event::Gap));
    }

    #[test]
    fn who_listens_no_more_is_seen() {
        let (mut sender, events) = Events::new();
        drop(events);
        assert!(!sender.is_wanted() && !sender.send(event(0)));
        let (sender, watch) = Watch::new();
        drop(watch);
        assert!(!sender.is_wanted());
    }
}
