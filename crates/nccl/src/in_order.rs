//! The uses of memory, one after the other, whichever streams they are on.

use crate::memory::Memory;
use crate::stream::Stream;
use phalanx_core::{Error, OpKind, Result};

/// Enqueues on `stream` what uses all of `memory`, after their last uses, as their last use from now on. No piece is in there twice.
pub(crate) fn use_in_order<R>(
    stream: &Stream,
    memory: &[&Memory],
    enqueue: impl FnOnce() -> Result<R>,
) -> Result<R> {
    // In one order, so that threads that use the same pieces don't wait for each other for ever.
    let mut memory = memory.to_vec();
    memory.sort_unstable_by_key(|piece| std::ptr::from_ref(*piece));
    let uses: Vec<_> = memory.iter().map(|piece| piece.last_use()).collect();
    if let Some(elsewhere) = uses.iter().find(|last| last.context.ordinal != stream.device().ordinal()) {
        let what =
            format!("the buffer is on {}, but the stream is of {}", elsewhere.context, stream.device());
        return Err(Error::misuse(OpKind::Alloc, what));
    }
    stream.check_capture()?;
    uses.iter().try_for_each(|last| stream.wait_for(last))?;
    let outcome = enqueue();
    // If it failed, some of it may be under way.
    uses.iter().try_for_each(|last| stream.queue().record(last))?;
    outcome
}
