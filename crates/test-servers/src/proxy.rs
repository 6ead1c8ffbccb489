//! TCP proxy to a server. A test can cut the connections through the proxy.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// TCP proxy. It accepts connections at [`Proxy::address`] and forwards their data to and from a server. A drop of this
/// value ends the proxy's threads and connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    link: Arc<Link>,
}

#[derive(Debug, Default)]
struct Link {
    is_cut: AtomicBool,
    is_over: AtomicBool,
    /// Number of cuts and restorations so far. If the proxy accepted a connection before the last cut or restoration,
    /// the connection may have lost data. The proxy therefore forwards no more data over this connection.
    age: AtomicU64,
    /// Both ends of each connection that the proxy has accepted since the last restoration. A thread that changes `age`
    /// holds the lock of this list.
    connections: Mutex<Vec<TcpStream>>,
    /// Text in the request whose response the proxy must lose. Empty if the proxy must lose no response.
    unanswered: Mutex<Vec<u8>>,
    /// True while the proxy drops all data that comes from the server.
    is_mute: AtomicBool,
    /// True while the proxy keeps all data that comes from the server.
    is_holding: AtomicBool,
    /// True while the proxy drops all data that goes to the server.
    is_deaf: AtomicBool,
}

impl Proxy {
    /// # Errors
    /// Returns an error if no port is free.
    pub fn start(server: SocketAddr) -> anyhow::Result<Proxy> {
        Proxy::start_at(Ipv4Addr::LOCALHOST.into(), server)
    }

    /// Starts a proxy like [`Proxy::start`], but at the address `host` of this machine.
    ///
    /// # Errors
    /// Returns an error if no port is free.
    pub fn start_at(host: IpAddr, server: SocketAddr) -> anyhow::Result<Proxy> {
        let listener = TcpListener::bind((host, 0))?;
        let (address, link) = (listener.local_addr()?, Arc::<Link>::default());
        let accepting = link.clone();
        thread::spawn(move || {
            for near in listener.incoming() {
                if accepting.is_over.load(Ordering::Acquire) {
                    return;
                }
                if let (Ok(near), Ok(far)) = (near, TcpStream::connect(server)) {
                    // If the proxy cannot forward a connection, it closes the connection.
                    drop(accepting.connect(near, far));
                }
            }
        });
        Ok(Proxy { address, link })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts or restores the proxy. While the proxy is cut, connections stay open and the proxy drops their data, like a
    /// cut cable. A restoration closes all connections, and new connections work.
    pub fn cut(&self, is_cut: bool) {
        let mut connections = self.link.connections.lock().expect("no thread panics while it holds this lock");
        self.link.age.fetch_add(1, Ordering::AcqRel);
        self.link.is_cut.store(is_cut, Ordering::Release);
        if !is_cut {
            self.link.unanswered().clear();
            self.link.is_mute.store(false, Ordering::Release);
            self.link.is_holding.store(false, Ordering::Release);
            self.link.is_deaf.store(false, Ordering::Release);
            end(&mut connections);
        }
    }

    /// Drops all data from the server, and forwards all data to the server, until the test calls `cut(false)`.
    pub fn cut_answers(&self) {
        self.link.is_mute.store(true, Ordering::Release);
    }

    /// Keeps all data from the server until the test calls [`Proxy::deliver_late`] or `cut(false)`.
    pub fn hold_answers(&self) {
        self.link.is_holding.store(true, Ordering::Release);
    }

    /// Forwards the data that [`Proxy::hold_answers`] has kept. From now on the proxy drops all data to the server, until
    /// the test calls `cut(false)`.
    pub fn deliver_late(&self) {
        self.link.is_deaf.store(true, Ordering::Release);
        self.link.is_holding.store(false, Ordering::Release);
    }

    /// Forwards the next request that contains `to`. Then drops all data from the server until the test calls
    /// `cut(false)`. The client must send the request in one write, so the request must be short.
    pub fn lose_answer(&self, to: &str) {
        to.as_bytes().clone_into(&mut self.link.unanswered());
    }

    /// Returns whether the proxy has begun to drop the data from the server.
    #[must_use]
    pub fn has_lost_answer(&self) -> bool {
        self.link.is_mute.load(Ordering::Acquire)
    }
}

fn end(connections: &mut Vec<TcpStream>) {
    for connection in connections.drain(..) {
        // The shutdown fails if the connection has already ended. This failure is harmless.
        drop(connection.shutdown(Shutdown::Both));
    }
}

impl Link {
    fn connect(self: &Arc<Self>, near: TcpStream, far: TcpStream) -> std::io::Result<()> {
        let mut connections = self.connections.lock().expect("no thread panics while it holds this lock");
        let age = self.age.load(Ordering::Acquire);
        for (from, to, is_request) in [(&near, &far, true), (&far, &near, false)] {
            from.set_nodelay(true)?;
            let (link, from, to) = (self.clone(), from.try_clone()?, to.try_clone()?);
            thread::spawn(move || link.forward(from, to, is_request, age));
        }
        connections.extend([near, far]);
        Ok(())
    }

    fn forward(&self, mut from: TcpStream, mut to: TcpStream, is_request: bool, age: u64) {
        let is_connected = || {
            let drops = if is_request { &self.is_deaf } else { &self.is_mute };
            let is_lost = self.is_cut.load(Ordering::Acquire) || drops.load(Ordering::Acquire);
            !is_lost && self.age.load(Ordering::Acquire) == age
        };
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if is_request {
                self.check_request(&buffer[..count]);
            } else {
                while self.is_holding.load(Ordering::Acquire) && !self.is_over.load(Ordering::Acquire) {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            if is_connected() && to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        // The proxy forwards the end of the connection, unless the proxy is cut.
        if is_connected() {
            drop(to.shutdown(Shutdown::Both));
        }
    }

    /// Checks whether the proxy must lose the response to a request. The proxy makes this check before it forwards the
    /// request, so that the response cannot arrive before the check.
    fn check_request(&self, request: &[u8]) {
        let mut unanswered = self.unanswered();
        if !unanswered.is_empty() && request.windows(unanswered.len()).any(|part| *part == **unanswered) {
            unanswered.clear();
            self.is_mute.store(true, Ordering::Release);
        }
    }

    fn unanswered(&self) -> MutexGuard<'_, Vec<u8>> {
        self.unanswered.lock().expect("no thread panics while it holds this lock")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.link.is_over.store(true, Ordering::Release);
        end(&mut self.link.connections.lock().expect("no thread panics while it holds this lock"));
        // Wake the listener.
        drop(TcpStream::connect(self.address));
    }
}
