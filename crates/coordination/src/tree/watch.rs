//! Watches and event streams that report changes.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, poll_fn};
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use tokio::sync::{mpsc, oneshot};

use super::{NodePath, TreeError};

/// Change of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A session created a node at this path.
    Created(NodePath),
    /// The node's data changed.
    Changed(NodePath),
    /// A session or the engine deleted the node.
    Deleted(NodePath),
    /// The set of the node's children changed. Only a [`Watch`] of children reports this event. [`Events`] report the
    /// creation or deletion of each child.
    ChildrenChanged(NodePath),
    /// Some events may be missing, so the caller must read all nodes again. Only [`Events`] report this event.
    Gap,
}

/// Future that returns the first event after the read that created the watch. It returns [`TreeError::SessionLost`] if
/// the session ends first. The watch also reports an event that happens while the connection is lost. A drop of the
/// watch removes it from the engine.
#[must_use = "a dropped watch reports no event"]
pub struct Watch(BoxFuture<'static, Result<Event, TreeError>>);

/// Sending half of a [`Watch`]. A drop of this value signals the end of the session to the watch.
#[derive(Debug)]
pub struct WatchSender(oneshot::Sender<Event>);

impl Watch {
    /// Creates a watch from `event`, the future of an event. This future must be ready before a read of the session
    /// shows the change that the event reports. Engines call this function.
    pub fn of(event: impl Future<Output = Result<Event, TreeError>> + Send + 'static) -> Self {
        Watch(Box::pin(event))
    }

    /// Creates a watch and its sending half. Engines call this function.
    pub fn new() -> (WatchSender, Self) {
        let (sender, receiver) = oneshot::channel();
        (WatchSender(sender), Watch::of(async { receiver.await.map_err(|_closed| TreeError::SessionLost) }))
    }
}

impl WatchSender {
    /// Reports `event` to the watch. Does nothing if the receiver has dropped the watch.
    pub fn fire(self, event: Event) {
        // If the channel is closed, the receiver has dropped its watch, which is allowed.
        drop(self.0.send(event));
    }

    /// Returns true until the receiver drops the watch.
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

/// Stream of all events of a node and the nodes below it, in the order of the events. The stream ends when the session
/// ends. At most [`Events::WAITING_MAX`] events wait for the reader. If the reader is too slow, it gets one
/// [`Event::Gap`] in place of further events.
#[must_use = "the caller must read events from the stream"]
pub struct Events(BoxStream<'static, Event>);

/// Sending half of [`Events`]. A drop of this value signals the end of the session to the reader.
#[derive(Debug)]
pub struct EventSender {
    sender: mpsc::Sender<Event>,
    /// True after the sender has sent an [`Event::Gap`] because the reader is too slow. The sender then leaves out
    /// events until the reader has received all waiting events.
    is_behind: bool,
}

impl Events {
    /// Largest number of events that wait for the reader, including an [`Event::Gap`].
    pub const WAITING_MAX: usize = 4_096;

    /// Creates a stream of events from another stream. Engines call this function.
    pub fn of(events: impl Stream<Item = Event> + Send + 'static) -> Self {
        Events(events.boxed())
    }

    /// Creates a stream of events and its sending half. Engines call this function.
    pub fn new() -> (EventSender, Self) {
        let (sender, mut receiver) = mpsc::channel(Self::WAITING_MAX);
        (EventSender { sender, is_behind: false }, Events::of(poll_fn(move |cx| receiver.poll_recv(cx))))
    }

    /// Returns the next event without a wait. Returns `None` if no event is ready or the stream has ended. In a long
    /// loop inside a tokio task, the function sometimes also returns `None`, because tokio forces the task to yield.
    pub fn try_next(&mut self) -> Option<Event> {
        self.next().now_or_never().flatten()
    }
}

impl EventSender {
    /// Returns true until the reader drops the stream.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Sends an event. Returns false if the reader has dropped the stream.
    pub fn send(&mut self, event: Event) -> bool {
        // The sender uses the last slot of the channel only for [`Event::Gap`]. The reader therefore receives the gap
        // even if no other event follows.
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
    fn event_stream_replaces_excess_events_with_one_gap() {
        let (mut sender, mut events) = Events::new();
        for round in 0..2 {
            for number in 0..Events::WAITING_MAX + 10 {
                assert!(sender.send(event(number)), "the reader still exists");
            }
            for number in 0..Events::WAITING_MAX - 1 {
                assert_eq!(events.try_next(), Some(event(number)), "round {round}");
            }
            assert_eq!(events.try_next(), Some(Event::Gap));
            assert_eq!(events.try_next(), None);
        }
        assert!(sender.send(event(7)));
        assert_eq!(events.try_next(), Some(event(7)), "events after a gap was read are reported");
    }

    #[test]
    fn event_stream_drops_events_until_the_reader_receives_the_gap() {
        let (mut sender, mut events) = Events::new();
        (0..Events::WAITING_MAX).for_each(|number| assert!(sender.send(event(number))));
        assert_eq!(events.try_next(), Some(event(0)));
        assert!(sender.send(event(7)), "the event is accepted and left out, because a gap follows");
        let rest = std::iter::from_fn(|| events.try_next());
        assert_eq!(rest.last(), Some(Event::Gap));
    }

    #[test]
    fn sender_detects_that_its_receiver_was_dropped() {
        let (mut sender, events) = Events::new();
        drop(events);
        assert!(!sender.is_wanted() && !sender.send(event(0)));
        let (sender, watch) = Watch::new();
        drop(watch);
        assert!(!sender.is_wanted());
    }
}
