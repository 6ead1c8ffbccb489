//! TLS identity of a member: [`Identity`]. It contains the authorities that the member trusts, and it issues the
//! member's own certificates.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::Timestamp;
use membership::MemberId;
use runtime::{Monotonic, Runtime};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore, ServerConfig};
use tokio::sync::Notify;

use crate::authority::{Authority, AuthorityError, CLOCK_OFFSET_MAX, Purpose, VALIDITY};

/// Suffix of the names in the certificates of listeners, after the id of the session.
const SUFFIX: &str = ".member.reveille";
/// Name in the certificates of callers.
const CALLER: &str = "caller.reveille";
/// Minimum interval between two warnings with the same cause, because any process on the network can cause such a line.
const WARNING_PERIOD: Duration = Duration::from_secs(60);

/// Function that returns true if this member's current session has the given id. The listener rejects connections and
/// requests for other sessions.
pub type IsCurrentSession = Arc<dyn Fn(MemberId) -> bool + Send + Sync>;

/// TLS identity of a member. Clones share their state.
///
/// The identity issues one certificate for the connections that the member opens, and one for the connections that it
/// accepts. The latter contains the id of the member's session. Each certificate is valid for seven days, and the
/// identity issues a new one after half of this time.
#[derive(Clone)]
pub struct Identity(Arc<Inner>);

struct Inner {
    runtime: Runtime,
    provider: Arc<CryptoProvider>,
    state: Mutex<State>,
    /// Signal that this member and a peer do not trust the same authorities.
    mismatch: Notify,
    /// Time of the last warning for each cause.
    warned: Mutex<HashMap<&'static str, Monotonic>>,
    is_quiet: bool,
}

struct State {
    issuer: Authority,
    roots: Arc<RootCertStore>,
    /// Number that changes whenever the authorities change.
    generation: u64,
    issued: HashMap<(String, Purpose), Issued>,
}

struct Issued {
    key: Arc<CertifiedKey>,
    at: Timestamp,
}

impl Identity {
    /// Creates an identity that issues its certificates with `issuer`, and trusts the certificates of `issuer` and of
    /// `others`.
    ///
    /// # Errors
    /// Returns an error if an authority cannot issue certificates.
    pub fn new(runtime: &Runtime, issuer: Authority, others: &[Authority]) -> Result<Self, AuthorityError> {
        Ok(Identity(Arc::new(Inner::new(runtime, State::new(issuer, others, 0)?, false))))
    }

    /// Creates an identity like [`Identity::new`] that logs no warnings. A caller uses it to find out whether members
    /// trust and use an authority.
    ///
    /// # Errors
    /// Returns an error if an authority cannot issue certificates.
    pub fn probe(runtime: &Runtime, issuer: Authority, others: &[Authority]) -> Result<Self, AuthorityError> {
        Ok(Identity(Arc::new(Inner::new(runtime, State::new(issuer, others, 0)?, true))))
    }

    /// Replaces the authorities. The listener and the client then open new connections for further requests. The
    /// listener still serves one request on an earlier connection if it trusts the certificate of the caller.
    ///
    /// # Errors
    /// Returns an error if an authority cannot issue certificates. The identity then keeps its authorities.
    pub fn replace(&self, issuer: Authority, others: &[Authority]) -> Result<(), AuthorityError> {
        let mut state = self.state();
        *state = State::new(issuer, others, state.generation + 1)?;
        Ok(())
    }

    /// Waits until this member or a peer rejects a certificate because of its authority. The cluster may have a new
    /// authority, so the caller should read the authorities again.
    pub async fn mismatch(&self) {
        self.0.mismatch.notified().await;
    }

    pub(crate) fn generation(&self) -> u64 {
        self.state().generation
    }

