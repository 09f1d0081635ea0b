//! Body of the Rust targets, for any global allocator: every allocator call that safe code can make.
//!
//! They use the protocol of `targets/protocol.h`: `ready`, a command in, a ledger out, `exit`. Between a command and
//! its answer nothing else allocates: the threads exist already, and answers are written into an array.
//!
//! Commands: `exact` makes all calls at many sizes, `many` makes thousands of one size each. Both use four threads at
//! once.

use std::fs::File;
use std::hint::black_box;
use std::io::{Cursor, Read as _, Write as _};
use std::mem::forget;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

const THREADS: usize = 4;

/// A function that allocates, and its counts.
struct Site {
    function: &'static str,
    alloc_count: AtomicU64,
    alloc_bytes: AtomicU64,
    free_count: AtomicU64,
    free_bytes: AtomicU64,
}

impl Site {
    const fn of(function: &'static str) -> Self {
        let [alloc_count, alloc_bytes, free_count, free_bytes] = [const { AtomicU64::new(0) }; 4];
        Self { function, alloc_count, alloc_bytes, free_count, free_bytes }
    }

    fn allocated(&self, bytes: usize) {
        self.alloc_count.fetch_add(1, Ordering::Relaxed);
        self.alloc_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn freed(&self, bytes: usize) {
        self.free_count.fetch_add(1, Ordering::Relaxed);
        self.free_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn clear(&self) {
        for number in [&self.alloc_count, &self.alloc_bytes, &self.free_count, &self.free_bytes] {
            number.store(0, Ordering::Relaxed);
        }
    }
}

static MAKES: Site = Site::of("makes");
static MAKES_TO_RESIZE: Site = Site::of("makes_to_resize");
static ZEROES: Site = Site::of("zeroes");
static BOXES: Site = Site::of("boxes");
static ALIGNS: Site = Site::of("aligns");
static ALIGNS_TO_PAGES: Site = Site::of("aligns_to_pages");
static GROWS: Site = Site::of("grows");
static SHRINKS: Site = Site::of("shrinks");
static FAILS: Site = Site::of("fails");
static SITES: [&Site; 9] =
    [&MAKES, &MAKES_TO_RESIZE, &ZEROES, &BOXES, &ALIGNS, &ALIGNS_TO_PAGES, &GROWS, &SHRINKS, &FAILS];

#[expect(dead_code, reason = "gives it its size")]
#[repr(align(64))]
struct Line([u8; 64]);

#[expect(dead_code, reason = "gives it its size")]
#[repr(align(4096))]
struct Page([u8; 4096]);

#[inline(never)]
fn makes(bytes: usize) -> Vec<u8> {
    let made = black_box(Vec::with_capacity(bytes));
    MAKES.allocated(bytes);
    made
}

#[inline(never)]
fn makes_to_resize(bytes: usize) -> Vec<u8> {
    let made = black_box(Vec::with_capacity(bytes));
    MAKES_TO_RESIZE.allocated(bytes);
    made
}

#[inline(never)]
fn zeroes(bytes: usize) -> Vec<u8> {
    let made = black_box(vec![0; bytes]);
    ZEROES.allocated(bytes);
    made
}

#[inline(never)]
fn boxes() -> Box<[u64; 90]> {
    let made = black_box(Box::new([7; 90]));
    BOXES.allocated(size_of::<[u64; 90]>());
    made
}

#[inline(never)]
fn aligns(count: usize) -> Vec<Line> {
    let made = black_box(Vec::with_capacity(count));
    ALIGNS.allocated(count * size_of::<Line>());
    made
}

#[inline(never)]
fn aligns_to_pages(count: usize) -> Vec<Page> {
    let made = black_box(Vec::with_capacity(count));
    ALIGNS_TO_PAGES.allocated(count * size_of::<Page>());
    made
}

/// Resizes a vector of `from`.
#[inline(never)]
fn grows(mut made: Vec<u8>, from: &Site, bytes: usize) -> Vec<u8> {
    from.freed(made.capacity());
    made.reserve_exact(bytes);
    GROWS.allocated(bytes);
    black_box(made)
}

/// Resizes a vector of `from`.
#[inline(never)]
fn shrinks(mut made: Vec<u8>, from: &Site, bytes: usize) -> Vec<u8> {
    from.freed(made.capacity());
    made.shrink_to(bytes);
    SHRINKS.allocated(bytes);
    black_box(made)
}

#[inline(never)]
fn fails() {
    let mut vector = Vec::<u8>::new();
    assert!(vector.try_reserve_exact(black_box(isize::MAX as usize - 4096)).is_err(), "there is no such memory");
    black_box(&vector);
}

/// Frees the block, or leaks it.
fn end<T>(made: Vec<T>, site: &Site, frees: bool) {
    if frees {
        site.freed(made.capacity() * size_of::<T>());
        drop(black_box(made));
    } else {
        forget(made);
    }
}

fn round(size: usize, frees: bool) {
    end(makes(size), &MAKES, frees);
    end(zeroes(size), &ZEROES, frees);
    end(aligns(size.div_ceil(64)), &ALIGNS, frees);
    let boxed = boxes();
    if frees {
        BOXES.freed(size_of_val(&*boxed));
        drop(black_box(boxed));
    } else {
        forget(boxed);
    }
    let grown = grows(makes_to_resize(size), &MAKES_TO_RESIZE, size + 100);
    end(grown, &GROWS, frees);
    let shrunk = shrinks(makes_to_resize(size), &MAKES_TO_RESIZE, size - size / 4);
    end(shrunk, &SHRINKS, frees);
}

fn exact() {
    for (index, size) in [4, 16, 17, 1024, 1033, 4096, 14337, 32768, 131_072, 131_073, 2 << 20].into_iter().enumerate()
    {
        for frees in [false, true] {
            round(size, frees);
            end(aligns_to_pages(index + 1), &ALIGNS_TO_PAGES, frees);
        }
        // Enough to be moved, then down again.
        let far = grows(makes_to_resize(size), &MAKES_TO_RESIZE, size * 7);
        end(shrinks(far, &GROWS, 3), &SHRINKS, index % 2 == 0);
        fails();
    }
    for size in 1..=80 {
        round(size * 13, size % 3 == 0);
    }
}

fn share(line: [u8; 4]) {
    match &line {
        b"exac" => exact(),
        b"many" => (0..2500).for_each(|index| round(640, index % 2 == 0)),
        _ => {}
    }
}

/// Writes directly to the file: `stdout()` would allocate its buffer.
fn say(text: &[u8]) {
    let stdout = std::io::stdout().as_fd().try_clone_to_owned().expect("stdout is open");
    File::from(stdout).write_all(text).expect("somebody reads");
}

fn answer() {
    let mut text = Cursor::new([0; 4096]);
    let number = |number: &AtomicU64| number.load(Ordering::Relaxed);
    text.write_all(b"{\"peak_bytes\":0,\"sites\":[").expect("it fits");
    for (index, site) in SITES.iter().enumerate() {
        let (count, bytes) = (number(&site.alloc_count), number(&site.alloc_bytes));
        let (free_count, free_bytes) = (number(&site.free_count), number(&site.free_bytes));
        write!(
            text,
            r#"{}{{"function":"{}","line":0,"alloc_count":{count},"alloc_bytes":{bytes},"free_count":{free_count},"free_bytes":{free_bytes},"live_count":{},"live_bytes":{}}}"#,
            if index == 0 { "" } else { "," },
            site.function,
            count - free_count,
            bytes - free_bytes,
        )
        .expect("it fits");
    }
    text.write_all(b"]}\n").expect("it fits");
    let end = usize::try_from(text.position()).expect("it fits");
    say(&text.get_ref()[..end]);
}

/// Reads the next command, or as much of it as distinguishes commands; `None` at the end of input.
fn read_line(input: &mut File) -> Option<[u8; 4]> {
    let (mut line, mut byte, mut at) = ([0; 4], [0], 0);
    loop {
        match input.read(&mut byte) {
            Ok(1) if byte[0] == b'\n' => return Some(line),
            Ok(1) => {
                line.get_mut(at..=at).into_iter().for_each(|place| place.copy_from_slice(&byte));
                at += 1;
            }
            _ => return None,
        }
    }
}

/// Runs the target.
pub fn serve() {
    // Reads directly from the file: `stdin()` allocates a buffer.
    let input = std::io::stdin().as_fd().try_clone_to_owned().expect("stdin is open");
    let mut input = File::from(input);
    let barriers = Arc::new((Barrier::new(THREADS + 1), Barrier::new(THREADS + 1)));
    let line = Arc::new(AtomicU32::new(0));
    for _ in 0..THREADS {
        let (barriers, line) = (Arc::clone(&barriers), Arc::clone(&line));
        thread::spawn(move || {
            round(100, true);
            loop {
                barriers.0.wait();
                share(line.load(Ordering::SeqCst).to_le_bytes());
                barriers.1.wait();
            }
        });
    }
    let work = |letters| {
        line.store(u32::from_le_bytes(letters), Ordering::SeqCst);
        barriers.0.wait();
        barriers.1.wait();
    };
    // One round without work, after which all threads have started.
    work([0; 4]);
    say(b"ready\n");
    while let Some(letters) = read_line(&mut input) {
        if letters == *b"exit" {
            return;
        }
        SITES.iter().for_each(|site| site.clear());
        work(letters);
        answer();
    }
}
