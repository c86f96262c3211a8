//! Memory of a device, and who frees it.

use crate::device::Device;
use crate::memory::Memory;
use crate::queue::{Event, Queue};
use crate::stream::Stream;
use crate::sys::cuda::RawPointer;
#[cfg(feature = "cudarc")]
use phalanx_core::Error;
use phalanx_core::Result;

/// Memory of a device.
pub(crate) struct OnDevice {
    device: Device,
    memory: Memory,
    owner: Owner,
}

/// The owner of the memory.
enum Owner {
    /// Allocated here, so freed here.
    Here,
    /// Another owner keeps it.
    Another,
    /// A lender, which will use it again on its own stream, or free it there.
    #[cfg(feature = "cudarc")]
    Lender(Keeper, Stream),
}

/// The owner of lent memory, which frees it on its stream when it is dropped.
#[cfg(feature = "cudarc")]
pub(crate) type Keeper = Box<dyn std::any::Any + Send + Sync>;

impl OnDevice {
    /// Allocates memory with arbitrary contents.
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

    /// Gives the memory back to its lender, if it was lent. The lender's stream uses it behind the last use here.
    ///
    /// # Errors
    /// The memory can't be given back, and must not be freed either: it is never known when its last use is over.
    #[cfg(feature = "cudarc")]
    pub(crate) fn give_back(mut self) -> Result<Option<Keeper>> {
        match std::mem::replace(&mut self.owner, Owner::Another) {
            Owner::Lender(keeper, stream) => match hand_over(&self.memory, &stream) {
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
                if hand_over(&self.memory, &stream).is_err() {
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
        unsafe { (self.device.cuda().table().mem_free_async)(self.memory.address(), queue.raw) };
    }
}

/// Later work on `stream` comes behind all uses of `memory`.
#[cfg(feature = "cudarc")]
fn hand_over(memory: &Memory, stream: &Stream) -> Result<()> {
    if !memory.is_lost() {
        return memory.order(stream.queue());
    }
    let what = "memory that an operation may still use, which could not be begun or ended".to_owned();
    Err(Error::Unavailable { what, tried: format!("to hand it over to {stream:?}") })
}
