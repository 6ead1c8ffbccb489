//! Image for container engines: an archive of an OCI image layout. The command writes the archive without a container
//! engine. The image has only one layer, which contains the binary, its licences, the libraries that the binary needs,
//! and an empty data folder.
//!
//! The formats are those of the OCI Image Format Specification 1.0 (image-layout.md, manifest.md, config.md).

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::tree::{self, Contents};
use super::{Release, archive};
use crate::stage;

/// Numeric user and group of the service, as in `deploy/Containerfile`.
const USER: u32 = 10_001;
/// Working folder of the service. Only the service's user can access it.
const HOME: &str = "var/lib/reveille";

/// Licences of the libraries in the layer.
const LIBRARY_LICENSES: [&str; 2] = ["usr/share/doc/libc6/copyright", "usr/share/doc/libgcc-s1/copyright"];

/// Builds the archive in the folder `to`.
///
/// # Errors
/// Returns an error if a file cannot be read or written, or if `tar` or `gzip` fails.
pub(super) fn build(release: &Release, contents: &Contents<'_>, work: &Path, to: &Path) -> anyhow::Result<()> {
    let root = work.join("root");
    install(&root, contents)?;
    let layer = work.join("layer.tar");
    let names = entries(&root)?;
    archive::create(release, &layer, &root, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
    for (name, owner, mode) in [("tmp", 0, "1777"), (HOME, USER, "0700")] {
        std::fs::create_dir_all(root.join(name))?;
        archive::append_folder(release, &layer, &root, name, (owner, mode))?;
    }
    let layout = work.join("layout");
    write_layout(release, &layer, &layout)?;
    let names = entries(&layout)?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    archive::create(release, &to.join(release.image()), &layout, &names)
}

fn install(root: &Path, contents: &Contents<'_>) -> anyhow::Result<()> {
    contents.install_program(&root.join("usr"))?;
    // Each library keeps its path, at which the loader searches for it.
    for library in &contents.program.libraries {
        let path = library.strip_prefix("/").with_context(|| format!("ldd cannot find {}", library.display()))?;
        tree::copy(library, &root.join(path))?;
    }
    for license in LIBRARY_LICENSES {
        tree::copy(&Path::new("/").join(license), &root.join(license))?;
    }
    // This function creates only the parent of the data folder. The function `build` adds the data folder to the
    // archive, because root does not own the data folder.
    std::fs::create_dir_all(root.join("var/lib"))?;
    tree::write(&root.join("etc/passwd"), &format!("reveille:x:{USER}:{USER}::/{HOME}:/sbin/nologin\n"))?;
    tree::write(&root.join("etc/group"), &format!("reveille:x:{USER}:\n"))
}

/// Writes the image layout with this layer to a new folder.
fn write_layout(release: &Release, layer: &Path, layout: &Path) -> anyhow::Result<()> {
    let blobs = layout.join("blobs/sha256");
    std::fs::create_dir_all(&blobs)?;
    let diff_id = digest(layer)?;
    archive::compress(layer)?;
    let gzipped = layer.with_extension("tar.gz");
    let layer = add_blob(&blobs, &gzipped, "application/vnd.oci.image.layer.v1.tar+gzip")?;
    let add_json = |value: &Value, media_type: &str| {
        let file = layout.join("blob");
        std::fs::write(&file, serde_json::to_vec(value)?)?;
        add_blob(&blobs, &file, media_type)
    };
    let configuration = add_json(&configuration(release, &diff_id), "application/vnd.oci.image.config.v1+json")?;
    let manifest = add_json(&manifest(&configuration, &layer), "application/vnd.oci.image.manifest.v1+json")?;
    tree::write(&layout.join("index.json"), &index(release, manifest).to_string())?;
    tree::write(&layout.join("oci-layout"), &json!({ "imageLayoutVersion": "1.0.0" }).to_string())
}

/// Moves a file to the folder `blobs`, and returns the OCI descriptor of the file.
fn add_blob(blobs: &Path, file: &Path, media_type: &str) -> anyhow::Result<Value> {
    let digest = digest(file)?;
    let size = std::fs::metadata(file)?.len();
    std::fs::rename(file, blobs.join(&digest))?;
    Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size }))
}

