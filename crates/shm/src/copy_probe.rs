//! Whether copies between address spaces are worth it on this machine.
//!
//! Through staging a byte is copied twice, by the ranks themselves; the kernel copies it once. But how fast the kernel is depends on
//! the processor and on what guards its entry: on one machine it copied as fast as a rank, on another a quarter as fast,
//! and staging was twice as fast at every size. So it is measured, once a process.

use crate::other_process::Process;
use crate::span::Span;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// As much as a rank copies at once in a large operation, so that it is about as deep in the caches.
const LEN: usize = 1 << 20;
/// The shortest counts. With four, an EPYC whose kernel takes 3.3 times as long as a rank found less than twice as long once in some 20 processes.
const TRIES: usize = 10;

/// What this process has measured, or was told by one of its host.
static WORTH_IT: OnceLock<bool> = OnceLock::new();

/// Another process of this host has measured it. What this one knows already stays.
pub(crate) fn kernel_copies_were_measured(are_worth_it: bool) {
    WORTH_IT.get_or_init(|| are_worth_it);
}

/// Takes about a millisecond the first time.
pub(crate) fn kernel_copies_are_worth_it() -> bool {
    *WORTH_IT.get_or_init(|| measure().is_ok_and(|[kernel, own]| kernel < 2 * own))
}

/// How long the kernel takes to copy `LEN` bytes, and how long this thread.
fn measure() -> io::Result<[Duration; 2]> {
    let this = Process::open(std::process::id())?;
    let (mut from, mut to) = (vec![1u8; LEN], vec![2u8; LEN]);
    // SAFETY: the vector outlives the span, and is used through it alone.
    let from = unsafe { Span::new(from.as_mut_ptr(), LEN) };
    // SAFETY: as above.
    let to = unsafe { Span::new(to.as_mut_ptr(), LEN) };
    let mut shortest = [Duration::MAX; 2];
    for _ in 0..TRIES {
        let began = Instant::now();
        this.read(from.addr(), to)?;
        let between = Instant::now();
        to.copy_from(from);
        shortest = [shortest[0].min(between - began), shortest[1].min(between.elapsed())];
    }
    Ok(shortest)
}
