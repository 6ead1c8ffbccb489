//! Builds the binary from this checkout, or from a copy of it with a deliberate bug.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::Mutant;
use crate::stage::{self, CARGO};

const UNFENCED: &str = include_str!("mutants/unfenced.patch");
const NO_DRAIN: &str = include_str!("mutants/no-drain.patch");
const NO_EPOCH: &str = include_str!("mutants/no-epoch.patch");

/// # Errors
/// Returns an error if the build fails, or if the patch of the mutant does not apply to the code.
pub(super) fn build(mutant: Option<Mutant>) -> anyhow::Result<PathBuf> {
    let target = stage::target()?;
    let Some(mutant) = mutant else {
        cargo(&stage::root(), &target)?;
        return Ok(target.join("release/reveille"));
    };
    let (name, patch) = match mutant {
        Mutant::Unfenced => ("unfenced", UNFENCED),
        Mutant::NoDrain => ("no-drain", NO_DRAIN),
        Mutant::NoEpoch => ("no-epoch", NO_EPOCH),
    };
    let copy = target.join("chaos").join(name);
    copy_checkout(&copy)?;
    let patch_file = copy.join("mutant.patch");
    std::fs::write(&patch_file, patch)?;
    let mut apply = Command::new("git");
    // The copy is usually within the checkout, but git must not treat the copy as part of the checkout.
    apply.args(["apply", "mutant.patch"]).current_dir(&copy).env("GIT_CEILING_DIRECTORIES", target.join("chaos"));
    let status = apply.status().context("cannot start git")?;
    ensure!(
        status.success(),
        "xtask/src/chaos/mutants/{name}.patch does not apply to the code; create the patch again"
    );
    // All mutants share one build folder, so that cargo builds unchanged crates once.
    let mutants_target = target.join("chaos/target");
    cargo(&copy, &mutants_target)?;
    Ok(mutants_target.join("release/reveille"))
}

/// Builds an example of the crate `bus-kafka`, and returns its path.
///
/// # Errors
/// Returns an error if the build fails.
pub(super) fn build_example(name: &str) -> anyhow::Result<PathBuf> {
    let mut command = Command::new(CARGO);
    command.args(["build", "--release", "--package", "bus-kafka", "--example", name]);
    let status = command.current_dir(stage::root()).status().context("cannot start cargo")?;
    ensure!(status.success(), "cargo could not build the example {name}; its output shows the error");
    Ok(stage::target()?.join("release/examples").join(name))
}

fn cargo(checkout: &Path, target: &Path) -> anyhow::Result<()> {
    let mut command = Command::new(CARGO);
    command.args(["build", "--release", "--package", "reveille", "--bin", "reveille", "--target-dir"]).arg(target);
    let status = command.current_dir(checkout).status().context("cannot start cargo")?;
    ensure!(status.success(), "cargo could not build the program reveille; its output shows the error");
    Ok(())
}

/// Copies the current state of all files that git tracks and of all new files that git does not ignore.
fn copy_checkout(copy: &Path) -> anyhow::Result<()> {
    if copy.exists() {
        std::fs::remove_dir_all(copy)?;
    }
    let root = stage::root();
    let mut list = Command::new("git");
    list.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(&root);
    let output = list.output().context("cannot start git")?;
    ensure!(output.status.success(), "git cannot list the checkout's files");
    for path in String::from_utf8(output.stdout)?.split_terminator('\0') {
        let (from, to) = (root.join(path), copy.join(path));
        if !from.is_file() {
            continue;
        }
        std::fs::create_dir_all(to.parent().context("the destination path of a copied file has no parent folder")?)?;
        std::fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_patch_applies_to_the_current_code() {
        for name in ["unfenced", "no-drain", "no-epoch"] {
            let patch = format!("xtask/src/chaos/mutants/{name}.patch");
            let status = Command::new("git").args(["apply", "--check", &patch]).current_dir(stage::root()).status();
            assert!(status.unwrap().success(), "{patch} does not apply to the code; create the patch again");
        }
    }
}
