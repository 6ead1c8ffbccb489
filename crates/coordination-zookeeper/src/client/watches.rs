//! Watches of a session, as this process knows them.
//!
//! The server forgets the watches when the connection ends. After a reconnect, the client requests all watches again and
//! tells the server the last change that it has seen, so the server reports the missed events of watches that fire once.
//! It reports no missed events to streams, so each stream gets an [`Event::Gap`].
//!
//! The client removes the watches of a path from the server only all at once, because servers before version 3.9 cannot
//! distinguish their kinds. It requests the removal when no watch of the path has a receiver any more.

use std::collections::HashMap;

use coordination::tree::{Event, EventSender, Events, NodePath, Watch, WatchSender};

use super::jute::Writer;
use super::protocol::{EventKind, Request, op};

/// Largest total length of the paths in one request for watches, in bytes. ZooKeeper's own client uses the same limit.
const PATH_BYTES_MAX: usize = 128 << 10;

/// Kinds of watches that ZooKeeper distinguishes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WatchKind {
    /// Fires once, when the data of an existing node changes or the node is deleted.
    Data,
    /// Fires once, when a missing node is created.
    Exists,
    /// Fires once, when a child is created or deleted, or the node itself is deleted.
    Children,
    /// Stream of the events of the node and of all nodes below it.
    All,
}

/// Receiver of a new watch.
pub(crate) enum Receiver {
    Once(Watch),
    Stream(Events),
}

#[derive(Default)]
struct At {
    data: Vec<WatchSender>,
    exists: Vec<WatchSender>,
    children: Vec<WatchSender>,
    streams: Vec<EventSender>,
    /// Number of requests for a watch of this path that have no response yet.
    requested: usize,
    /// True if a receiver was dropped while a request had no response. The server may then have an unused watch.
    was_dropped: bool,
}

/// Watches by the path that the server knows.
#[derive(Default)]
pub(crate) struct Watches(HashMap<String, At>);

impl Watches {
    /// Records that the client has requested a watch of `path`.
    pub(crate) fn requested(&mut self, path: &str) {
        self.0.entry(path.to_owned()).or_default().requested += 1;
    }

    /// Records that a request for a watch of `path` has a response. Adds the watch if the server has set it. Also returns
    /// a request that removes the watches of `path` from the server, if no receiver waits for them any more.
    pub(crate) fn answered(&mut self, path: &str, set: Option<WatchKind>) -> (Option<Receiver>, Option<Request>) {
        let at = self.0.entry(path.to_owned()).or_default();
        at.requested = at.requested.saturating_sub(1);
        let receiver = set.map(|kind| match kind {
            WatchKind::Data => once(&mut at.data),
            WatchKind::Exists => once(&mut at.exists),
            WatchKind::Children => once(&mut at.children),
            WatchKind::All => {
                let (sender, events) = Events::new();
                at.streams.push(sender);
                Receiver::Stream(events)
            }
        });
        let removal = if receiver.is_none() && at.was_dropped { self.dropped(path) } else { None };
        if self.0.get(path).is_some_and(At::is_unused) {
            self.0.remove(path);
        }
        (receiver, removal)
    }

    /// Returns the request that removes the watches of `path` from the server, if no receiver waits for them.
    pub(crate) fn dropped(&mut self, path: &str) -> Option<Request> {
        let at = self.0.get_mut(path)?;
        at.retain_wanted();
        if !at.is_unused() {
            at.was_dropped |= at.requested > 0;
            return None;
        }
        self.0.remove(path);
        Some(Request::remove_watches(path))
    }

    /// Reports an event of the server at `path` to the watches of the node, and to the streams of the node and of the
    /// nodes above it. `seen` is the path that the receivers see.
    pub(crate) fn report(&mut self, kind: EventKind, path: &str, seen: &NodePath) {
        self.fire(kind, path, seen);
        if kind != EventKind::ChildrenChanged {
            let event = event_of(kind, seen);
            for above in ancestors(path) {
                if let Some(at) = self.0.get_mut(above) {
                    at.streams.retain_mut(|stream| stream.send(event.clone()));
                }
            }
        }
        // If a node has a stream, a server before version 3.9 does not report its children to its other watches.
        if matches!(kind, EventKind::Created | EventKind::Deleted)
            && let Some(parent) = ancestors(path).nth(1)
            && self.0.get(parent).is_some_and(|at| !at.streams.is_empty() && !at.children.is_empty())
            && let Some(seen) = seen.parent()
        {
            self.fire(EventKind::ChildrenChanged, parent, &seen);
        }
    }

