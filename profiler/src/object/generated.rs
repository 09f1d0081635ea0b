//! What names code that a process generates: files that its just-in-time compiler writes. They grow while the process runs, and
//! the target controls them: the symbolizer process parses them.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use heapbpf_base::units::MonotonicNanos;
use heapbpf_linux::rights::Rights;
use rustc_hash::FxHashMap;

use super::ObjectError;
use super::image::Image;
use crate::reader::Wanted;

/// Path of the module that stands for a process's generated code. No file has it: paths of files are absolute.
pub(crate) const GENERATED: &str = "[jit]";

/// Maximum number of files per process: its own and those of the processes that it was forked from.
const FILES_MAX: usize = 4;
/// Maximum number of points in time at which the size of a file is known.
const SIZES_MAX: usize = 4096;
/// Maximum number of addresses whose first occurrence is known.
const ADDRESSES_MAX: usize = 1 << 16;

/// Length of what `mkstemp` appends to a name.
const RANDOM_LENGTH: usize = 6;

/// Facts about the generated code of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Generated {
    /// The latest first.
    perf_maps: Vec<PerfMap>,
    /// Mapped files in the format of perf's jitdump, the latest first.
    dumps: Vec<Arc<Image>>,
    /// When addresses first occurred in a stack.
    seen: Arc<FxHashMap<u64, MonotonicNanos>>,
}

/// `/tmp/perf-PID.map`, and its size over time: what lies behind a size was written later.
#[derive(Clone, Debug)]
pub(crate) struct PerfMap {
    image: Arc<Image>,
    sizes: Vec<(MonotonicNanos, u64)>,
}

/// What is known about the time at which an address was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) time: MonotonicNanos,
    /// Size of each map shortly after that.
    pub(crate) size_bytes: u64,
}

impl Generated {
    pub(crate) fn perf_map(&self) -> Option<&PerfMap> {
        self.perf_maps.first()
    }

    pub(crate) fn perf_maps(&self) -> &[PerfMap] {
        &self.perf_maps
    }

    pub(crate) fn dumps(&self) -> &[Arc<Image>] {
        &self.dumps
    }

    /// Adds a file, or notes the size of a known one.
    pub(crate) fn note_map(&mut self, image: Image, now: MonotonicNanos) {
        let identity = image.identity();
        let size = (now, identity.size_bytes);
        match self.perf_maps.first_mut().filter(|map| is_same(&map.image, &image)) {
            Some(map) => map.note(size),
            None => {
                self.perf_maps.insert(0, PerfMap { image: Arc::new(image), sizes: vec![size] });
                self.perf_maps.truncate(FILES_MAX);
            }
        }
    }

    /// Notes the size of the latest map, whose directory may be gone. Returns whether it has changed.
    pub(crate) fn note_size(&mut self, now: MonotonicNanos) -> bool {
        let Some(map) = self.perf_maps.first_mut() else { return false };
        let Ok(metadata) = map.image.file().metadata() else { return false };
        let has_changed = map.sizes.last().is_none_or(|&(_, last)| last != metadata.len());
        if has_changed {
            map.note((now, metadata.len()));
        }
        has_changed
    }

    /// Adds a mapped file. Returns false if it is known.
    pub(crate) fn add_dump(&mut self, image: &Image) -> bool {
        let is_new = !self.dumps.iter().any(|known| is_same(known, image));
        let copy = image.try_clone().ok().filter(|_| is_new);
        let Some(copy) = copy else { return false };
        self.dumps.insert(0, Arc::new(copy));
        self.dumps.truncate(FILES_MAX);
        true
    }

    /// Notes that an address occurs in a stack.
    pub(crate) fn see(&mut self, address: u64, now: MonotonicNanos) {
        if self.seen.len() < ADDRESSES_MAX && !self.seen.contains_key(&address) {
            Arc::make_mut(&mut self.seen).insert(address, now);
        }
    }

    /// When an address was first seen; the latest names apply to others.
    pub(crate) fn seen(&self, address: u64, map: Option<&PerfMap>) -> Seen {
        let time = self.seen.get(&address).copied();
        let size_bytes = time.zip(map).and_then(|(time, map)| map.size_at(time));
        Seen { time: time.unwrap_or(MonotonicNanos(u64::MAX)), size_bytes: size_bytes.unwrap_or(u64::MAX) }
    }
}

impl PerfMap {
    pub(crate) fn image(&self) -> &Image {
        &self.image
    }

    fn note(&mut self, size: (MonotonicNanos, u64)) {
        match self.sizes.last() {
            Some(last) if last.1 == size.1 => {}
            // A runtime has rewritten the file: earlier sizes say nothing about it.
            Some(last) if last.1 > size.1 => self.sizes = vec![size],
            _ => {
                if self.sizes.len() >= SIZES_MAX {
                    let mut keep = false;
                    self.sizes.retain(|_| {
                        keep = !keep;
                        keep
                    });
                }
                self.sizes.push(size);
            }
        }
    }

