//! Values of Rust that are reachable or leaked, with the protocol of `truth.h`.

use std::cell::RefCell;
use std::fs::File;
use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::mem::{forget, size_of};
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, Weak};

static HELD_VALUES: AtomicPtr<Vec<Box<[u64; 5]>>> = AtomicPtr::new(std::ptr::null_mut());
static HELD_RAW: AtomicPtr<[u64; 77]> = AtomicPtr::new(std::ptr::null_mut());
static HELD_PARENT: Mutex<Option<Arc<Parent>>> = Mutex::new(None);
static ORPHAN: Mutex<Option<Weak<Parent>>> = Mutex::new(None);

/// Contains no pointer.
static TRUTH: Mutex<[u8; 4096]> = Mutex::new([0; 4096]);

struct Parent {
    children: Mutex<Vec<Arc<Child>>>,
    room: [u64; 20],
}

struct Child {
    parent: Weak<Parent>,
    room: [u64; 30],
}

struct Link {
    next: RefCell<Option<Rc<Link>>>,
    room: [u64; 40],
}

struct Peer {
    other: Mutex<Option<Arc<Peer>>>,
    back: Mutex<Weak<Peer>>,
    room: [u64; 50],
}

/// Before the value, the block of an `Rc` or `Arc` has two counts.
const COUNTS_BYTES: usize = 16;

fn note(function: &str, address: usize, size: usize, fate: &str) {
    let mut truth = TRUTH.lock().expect("one thread");
    let used = truth.iter().position(|byte| *byte == 0).expect("it fits");
    let mut rest = &mut truth[used..];
    writeln!(rest, "{function} {address:x} {size} {} {fate}", (size.max(17) + 8).next_multiple_of(16) - 8)
        .expect("it fits");
}

#[inline(never)]
fn values() -> Vec<Box<[u64; 5]>> {
    (0..12).map(|number| Box::new([number; 5])).collect()
}

#[inline(never)]
fn boxes_held() {
    let values = Box::into_raw(Box::new(values()));
    note("boxes_held", values.addr(), size_of::<Vec<Box<[u64; 5]>>>(), "held");
    HELD_VALUES.store(values, Ordering::SeqCst);
}

/// The vector and its twelve elements.
#[inline(never)]
fn boxes_lost() {
    let values = Box::new(values());
    note("boxes_lost", (&raw const *values).addr(), size_of::<Vec<Box<[u64; 5]>>>(), "leaked");
    forget(black_box(values));
}

/// An interior pointer.
#[inline(never)]
fn raw_held() {
    let raw = Arc::into_raw(Arc::new([7_u64; 77]));
    note("raw_held", raw.addr() - COUNTS_BYTES, 77 * 8 + COUNTS_BYTES, "held");
    HELD_RAW.store(raw.cast_mut(), Ordering::SeqCst);
}

#[inline(never)]
fn links_lost() {
    let first = Rc::new(Link { next: RefCell::new(None), room: [1; 40] });
    let second = Rc::new(Link { next: RefCell::new(Some(Rc::clone(&first))), room: [2; 40] });
    *first.next.borrow_mut() = Some(Rc::clone(&second));
    for (name, link) in [("links_lost_1", &first), ("links_lost_2", &second)] {
        note(name, Rc::as_ptr(link).addr() - COUNTS_BYTES, size_of::<Link>() + COUNTS_BYTES, "circle");
    }
    black_box((first.room[0], second.room[0]));
}

#[inline(never)]
fn peers_lost() {
    let peer = |number| Arc::new(Peer { other: Mutex::default(), back: Mutex::default(), room: [number; 50] });
    let (first, second) = (peer(1), peer(2));
    *first.other.lock().expect("one thread") = Some(Arc::clone(&second));
    *second.other.lock().expect("one thread") = Some(Arc::clone(&first));
    *second.back.lock().expect("one thread") = Arc::downgrade(&first);
    for (name, peer) in [("peers_lost_1", &first), ("peers_lost_2", &second)] {
        note(name, Arc::as_ptr(peer).addr() - COUNTS_BYTES, size_of::<Peer>() + COUNTS_BYTES, "circle");
    }
    black_box((first.room[0], second.room[0]));
}

#[inline(never)]
fn family(name: &str, fate: &str) -> Arc<Parent> {
    let parent = Arc::new(Parent { children: Mutex::default(), room: [3; 20] });
    for _ in 0..3 {
        let child = Arc::new(Child { parent: Arc::downgrade(&parent), room: [4; 30] });
        black_box((&child.parent, &child.room));
        parent.children.lock().expect("one thread").push(child);
    }
    black_box(&parent.room);
    note(name, Arc::as_ptr(&parent).addr() - COUNTS_BYTES, size_of::<Parent>() + COUNTS_BYTES, fate);
    parent
}

/// Children reference their parent by weak pointers: there is no owning cycle, and all of it is freed.
#[inline(never)]
fn family_freed() {
    let mut before = [0_u8; 4096];
    before.copy_from_slice(&*TRUTH.lock().expect("one thread"));
    drop(family("family_freed", "freed"));
    TRUTH.lock().expect("one thread").copy_from_slice(&before);
}

#[inline(never)]
fn family_held() {
    *HELD_PARENT.lock().expect("one thread") = Some(family("family_held", "held"));
}

/// The value is dropped, and its block stays for the weak pointer.
#[inline(never)]
fn weakly_referenced() {
    let parent = Arc::new(Parent { children: Mutex::default(), room: [5; 20] });
    note("weakly_referenced", Arc::as_ptr(&parent).addr() - COUNTS_BYTES, size_of::<Parent>() + COUNTS_BYTES, "held");
    *ORPHAN.lock().expect("one thread") = Some(Arc::downgrade(&parent));
}

/// Overwrites the stack below the caller's frame.
#[inline(never)]
fn sweep() {
    black_box([0_u64; 4096]);
}

fn print(bytes: &[u8]) {
    // Bypasses the library's buffer.
    let output = std::io::stdout().as_fd().try_clone_to_owned().expect("there is an output");
    File::from(output).write_all(bytes).expect("somebody reads");
}

fn truth() {
    let mut copy = [0_u8; 4096];
    copy.copy_from_slice(&*TRUTH.lock().expect("one thread"));
    let used = copy.iter().position(|byte| *byte == 0).expect("it fits");
    print(&copy[..used]);
}

fn main() {
    for make in [boxes_held, boxes_lost, raw_held, links_lost, peers_lost, family_freed, family_held, weakly_referenced] {
        make();
        sweep();
    }
    // The values stay readable.
    black_box((&HELD_VALUES, &HELD_RAW));
    print(b"ready\n");
    let mut input = File::from(std::io::stdin().as_fd().try_clone_to_owned().expect("there is an input"));
    let (mut line, mut used) = ([0_u8; 64], 0);
    sweep();
    while input.read(&mut line[used..=used]).expect("somebody writes") == 1 {
        if line[used] != b'\n' {
            used += 1;
            continue;
        }
        if line.starts_with(b"exit ") {
            let code = std::str::from_utf8(&line[5..used]).ok().and_then(|code| code.parse().ok());
            std::process::exit(code.expect("a code"));
        }
        used = 0;
        truth();
        print(b"done\n");
        sweep();
    }
    truth();
}
