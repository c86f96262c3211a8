//! The contributions of several ranks, kept until all are here: for sums in the order of the ranks.

use crate::scratch;

/// Memory for them, from one operation to the next.
#[derive(Debug, Default)]
pub(crate) struct Contributions {
    memory: Vec<u64>,
    len: usize,
}

impl Contributions {
    /// For so many bytes.
    pub(crate) fn new(len: usize) -> Self {
        Self { memory: if len == 0 { Vec::new() } else { scratch::take(len) }, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.memory)[..self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.memory)[..self.len]
    }
}

impl Drop for Contributions {
    fn drop(&mut self) {
        if !self.memory.is_empty() {
            scratch::keep(std::mem::take(&mut self.memory));
        }
    }
}