    /// Size when it was first read at or after a time; `None` if that has not happened yet.
    fn size_at(&self, time: MonotonicNanos) -> Option<u64> {
        let at = self.sizes.partition_point(|&(read, _)| read < time);
        self.sizes.get(at).map(|&(_, size_bytes)| size_bytes)
    }
}

/// Whether these are the same file, of any size.
fn is_same(one: &Image, other: &Image) -> bool {
    let [one, other] = [one, other].map(Image::identity);
    (one.device, one.inode) == (other.device, other.inode)
}

/// Opens the map of a process beneath its root directory, with its rights. `pid` is the process's own number for itself. As for perf,
/// the file must belong to its user or to root. It must be no link: a link of the target's could lead to any file.
pub(crate) fn open_perf_map(root: &File, pid: u32, rights: &Rights) -> Result<Image, ObjectError> {
    let path = format!("tmp/perf-{pid}.map");
    let owners = Some([0, rights.uid()]);
    Image::open_for(rights, root, Wanted { path: Path::new(&path), follows: false, owners, bytes_max: u64::MAX })
}

/// Whether a mapped file is a marker by which perf finds a dump: `jit-PID.dump`, or of JavaScriptCore `jit-TID-PID.dump` and, without a
/// folder for it, `jit-TID-PID-XXXXXX`.
pub(crate) fn is_dump(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(rest) = name.strip_prefix("jit-") else { return false };
    let parts: Vec<&str> = rest.strip_suffix(".dump").unwrap_or(rest).split('-').collect();
    match (&parts[..], rest.ends_with(".dump")) {
        ([pid], true) => is_number(pid),
        ([tid, pid], true) => is_number(tid) && is_number(pid),
        ([tid, pid, random], false) => is_number(tid) && is_number(pid) && random.len() == RANDOM_LENGTH,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn nanos(time: u64) -> MonotonicNanos {
        MonotonicNanos(time)
    }

    #[test]
    fn sizes_date_the_lines_of_a_map() {
        let mut code = Generated::default();
        code.see(0x10, nanos(15));
        code.see(0x20, nanos(99));
        // The first time counts.
        code.see(0x10, nanos(30));
        for (time, size) in [(10, 100), (20, 200), (30, 300)] {
            let image = Image::from_bytes(&vec![b'x'; size]).expect("a memfd");
            match code.perf_maps.first_mut() {
                Some(map) => map.note((nanos(time), image.identity().size_bytes)),
                None => code.note_map(image, nanos(time)),
            }
        }
        let map = code.perf_map().expect("it was added").clone();
        assert_eq!(code.seen(0x10, Some(&map)), Seen { time: nanos(15), size_bytes: 200 });
        // The map has not been read since.
        assert_eq!(code.seen(0x20, Some(&map)), Seen { time: nanos(99), size_bytes: u64::MAX });
        assert_eq!(code.seen(0x30, Some(&map)).size_bytes, u64::MAX);
        let mut map = map;
        map.note((nanos(40), 50));
        assert_eq!(map.sizes, [(nanos(40), 50)], "the file was rewritten");
        for time in 41..(41 + 2 * SIZES_MAX as u64) {
            map.note((nanos(time), time + 10));
        }
        assert!(map.sizes.len() <= SIZES_MAX && map.sizes.is_sorted());
    }

    #[test]
    fn only_regular_files_of_the_target_are_opened() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let root = File::open(folder.path()).expect("it is a folder");
        let rights = Rights::of_invoker();
        std::fs::create_dir(folder.path().join("tmp")).expect("ours");
        let path = |pid: u32| folder.path().join(format!("tmp/perf-{pid}.map"));
        std::fs::write(path(1), "10 1 a\n").expect("ours");
        symlink(path(1), path(2)).expect("ours");
        rustix::fs::mknodat(rustix::fs::CWD, path(3), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
            .expect("ours");
        std::fs::create_dir(path(4)).expect("ours");
        let open = |pid| open_perf_map(&root, pid, &rights).map(|image| image.identity().size_bytes);
        assert_eq!(open(1), Ok(7));
        for other in [2, 3, 4] {
            assert_eq!(open(other), Err(ObjectError::NotRegular), "{other}");
        }
        assert_eq!(open(5), Err(ObjectError::Gone));
    }

    #[test]
    fn dumps_are_recognised_by_their_names() {
        assert!(is_dump("/srv/.debug/jit/llvm-1/jit-4711.dump") && is_dump("jit-1.dump"));
        assert!(is_dump("/tmp/jit-4712-4711.dump") && is_dump("/tmp/jit-4712-4711-p3sbAC"));
        for other in [
            "/tmp/jit-4711",
            "/tmp/jit-4711-a.dump",
            "/tmp/jit-1-2-3.dump",
            "/tmp/jit-1-2-p3sb",
            "/tmp/jit-.dump",
            "/tmp/jit-1.dump.old",
            "/tmp/perf-1.map",
            "/tmp/jit-1x.dump",
        ] {
            assert!(!is_dump(other), "{other}");
        }
    }
}
