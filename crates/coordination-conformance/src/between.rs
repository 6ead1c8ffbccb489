//! An engine with something between a request and the next.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _};

use super::tree::Process;
use coordination::tree::{
    Acl, Answer, Children, CreateMode, Created, Done, Events, Expected, Grant, Node, NodePath, Op, Session,
    SessionOptions, Stat, Tree, TreeError, Trees, Watch,
};

/// Called with a request's name after the engine has answered it, and before who asked sees the answer.
type Hook = Arc<dyn Fn(&'static str) -> BoxFuture<'static, ()> + Send + Sync>;

pub(super) struct Between<T: ?Sized> {
    inner: Arc<T>,
    hook: Hook,
}

impl<T: Trees + ?Sized> Between<T> {
    pub(super) fn new(
        inner: Arc<T>,
        hook: impl Fn(&'static str) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        Between { inner, hook: Arc::new(hook) }
    }
}

impl<T: Trees + ?Sized> Trees for Between<T> {
    fn open(&self, options: SessionOptions) -> BoxFuture<'_, Result<Arc<dyn Tree>, TreeError>> {
        async {
            let inner = self.inner.open(options).await?;
            Ok(Arc::new(BetweenTree { inner, hook: self.hook.clone() }) as Arc<dyn Tree>)
        }
        .boxed()
    }
}

impl<T: Process + ?Sized> Process for Between<T> {
    fn cut(&self, is_cut: bool) {
        self.inner.cut(is_cut);
    }

    fn cut_answers(&self) {
        self.inner.cut_answers();
    }
}

struct BetweenTree {
    inner: Arc<dyn Tree>,
    hook: Hook,
}

impl BetweenTree {
    fn then<'a, T: Send + 'a>(&'a self, what: &'static str, answer: Answer<'a, T>) -> Answer<'a, T> {
        Box::pin(async move {
            let answer = answer.await;
            (self.hook)(what).await;
            answer
        })
    }
}

impl Tree for BetweenTree {
    fn session(&self) -> &Session {
        self.inner.session()
    }

    fn create(&self, path: &NodePath, data: Bytes, mode: CreateMode, acl: Acl) -> Answer<'_, Created> {
        self.then("create", self.inner.create(path, data, mode, acl))
    }

    fn set(&self, path: &NodePath, data: Bytes, expected: Expected) -> Answer<'_, Stat> {
        self.then("set", self.inner.set(path, data, expected))
    }

    fn delete(&self, path: &NodePath, expected: Expected) -> Answer<'_, ()> {
        self.then("delete", self.inner.delete(path, expected))
    }

    fn multi(&self, ops: Vec<Op>) -> Answer<'_, Vec<Done>> {
        self.then("multi", self.inner.multi(ops))
    }

    fn get(&self, path: &NodePath) -> Answer<'_, Node> {
        self.then("get", self.inner.get(path))
    }

    fn exists(&self, path: &NodePath) -> Answer<'_, Option<Stat>> {
        self.then("exists", self.inner.exists(path))
    }

    fn children(&self, path: &NodePath) -> Answer<'_, Children> {
        self.then("children", self.inner.children(path))
    }

    fn get_and_watch(&self, path: &NodePath) -> Answer<'_, (Node, Watch)> {
        self.then("get_and_watch", self.inner.get_and_watch(path))
    }

    fn exists_and_watch(&self, path: &NodePath) -> Answer<'_, (Option<Stat>, Watch)> {
        self.then("exists_and_watch", self.inner.exists_and_watch(path))
    }

    fn children_and_watch(&self, path: &NodePath) -> Answer<'_, (Children, Watch)> {
        self.then("children_and_watch", self.inner.children_and_watch(path))
    }

    fn watch_all(&self, path: &NodePath) -> Answer<'_, Events> {
        self.then("watch_all", self.inner.watch_all(path))
    }

    fn sync(&self) -> Answer<'_, ()> {
        self.then("sync", self.inner.sync())
    }

    fn acl(&self, path: &NodePath) -> Answer<'_, Vec<Grant>> {
        self.then("acl", self.inner.acl(path))
    }

    fn set_acl(&self, path: &NodePath, acl: Acl) -> Answer<'_, Stat> {
        self.then("set_acl", self.inner.set_acl(path, acl))
    }

    fn close(&self) -> Answer<'_, ()> {
        self.inner.close()
    }
}
