//! Memory that streams use: of a device, or of the host for a device.

use crate::context::Context;
use crate::device::Device;
use crate::stream::{Event, Queue, Stream};
use crate::sys::cuda::RawPointer;
use phalanx_core::{Error, OpKind, Result};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A piece of memory, and the last use of it.
///
/// Each use waits for the one before, on the device, whichever streams the two are on. So nobody reads what is not there yet, or overwrites what
/// is still read, and memory whose owner is gone lives until its last use is over.
pub(crate) struct Memory {
    address: RawPointer,
    last_use: Mutex<Event>,
    /// Nobody knows whether its last use will ever be over.
    is_lost: AtomicBool,
}

impl Memory {
    fn new(address: RawPointer, last_use: Event) -> Self {
        Self { address, last_use: Mutex::new(last_use), is_lost: AtomicBool::new(false) }
    }

    /// As the device sees it.
    pub(crate) fn address(&self) -> RawPointer {
        self.address
    }

    /// The number of its device.
    pub(crate) fn ordinal(&self) -> usize {
        self.last_use().context.ordinal
    }

    /// It must never be freed: whether something will still write it can't be known.
    pub(crate) fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    pub(crate) fn is_unused(&self) -> bool {
        !self.is_lost() && self.last_use().is_over().unwrap_or(false)
    }

    /// Waits for the last use; `false` when that took longer.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<bool> {
        self.last_use().wait(timeout)
    }

    /// Later work there waits for the last use.
    pub(crate) fn order(&self, queue: &Queue) -> Result<()> {
        queue.wait_for(&self.last_use())
    }

    /// Later work on `stream` comes behind all uses here.
    #[cfg(feature = "cudarc")]
    fn hand_over(&self, stream: &Stream) -> Result<()> {
        if !self.is_lost() {
            return self.order(stream.queue());
        }
        let what = "memory that an operation may still use, which could not be begun or ended".to_owned();
        Err(Error::Unavailable { what, tried: format!("to hand it over to {stream:?}") })
    }

    fn last_use(&self) -> MutexGuard<'_, Event> {
        self.last_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory of a device.
pub(crate) struct OnDevice {
    device: Device,
    memory: Memory,
    owner: Owner,
}

/// Whose memory it is.
enum Owner {
    /// Allocated here, so freed here.
    Here,
    /// Somebody keeps it.
    Another,
    /// It was given away by what kept it, and is used again on that one's stream, or freed there.
    #[cfg(feature = "cudarc")]
    Lender(Keeper, Stream),
}

/// What keeps memory, and frees it on its stream when it is dropped.
#[cfg(feature = "cudarc")]
pub(crate) type Keeper = Box<dyn std::any::Any + Send + Sync>;

impl OnDevice {
    /// With anything in it.
    ///
    /// # Errors
    /// [`Library`](Error::Library): there is not enough.
    pub(crate) fn new(device: &Device, len: usize) -> Result<Self> {
        // Who frees waits there for the last uses of other memory. To wait for them is better only than to have no memory.
        Self::on(device.allocating(), device, len).or_else(|_| Self::on(device.freeing(), device, len))
    }

    fn on(queue: &Queue, device: &Device, len: usize) -> Result<Self> {
        let last_use = Event::new(device.context())?;
        let _entered = device.enter()?;
        let mut address = 0;
        // SAFETY: `address` is good for one pointer.
        let code = unsafe { (device.cuda().table().mem_alloc_async)(&raw mut address, len, queue.raw) };
        device.cuda().check("cuMemAllocAsync", code)?;
        let new = Self { device: device.clone(), memory: Memory::new(address, last_use), owner: Owner::Here };
        queue.record(&new.memory.last_use())?;
        Ok(new)
    }

    /// Memory of somebody else, whose last use is what `stream` was given so far.
    pub(crate) fn of_another(stream: &Stream, address: RawPointer) -> Result<Self> {
        let memory = Memory::new(address, stream.record()?);
        Ok(Self { device: stream.device().clone(), memory, owner: Owner::Another })
    }

    /// As [`of_another`](Self::of_another), with what keeps the memory.
    #[cfg(feature = "cudarc")]
    pub(crate) fn lent(stream: &Stream, address: RawPointer, keeper: Keeper) -> Result<Self> {
        let mut lent = Self::of_another(stream, address)?;
        lent.owner = Owner::Lender(keeper, stream.clone());
        Ok(lent)
    }

    /// What keeps the memory, if it was lent. Its stream uses it behind the last use here.
    ///
    /// # Errors
    /// The memory can't be given back, and must not be freed either: it is never known when its last use is over.
    #[cfg(feature = "cudarc")]
    pub(crate) fn give_back(mut self) -> Result<Option<Keeper>> {
        match std::mem::replace(&mut self.owner, Owner::Another) {
            Owner::Lender(keeper, stream) => match self.memory.hand_over(&stream) {
                Ok(()) => Ok(Some(keeper)),
                Err(error) => {
                    std::mem::forget(keeper);
                    Err(error)
                }
            },
            owner => {
                self.owner = owner;
                Ok(None)
            }
        }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.owner, Owner::Another) {
            Owner::Here => {}
            Owner::Another => return,
            #[cfg(feature = "cudarc")]
            Owner::Lender(keeper, stream) => {
                if self.memory.hand_over(&stream).is_err() {
                    std::mem::forget(keeper);
                }
                return;
            }
        }
        let queue = self.device.freeing();
        if self.memory.is_lost() || self.memory.order(queue).is_err() {
            return;
        }
        let Ok(_entered) = self.device.enter() else { return };
        // SAFETY: it is owned, and freed when the last use is over. Nobody waits for that here.
        unsafe { (self.device.cuda().table().mem_free_async)(self.memory.address, queue.raw) };
    }
}

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
        unsafe { std::slice::from_raw_parts_mut(self.memory.address as *mut u8, self.len) }
    }

    /// For the device to read; it has not heard of this use yet.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let to = self.for_copy(bytes.len());
        // SAFETY: it has so many bytes, and nobody else uses it.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// What the device has written.
    pub(crate) fn read(&self, bytes: &mut [u8]) {
        let from = self.for_copy(bytes.len());
        // SAFETY: it has so many bytes, and nobody uses it any more.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Who copies has taken it from the device's staging, where it is free, or has waited for its last use.
    fn for_copy(&self, len: usize) -> *mut u8 {
        assert!(len <= self.len, "staging is as long as what goes through it");
        self.memory.address as *mut u8
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: it is owned, and who drops it knows that no stream uses it.
        unsafe { (self.context.cuda.table().mem_free_host)(self.memory.address as *mut c_void) };
    }
}

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
        let what = format!("a buffer of {} on a stream of {}", elsewhere.context, stream.device());
        return Err(Error::misuse(OpKind::Alloc, what));
    }
    stream.check_capture()?;
    uses.iter().try_for_each(|last| stream.wait_for(last))?;
    let outcome = enqueue();
    // If it failed, some of it may be under way.
    uses.iter().try_for_each(|last| stream.queue().record(last))?;
    outcome
}
