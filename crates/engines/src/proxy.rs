//! A way to a server that can be cut.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
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
    is_over: AtomicBool,
    /// Both ends of each.
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
        if !is_cut {
            self.drop_connections();
        }
        self.way.is_cut.store(is_cut, Ordering::Release);
    }

    fn drop_connections(&self) {
        let mut connections = self.way.connections.lock().expect("no holder of this lock panics");
        for connection in connections.drain(..) {
            // It may have ended by itself.
            drop(connection.shutdown(Shutdown::Both));
        }
    }
}

impl Way {
    fn lead(self: &Arc<Self>, near: TcpStream, far: TcpStream) -> std::io::Result<()> {
        for (from, to) in [(near.try_clone()?, far.try_clone()?), (far.try_clone()?, near.try_clone()?)] {
            from.set_nodelay(true)?;
            let way = self.clone();
            thread::spawn(move || way.forward(from, to));
        }
        self.connections.lock().expect("no holder of this lock panics").extend([near, far]);
        Ok(())
    }

    fn forward(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if !self.is_cut.load(Ordering::Acquire) && to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        // The end of one half is told to the other, unless the cable is cut.
        if !self.is_cut.load(Ordering::Acquire) {
            drop(to.shutdown(Shutdown::Both));
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.way.is_over.store(true, Ordering::Release);
        self.drop_connections();
        // Wakes the listener.
        drop(TcpStream::connect(self.address));
    }
}
