//! Extracts the files of the API page from the archive of Swagger UI in the crate `utoipa-swagger-ui-vendored`, and
//! compresses each file. The build downloads nothing.

use std::error::Error;
use std::io::{Cursor, Read as _};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use zip::ZipArchive;

const FILES: [&str; 4] = ["swagger-ui-bundle.js", "swagger-ui.css", "index.css", "favicon-32x32.png"];

#[expect(clippy::disallowed_methods, reason = "cargo passes the output directory in an environment variable")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let out = std::env::var("OUT_DIR")?;
    let mut archive = ZipArchive::new(Cursor::new(utoipa_swagger_ui_vendored::SWAGGER_UI_VENDORED))?;
    let names: Vec<String> =
        archive.file_names().collect::<Result<Vec<_>, _>>()?.into_iter().map(|name| name.to_string()).collect();
    for file in FILES {
        let end = format!("/dist/{file}");
        let in_dist = |name: &&String| name.ends_with(&end) && name.matches('/').count() == 2;
        let name = names.iter().find(in_dist).ok_or_else(|| format!("the Swagger UI archive has no file {end}"))?;
        let mut bytes = Vec::new();
        archive.by_name(name)?.read_to_end(&mut bytes)?;
        let mut compressed = GzEncoder::new(Vec::new(), Compression::best());
        std::io::Write::write_all(&mut compressed, &bytes)?;
        std::fs::write(Path::new(&out).join(format!("{file}.gz")), compressed.finish()?)?;
    }
    Ok(())
}
