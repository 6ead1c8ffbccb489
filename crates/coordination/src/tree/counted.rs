//! What is asked of an engine, counted.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::{
    Acl, Answer, Children, CreateMode, Created, Done, Events, Expected, Grant, Node, NodePath, Op, Session,
    SessionOptions, Stat, Tree, TreeError, Trees, Watch,
};

/// An engine that counts the requests of all of its sessions, without those that keep them alive, open and close them.
pub struct Counted {
    trees: Arc<dyn Trees>,
    count: Arc<AtomicU64>,
}

impl Counted {
    #[must_use]
    pub fn new(trees: Arc<dyn Trees>) -> Self {
        Counted { trees, count: Arc::default() }
    }

    /// So far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counted").field("requests", &self.requests()).finish_non_exhaustive()
    }
}

impl Trees for Counted {
    fn open(&self, options: SessionOptions) -> BoxFuture<'_, Result<Arc<dyn Tree>, TreeError>> {
        Box::pin(async move {
            let tree = self.trees.open(options).await?;
            Ok(Arc::new(CountedTree { tree, count: self.count.clone() }) as Arc<dyn Tree>)
        })
    }
}

struct CountedTree {
    tree: Arc<dyn Tree>,
    count: Arc<AtomicU64>,
}

impl CountedTree {
    fn counted(&self) -> &dyn Tree {
        self.count.fetch_add(1, Ordering::Relaxed);
        &*self.tree
    }
}

impl Tree for CountedTree {
    fn session(&self) -> &Session {
        self.tree.session()
    }

    fn create(&self, path: &NodePath, data: Bytes, mode: CreateMode, acl: Acl) -> Answer<'_, Created> {
        self.counted().create(path, data, mode, acl)
    }

    fn set(&self, path: &NodePath, data: Bytes, expected: Expected) -> Answer<'_, Stat> {
        self.counted().set(path, data, expected)
    }

    fn delete(&self, path: &NodePath, expected: Expected) -> Answer<'_, ()> {
        self.counted().delete(path, expected)
    }

    fn multi(&self, ops: Vec<Op>) -> Answer<'_, Vec<Done>> {
        self.counted().multi(ops)
    }

    fn get(&self, path: &NodePath) -> Answer<'_, Node> {
        self.counted().get(path)
    }

    fn exists(&self, path: &NodePath) -> Answer<'_, Option<Stat>> {
        self.counted().exists(path)
    }

    fn children(&self, path: &NodePath) -> Answer<'_, Children> {
        self.counted().children(path)
    }

    fn get_and_watch(&self, path: &NodePath) -> Answer<'_, (Node, Watch)> {
        self.counted().get_and_watch(path)
    }

    fn exists_and_watch(&self, path: &NodePath) -> Answer<'_, (Option<Stat>, Watch)> {
        self.counted().exists_and_watch(path)
    }

    fn children_and_watch(&self, path: &NodePath) -> Answer<'_, (Children, Watch)> {
        self.counted().children_and_watch(path)
    }

    fn watch_all(&self, path: &NodePath) -> Answer<'_, Events> {
        self.counted().watch_all(path)
    }

    fn sync(&self) -> Answer<'_, ()> {
        self.counted().sync()
    }

    fn acl(&self, path: &NodePath) -> Answer<'_, Vec<Grant>> {
        self.counted().acl(path)
    }

    fn set_acl(&self, path: &NodePath, acl: Acl) -> Answer<'_, Stat> {
        self.counted().set_acl(path, acl)
    }

    fn close(&self) -> Answer<'_, ()> {
        self.tree.close()
    }
}
