//! A way to a server that can be cut.

use std::net::SocketAddr;
use std::sync::Arc;

use runtime::{Runtime, TaskSet};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Connections to it go on to `target`, until it is cut: then they stay open, and nothing gets through.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    is_cut: watch::Sender<bool>,
    _tasks: Arc<TaskSet>,
}

impl Proxy {
    pub(crate) async fn start(runtime: &Runtime, target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, is_cut, tasks) =
            (listener.local_addr().unwrap(), watch::Sender::new(false), TaskSet::new(runtime));
        let (tasks, cut) = (Arc::new(tasks), is_cut.subscribe());
        let connections = Arc::downgrade(&tasks);
        tasks.spawn("proxy", async move {
            while let (Ok((near, _)), Some(connections)) = (listener.accept().await, connections.upgrade()) {
                let Ok(far) = TcpStream::connect(target).await else { continue };
                let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
                connections.spawn("proxy out", forward(near_read, far_write, cut.clone()));
                connections.spawn("proxy back", forward(far_read, near_write, cut.clone()));
            }
        });
        Proxy { address, is_cut, _tasks: tasks }
    }

    pub(crate) fn cut(&self) {
        self.is_cut.send_replace(true);
    }
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, is_cut: watch::Receiver<bool>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else { return };
        if *is_cut.borrow() {
            return std::future::pending().await;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