    /// Returns the TLS configuration of the connections that this member opens. The name of the server is the
    /// [`server_name`] of the session that the caller wants to reach.
    ///
    /// # Errors
    /// Returns an error if the identity cannot issue a certificate.
    pub fn client_config(&self) -> Result<Arc<ClientConfig>, AuthorityError> {
        let key = self.certificate(CALLER, Purpose::Caller)?;
        let builder = ClientConfig::builder_with_details(self.0.provider.clone(), self.clock())
            .with_protocol_versions(&[&TLS13])
            .expect("the provider supports TLS 1.3")
            .with_root_certificates(self.state().roots.clone());
        let mut config = builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        // A resumed session would skip the check of the certificates.
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// Returns the TLS configuration of the connections that this member accepts, as a session for which `is_me` returns
    /// true.
    #[must_use]
    pub fn server_config(&self, is_me: IsCurrentSession) -> Arc<ServerConfig> {
        let mut config = ServerConfig::builder_with_details(self.0.provider.clone(), self.clock())
            .with_protocol_versions(&[&TLS13])
            .expect("the provider supports TLS 1.3")
            .with_client_cert_verifier(self.verifier())
            .with_cert_resolver(Arc::new(Resolver { identity: self.clone(), is_me }));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Arc::new(config)
    }

    /// Returns true if this member trusts the certificates that a caller has presented.
    pub(crate) fn trusts(&self, caller: &[CertificateDer<'_>]) -> bool {
        let Some(((first, rest), now)) = caller.split_first().zip(self.clock().current_time()) else { return false };
        self.verifier().verify_client_cert(first, rest, now).is_ok()
    }

    fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        let roots = self.state().roots.clone();
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, self.0.provider.clone());
        verifier.build().expect("the identity trusts at least one authority")
    }

    /// Returns a certificate with at least the half of its validity left. Issues a new certificate if necessary.
    fn certificate(&self, name: &str, purpose: Purpose) -> Result<Arc<CertifiedKey>, AuthorityError> {
        let now = self.0.runtime.now();
        let mut state = self.state();
        // An operator may also set the clock back. Other members would then reject the certificate as not valid yet.
        let is_fresh =
            |issued: &Issued| now.since(issued.at) < VALIDITY / 2 && issued.at.since(now) < CLOCK_OFFSET_MAX / 2;
        let of = (name.to_owned(), purpose);
        if let Some(issued) = state.issued.get(&of).filter(|issued| is_fresh(issued)) {
            return Ok(issued.key.clone());
        }
        let key = Arc::new(state.issuer.issue(&self.0.provider, name, purpose, now)?);
        state.issued.retain(|_, issued| is_fresh(issued));
        state.issued.insert(of, Issued { key: key.clone(), at: now });
        Ok(key)
    }

    /// Reports a failed handshake with the process at `address`: logs a warning if one side rejected the certificate of
    /// the other.
    pub(crate) fn report(&self, address: &str, error: &rustls::Error) {
        let Some(rejection) = Rejection::of(error).filter(|_| !self.0.is_quiet) else {
            tracing::debug!(address, %error, "TLS handshake between members failed");
            return;
        };
        if matches!(rejection, Rejection::UnknownAuthority | Rejection::ByPeer) {
            self.0.mismatch.notify_one();
        }
        let now = self.0.runtime.monotonic();
        let text = rejection.text();
        let mut warned = self.0.warned.lock().expect("no holder of this lock panics");
        if warned.get(text).is_none_or(|last| now.since(*last) >= WARNING_PERIOD) {
            warned.insert(text, now);
            drop(warned);
            tracing::warn!(address, %error, "TLS between members failed: {text}");
        }
    }

    fn clock(&self) -> Arc<Clock> {
        Arc::new(Clock(self.0.runtime.clone()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no holder of this lock panics")
    }
}

impl Inner {
    fn new(runtime: &Runtime, state: State, is_quiet: bool) -> Self {
        Inner {
            runtime: runtime.clone(),
            provider: Arc::new(rustls::crypto::ring::default_provider()),
            state: Mutex::new(state),
            mismatch: Notify::new(),
            warned: Mutex::default(),
            is_quiet,
        }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(…)")
    }
}

impl State {
    fn new(issuer: Authority, others: &[Authority], generation: u64) -> Result<Self, AuthorityError> {
        let mut roots = RootCertStore::empty();
        for authority in others.iter().chain([&issuer]) {
            roots.add(authority.anchor()?).expect("an authority's own certificate is a valid trust anchor");
        }
        Ok(State { issuer, roots: Arc::new(roots), generation, issued: HashMap::new() })
    }
}

/// Returns the name in the certificate of a listener with this session.
#[must_use]
pub fn server_name(id: MemberId) -> String {
    format!("{id}{SUFFIX}")
}

/// Parses the id of a session from a name that [`server_name`] returned.
pub(crate) fn id_of(name: &str) -> Option<MemberId> {
    let digits = name.strip_suffix(SUFFIX)?;
    let is_plain = digits.len() == 32 && digits.bytes().all(|c| c.is_ascii_hexdigit());
    u128::from_str_radix(digits, 16).ok().filter(|_| is_plain).map(MemberId)
}

/// Issues the certificate that the caller requests, if this member's current session has the requested id.
struct Resolver {
    identity: Identity,
    is_me: IsCurrentSession,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver(…)")
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let id = id_of(hello.server_name()?).filter(|id| (self.is_me)(*id))?;
        let issued = self.identity.certificate(&server_name(id), Purpose::Listener);
        issued.inspect_err(|error| tracing::error!(%error, "cannot issue a certificate for other members")).ok()
    }
}

/// Wall clock of the member. It decides whether a certificate is valid.
struct Clock(Runtime);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock(…)")
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let millis = u64::try_from(self.0.now().as_millis()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_millis(millis)))
    }
}

