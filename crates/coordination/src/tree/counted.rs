//! Engine that counts requests and runs a hook for tests.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::{
    Acl, Answer, Children, CreateMode, Created, Done, Events, Expected, Grant, Node, NodePath, Op, Session,
    SessionOptions, Stat, Tree, TreeError, Trees, Watch,
};

type Hook = Arc<dyn Fn(&'static str) -> BoxFuture<'static, ()> + Send + Sync>;

/// Engine that counts the requests of all of its sessions. It does not count the requests that open, renew or close a
/// session. Tests can run a hook between a request and its response.
pub struct Counted<T: ?Sized = dyn Trees> {
    trees: Arc<T>,
    count: Arc<AtomicU64>,
    hook: Option<Hook>,
}

impl<T: Trees + ?Sized> Counted<T> {
    /// Creates an engine that counts the requests to `trees` and has no hook. The count starts at 0.
    #[must_use]
    pub fn new(trees: Arc<T>) -> Self {
        Counted { trees, count: Arc::default(), hook: None }
    }

    /// Creates an engine that counts the requests to `trees` and calls `hook` with the name of each request. The engine
    /// calls `hook` after `trees` has responded and before the caller gets the response.
    #[must_use]
    pub fn with_hook(
        trees: Arc<T>,
        hook: impl Fn(&'static str) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        Counted { hook: Some(Arc::new(hook)), ..Counted::new(trees) }
    }

    /// Returns the number of requests until now.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl<T: Trees + ?Sized> fmt::Debug for Counted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counted").field("requests", &self.requests()).finish_non_exhaustive()
    }
}

impl<T: Trees + ?Sized> Trees for Counted<T> {
    fn open(&self, options: SessionOptions) -> BoxFuture<'_, Result<Arc<dyn Tree>, TreeError>> {
        Box::pin(async move {
            let tree = self.trees.open(options).await?;
            Ok(Arc::new(CountedTree { tree, count: self.count.clone(), hook: self.hook.clone() }) as Arc<dyn Tree>)
        })
    }
}

struct CountedTree {
    tree: Arc<dyn Tree>,
    count: Arc<AtomicU64>,
    hook: Option<Hook>,
}

impl CountedTree {
    fn counted<'a, T: Send + 'a>(&'a self, name: &'static str, answer: Answer<'a, T>) -> Answer<'a, T> {
        self.count.fetch_add(1, Ordering::Relaxed);
        let Some(hook) = &self.hook else { return answer };
        Box::pin(async move {
            let answer = answer.await;
            hook(name).await;
            answer
        })
    }
}

impl Tree for CountedTree {
    fn session(&self) -> &Session {
        self.tree.session()
    }

    fn create(&self, path: &NodePath, data: Bytes, mode: CreateMode, acl: Acl) -> Answer<'_, Created> {
        self.counted("create", self.tree.create(path, data, mode, acl))
    }

    fn set(&self, path: &NodePath, data: Bytes, expected: Expected) -> Answer<'_, Stat> {
        self.counted("set", self.tree.set(path, data, expected))
    }

    fn delete(&self, path: &NodePath, expected: Expected) -> Answer<'_, ()> {
        self.counted("delete", self.tree.delete(path, expected))
    }

    fn multi(&self, ops: Vec<Op>) -> Answer<'_, Vec<Done>> {
        self.counted("multi", self.tree.multi(ops))
    }

    fn get(&self, path: &NodePath) -> Answer<'_, Node> {
        self.counted("get", self.tree.get(path))
    }

    fn exists(&self, path: &NodePath) -> Answer<'_, Option<Stat>> {
        self.counted("exists", self.tree.exists(path))
    }

    fn children(&self, path: &NodePath) -> Answer<'_, Children> {
        self.counted("children", self.tree.children(path))
    }

    fn get_and_watch(&self, path: &NodePath) -> Answer<'_, (Node, Watch)> {
        self.counted("get_and_watch", self.tree.get_and_watch(path))
    }

    fn exists_and_watch(&self, path: &NodePath) -> Answer<'_, (Option<Stat>, Watch)> {
        self.counted("exists_and_watch", self.tree.exists_and_watch(path))
    }

    fn children_and_watch(&self, path: &NodePath) -> Answer<'_, (Children, Watch)> {
        self.counted("children_and_watch", self.tree.children_and_watch(path))
    }

    fn watch_all(&self, path: &NodePath) -> Answer<'_, Events> {
        self.counted("watch_all", self.tree.watch_all(path))
    }

    fn sync(&self) -> Answer<'_, ()> {
        self.counted("sync", self.tree.sync())
    }

    fn acl(&self, path: &NodePath) -> Answer<'_, Vec<Grant>> {
        self.counted("acl", self.tree.acl(path))
    }

    fn set_acl(&self, path: &NodePath, acl: Acl) -> Answer<'_, Stat> {
        self.counted("set_acl", self.tree.set_acl(path, acl))
    }

    fn close(&self) -> Answer<'_, ()> {
        self.tree.close()
    }
}
