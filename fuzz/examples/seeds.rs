//! Writes seeds: `cargo run --manifest-path fuzz/Cargo.toml --example seeds -- [RECORDING|REPORT]…` in the repository's root.
//! Requires gcc, g++, musl-gcc and libjemalloc. Seeds that are short texts are written by hand.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use heapbpf::internals::{FILE_HEADER_BYTES, Reading, Replay, read_block};
use heapbpf_base::ids::Pid;
use heapbpf_fuzz::image::{EXECUTABLE, FILES, KINDS, PAGE_BYTES, READ_ONLY, REGISTERS, SHARED};
use heapbpf_fuzz::recording::{BY_THREAD, GOES_ON, VERBATIM};
use heapbpf_linux::proc::maps::{Region, RegionKind, regions};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Minimum number of zeros to skip: a new write has a longer header than fewer zeros take.
const GAP_BYTES: usize = 16;
const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";

fn main() -> Outcome {
    let folder = std::env::temp_dir().join(format!("heapbpf-seeds-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    for path in std::env::args().skip(1) {
        let (path, name) = (Path::new(&path), Path::new(&path).file_stem().unwrap_or_default().to_string_lossy());
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("heapbpf") => recording(&name, &fs::read(path)?)?,
            _ => save("reports", &name, &fs::read(path)?)?,
        }
    }
    modules(&folder)?;
    heaps(&folder)?;
    Ok(fs::remove_dir_all(folder)?)
}

fn save(target: &str, name: &str, bytes: &[u8]) -> Outcome {
    let folder = Path::new("fuzz/seeds").join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), bytes)?;
    println!("{target}/{name}: {} bytes", bytes.len());
    Ok(())
}

fn run(program: &str, arguments: &[&str], folder: &Path) -> Outcome {
    let status = Command::new(program).args(arguments).current_dir(folder).status()?;
    if status.success() { Ok(()) } else { Err(format!("{program} failed: {status}").into()) }
}

/// Saves the blocks of a recording, and the file itself.
fn recording(name: &str, file: &[u8]) -> Outcome {
    let mut blocks = vec![BY_THREAD, 0, 0, 0, 0, 0];
    let mut rest = file.get(FILE_HEADER_BYTES..).ok_or("not a recording")?;
    while let Some(block) = read_block(&mut rest)? {
        let kind = u8::try_from(block.kind.0)?;
        blocks.push(if block.goes_on { kind | GOES_ON } else { kind });
        blocks.extend(u16::try_from(block.bytes.len())?.to_le_bytes());
        blocks.extend(block.bytes);
    }
    save("recordings", name, &blocks)?;
    save("recordings", &format!("{name}-folded"), &folded(file)?)?;
    save("recordings", &format!("{name}-verbatim"), &[&[VERBATIM, 0, 0, 0, 0, 0], file].concat())
}

/// Returns a recording whose entries are all folded.
fn folded(file: &[u8]) -> Outcome<Vec<u8>> {
    let mut replay = Replay::default();
    Reading::new(file)?.for_each(|entry| replay.enter(entry));
    replay.fold();
    let state = postcard::to_stdvec(&replay)?;
    let length = u16::try_from(state.len())?;
    Ok([&[0, 0, 0, 0, 0, 0, 2], &length.to_le_bytes()[..], &state, &[4, 1, 0, 0]].concat())
}

fn modules(folder: &Path) -> Outcome {
    const FLAGS: [&str; 9] = [
        "-O1",
        "-shared",
        "-nostdlib",
        "-fPIC",
        "-fno-builtin",
        "-fno-ident",
        "-Wl,--build-id,-z,noseparate-code,-z,max-page-size=4096",
        "-Wno-builtin-declaration-mismatch",
        "-o",
    ];
    fs::write(folder.join("exports.c"), include_str!("programs/exports.c"))?;
    fs::write(folder.join("tables.cpp"), include_str!("programs/tables.cpp"))?;
    for (compiler, source, name) in [("gcc", "exports.c", "exports"), ("g++", "tables.cpp", "tables")] {
        run(compiler, &[&FLAGS[..], &[name, source]].concat(), folder)?;
        let module = fs::read(folder.join(name))?;
        save("elf", name, &module)?;
        save("unwind", name, &[&[0], &module[..]].concat())?;
        run("objcopy", &["-O", "binary", "--only-section=.eh_frame", name, "frames"], folder)?;
        save("unwind", &format!("{name}-frames"), &[&[1], &fs::read(folder.join("frames"))?[..]].concat())?;
    }
    Ok(())
}

