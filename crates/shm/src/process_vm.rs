//! How a rank reads and writes the memory of the others, where the kernel copies between address spaces.

use crate::span::Span;
use crate::team::Team;
use crate::{Call, Fault};
use std::ops::Range;

/// Bytes read and combined at once, of all ranks together: many, because each call costs something, but no more than the
/// next step finds in the cache.
const STRIDE_BYTES: usize = 512 << 10;
/// Bytes written under one lease: so long another that gives up may have to wait.
const LEASE_BYTES: usize = 256 << 10;

impl Team {
    /// Cuts a range of bytes, of which all ranks' are combined, into what is read at once.
    pub(crate) fn strides(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        cut(range, (STRIDE_BYTES / self.world_size / 64).max(1) * 64)
    }

    /// Room for `len` bytes of others' memory; what was there is forgotten.
    pub(crate) fn scratch(&mut self, len: usize) -> Span {
        if self.scratch.len() * 8 < len {
            self.scratch = vec![0; len.div_ceil(8)];
        }
        // SAFETY: the vector is not touched but through spans, and not replaced while one is in use.
        unsafe { Span::new(self.scratch.as_mut_ptr().cast(), len) }
    }

    /// Reads at an address of another.
    pub(crate) fn reach(
        &mut self,
        peer: usize,
        addr: u64,
        into: Span,
        call: &mut Call<'_>,
    ) -> Result<(), Fault> {
        for part in cut(0..into.len(), STRIDE_BYTES) {
            let read = self.processes[peer].read(addr.wrapping_add(part.start as u64), into.part(part));
            self.was_given()?;
            read.map_err(|error| Fault::Unreachable { peer, error })?;
            self.watch(peer, call)?;
        }
        Ok(())
    }

    /// Copies what `peer` gives in memory that this rank has mapped.
    pub(crate) fn copy_mapped(
        &mut self,
        peer: usize,
        from: Span,
        into: Span,
        call: &mut Call<'_>,
    ) -> Result<(), Fault> {
        for part in cut(0..into.len(), STRIDE_BYTES) {
            into.part(part.clone()).copy_from(from.part(part));
            self.watch(peer, call)?;
        }
        self.was_given()
    }

    /// Follows whatever reads another's own memory, in its address space or in a window: see `lease.rs`.
    pub(crate) fn was_given(&self) -> Result<(), Fault> {
        if self.region.closed().was_open() { Ok(()) } else { Err(self.closed_fault()) }
    }

    /// Writes at an address of another; one that gives up meanwhile waits for that: see `lease.rs`.
    pub(crate) fn store(
        &mut self,
        peer: usize,
        addr: u64,
        from: Span,
        call: &mut Call<'_>,
    ) -> Result<(), Fault> {
        for part in cut(0..from.len(), LEASE_BYTES) {
            let addr = addr.wrapping_add(part.start as u64);
            let process = &self.processes[peer];
            let written = self.under_lease(|| process.write(addr, from.part(part)))?;
            written.map_err(|error| Fault::Unreachable { peer, error })?;
            self.watch(peer, call)?;
        }
        Ok(())
    }
}

fn cut(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(len).map(move |at| at..end.min(at + len))
}
