//! Memory of the host that the device copies by itself.

use crate::context::Context;
use crate::memory::Memory;
use crate::queue::Event;
use crate::sys::cuda::RawPointer;
use phalanx_core::Result;
use std::ffi::c_void;
use std::sync::Arc;

/// Memory of the host that the device copies by itself.
pub(crate) struct Pinned {
    context: Arc<Context>,
    memory: Memory,
    len: usize,
}

impl Pinned {
    pub(crate) fn new(context: &Arc<Context>, len: usize) -> Result<Self> {
        let last_use = Event::new(context)?;
        let _entered = context.enter()?;
        let mut address = std::ptr::null_mut::<c_void>();
        // SAFETY: `address` is good for one pointer.
        let code = unsafe { (context.cuda.table().mem_host_alloc)(&raw mut address, len, 0) };
        context.cuda.check("cuMemHostAlloc", code)?;
        let memory = Memory::new(address as RawPointer, last_use);
        Ok(Self { context: context.clone(), memory, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// For the host, while no stream uses it.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        assert!(self.memory.is_unused(), "who looks at staging has waited for its last use");
        // SAFETY: it has so many bytes, this borrow is the only one, and no stream uses it or is told to meanwhile, for that takes a borrow too.
        unsafe { std::slice::from_raw_parts_mut(self.memory.address() as *mut u8, self.len) }
    }

    /// For the device to read; it has not heard of this use yet.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let to = self.for_copy(bytes.len());
        // SAFETY: it has so many bytes, and nobody else uses it.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Copies out what the device has written.
    pub(crate) fn read(&self, bytes: &mut [u8]) {
        let from = self.for_copy(bytes.len());
        // SAFETY: it has so many bytes, and nobody uses it any more.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }

    /// The copying caller has taken it from the device's staging, where it is free, or has waited for its last use.
    fn for_copy(&self, len: usize) -> *mut u8 {
        assert!(len <= self.len, "staging is as long as what goes through it");
        self.memory.address() as *mut u8
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: it is owned, and who drops it knows that no stream uses it.
        unsafe { (self.context.cuda.table().mem_free_host)(self.memory.address() as *mut c_void) };
    }
}
