//! Who is told of what: for engines that see every change.

use std::collections::BTreeMap;

use super::{Event, EventSender, Events, NodePath, SessionId, Watch, WatchSender};

/// All that waits for a change of one tree.
#[derive(Debug, Default)]
pub struct Watchers {
    /// By the path that is watched.
    at: BTreeMap<NodePath, Vec<Watcher>>,
}

#[derive(Debug)]
struct Watcher {
    session: SessionId,
    what: Watched,
}

#[derive(Debug)]
enum Watched {
    /// Of the node and its data.
    Node(WatchSender),
    Children(WatchSender),
    All(EventSender),
}

impl Watcher {
    fn is_wanted(&self) -> bool {
        match &self.what {
            Watched::Node(sender) | Watched::Children(sender) => sender.is_wanted(),
            Watched::All(sender) => sender.is_wanted(),
        }
    }

    /// `path` is `watched` or below it. Itself, if it waits for more.
    fn tell(mut self, watched: &NodePath, path: &NodePath, event: &Event) -> Option<Self> {
        let is_it = watched == path;
        let is_child = || path.parent().as_ref() == Some(watched);
        match self.what {
            Watched::Node(sender) if is_it => sender.fire(event.clone()),
            Watched::Children(sender) if is_it && matches!(event, Event::Deleted(_)) => sender.fire(event.clone()),
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
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    /// Fires when the node comes or goes, or its data change.
    pub fn node(&mut self, session: SessionId, path: &NodePath) -> Watch {
        let (sender, watch) = Watch::new();
        self.add(session, path, Watched::Node(sender));
        watch
    }

    /// Fires when a child comes or goes, and when the node goes.
    pub fn children(&mut self, session: SessionId, path: &NodePath) -> Watch {
        let (sender, watch) = Watch::new();
        self.add(session, path, Watched::Children(sender));
        watch
    }

    /// Tells of the node and all below it.
    pub fn all(&mut self, session: SessionId, path: &NodePath) -> Events {
        let (sender, events) = Events::new();
        self.add(session, path, Watched::All(sender));
        events
    }

    fn add(&mut self, session: SessionId, path: &NodePath, what: Watched) {
        let here = self.at.entry(path.clone()).or_default();
        if here.len() == here.capacity() {
            here.retain(Watcher::is_wanted);
        }
        here.push(Watcher { session, what });
    }

    /// Those of a session end: they would tell nobody.
    pub fn end(&mut self, session: SessionId) {
        self.retain(|watcher| watcher.session != session);
    }

    /// Those that nobody waits for any more go. They do so by themselves where anything happens.
    pub fn sweep(&mut self) {
        self.retain(Watcher::is_wanted);
    }

    fn retain(&mut self, is_kept: impl Fn(&Watcher) -> bool) {
        self.at.retain(|_, here| {
            here.retain(&is_kept);
            !here.is_empty()
        });
    }

    /// A node came, went, or has other data.
    pub fn tell(&mut self, event: &Event) {
        let (Event::Created(path) | Event::Changed(path) | Event::Deleted(path)) = event else { return };
        let mut at = Some(path.clone());
        while let Some(watched) = at {
            if let Some(here) = self.at.remove(&watched) {
                let left: Vec<Watcher> =
                    here.into_iter().filter_map(|watcher| watcher.tell(&watched, path, event)).collect();
                if !left.is_empty() {
                    self.at.insert(watched.clone(), left);
                }
            }
            at = watched.parent();
        }
    }
}
