//! State of a tree, in maps. This module defines the exact effect of each change that the tree port allows. The
//! functions of the module are deterministic: the same calls give the same state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use instants::Timestamp;

use crate::tree::{
    Acl, Children, CreateMode, Created, Done, Event, Expected, Grant, Identity, Node, NodePath, Op, Permissions,
    Sequence, SessionId, Stat, TreeError, Zxid, allows, shown,
};

pub(super) struct State {
    last: Zxid,
    nodes: BTreeMap<Key, Row>,
    sessions: BTreeMap<SessionId, Opened>,
}

/// Parent and name of a node. With this key, the children of a node are adjacent in the map. The parent and the name of
/// the root are empty.
type Key = (String, String);

#[derive(Clone, PartialEq, Debug)]
struct Row {
    data: Bytes,
    grants: Arc<[Grant]>,
    created: Zxid,
    modified: Zxid,
    children_modified: Zxid,
    version: i32,
    acl_version: i32,
    /// Number of children that sessions have created below the node with any create mode, including deleted children.
    creations: i32,
    children: i32,
    owner: Option<SessionId>,
    is_container: bool,
    created_at: Timestamp,
    modified_at: Timestamp,
}

struct Opened {
    identities: Vec<Identity>,
    ephemerals: BTreeSet<NodePath>,
}

/// Paths of the nodes that a change wrote, in the order of the writes. Each path has the node's row before the write,
/// or `None` if the node did not exist.
type Undo = Vec<(NodePath, Option<Row>)>;

/// Change in progress. All of its steps have the same zxid and the same time.
struct Change {
    zxid: Zxid,
    at: Timestamp,
    session: SessionId,
    undo: Undo,
    events: Vec<Event>,
}

impl Row {
    fn new(zxid: Zxid, at: Timestamp, data: Bytes, grants: Arc<[Grant]>) -> Self {
        Row {
            data,
            grants,
            created: zxid,
            modified: zxid,
            children_modified: zxid,
            version: 0,
            acl_version: 0,
            creations: 0,
            children: 0,
            owner: None,
            is_container: false,
            created_at: at,
            modified_at: at,
        }
    }

    fn stat(&self) -> Stat {
        Stat {
            created: self.created,
            modified: self.modified,
            children_modified: self.children_modified,
            version: self.version,
            // The version of the children is the number of their creations and deletions. ZooKeeper also computes this
            // version from the number of created children, because it does not store the version.
            children_version: self.creations.wrapping_mul(2).wrapping_sub(self.children),
            acl_version: self.acl_version,
            owner: self.owner,
            data_bytes: self.data.len(),
            children: usize::try_from(self.children).unwrap_or(0),
            created_at: self.created_at,
            modified_at: self.modified_at,
        }
    }

    fn expect(&self, expected: Expected) -> Result<(), TreeError> {
        match expected {
            Expected::Version(version) if version != self.version => Err(TreeError::BadVersion),
            Expected::Any | Expected::Version(_) => Ok(()),
        }
    }
}

impl State {
    pub(super) fn new(at: Timestamp) -> Self {
        let open = Acl::Open.grants(&[]).expect("the access list `Acl::Open` is never empty");
        let root = Row::new(Zxid(0), at, Bytes::new(), open.into());
        State { last: Zxid(0), nodes: BTreeMap::from([(key(&NodePath::root()), root)]), sessions: BTreeMap::new() }
    }

    /// Opens a session.
    ///
    /// # Panics
    /// Panics if an open session has the same id.
    pub(super) fn open(&mut self, id: SessionId, identities: Vec<Identity>) {
        self.last.0 += 1;
        let opened = Opened { identities, ephemerals: BTreeSet::new() };
        assert!(self.sessions.insert(id, opened).is_none(), "no open session has the id of the new session");
    }

