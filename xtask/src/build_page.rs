//! `cargo xtask build-page`: checks, tests and bundles the HTML report's page (`page/`) into the files that are committed. The
//! versions of all tools are those of `page/package-lock.json`; node and npm are those of `cargo xtask viewers`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::command::{self, Repository};
use crate::inputs::Recipe;
use crate::{packages, viewers};

const SOURCE: &str = "page";
const COMMITTED: &str = "profiler/crates/report/src/html/dist";
const RECIPE: Recipe = Recipe {
    from: &[SOURCE, "xtask/src/build_page.rs"],
    built: &[COMMITTED],
    record: "profiler/crates/report/src/html/dist/SOURCE",
};
const FILES: [&str; 3] = ["page.js", "page.css", "LICENCES"];

/// Checks, tests and bundles the page of the HTML report into the committed files.
///
/// The bundle is committed so that building heapbpf requires Rust only. After a change to page/, rebuild it and commit source
/// and bundle together. Equal sources build equal bundles on every machine; --check relies on that.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask build-page             after a change to page/
  cargo xtask build-page --check     check that the committed files are built from this source
  cargo xtask build-page --check --if-changed     the same, in no time if nothing has changed")]
pub(crate) struct Arguments {
    /// Build elsewhere and fail if the committed files differ.
    #[arg(long)]
    check: bool,
    /// With --check: build nothing if neither the source nor what is committed has changed since it was built.
    #[arg(long, requires = "check")]
    if_changed: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let repository = Repository::find()?;
    if arguments.if_changed && RECIPE.is_unchanged(&repository.root)? {
        println!("`{COMMITTED}` is unchanged since it was built from this source");
        return Ok(());
    }
    packages::install(packages::VIEWERS)?;
    let viewers = viewers::install(&repository)?;
    let source = repository.root.join(SOURCE);
    let built = repository.target.join("page");
    command::empty_folder(&built)?;
    let npm = |words: &[&str]| -> Result<()> {
        let mut npm: Command = viewers::npm(&viewers)?;
        command::run(npm.current_dir(&source).env("HEAPBPF_PAGE_DIST", &built).args(words))
    };
    // Nothing of what is installed runs a script at its installation.
    npm(&["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])?;
    for script in ["check", "lint", "test", "build"] {
        npm(&["run", "--silent", script])?;
    }
    publish(&built, &repository.root.join(COMMITTED), arguments.check)?;
    if arguments.check { Ok(()) } else { RECIPE.record(&repository.root) }
}

/// Copies the built files to the committed ones, or compares them.
fn publish(built: &Path, committed: &Path, only_compares: bool) -> Result<()> {
    const REMEDY: &str = "run `cargo xtask build-page` and commit";
    fs::create_dir_all(committed).with_context(|| format!("could not create `{}`", committed.display()))?;
    for name in FILES {
        let path = committed.join(name);
        let new = fs::read(built.join(name)).with_context(|| format!("the bundler wrote no `{name}`"))?;
        if !only_compares {
            fs::write(&path, &new).with_context(|| format!("could not write `{}`", path.display()))?;
        } else if fs::read(&path).ok().as_ref() != Some(&new) {
            bail!("`{}` differs from the file rebuilt from `{SOURCE}/`: {REMEDY}", path.display());
        }
        let action = if only_compares { "is equal to the file rebuilt from its source" } else { "written" };
        println!("{}: {action} ({} bytes)", path.display(), new.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_files_are_compared_and_replaced() {
        let folder = std::env::temp_dir().join(format!("heapbpf-build-page-{}", std::process::id()));
        let [built, committed] = ["built", "committed"].map(|name| folder.join(name));
        command::empty_folder(&built).expect("it can be created");
        for name in FILES {
            fs::write(built.join(name), name).expect("it can be written");
        }
        let missing = publish(&built, &committed, true).expect_err("nothing is committed");
        assert!(missing.to_string().contains("page.js"), "{missing}");
        publish(&built, &committed, false).expect("they are written");
        publish(&built, &committed, true).expect("they are equal");
        fs::write(committed.join("page.css"), "old").expect("it can be written");
        let stale = publish(&built, &committed, true).expect_err("one differs");
        assert!(stale.to_string().contains("page.css") && stale.to_string().contains("build-page"), "{stale}");
        fs::remove_dir_all(&folder).expect("it can be removed");
    }

    #[test]
    fn packages_have_exact_versions_and_no_addresses() {
        let source = command::root().expect("it has not moved").join(SOURCE);
        let read = |name: &str| -> serde_json::Value {
            let text = fs::read_to_string(source.join(name)).expect("it is there");
            serde_json::from_str(&text).expect("it is JSON")
        };
        let manifest = read("package.json");
        for list in ["dependencies", "devDependencies"] {
            for (name, version) in manifest[list].as_object().expect("it has dependencies") {
                let version = version.as_str().expect("versions are text");
                assert!(version.chars().all(|c| c.is_ascii_digit() || c == '.'), "{name} {version}");
            }
        }
        let locked = read("package-lock.json");
        for (name, package) in locked["packages"].as_object().expect("it has packages") {
            assert!(package.get("resolved").is_none(), "{name} has an address");
            assert!(name.is_empty() || package["integrity"].is_string(), "{name} has no hash");
        }
    }
}
