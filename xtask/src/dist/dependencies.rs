//! The crates that are linked into the binary, and the software bill of materials that lists them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use super::build::Checkout;
use crate::command;

/// Name and version.
pub(super) type Id = (String, String);

#[derive(Debug, Deserialize)]
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) license: Option<String>,
    pub(super) repository: Option<String>,
    pub(super) manifest_path: PathBuf,
    /// `None` for crates of this repository.
    source: Option<String>,
    id: String,
}

impl Crate {
    pub(super) fn is_ours(&self) -> bool {
        self.source.is_none()
    }

    fn id(&self) -> Id {
        (self.name.clone(), self.version.clone())
    }

    /// The name of a package in any bill of materials: package-url/purl-spec.
    fn purl(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Crate>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    dependencies: Vec<String>,
}

/// Crates of the binary, ordered by name and version.
pub(super) struct Dependencies {
    pub(super) crates: Vec<Crate>,
    /// By cargo's IDs.
    edges: BTreeMap<String, Vec<String>>,
}

impl Dependencies {
    pub(super) fn of(checkout: &Checkout) -> Result<Self> {
        let linked = linked(checkout)?;
        let mut cargo = checkout.command(command::cargo());
        cargo.args(["metadata", "--format-version=1", "--locked"]);
        cargo.args(["--filter-platform", checkout.architecture.triple()]);
        let metadata: Metadata = serde_json::from_str(&command::output(&mut cargo)?)?;
        let mut crates = metadata.packages;
        crates.retain(|found| linked.contains(&found.id()));
        crates.sort_by_key(Crate::id);
        ensure!(crates.len() == linked.len(), "cargo metadata and cargo tree list different crates");
        let edges = metadata.resolve.nodes.into_iter().map(|node| (node.id, node.dependencies)).collect();
        Ok(Self { crates, edges })
    }

    /// In the format CycloneDX 1.5.
    pub(super) fn bill_of_materials(&self, checkout: &Checkout) -> Result<Value> {
        let checksums =
            checksums(&command::output(checkout.command(std::process::Command::new("cat")).arg("Cargo.lock"))?);
        let time = format!("@{}", checkout.epoch);
        let time = command::output(std::process::Command::new("date").args(["--utc", "--date", &time, "+%FT%TZ"]))?;
        let subject =
            self.crates.iter().find(|found| found.name == "heapbpf").context("heapbpf is not in its own tree")?;
        let others = self.crates.iter().filter(|found| found.name != "heapbpf");
        let purls: BTreeMap<&str, String> = self.crates.iter().map(|found| (found.id.as_str(), found.purl())).collect();
        let dependencies = self.crates.iter().map(|found| {
            let targets = self.edges.get(&found.id).into_iter().flatten();
            let on: BTreeSet<&String> = targets.filter_map(|target| purls.get(target.as_str())).collect();
            json!({ "ref": found.purl(), "dependsOn": on })
        });
        Ok(json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": { "timestamp": time.trim(), "component": component(subject, "application", &checksums) },
            "components": others.map(|found| component(found, "library", &checksums)).collect::<Vec<_>>(),
            "dependencies": dependencies.collect::<Vec<_>>(),
        }))
    }
}

/// `cargo tree` resolves features for heapbpf alone; `cargo metadata` for the workspace, whose tests enable more.
fn linked(checkout: &Checkout) -> Result<BTreeSet<Id>> {
    let mut cargo = checkout.command(command::cargo());
    cargo.args(["tree", "--locked", "--package", "heapbpf", "--prefix=none", "--format={p}"]);
    cargo.args(["--target", checkout.architecture.triple()]);
    let tree = command::output(cargo.args(["--edges", "normal,no-proc-macro"]))?;
    Ok(tree.lines().filter_map(tree_line).collect())
}

/// `name v1.2.3`, and after it the path of a crate of this repository, or `(*)`.
fn tree_line(line: &str) -> Option<Id> {
    let mut words = line.split(' ');
    let name = words.next().filter(|name| !name.is_empty())?;
    Some((name.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
}

fn component(found: &Crate, kind: &str, checksums: &BTreeMap<Id, String>) -> Value {
    let mut component = json!({
        "type": kind,
        "bom-ref": found.purl(),
        "name": found.name,
        "version": found.version,
        "purl": found.purl(),
    });
    if let Some(checksum) = checksums.get(&found.id()) {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if let Some(license) = &found.license {
        // The separator of licences before SPDX expressions.
        let expression = license.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ");
        component["licenses"] = json!([{ "expression": expression }]);
    }
    if let Some(repository) = &found.repository {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    component
}

/// Of crates, from the text of Cargo.lock, which cargo writes one value a line.
fn checksums(lock: &str) -> BTreeMap<Id, String> {
    let packages = lock.split("[[package]]").skip(1);
    let field = |package: &str, name: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    packages
        .filter_map(|package| {
            Some(((field(package, "name")?, field(package, "version")?), field(package, "checksum")?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_tree_are_names_and_versions() {
        let id = |name: &str, version: &str| Some((name.to_owned(), version.to_owned()));
        assert_eq!(tree_line("toml v1.2.1+spec-1.1.0"), id("toml", "1.2.1+spec-1.1.0"));
        assert_eq!(tree_line("profiler-common v0.1.0 (/src/profiler-common) (*)"), id("profiler-common", "0.1.0"));
        assert_eq!(tree_line(""), None);
    }

    #[test]
    fn checksums_are_those_of_the_lock_file() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"ab12\"\n\n[[package]]\nname = \
                    \"ours\"\nversion = \"0.1.0\"\ndependencies = [\n \"a\",\n]\n";
        let expected = [(("a".to_owned(), "1.0.0".to_owned()), "ab12".to_owned())];
        assert_eq!(checksums(lock), BTreeMap::from(expected));
    }
}
