//! The name that a program was started by, which can be a link to its file: `/usr/bin/redis-server` is a link to
//! `/usr/bin/redis-check-rdb` in Debian. The target controls its arguments, so a name counts only if it leads to the
//! file that the process executes.

use std::path::{Path, PathBuf};

use heapbpf_base::ids::Pid;
use heapbpf_base::shown;
use heapbpf_ledger::model::Program;
use heapbpf_linux::proc::maps::{Device, executable_identity};
use heapbpf_linux::proc::process;
use heapbpf_linux::rights::Rights;

use crate::object::image::identity_beneath;

/// Directories of links to programs, besides the directory of the file.
const DIRECTORIES: [&str; 6] = ["/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin", "/bin", "/sbin"];
const NAME_BYTES_MAX: usize = 255;

/// Finds the link to the program that the process was started by; `None` if it was started by the file's own name.
pub(crate) fn started_as(pid: Pid, command: &str, comm: &str) -> Option<Program> {
    let path = process::executable(pid).ok()?;
    let own_name = shown::os_text(path.file_name()?);
    let names: Vec<&str> = names(command, comm).collect();
    if names.first().is_none_or(|name| *name == own_name) {
        return None;
    }
    let file = executable_identity(pid).ok()?;
    let (root, rights) = (process::root(pid).ok()?, Rights::of(pid)?);
    let is_same = |(candidate, device): &(PathBuf, Option<Device>)| {
        identity_beneath(&rights, &root, candidate, *device) == Some(file)
    };
    let folders = path.parent().map(|own| (own, Some(file.device())));
    let folders: Vec<_> = folders.into_iter().chain(DIRECTORIES.map(|other| (Path::new(other), None))).collect();
    let candidates =
        names.into_iter().flat_map(|name| folders.iter().map(move |&(folder, device)| (folder.join(name), device)));
    let link = candidates.into_iter().find(is_same).map(|(link, _)| link).filter(|link| *link != path)?;
    Some(Program { path: shown::os_text(&path).into(), started_as: shown::os_text(&link).into() })
}

/// Possible names of the program: that of `argv[0]`, which programs overwrite with a title (`redis-server *:6379`, `-bash`), then
/// the kernel's.
fn names<'a>(command: &'a str, comm: &'a str) -> impl Iterator<Item = &'a str> {
    let title = command.split_whitespace().next().unwrap_or_default();
    let name = title.rsplit('/').next().unwrap_or_default().trim_start_matches('-').trim_end_matches(':');
    let is_name = |name: &&str| {
        (1..=NAME_BYTES_MAX).contains(&name.len())
            && !matches!(*name, "." | "..")
            && !name.contains(|c: char| c == '/' || c.is_control())
    };
    [name, comm].into_iter().filter(is_name)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    #[test]
    fn names_are_those_of_files() {
        for (command, expected) in [
            ("/usr/bin/redis-server *:6379", vec!["redis-server", "comm"]),
            ("nginx: master process", vec!["nginx", "comm"]),
            ("-bash", vec!["bash", "comm"]),
            ("", vec!["comm"]),
            ("/usr/bin/..", vec!["comm"]),
            ("a\u{1b}b", vec!["comm"]),
        ] {
            assert_eq!(names(command, "comm").collect::<Vec<_>>(), expected, "{command}");
        }
    }

    struct Sleeper(Child);

    impl Sleeper {
        fn start(path: &Path, argument: &str) -> Self {
            let mut command = Command::new(path);
            let child = command.arg0(argument).arg("60").stdout(Stdio::null()).spawn().expect("it starts");
            Self(child)
        }

        fn started_as(&self, command: &str) -> Option<Program> {
            started_as(Pid(self.0.id()), command, "")
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn only_names_of_the_executed_file_count() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let [file, link, other] = ["the-file", "the-link", "other"].map(|name| folder.path().join(name));
        fs::copy("/bin/sleep", &file).expect("it can be copied");
        symlink("the-file", &link).expect("ours");
        fs::write(&other, "").expect("ours");
        let process = Sleeper::start(&link, "x");
        let found = process.started_as("the-link").expect("it is a link to the file");
        assert_eq!((&*found.path, &*found.started_as), (file.to_str().expect("UTF-8"), link.to_str().expect("UTF-8")));
        for forged in ["the-file", "other", "sleep", "missing", "", "../the-link/x"] {
            assert_eq!(process.started_as(forged), None, "{forged}");
        }
    }
}
