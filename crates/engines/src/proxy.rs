//! A way to a server that can be cut.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Connections to [`Proxy::address`] go on to a server. Its threads end with it, and its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    way: Arc<Way>,
}

#[derive(Debug, Default)]
struct Way {
    is_cut: AtomicBool,
    /// What the server sends is lost.
    is_deaf: AtomicBool,
    is_over: AtomicBool,
    /// Counts the times it was cut or mended: what was sent over an earlier connection may be lost, so nothing more goes over it.
    age: AtomicU64,
    /// Both ends of each of this age; held while that changes.
    connections: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// # Errors
    /// If there is no port.
    pub fn start(server: SocketAddr) -> anyhow::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (address, way) = (listener.local_addr()?, Arc::<Way>::default());
        let led = way.clone();
        thread::spawn(move || {
            for near in listener.incoming() {
                if led.is_over.load(Ordering::Acquire) {
                    return;
                }
                if let (Ok(near), Ok(far)) = (near, TcpStream::connect(server)) {
                    // One that cannot be led is closed.
                    drop(led.lead(near, far));
                }
            }
        });
        Ok(Proxy { address, way })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// While it is cut, connections stay open, and what is sent over them, and over new ones, is lost, as if it were a cable. Mended, it
    /// ends those, and new ones get through.
    pub fn cut(&self, is_cut: bool) {
        let mut connections = self.way.connections.lock().expect("no holder of this lock panics");
        self.way.age.fetch_add(1, Ordering::AcqRel);
        self.way.is_cut.store(is_cut, Ordering::Release);
        if !is_cut {
            self.way.is_deaf.store(false, Ordering::Release);
            end(&mut connections);
        }
    }

    /// From here on what the server sends is lost, and what is sent to it gets through, until it is mended by [`Proxy::cut`].
    pub fn cut_answers(&self) {
        self.way.is_deaf.store(true, Ordering::Release);
    }
}

fn end(connections: &mut Vec<TcpStream>) {
    for connection in connections.drain(..) {
        // It may have ended by itself.
        drop(connection.shutdown(Shutdown::Both));
    }
}

impl Way {
    fn lead(self: &Arc<Self>, near: TcpStream, far: TcpStream) -> std::io::Result<()> {
        let mut connections = self.connections.lock().expect("no holder of this lock panics");
        let age = self.age.load(Ordering::Acquire);
        for (from, to, is_answer) in
            [(near.try_clone()?, far.try_clone()?, false), (far.try_clone()?, near.try_clone()?, true)]
        {
            from.set_nodelay(true)?;
            let way = self.clone();
            thread::spawn(move || way.forward(from, to, age, is_answer));
        }
        connections.extend([near, far]);
        Ok(())
    }

    fn forward(&self, mut from: TcpStream, mut to: TcpStream, age: u64, is_answer: bool) {
        let is_whole = || {
            let is_cut = self.is_cut.load(Ordering::Acquire) || is_answer && self.is_deaf.load(Ordering::Acquire);
            !is_cut && self.age.load(Ordering::Acquire) == age
        };
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if is_whole() && to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        // The end of one half is told to the other, unless the cable is cut.
        if is_whole() {
            drop(to.shutdown(Shutdown::Both));
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.way.is_over.store(true, Ordering::Release);
        end(&mut self.way.connections.lock().expect("no holder of this lock panics"));
        // Wakes the listener.
        drop(TcpStream::connect(self.address));
    }
}
