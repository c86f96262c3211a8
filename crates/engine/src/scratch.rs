//! Memory that operations need besides the caller's, kept from call to call: touching fresh pages costs more than
//! copying into them.

use std::cell::Cell;

/// Bytes received at a time for combining: small enough to stay in the cache until they are.
pub(crate) const SCRATCH_LEN: usize = 256 << 10;

/// An operation takes three at most.
const KEPT_MAX: usize = 3;

thread_local! {
    static KEPT: Cell<Vec<Vec<u64>>> = const { Cell::new(Vec::new()) };
}

/// More than this is not kept.
const KEPT_BYTES_MAX: usize = 256 << 20;

/// A buffer for one operation, aligned for every element type. It is kept for a later one of the thread that drops it.
#[derive(Debug, Default)]
pub struct Scratch {
    memory: Vec<u64>,
    len: usize,
}

impl Scratch {
    /// `len` bytes; the contents are left over from earlier.
    pub fn new(len: usize) -> Self {
        Self { memory: if len == 0 { Vec::new() } else { take(len) }, len }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of it, to read.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.memory)[..self.len]
    }

    /// All of it, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.memory)[..self.len]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.memory.is_empty() {
            keep(std::mem::take(&mut self.memory));
        }
    }
}

/// At least `bytes` bytes; the contents are left over from earlier.
fn take(bytes: usize) -> Vec<u64> {
    let mut kept = KEPT.try_with(Cell::take).unwrap_or_default();
    // The shortest that is long enough.
    let fits = (0..kept.len()).filter(|&i| kept[i].len() * 8 >= bytes).min_by_key(|&i| kept[i].len());
    let scratch = fits.map(|i| kept.swap_remove(i));
    let _ = KEPT.try_with(|place| place.set(kept));
    scratch.unwrap_or_else(|| vec![0; bytes.div_ceil(8)])
}

/// Keeps it for the next operation of this thread.
fn keep(scratch: Vec<u64>) {
    if scratch.len() * 8 > KEPT_BYTES_MAX {
        return;
    }
    let _ = KEPT.try_with(|place| {
        let mut kept = place.take();
        kept.push(scratch);
        if kept.len() > KEPT_MAX {
            let shortest = (0..kept.len()).min_by_key(|&i| kept[i].len()).expect("there are some");
            kept.swap_remove(shortest);
        }
        place.set(kept);
    });
}
