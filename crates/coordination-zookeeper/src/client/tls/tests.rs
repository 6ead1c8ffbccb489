use std::os::unix::fs::PermissionsExt;

use test_servers::certificate::Authority;

use super::*;

fn tls(folder: &Path, roots: &str, certificate: &str, key: &str) -> Tls {
    let identity = Identity { certificate: folder.join(certificate), key: folder.join(key) };
    Tls { roots: Some(folder.join(roots)), identity: Some(identity) }
}

#[test]
fn error_of_a_file_names_the_parameter_the_cause_and_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let authority = Authority::create(folder).unwrap();
    authority.issue(folder, "a").unwrap();
    authority.issue(folder, "b").unwrap();
    std::fs::write(folder.join("empty"), "").unwrap();
    std::fs::set_permissions(folder.join("empty"), PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::write(folder.join("bad"), "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n").unwrap();
    std::fs::copy(folder.join("a.key"), folder.join("shared.key")).unwrap();
    tls(folder, "root.crt", "a.crt", "a.key").config().unwrap();
    for mode in [0o644, 0o604, 0o660] {
        std::fs::set_permissions(folder.join("shared.key"), PermissionsExt::from_mode(mode)).unwrap();
        let error = tls(folder, "root.crt", "a.crt", "shared.key").config().unwrap_err().to_string();
        assert!(error.contains("run `chmod 600") && error.contains(&format!("{mode:o}")), "{error}");
    }
    std::fs::set_permissions(folder.join("shared.key"), PermissionsExt::from_mode(0o440)).unwrap();
    tls(folder, "root.crt", "a.crt", "shared.key").config().unwrap();
    for (roots, certificate, key, causes) in [
        ("none", "a.crt", "a.key", ["none, which the parameter sslrootcert", "No such file"]),
        ("empty", "a.crt", "a.key", ["sslrootcert", "contains no PEM certificate"]),
        ("bad", "a.crt", "a.key", ["sslrootcert", "base64 decode error"]),
        ("root.crt", "none", "a.key", ["none, which the parameter sslcert", "No such file"]),
        ("root.crt", "a.key", "a.key", ["sslcert", "contains no PEM certificate"]),
        ("root.crt", "a.crt", "none", ["none, which the parameter sslkey", "No such file"]),
        ("root.crt", "a.crt", "empty", ["sslkey", "`openssl pkey -in FILE`"]),
        ("root.crt", "a.crt", "b.key", ["sslkey", "the key does not belong to the certificate"]),
    ] {
        let error = tls(folder, roots, certificate, key).config().unwrap_err().to_string();
        assert!(causes.iter().all(|cause| error.contains(cause)), "{error}");
    }
}
