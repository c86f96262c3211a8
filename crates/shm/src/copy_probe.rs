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

/// What this process has measured, or was told by its program or by another of its host.
static WORTH_IT: OnceLock<bool> = OnceLock::new();

/// How long a copy of 1 MiB takes that is in the caches.
#[derive(Debug, Clone, Copy)]
pub struct KernelCopyTimes {
    /// By the kernel, which can copy from one process to another.
    pub kernel: Duration,
    /// By a thread.
    pub thread: Duration,
}

impl KernelCopyTimes {
    /// Whether ranks that have found this let the kernel copy: once, where they would copy twice.
    pub fn is_kernel_worth_it(&self) -> bool {
        self.kernel < 2 * self.thread
    }
}

/// From now on this process, and the ranks that share memory with it if it is the first of them, let the kernel copy long messages and large operations between processes, or never do. The first that is said in
/// the life of a process counts, and what was measured before.
pub fn force_kernel_copy(by_kernel: bool) {
    WORTH_IT.get_or_init(|| by_kernel);
}

/// Another process of this host has measured it. What this one knows already stays.
pub(crate) fn kernel_copies_were_measured(are_worth_it: bool) {
    WORTH_IT.get_or_init(|| are_worth_it);
}

/// Takes about a millisecond the first time.
pub(crate) fn kernel_copies_are_worth_it() -> bool {
    *WORTH_IT.get_or_init(|| measure_kernel_copy().is_ok_and(|times| times.is_kernel_worth_it()))
}

/// Measures how well the kernel copies here, in about a millisecond.
///
/// # Errors
/// The system lets no process copy from another.
///
/// # Examples
/// ```
/// if let Ok(times) = phalanx_shm::measure_kernel_copy() {
///     println!("{:?} by the kernel, {:?} by a thread", times.kernel, times.thread);
/// }
/// ```
pub fn measure_kernel_copy() -> io::Result<KernelCopyTimes> {
    let this = Process::open(std::process::id())?;
    let (mut from, mut to) = (vec![1u8; LEN], vec![2u8; LEN]);
    // SAFETY: the vector outlives the span, and is used through it alone.
    let from = unsafe { Span::new(from.as_mut_ptr(), LEN) };
    // SAFETY: as above.
    let to = unsafe { Span::new(to.as_mut_ptr(), LEN) };
    let mut shortest = KernelCopyTimes { kernel: Duration::MAX, thread: Duration::MAX };
    for _ in 0..TRIES {
        let began = Instant::now();
        this.read(from.addr(), to)?;
        let between = Instant::now();
        to.copy_from(from);
        shortest.kernel = shortest.kernel.min(between - began);
        shortest.thread = shortest.thread.min(between.elapsed());
    }
    Ok(shortest)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_copies_where_that_is_faster_than_two_copies() {
        let is_worth_it = |[kernel, thread]: [u64; 2]| {
            let [kernel, thread] = [kernel, thread].map(Duration::from_nanos);
            KernelCopyTimes { kernel, thread }.is_kernel_worth_it()
        };
        assert!(is_worth_it([19, 10]) && !is_worth_it([20, 10]));
    }

    #[test]
    fn both_copies_are_timed() {
        let KernelCopyTimes { kernel, thread } = measure_kernel_copy().unwrap();
        assert!([kernel, thread].iter().all(|time| (Duration::from_nanos(1)..Duration::MAX).contains(time)));
    }
}
