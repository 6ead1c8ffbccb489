//! Tests of TLS: the client checks certificates, and trusts additional authorities.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use reveille_client::{Client, Error, Options};
use runtime::Runtime;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::support::on_real;

/// Starts a TLS server for the name `localhost`. The server sends the response of a successful cancellation to every
/// request. The function returns the server's port, and the certificate of the authority that signed the server's
/// certificate.
async fn secure(runtime: &Runtime) -> (u16, CertificateDer<'static>) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let private = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let config = config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], private).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    runtime.spawn("secure", async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that does not trust the authority closes the connection during the TLS handshake.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let _length = stream.read(&mut [0; 4_096]).await.unwrap();
            let answer =
                b"HTTP/1.1 200 OK\r\ncontent-length: 22\r\nconnection: close\r\n\r\n{\"result\":\"cancelled\"}";
            stream.write_all(answer).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    (port, authority.der().clone())
}

#[test]
fn client_accepts_only_certificates_of_trusted_authorities() {
    on_real(async |runtime| {
        let (port, authority) = secure(&runtime).await;
        let url = format!("https://localhost:{port}");
        let once = Options { attempts_max: 1, ..Options::default() };
        let error = Client::new(&url, "a.b", once.clone()).unwrap().cancel("any").await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        let trusting = Options { extra_roots: vec![authority], ..once };
        Client::new(&url, "a.b", trusting.clone()).unwrap().cancel("any").await.unwrap();
        // The server's certificate is valid for `localhost`, but not for the address 127.0.0.1.
        let other = Client::new(&format!("https://127.0.0.1:{port}"), "a.b", trusting).unwrap();
        assert!(matches!(other.cancel("any").await.unwrap_err(), Error::Unreachable { .. }));
    });
}
