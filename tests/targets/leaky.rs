//! The demo's target: a simulated server whose functions keep memory in known ways. It serves 200 requests per second,
//! each with ten allocations, prints `ready` when it starts, and exits after a minute. Uses the standard library only:
//! it is compiled by rustc alone.
//!
//! | function        | allocations per request | live at the end                              |
//! |-----------------|-------------------------|----------------------------------------------|
//! | `parse_request` | 7                       | none: all are freed before the next request  |
//! | `cache_insert`  | 1 of 1,024 bytes        | all: a cache that is never emptied           |
//! | `log_line`      | 1 of 48 bytes           | every eighth: unreachable, a leak            |
//! | `open_session`  | 1 of 512 bytes          | the last 64: used, but bounded               |

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::{Duration, Instant};

const REQUESTS_PER_SECOND: u32 = 200;
const SECONDS: u32 = 60;
const SESSIONS_MAX: usize = 64;

struct Server {
    cache: Vec<Box<[u8]>>,
    sessions: VecDeque<Box<[u8]>>,
}

fn main() {
    let requests = REQUESTS_PER_SECOND * SECONDS;
    // Reserved at the start, so that the containers do not allocate in the functions' names.
    let mut server = Server {
        cache: Vec::with_capacity(requests as usize),
        sessions: VecDeque::with_capacity(SESSIONS_MAX + 1),
    };
    println!("ready");
    let begin = Instant::now();
    for request in 0..requests {
        serve(&mut server, request);
        let due = Duration::from_secs(1) / REQUESTS_PER_SECOND * (request + 1);
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
    }
    black_box(&server);
}

#[inline(never)]
fn serve(server: &mut Server, request: u32) {
    let path_bytes = parse_request(request);
    open_session(server);
    cache_insert(server, path_bytes);
    log_line(request);
    // Prevents tail calls above, which would remove this frame from the stacks.
    black_box(server);
}

/// Splits a line into words: the list, and six words.
#[inline(never)]
fn parse_request(request: u32) -> usize {
    let mut words: Vec<Box<str>> = Vec::with_capacity(6);
    for word in ["GET", "/products/overview", "HTTP/1.1", "Host:", "shop.example", "Accept: text/html"] {
        words.push(black_box(word).into());
    }
    let words = black_box(words);
    words[1].len() + (request % 7) as usize
}

#[inline(never)]
fn open_session(server: &mut Server) {
    server.sessions.push_back(black_box(vec![1; 512].into_boxed_slice()));
    if server.sessions.len() > SESSIONS_MAX {
        black_box(server.sessions.pop_front());
    }
}

#[inline(never)]
fn cache_insert(server: &mut Server, path_bytes: usize) {
    let mut page = vec![0; 1024].into_boxed_slice();
    page[0] = u8::try_from(path_bytes % 256).unwrap_or(0);
    server.cache.push(black_box(page));
}

#[inline(never)]
fn log_line(request: u32) {
    let line = black_box(vec![b' '; 48].into_boxed_slice());
    if request % 8 == 0 {
        std::mem::forget(line);
    }
}
