//! Takes what the page of the API needs out of the archive of Swagger UI that comes as a crate, and packs each file for the
//! wire. Nothing is fetched.

use std::error::Error;
use std::io::{Cursor, Read as _};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use zip::ZipArchive;

const FILES: [&str; 4] = ["swagger-ui-bundle.js", "swagger-ui.css", "index.css", "favicon-32x32.png"];

#[expect(clippy::disallowed_methods, reason = "cargo tells a build script by variables where to write")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let out = std::env::var("OUT_DIR")?;
    let mut archive = ZipArchive::new(Cursor::new(utoipa_swagger_ui_vendored::SWAGGER_UI_VENDORED))?;
    let names: Vec<String> =
        archive.file_names().collect::<Result<Vec<_>, _>>()?.into_iter().map(|name| name.to_string()).collect();
    for wanted in FILES {
        let end = format!("/dist/{wanted}");
        let in_dist = |name: &&String| name.ends_with(&end) && name.matches('/').count() == 2;
        let name = names.iter().find(in_dist).ok_or_else(|| format!("the archive has no {wanted}"))?;
        let mut bytes = Vec::new();
        archive.by_name(name)?.read_to_end(&mut bytes)?;
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        std::io::Write::write_all(&mut packed, &bytes)?;
        std::fs::write(Path::new(&out).join(format!("{wanted}.gz")), packed.finish()?)?;
    }
    Ok(())
}
