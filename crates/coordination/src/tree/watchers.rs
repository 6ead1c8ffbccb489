//! Registry of watches, for engines that receive every change of the tree.

use std::collections::BTreeMap;

use super::{Event, EventSender, Events, NodePath, SessionId, Watch, WatchSender};

/// All watches of one tree.
#[derive(Debug, Default)]
pub struct Watchers {
    /// Watches, grouped by the path that they watch.
    at: BTreeMap<NodePath, Vec<Watcher>>,
}

#[derive(Debug)]
struct Watcher {
    session: SessionId,
    kind: Watched,
}

#[derive(Debug)]
enum Watched {
    /// Watch on the node and its data.
    Node(WatchSender),
    Children(WatchSender),
    All(EventSender),
}

impl Watcher {
    fn is_wanted(&self) -> bool {
        match &self.kind {
            Watched::Node(sender) | Watched::Children(sender) => sender.is_wanted(),
            Watched::All(sender) => sender.is_wanted(),
        }
    }

    /// Reports `event` at `path` to the watch at `watched`, if the watch is for this kind of event. `path` is `watched`
    /// or a path below it. Returns `self` if the watch can report more events.
    fn report(mut self, watched: &NodePath, path: &NodePath, event: &Event) -> Option<Self> {
        let is_same = watched == path;
        let is_child = || path.parent().as_ref() == Some(watched);
        match self.kind {
            Watched::Node(sender) if is_same => sender.fire(event.clone()),
            Watched::Children(sender) if is_same && matches!(event, Event::Deleted(_)) => sender.fire(event.clone()),
            Watched::Children(sender) if !matches!(event, Event::Changed(_)) && is_child() => {
                sender.fire(Event::ChildrenChanged(watched.clone()));
            }
            Watched::All(ref mut sender) => return sender.send(event.clone()).then_some(self),
            Watched::Node(_) | Watched::Children(_) => return Some(self),
        }
        None
    }
}

impl Watchers {
    /// Returns true if the registry contains no watch. A watch without a receiver counts until the registry removes the
    /// watch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    /// Adds a watch that fires when the node is created or deleted, or its data changes.
    pub fn node(&mut self, session: SessionId, path: &NodePath) -> Watch {
        let (sender, watch) = Watch::new();
        self.add(session, path, Watched::Node(sender));
        watch
    }

    /// Adds a watch that fires when a child is created or deleted, and when the node itself is deleted.
    pub fn children(&mut self, session: SessionId, path: &NodePath) -> Watch {
        let (sender, watch) = Watch::new();
        self.add(session, path, Watched::Children(sender));
        watch
    }

    /// Adds a stream of the events of the node and of all nodes below it.
    pub fn all(&mut self, session: SessionId, path: &NodePath) -> Events {
        let (sender, events) = Events::new();
        self.add(session, path, Watched::All(sender));
        events
    }

    fn add(&mut self, session: SessionId, path: &NodePath, kind: Watched) {
        let here = self.at.entry(path.clone()).or_default();
        if here.len() == here.capacity() {
            here.retain(Watcher::is_wanted);
        }
        here.push(Watcher { session, kind });
    }

    /// Removes the watches of an ended session.
    pub fn end(&mut self, session: SessionId) {
        self.retain(|watcher| watcher.session != session);
    }

    /// Removes the watches whose receivers no longer exist. [`Watchers::tell`] removes such a watch only when it
    /// reports an event to the watch.
    pub fn sweep(&mut self) {
        self.retain(Watcher::is_wanted);
    }

    fn retain(&mut self, is_retained: impl Fn(&Watcher) -> bool) {
        self.at.retain(|_, here| {
            here.retain(&is_retained);
            !here.is_empty()
        });
    }

    /// Reports the creation, deletion or data change of a node to the watches on the node and on the nodes above it.
    pub fn tell(&mut self, event: &Event) {
        let (Event::Created(path) | Event::Changed(path) | Event::Deleted(path)) = event else { return };
        let mut at = Some(path.clone());
        while let Some(watched) = at {
            if let Some(here) = self.at.remove(&watched) {
                let remaining: Vec<Watcher> =
                    here.into_iter().filter_map(|watcher| watcher.report(&watched, path, event)).collect();
                if !remaining.is_empty() {
                    self.at.insert(watched.clone(), remaining);
                }
            }
            at = watched.parent();
        }
    }
}