/// Returns the SHA-256 of a file in hexadecimal.
fn digest(file: &Path) -> anyhow::Result<String> {
    let line = stage::output_of(Command::new("sha256sum").arg("--").arg(file))?;
    let (digest, _) = line.split_once(' ').context("the output of sha256sum contains no digest and file name")?;
    ensure!(digest.len() == 64, "sha256sum printed an invalid digest: {digest}");
    Ok(digest.to_owned())
}

/// Returns the names of the entries of a folder.
fn entries(folder: &Path) -> anyhow::Result<Vec<String>> {
    let name = |entry: std::io::Result<std::fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = std::fs::read_dir(folder)?.map(name).collect::<anyhow::Result<_>>()?;
    names.sort();
    Ok(names)
}

/// Returns the configuration of the image. `diff_id` is the digest of the uncompressed layer.
fn configuration(release: &Release, diff_id: &str) -> Value {
    json!({
        "created": release.created,
        "architecture": release.architecture,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "ExposedPorts": { "8080/tcp": {}, "7070/tcp": {} },
            "Env": ["PATH=/usr/bin"],
            "Entrypoint": ["/usr/bin/reveille"],
            "WorkingDir": format!("/{HOME}"),
            "Labels": {
                "org.opencontainers.image.title": "reveille",
                "org.opencontainers.image.version": release.version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{diff_id}")] },
        "history": [{ "created": release.created, "created_by": "cargo xtask dist" }],
    })
}

fn manifest(configuration: &Value, layer: &Value) -> Value {
    json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": configuration,
        "layers": [layer],
    })
}

/// Returns the index with the tag of the image. Engines that load the archive use the annotation
/// `io.containerd.image.name` as the name of the image.
fn index(release: &Release, mut manifest: Value) -> Value {
    manifest["platform"] = json!({ "os": "linux", "architecture": release.architecture });
    manifest["annotations"] = json!({
        "org.opencontainers.image.ref.name": release.version,
        "io.containerd.image.name": format!("localhost/reveille:{}", release.version),
    });
    json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json_of(path: &Path) -> Value {
        serde_json::from_slice(&std::fs::read(path).expect("the file exists")).expect("the file is JSON")
    }

    #[test]
    fn image_layout_names_each_blob_file_by_its_sha256_digest() {
        let work = tempfile::tempdir().expect("a folder");
        let (layer, layout) = (work.path().join("layer.tar"), work.path().join("layout"));
        std::fs::write(&layer, "a layer").expect("a file");
        let diff_id = digest(&layer).expect("a digest");
        write_layout(&Release::example(), &layer, &layout).expect("a layout");
        let blob = |descriptor: &Value| {
            let name = descriptor["digest"].as_str().expect("a digest").strip_prefix("sha256:").expect("SHA-256");
            let path = layout.join("blobs/sha256").join(name);
            assert_eq!(digest(&path).expect("a digest"), name);
            assert_eq!(descriptor["size"], std::fs::metadata(&path).expect("a file").len());
            path
        };
        let index = json_of(&layout.join("index.json"));
        assert_eq!(index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"], "1.2.3");
        let manifest = json_of(&blob(&index["manifests"][0]));
        blob(&manifest["layers"][0]);
        let configuration = json_of(&blob(&manifest["config"]));
        assert_eq!(configuration["rootfs"]["diff_ids"], json!([format!("sha256:{diff_id}")]));
        assert_eq!(entries(&layout).expect("the entries"), ["blobs", "index.json", "oci-layout"]);
        assert_eq!(std::fs::read_dir(layout.join("blobs/sha256")).expect("the blobs").count(), 3);
    }

    #[test]
    fn image_configuration_agrees_with_the_containerfile() {
        let containerfile = tree::source("Containerfile").expect("the file");
        let configuration = configuration(&Release::example(), "00");
        let config = &configuration["config"];
        for (key, instruction) in [("User", "USER"), ("WorkingDir", "WORKDIR")] {
            let value = config[key].as_str().expect("a text");
            assert!(containerfile.contains(&format!("\n{instruction} {value}\n")), "{key}");
        }
        assert!(containerfile.contains("\nEXPOSE 8080 7070\n"));
        assert_eq!(config["ExposedPorts"], json!({ "8080/tcp": {}, "7070/tcp": {} }));
    }
}