fn heaps(folder: &Path) -> Outcome {
    fs::write(folder.join("heap.c"), include_str!("programs/heap.c"))?;
    run("gcc", &["-O1", "heap.c", "-o", "heap"], folder)?;
    run("musl-gcc", &["-O1", "-static", "heap.c", "-o", "heap-musl"], folder)?;
    save("walks", "glibc", &heap(Command::new(folder.join("heap")))?)?;
    save("walks", "musl", &heap(Command::new(folder.join("heap-musl")))?)?;
    let mut with_jemalloc = Command::new(folder.join("heap"));
    // Reproducible sizes, and small caches.
    with_jemalloc.env("LD_PRELOAD", JEMALLOC).env("MALLOC_CONF", "narenas:1");
    save("walks", "jemalloc", &heap(with_jemalloc)?)
}

/// Returns the memory of a program as an input of `walks`.
fn heap(mut program: Command) -> Outcome<Vec<u8>> {
    let mut child = program.stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    let image = image(Pid(child.id()), u64::from_str_radix(line.trim().trim_start_matches("0x"), 16)?);
    child.kill()?;
    child.wait()?;
    image
}

fn image(pid: Pid, thread_pointer: u64) -> Outcome<Vec<u8>> {
    let memory = File::open(format!("/proc/{}/mem", pid.0))?;
    let included: Vec<Region> = regions(pid)?.into_iter().filter(is_included).collect();
    let mut bytes = vec![u8::try_from(included.len())?];
    let mut end = PAGE_BYTES;
    for region in &included {
        bytes.push(kind(region));
        bytes.extend(((region.start.0 - end) / PAGE_BYTES).to_le_bytes());
        bytes.extend((region.size_bytes() / PAGE_BYTES).to_le_bytes());
        end = region.end.0;
    }
    bytes.push(1);
    bytes.extend([0, thread_pointer].map(u64::to_le_bytes).concat());
    bytes.extend([0; REGISTERS * 8]);
    for region in included.iter().filter(|region| region.writable && region.kind != RegionKind::Stack) {
        for page in region.start.0 / PAGE_BYTES..region.end.0 / PAGE_BYTES {
            let mut content = [0; PAGE_BYTES as usize];
            memory.read_exact_at(&mut content, page * PAGE_BYTES)?;
            add_page(&mut bytes, page, &content);
        }
    }
    Ok(bytes)
}

/// Selects data, and code except the dynamic linker's.
fn is_included(region: &Region) -> bool {
    let file = match &region.kind {
        RegionKind::File { path } => path.to_string_lossy().into_owned(),
        _ => String::new(),
    };
    let is_linkers = file.contains("/ld-linux");
    !is_linkers && region.kind != RegionKind::Kernel && (region.writable || region.executable)
}

fn kind(region: &Region) -> u8 {
    let number = match &region.kind {
        RegionKind::Anonymous { .. } => 0,
        RegionKind::Brk => 1,
        RegionKind::Stack => 2,
        RegionKind::Kernel => 3,
        RegionKind::File { path } => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_same = |file: &&str| file.rsplit('/').next().is_some_and(|known| name.starts_with(known));
            let at = FILES.iter().position(|file| is_same(&file)).unwrap_or(FILES.len() - 1);
            KINDS + u8::try_from(at).unwrap_or(0)
        }
    };
    let bits = [(region.shared, SHARED), (!region.writable, READ_ONLY), (region.executable, EXECUTABLE)];
    bits.into_iter().filter(|(is_set, _)| *is_set).fold(number, |kind, (_, bit)| kind | bit)
}

/// Adds a page and its nonzero bytes, unless it is all zeros.
fn add_page(bytes: &mut Vec<u8>, page: u64, content: &[u8]) {
    if content.iter().all(|&byte| byte == 0) {
        return;
    }
    bytes.push(0);
    bytes.extend(page.to_le_bytes());
    let mut at = 0;
    while let Some(first) = content[at..].iter().position(|&byte| byte != 0) {
        let start = at + first;
        let is_gap = |window: &[u8]| window.iter().all(|&byte| byte == 0);
        let length = content[start..].windows(GAP_BYTES).position(is_gap).unwrap_or(content.len() - start);
        bytes.push(1);
        bytes.extend((page * PAGE_BYTES + start as u64).to_le_bytes());
        bytes.extend((length as u16).to_le_bytes());
        bytes.extend(&content[start..start + length]);
        at = start + length;
    }
}