    /// Reports an event of the server to the watches of the node, but not to streams.
    pub(crate) fn fire(&mut self, kind: EventKind, path: &str, seen: &NodePath) {
        if let Some(at) = self.0.get_mut(path) {
            let mut fired = Vec::new();
            if kind != EventKind::ChildrenChanged {
                fired.append(&mut at.data);
                fired.append(&mut at.exists);
            }
            if matches!(kind, EventKind::ChildrenChanged | EventKind::Deleted) {
                fired.append(&mut at.children);
            }
            fired.into_iter().for_each(|watch| watch.fire(event_of(kind, seen)));
            if at.is_unused() {
                self.0.remove(path);
            }
        }
    }

    /// Reports a gap to all streams. The caller has set their watches again.
    pub(crate) fn report_gap(&mut self) {
        for at in self.0.values_mut() {
            at.streams.retain_mut(|stream| stream.send(Event::Gap));
        }
    }

    /// Returns the requests that set all watches again after a reconnect. `zxid` is the last change that the client has
    /// seen. The first request exists even if there are no watches: a server that is too old rejects it.
    pub(crate) fn set_again(&mut self, zxid: i64) -> Vec<Request> {
        self.0.retain(|_, at| {
            at.retain_wanted();
            // The requests of the lost connection get no response.
            at.requested = 0;
            at.was_dropped = false;
            !at.is_unused()
        });
        let (mut lists, mut bytes) = (<[Vec<&str>; 4]>::default(), 0);
        let mut requests = Vec::new();
        for (path, at) in &self.0 {
            let kinds = [!at.data.is_empty(), !at.exists.is_empty(), !at.children.is_empty(), !at.streams.is_empty()];
            for (list, is_watched) in kinds.into_iter().enumerate() {
                if !is_watched {
                    continue;
                }
                if bytes > 0 && bytes + path.len() > PATH_BYTES_MAX {
                    requests.push(set_watches(zxid, &std::mem::take(&mut lists)));
                    bytes = 0;
                }
                lists[list].push(path);
                bytes += path.len();
            }
        }
        requests.push(set_watches(zxid, &lists));
        requests
    }
}

fn event_of(kind: EventKind, at: &NodePath) -> Event {
    match kind {
        EventKind::Created => Event::Created(at.clone()),
        EventKind::Changed => Event::Changed(at.clone()),
        EventKind::Deleted => Event::Deleted(at.clone()),
        EventKind::ChildrenChanged => Event::ChildrenChanged(at.clone()),
    }
}

fn set_watches(zxid: i64, [data, exists, children, streams]: &[Vec<&str>; 4]) -> Request {
    let lists = [&data[..], &exists[..], &children[..], &[], &streams[..]];
    let list = |body: Writer, list: &&[&str]| body.texts(list.iter().copied());
    Request::new(op::SET_WATCHES, lists.iter().fold(Writer::default().long(zxid), list))
}

fn once(watches: &mut Vec<WatchSender>) -> Receiver {
    watches.retain(WatchSender::is_wanted);
    let (sender, watch) = Watch::new();
    watches.push(sender);
    Receiver::Once(watch)
}

/// Returns the path and the paths of all nodes above it, up to the root.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| match path.rfind('/')? {
        0 if *path == "/" => None,
        0 => Some("/"),
        at => Some(&path[..at]),
    })
}

impl At {
    fn retain_wanted(&mut self) {
        for watches in [&mut self.data, &mut self.exists, &mut self.children] {
            watches.retain(WatchSender::is_wanted);
        }
        self.streams.retain(EventSender::is_wanted);
    }

