//! Tests of requests over TLS with `curl`: with the server's certificate authority, with another authority, and after a
//! renewal of the certificate.

use std::io::Read as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::server::{BINARY, Server, serve};
use crate::{TIMEOUT, until};

/// Certificate authority.
struct Authority {
    /// Path of the root certificate in PEM.
    root: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new(folder: &Path, name: &str) -> Self {
        let mut authority = CertificateParams::default();
        authority.distinguished_name.push(DnType::CommonName, name);
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let root = folder.join(format!("{name}.pem"));
        std::fs::write(&root, issuer.pem()).unwrap();
        Authority { root, issuer }
    }

    /// Signs a certificate for this machine. Returns the certificate and its key in PEM.
    fn sign(&self) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

struct Secured {
    folder: tempfile::TempDir,
    authority: Authority,
    server: Server,
}

impl Secured {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(folder.path(), "authority");
        write(folder.path(), &authority.sign());
        let data = folder.path().join("data");
        let mut command = serve(&data);
        command.arg("--tls-certificate").arg(folder.path().join("server.crt"));
        command.arg("--tls-key").arg(folder.path().join("server.key"));
        let server = Server::start_by(command, &data);
        Secured { folder, authority, server }
    }

    /// Requests `/readyz` with `curl`, which prints the version of HTTP and the status.
    fn curl(&self, root: &Path, arguments: &[&str]) -> Output {
        let url = format!("https://localhost:{}/readyz", self.server.address.port());
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--noproxy", "*", "--max-time", "30", "--output", "/dev/null"]);
        command.args(["--write-out", "%{http_version} %{http_code}", "--cacert"]).arg(root).args(arguments).arg(url);
        command.output().expect("curl is installed")
    }

    fn version_and_status(&self, root: &Path, arguments: &[&str]) -> String {
        let output = self.curl(root, arguments);
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    }

    fn is_trusted_by(&self, root: &Path) -> bool {
        self.curl(root, &[]).status.success()
    }
}

fn write(folder: &Path, (certificate, key): &(String, String)) {
    // The function writes the certificate file first and the key file second. Between the two writes, the certificate
    // does not match the key.
    std::fs::write(folder.join("server.crt"), certificate).unwrap();
    std::fs::write(folder.join("server.key"), key).unwrap();
}

#[test]
fn server_offers_http_1_and_2_over_tls() {
    let secured = Secured::start();
    let root = secured.authority.root.clone();
    assert_eq!(secured.version_and_status(&root, &["--http1.1"]), "1.1 200");
    assert_eq!(secured.version_and_status(&root, &["--http2"]), "2 200");
    assert_eq!(secured.version_and_status(&root, &["--tls-max", "1.2"]), "2 200");
    assert!(!secured.curl(&root, &["--tlsv1.0", "--tls-max", "1.1"]).status.success());
    let other = Authority::new(secured.folder.path(), "other");
    let rejected = secured.curl(&other.root, &[]);
    assert_eq!(rejected.status.code(), Some(60), "{}", String::from_utf8_lossy(&rejected.stderr));
    let plain = Command::new("curl")
        .args(["--silent", "--max-time", "30", &format!("http://{}/readyz", secured.server.address)])
        .output();
    assert!(!plain.unwrap().status.success(), "the server responds to plain HTTP");
    assert!(secured.server.stop().success());
}

#[test]
fn client_commands_require_the_root_certificate_of_the_server() {
    let secured = Secured::start();
    let command = |root: Option<&Path>| {
        let mut command = Command::new(BINARY);
        command.args(["tenant", "list", "--json", "--data"]).arg(secured.folder.path().join("data"));
        if let Some(root) = root {
            command.arg("--root-certificate").arg(root);
        }
        command.output().unwrap()
    };
    let listed = command(Some(&secured.authority.root));
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    assert!(String::from_utf8_lossy(&listed.stdout).contains("default"));
    let failed = command(None);
    let message = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(!failed.status.success() && message.contains("--root-certificate"), "{message}");
    assert!(secured.server.stop().success());
}

/// By default, `openssl req -x509` creates the certificate of a certificate authority. A client must reject such a
/// certificate from a server.
#[test]
fn client_that_rejects_a_ca_certificate_names_an_openssl_option() {
    let folder = tempfile::tempdir().unwrap();
    let mut parameters = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = parameters.self_signed(&key).unwrap().pem();
    write(folder.path(), &(certificate, key.serialize_pem()));
    let data = folder.path().join("data");
    let mut command = serve(&data);
    command.arg("--tls-certificate").arg(folder.path().join("server.crt"));
    command.arg("--tls-key").arg(folder.path().join("server.key"));
    let server = Server::start_by(command, &data);
    let mut list = Command::new(BINARY);
    list.args(["tenant", "list", "--data"]).arg(&data).arg("--root-certificate").arg(folder.path().join("server.crt"));
    let failed = list.output().unwrap();
    let message = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(!failed.status.success() && message.contains("basicConstraints=CA:FALSE"), "{message}");
    assert!(server.stop().success());
}

#[test]
fn server_uses_a_renewed_certificate_without_a_restart() {
    let secured = Secured::start();
    let (old, new) = (secured.authority.root.clone(), Authority::new(secured.folder.path(), "new"));
    assert!(secured.is_trusted_by(&old) && !secured.is_trusted_by(&new.root));
    write(secured.folder.path(), &new.sign());
    until("the server uses the renewed certificate", || secured.is_trusted_by(&new.root));
    assert!(!secured.is_trusted_by(&old));

    write(secured.folder.path(), &("no certificate".to_owned(), new.sign().1));
    let is_warning = |line: &str| {
        (line.contains("cannot use the changed certificate") && line.contains("no PEM certificate")).then_some(())
    };
    secured.server.log.wait(is_warning).expect("the log has a warning");
    assert!(secured.is_trusted_by(&new.root), "the server keeps the previous certificate");
    std::fs::remove_file(secured.folder.path().join("server.crt")).unwrap();
    write(secured.folder.path(), &secured.authority.sign());
    until("the server uses the next certificate", || secured.is_trusted_by(&old));
    let keys = secured.server.log.text().matches("PRIVATE KEY").count();
    assert_eq!(keys, 0, "the log contains a private key");
    assert!(secured.server.stop().success());
}

#[test]
fn server_closes_stalled_handshakes_and_serves_other_clients() {
    let secured = Secured::start();
    let stalled: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(secured.server.address).unwrap()).collect();
    let root = &secured.authority.root;
    assert_eq!(secured.version_and_status(root, &["--http1.1"]), "1.1 200");
    for mut stream in stalled {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "the server closes the connection");
    }
    let url = format!("https://localhost:{}/metrics", secured.server.address.port());
    let metrics = Command::new("curl").args(["--silent", "--noproxy", "*", "--cacert"]).arg(root).arg(url).output();
    let metrics = String::from_utf8(metrics.unwrap().stdout).unwrap();
    assert!(metrics.contains("reveille_http_handshakes_failed_total 50"), "{metrics}");
    assert!(secured.server.stop().success());
}

#[test]
fn plain_http_beyond_loopback_requires_the_flag_insecure() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut command = Command::new(BINARY);
    command.args(["serve", "--listen", "0.0.0.0:0", "--no-receiver", "--data"]).arg(&data);
    let output = command.env("NO_COLOR", "1").env_remove("RUST_LOG").output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && message.contains("--tls-certificate") && message.contains("--insecure"),
        "{message}"
    );
    assert!(!data.exists(), "the failed start creates no data folder");
}