/// Reason why one member rejected the certificate of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rejection {
    /// The peer rejected the certificate of this member.
    ByPeer,
    UnknownAuthority,
    Expired,
    NotValidYet,
    NoCertificate,
    Other,
}

impl Rejection {
    /// Returns `None` if the error is not a rejection of a certificate.
    pub(crate) fn of(error: &rustls::Error) -> Option<Self> {
        Some(match error {
            rustls::Error::AlertReceived(
                AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::DecryptError
                | AlertDescription::CertificateRequired,
            ) => Rejection::ByPeer,
            rustls::Error::NoCertificatesPresented => Rejection::NoCertificate,
            rustls::Error::InvalidCertificate(reason) => match reason {
                CertificateError::UnknownIssuer | CertificateError::BadSignature => Rejection::UnknownAuthority,
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => Rejection::Expired,
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Rejection::NotValidYet,
                _ => Rejection::Other,
            },
            _ => return None,
        })
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Rejection::ByPeer => "the peer rejected this member's certificate; the log of the peer names the reason",
            Rejection::UnknownAuthority => {
                "no authority of this cluster issued the peer's certificate; check whether the peer belongs to another \
                 cluster"
            }
            Rejection::Expired => {
                "the peer's certificate has expired by this member's clock; synchronize the clocks of both machines"
            }
            Rejection::NotValidYet => {
                "the peer's certificate is not valid yet by this member's clock; synchronize the clocks of both machines"
            }
            Rejection::NoCertificate => "the peer presented no certificate; only members of the cluster may connect",
            Rejection::Other => {
                "the peer's certificate is not valid for a member of this cluster; check the peer's address and build"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    #[tokio::test]
    async fn caller_rejects_a_certificate_for_another_session() {
        let identity = Identity::new(&Runtime::real(), Authority::generate().unwrap(), &[]).unwrap();
        let mut server = ServerConfig::clone(&identity.server_config(Arc::new(|_| true)));
        let other = identity.certificate(&server_name(MemberId(2)), Purpose::Listener).unwrap();
        server.cert_resolver = Arc::new(SingleCertAndKey::from(other));
        let acceptor = TlsAcceptor::from(Arc::new(server));
        for (id, is_accepted) in [(1, false), (2, true)] {
            let (here, there) = tokio::io::duplex(64 * 1024);
            let name = ServerName::try_from(server_name(MemberId(id))).unwrap();
            let connector = TlsConnector::from(identity.client_config().unwrap());
            let (connected, _) = tokio::join!(connector.connect(name, here), acceptor.accept(there));
            assert_eq!(connected.is_ok(), is_accepted, "{id}");
        }
    }

    #[tokio::test]
    async fn certificate_of_a_caller_is_not_valid_for_a_listener() {
        let identity = Identity::new(&Runtime::real(), Authority::generate().unwrap(), &[]).unwrap();
        let name = server_name(MemberId(1));
        let mut server = ServerConfig::clone(&identity.server_config(Arc::new(|_| true)));
        server.cert_resolver = Arc::new(SingleCertAndKey::from(identity.certificate(&name, Purpose::Caller).unwrap()));
        let (here, there) = tokio::io::duplex(64 * 1024);
        let connector = TlsConnector::from(identity.client_config().unwrap());
        let connecting = connector.connect(ServerName::try_from(name).unwrap(), here);
        let (connected, _) = tokio::join!(connecting, TlsAcceptor::from(Arc::new(server)).accept(there));
        assert!(connected.is_err());
    }

    #[test]
    fn name_of_a_listener_contains_the_id_of_its_session() {
        for id in [0, 1, u128::MAX] {
            assert_eq!(id_of(&server_name(MemberId(id))), Some(MemberId(id)));
        }
        for other in ["", "caller.reveille", "1.member.reveille", &format!("{}.member.reveille", "+".repeat(32))] {
            assert_eq!(id_of(other), None, "{other}");
        }
    }
}
