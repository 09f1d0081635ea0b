//! `--source`, and the name of a program that was started by a link.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, binary};
use heapbpf_tests::target::{Target, build, copy_program};

fn mode(path: &Path) -> u32 {
    path.metadata().expect("it is written").permissions().mode() & 0o777
}

#[test]
fn source_lines_are_embedded_on_request() {
    let mut target = Target::start("exact.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 --source -o with.html -o x.heapbpf -o x.json");
    let session = heapbpf.start();
    let ledger = target.work("go");
    let _ = session.interrupt().expect_code(0);

    for name in ["with.html", "x.json", "x.heapbpf"] {
        assert_eq!(mode(&heapbpf.file(name)), 0o600, "{name}");
    }
    let data = heapbpf.page("with.html");
    let sources = &data["sources"];
    let list = |name: &str| sources[name].as_array().unwrap_or_else(|| panic!("no {name} in {sources}"));
    let pieces: Vec<(u64, &str)> = list("file")
        .iter()
        .zip(list("line").iter().zip(list("text")))
        .filter(|(file, _)| {
            let file = file.as_u64().and_then(|file| usize::try_from(file).ok()).expect("an index");
            data["strings"][file].as_str().is_some_and(|path| path.ends_with("/exact.c"))
        })
        .map(|(_, (line, text))| (line.as_u64().expect("a line"), text.as_str().expect("lines")))
        .collect();
    let source = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/targets/exact.c")).expect("ours");
    let lines: Vec<&str> = source.lines().collect();
    for site in ledger.sites.iter().filter(|site| site.counts.alloc_count > 0) {
        let embedded = pieces.iter().find_map(|(first, text)| {
            let at = u64::from(site.line).checked_sub(*first)?;
            text.lines().nth(usize::try_from(at).ok()?)
        });
        let expected = lines[site.line as usize - 1].replace('\t', "    ");
        assert_eq!(embedded, Some(expected.trim_end()), "line {} of `{}`", site.line, site.function);
    }

    for (input, option, has_sources) in
        [("x.heapbpf", "--source", true), ("x.json", "--source", true), ("x.json", "--trim", false)]
    {
        let converted = Command::new(binary())
            .args(["convert", option, "--quiet", "-o"])
            .args([heapbpf.file("converted.html"), heapbpf.file(input)])
            .output()
            .expect("it runs");
        assert!(converted.status.success(), "{converted:?}");
        let data = heapbpf.page("converted.html");
        assert_eq!(data.get("sources").is_some(), has_sources, "{input} {option}");
        let others_may_read = mode(&heapbpf.file("converted.html")) & 0o044 != 0;
        assert_eq!(others_may_read, !has_sources, "{input} {option}");
    }
}

#[test]
fn a_program_has_the_name_that_it_was_started_by() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let program = folder.path().join("exact-check");
    copy_program(build("exact.c"), &program);
    let link = folder.path().join("exact-server");
    symlink("exact-check", &link).expect("the directory is ours");
    let mut target = Target::spawn(&mut Command::new(&link));
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o x.json -o x.heapbpf -o x.svg");
    let session = heapbpf.start();
    let _ = target.work("go");
    let _ = session.interrupt().expect_code(0);

    let converted = Command::new(binary())
        .args(["convert", "--quiet", "-o"])
        .args([heapbpf.file("converted.json"), heapbpf.file("x.heapbpf")])
        .output()
        .expect("it runs");
    assert!(converted.status.success(), "{converted:?}");
    for name in ["x.json", "converted.json"] {
        let report = heapbpf.report(name);
        let process = report.process(target.pid());
        let modules = process.callsites.iter().flat_map(|callsite| &callsite.stack);
        let modules: Vec<&str> = modules.filter_map(|frame| frame.module.as_deref()).collect();
        assert!(modules.iter().any(|module| module.ends_with("/exact-server")), "{name}: {modules:?}");
        assert!(modules.iter().all(|module| !module.ends_with("/exact-check")), "{name}: {modules:?}");
    }
    let svg = std::fs::read_to_string(heapbpf.file("x.svg")).expect("it is written");
    assert!(svg.contains(">exact-server</text>") && !svg.contains("exact-check"), "the legend has the name");
}
