//! Callbacks to HTTP/2 targets that permit few streams and respond slowly.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use h2::server::SendResponse;
use hyper::http::Response;
use runtime::{Runtime, TaskSet};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::schedules::{AttackSchedules, Series};
use super::{Attack, Stage};
use crate::tenant::unlimited_except;

const SCHEDULES: u32 = 1_000;
/// Addresses of the targets.
const TARGETS: [Ipv4Addr; 4] = [
    Ipv4Addr::new(127, 0, 0, 1),
    Ipv4Addr::new(127, 0, 0, 2),
    Ipv4Addr::new(127, 0, 0, 3),
    Ipv4Addr::new(127, 0, 0, 4),
];
const STREAMS_MAX: u32 = 10;
const ANSWER_AFTER: Duration = Duration::from_secs(3);

/// TLS certificate of the targets, which the server under test trusts.
pub(super) struct Identity {
    /// File with the certificate.
    pub(super) path: PathBuf,
    acceptor: TlsAcceptor,
}

impl Identity {
    pub(super) fn create(folder: &Path) -> anyhow::Result<Self> {
        let created = rcgen::generate_simple_self_signed(TARGETS.map(|address| address.to_string()))?;
        fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
        let path = folder.join("targets.pem");
        fs::write(&path, created.cert.pem()).with_context(|| format!("cannot write {}", path.display()))?;
        let key = PrivateKeyDer::try_from(created.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = config.with_no_client_auth().with_single_cert(vec![created.cert.der().clone()], key)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Identity { path, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}

/// Counts of the connections and callbacks that the targets have received.
#[derive(Default)]
struct Counts {
    connections: AtomicU64,
    callbacks: AtomicU64,
    /// Number of callbacks that wait for a response; `open_max` is the highest such number so far.
    open: AtomicU64,
    open_max: AtomicU64,
}

pub(super) async fn start(stage: &Stage<'_>) -> anyhow::Result<Attack> {
    let tenant = stage.tenant("streams", unlimited_except(None)).await?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.context("the HTTP/2 target cannot listen")?;
    let port = listener.local_addr()?.port();
    let counts: Arc<Counts> = Arc::default();
    let tasks = TaskSet::new(stage.runtime);
    let acceptor = stage.equipment.identity.acceptor.clone();
    tasks.spawn("http2-targets", accept(stage.runtime.clone(), listener, acceptor, counts.clone()));
    let series = Series { count: SCHEDULES, every: Duration::from_secs(1), takes: ANSWER_AFTER };
    let target = |number: u64| {
        let address = TARGETS[usize::try_from(number).unwrap_or(0) % TARGETS.len()];
        format!("https://{address}:{port}/callback")
    };
    let schedules = AttackSchedules::create(stage.runtime, tenant, series, target).await?;
    let attack = Attack::new(tasks, move || {
        let [connections, callbacks, open_max] =
            [&counts.connections, &counts.callbacks, &counts.open_max].map(|count| count.load(Ordering::Relaxed));
        ensure!(callbacks > 0, "no callback of the attack `streams` reached its target");
        Ok(format!(
            "streams: {} targets with {STREAMS_MAX} streams per connection received {callbacks} callbacks on \
             {connections} connections, at most {open_max} at a time",
            TARGETS.len()
        ))
    });
    Ok(Attack { schedules: Some(schedules), ..attack })
}

async fn accept(runtime: Runtime, listener: TcpListener, acceptor: TlsAcceptor, counts: Arc<Counts>) {
    let connections = TaskSet::new(&runtime);
    while let Ok((stream, _)) = listener.accept().await {
        counts.connections.fetch_add(1, Ordering::Relaxed);
        let (runtime, acceptor, counts) = (runtime.clone(), acceptor.clone(), counts.clone());
        connections.spawn("http2-target", async move {
            if let Err(error) = serve(&runtime, stream, &acceptor, &counts).await {
                tracing::debug!(%error, "connection to a target of the attack failed");
            }
        });
    }
}

async fn serve(runtime: &Runtime, stream: TcpStream, acceptor: &TlsAcceptor, counts: &Counts) -> anyhow::Result<()> {
    let stream = acceptor.accept(stream).await?;
    let mut connection = h2::server::Builder::new().max_concurrent_streams(STREAMS_MAX).handshake(stream).await?;
    let mut answers = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            accepted = connection.accept() => match accepted {
                Some(accepted) => {
                    let (request, respond) = accepted?;
                    answers.push(async move {
                        answer(runtime, respond, counts).await;
                        drop(request);
                    });
                }
                None => return Ok(()),
            },
            Some(()) = answers.next() => {}
        }
    }
}

async fn answer(runtime: &Runtime, mut respond: SendResponse<Bytes>, counts: &Counts) {
    counts.callbacks.fetch_add(1, Ordering::Relaxed);
    let open = counts.open.fetch_add(1, Ordering::Relaxed) + 1;
    counts.open_max.fetch_max(open, Ordering::Relaxed);
    runtime.sleep(ANSWER_AFTER).await;
    counts.open.fetch_sub(1, Ordering::Relaxed);
    if let Err(error) = respond.send_response(Response::new(()), true) {
        tracing::debug!(%error, "callback ended before the response");
    }
}