    fn is_unused(&self) -> bool {
        self.requested == 0
            && self.data.is_empty()
            && self.exists.is_empty()
            && self.children.is_empty()
            && self.streams.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::jute::Reader;
    use super::*;

    fn add(watches: &mut Watches, path: &str, kind: WatchKind) -> Receiver {
        watches.requested(path);
        watches.answered(path, Some(kind)).0.unwrap()
    }

    fn received(receiver: Receiver) -> Option<Event> {
        match receiver {
            Receiver::Once(watch) => futures_util::FutureExt::now_or_never(watch).and_then(Result::ok),
            Receiver::Stream(mut events) => events.try_next(),
        }
    }

    #[test]
    fn event_fires_the_watches_of_its_kind_once() {
        let path = NodePath::new("/a/b").unwrap();
        for (kind, fires) in [
            (EventKind::Created, [true, true, false, true]),
            (EventKind::Changed, [true, true, false, true]),
            (EventKind::Deleted, [true, true, true, true]),
            (EventKind::ChildrenChanged, [false, false, true, false]),
        ] {
            let mut watches = Watches::default();
            let here = [WatchKind::Data, WatchKind::Exists, WatchKind::Children];
            let mut receivers: Vec<Receiver> = here.map(|kind| add(&mut watches, "/base/a/b", kind)).into();
            receivers.push(add(&mut watches, "/", WatchKind::All));
            let other = add(&mut watches, "/base/a", WatchKind::Data);
            watches.report(kind, "/base/a/b", &path);
            let fired: Vec<bool> = receivers.into_iter().map(|receiver| received(receiver).is_some()).collect();
            assert_eq!(fired, fires, "{kind:?}");
            assert_eq!(received(other), None);
        }
    }

    #[test]
    fn stream_does_not_silence_a_watch_of_the_same_children() {
        let mut watches = Watches::default();
        let (children, _stream) =
            (add(&mut watches, "/a", WatchKind::Children), add(&mut watches, "/a", WatchKind::All));
        watches.report(EventKind::Created, "/a/b", &NodePath::new("/a/b").unwrap());
        assert_eq!(received(children), Some(Event::ChildrenChanged(NodePath::new("/a").unwrap())));
    }

    #[test]
    fn watches_of_a_path_leave_the_server_with_their_last_receiver() {
        let mut watches = Watches::default();
        let (data, stream) = (add(&mut watches, "/a", WatchKind::Data), add(&mut watches, "/a", WatchKind::All));
        watches.requested("/a");
        drop(data);
        assert_eq!(watches.dropped("/a"), None);
        drop(stream);
        assert_eq!(watches.dropped("/a"), None, "a request for another watch is under way");
        let (receiver, removal) = watches.answered("/a", None);
        assert!(receiver.is_none());
        assert_eq!(removal, Some(Request::remove_watches("/a")), "the request for the other watch has failed");
        drop(add(&mut watches, "/a", WatchKind::Children));
        assert_eq!(watches.dropped("/a"), Some(Request::remove_watches("/a")));
        assert_eq!(watches.dropped("/a"), None);
    }

    #[test]
    fn requests_after_a_reconnect_name_each_watch_once_and_are_short() {
        let mut watches = Watches::default();
        let mut receivers = Vec::new();
        for number in 0..3_000 {
            let path = format!("/{}{number}", "x".repeat(100));
            for kind in [WatchKind::Data, WatchKind::Exists, WatchKind::Children, WatchKind::All] {
                receivers.push(add(&mut watches, &path, kind));
            }
        }
        receivers.pop();
        let requests = watches.set_again(7);
        let mut counts = [0; 5];
        for request in &requests {
            assert!(request.body.len() < PATH_BYTES_MAX + 10_000, "{} bytes", request.body.len());
            let mut reader = Reader::new(request.body.clone().into());
            assert_eq!(reader.long(), Ok(7));
            for count in &mut counts {
                *count += reader.list(Reader::text).unwrap().len();
            }
        }
        assert_eq!(counts, [3_000, 3_000, 3_000, 0, 2_999]);
        assert!(requests.len() >= 9, "{} requests", requests.len());
        drop(receivers);
        assert_eq!(watches.set_again(7), [set_watches(7, &Default::default())]);
    }

    #[test]
    fn every_stream_reports_a_gap_after_a_reconnect() {
        let mut watches = Watches::default();
        let streams = [add(&mut watches, "/a", WatchKind::All), add(&mut watches, "/", WatchKind::All)];
        watches.report_gap();
        assert!(streams.map(received).iter().all(|event| *event == Some(Event::Gap)));
    }
}