    pub(super) fn has(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// Ends the session and deletes its ephemeral nodes.
    pub(super) fn close(&mut self, session: SessionId, at: Timestamp) -> Vec<Event> {
        let Some(opened) = self.sessions.get(&session) else { return Vec::new() };
        let removed: Vec<NodePath> = opened.ephemerals.iter().cloned().collect();
        self.last.0 += 1;
        let mut change = Change { zxid: self.last, at, session, undo: Undo::new(), events: Vec::new() };
        for path in &removed {
            self.remove(path, &mut change);
        }
        self.sessions.remove(&session);
        change.events
    }

    /// Runs all steps or none of them. An error contains the index of the failed step.
    pub(super) fn multi(
        &mut self,
        session: SessionId,
        at: Timestamp,
        ops: Vec<Op>,
    ) -> Result<(Vec<Done>, Vec<Event>), (usize, TreeError)> {
        if !self.has(session) {
            return Err((0, TreeError::SessionLost));
        }
        let zxid = Zxid(self.last.0 + 1);
        let mut change = Change { zxid, at, session, undo: Undo::new(), events: Vec::new() };
        let mut done = Vec::with_capacity(ops.len());
        for (step, op) in ops.into_iter().enumerate() {
            match self.step(op, &mut change) {
                Ok(result) => done.push(result),
                Err(error) => {
                    for (path, row) in change.undo.into_iter().rev() {
                        self.put(&path, row);
                    }
                    return Err((step, error));
                }
            }
        }
        self.last = zxid;
        Ok((done, change.events))
    }

    fn step(&mut self, op: Op, change: &mut Change) -> Result<Done, TreeError> {
        match op {
            Op::Check { path, expected } => {
                let row = self.row(&path)?;
                self.allow(row, change.session, Permissions::READ)?;
                row.expect(expected)?;
                Ok(Done::Check)
            }
            Op::Create { path, data, mode, acl } => self.create(path, data, mode, &acl, change).map(Done::Create),
            Op::Set { path, data, expected } => self.set(&path, data, expected, change).map(Done::Set),
            Op::Delete { path, expected } => {
                let parent =
                    path.parent().ok_or_else(|| TreeError::Invalid("the root cannot be deleted".to_owned()))?;
                self.allow(self.row(&parent)?, change.session, Permissions::DELETE)?;
                let row = self.row(&path)?;
                row.expect(expected)?;
                if row.children > 0 {
                    return Err(TreeError::NotEmpty);
                }
                self.remove(&path, change);
                Ok(Done::Delete)
            }
        }
    }

    fn create(
        &mut self,
        mut path: NodePath,
        data: Bytes,
        mode: CreateMode,
        acl: &Acl,
        change: &mut Change,
    ) -> Result<Created, TreeError> {
        let parent_path = path.parent().ok_or(TreeError::NodeExists)?;
        let grants = acl.grants(&self.sessions[&change.session].identities)?;
        let mut parent = self.row(&parent_path)?.clone();
        self.allow(&parent, change.session, Permissions::CREATE)?;
        if mode.is_sequential() {
            let name = format!("{}{}", path.name(), Sequence(parent.creations));
            path = parent_path.join(&name).map_err(|error| TreeError::Invalid(error.to_string()))?;
        }
        if self.nodes.contains_key(&key(&path)) {
            return Err(TreeError::NodeExists);
        }
        if parent.owner.is_some() {
            return Err(TreeError::NoChildrenForEphemerals);
        }
        parent.creations = parent.creations.wrapping_add(1);
        parent.children += 1;
        parent.children_modified = change.zxid;
        self.write(&parent_path, Some(parent), change);
        let mut row = Row::new(change.zxid, change.at, data, grants.into());
        row.owner = mode.is_ephemeral().then_some(change.session);
        row.is_container = mode == CreateMode::Container;
        let stat = row.stat();
        self.write(&path, Some(row), change);
        change.events.push(Event::Created(path.clone()));
        Ok(Created { path, stat })
    }

    fn set(
        &mut self,
        path: &NodePath,
        data: Bytes,
        expected: Expected,
        change: &mut Change,
    ) -> Result<Stat, TreeError> {
        let mut row = self.row(path)?.clone();
        self.allow(&row, change.session, Permissions::WRITE)?;
        row.expect(expected)?;
        row.data = data;
        row.version = row.version.wrapping_add(1);
        row.modified = change.zxid;
        row.modified_at = change.at;
        let stat = row.stat();
        self.write(path, Some(row), change);
        change.events.push(Event::Changed(path.clone()));
        Ok(stat)
    }

    /// Removes a node. The caller ensures that the node exists and has no children.
    fn remove(&mut self, path: &NodePath, change: &mut Change) {
        let parent_path = path.parent().expect("no caller removes the root");
        let mut parent = self.nodes[&key(&parent_path)].clone();
        parent.children -= 1;
        parent.children_modified = change.zxid;
        self.write(&parent_path, Some(parent), change);
        self.write(path, None, change);
        change.events.push(Event::Deleted(path.clone()));
    }

    fn write(&mut self, path: &NodePath, row: Option<Row>, change: &mut Change) {
        let before = self.put(path, row);
        change.undo.push((path.clone(), before));
    }

    /// Stores a row, or removes the row of the node if `row` is `None`. Returns the earlier row.
    fn put(&mut self, path: &NodePath, row: Option<Row>) -> Option<Row> {
        let owner = row.as_ref().and_then(|row| row.owner);
        let before = match row {
            Some(row) => self.nodes.insert(key(path), row),
            None => self.nodes.remove(&key(path)),
        };
        if let Some(opened) = before.as_ref().and_then(|row| row.owner).and_then(|id| self.sessions.get_mut(&id)) {
            opened.ephemerals.remove(path);
        }
        if let Some(opened) = owner.and_then(|id| self.sessions.get_mut(&id)) {
            opened.ephemerals.insert(path.clone());
        }
        before
    }

    pub(super) fn set_acl(&mut self, session: SessionId, path: &NodePath, acl: &Acl) -> Result<Stat, TreeError> {
        let identities = self.sessions.get(&session).map(|opened| &opened.identities).ok_or(TreeError::SessionLost)?;
        let grants = acl.grants(identities)?;
        let row = self.row(path)?;
        self.allow(row, session, Permissions::ADMIN)?;
        let mut row = row.clone();
        row.grants = grants.into();
        row.acl_version = row.acl_version.wrapping_add(1);
        let stat = row.stat();
        self.last.0 += 1;
        self.put(path, Some(row));
        Ok(stat)
    }

    /// Removes the containers that have lost their last child. Does not remove a container that never had a child.
    pub(super) fn collect(&mut self, at: Timestamp) -> Vec<Event> {
        let is_emptied = |row: &Row| row.is_container && row.children == 0 && row.creations != 0;
        let emptied: Vec<NodePath> =
            self.nodes.iter().filter(|(_, row)| is_emptied(row)).map(|(key, _)| path_of(key)).collect();
        let mut events = Vec::new();
        for path in emptied {
            self.last.0 += 1;
            let mut change =
                Change { zxid: self.last, at, session: SessionId(0), undo: Undo::new(), events: Vec::new() };
            self.remove(&path, &mut change);
            events.append(&mut change.events);
        }
        events
    }

    pub(super) fn get(&self, session: SessionId, path: &NodePath) -> Result<Node, TreeError> {
        let row = self.row(path)?;
        self.allow(row, session, Permissions::READ)?;
        Ok(Node { data: row.data.clone(), stat: row.stat() })
    }

    pub(super) fn exists(&self, path: &NodePath) -> Option<Stat> {
        self.nodes.get(&key(path)).map(Row::stat)
    }

    pub(super) fn children(&self, session: SessionId, path: &NodePath) -> Result<Children, TreeError> {
        let row = self.row(path)?;
        self.allow(row, session, Permissions::READ)?;
        let from = (path.as_str().to_owned(), String::new());
        let below = self.nodes.range(from..).take_while(|((parent, _), _)| parent == path.as_str());
        Ok(Children { names: below.map(|((_, name), _)| name.clone()).collect(), stat: row.stat() })
    }

    pub(super) fn acl(&self, session: SessionId, path: &NodePath) -> Result<Vec<Grant>, TreeError> {
        let row = self.row(path)?;
        let identities = self.sessions.get(&session).map_or(&[][..], |opened| &opened.identities);
        shown(row.grants.to_vec(), identities)
    }

    /// Sets the number of children that sessions have created below `path`. With this function, tests can reach the end
    /// of the range of sequence numbers.
    pub(super) fn set_creations(&mut self, path: &NodePath, creations: i32) {
        if let Some(row) = self.nodes.get_mut(&key(path)) {
            row.creations = creations;
        }
    }

    fn row(&self, path: &NodePath) -> Result<&Row, TreeError> {
        self.nodes.get(&key(path)).ok_or(TreeError::NoNode)
    }

    fn allow(&self, row: &Row, session: SessionId, wanted: Permissions) -> Result<(), TreeError> {
        let identities = self.sessions.get(&session).map_or(&[][..], |opened| &opened.identities);
        if allows(&row.grants, identities, wanted) { Ok(()) } else { Err(TreeError::Forbidden) }
    }
}

fn key(path: &NodePath) -> Key {
    (path.parent().map_or_else(String::new, |parent| parent.as_str().to_owned()), path.name().to_owned())
}

fn path_of((parent, name): &Key) -> NodePath {
    let parent = NodePath::new(if parent.is_empty() { "/" } else { parent })
        .expect("the parent in a node's key is a valid path");
    if name.is_empty() {
        parent
    } else {
        parent.join(name).expect("the parent and the name in a node's key form a valid path")
    }
}
