//! The memory of a bucket that is sent while the program goes on.

use phalanx::{Element, Error, OpKind, ProcessGroup, ReduceOp, SharedBuffer, Work};

/// A bucket's registered memory, which an operation owns while it is in flight.
pub(crate) trait Slot: Send {
    /// The gradients, end to end.
    ///
    /// # Errors
    /// While they are in flight, and after an operation that failed: that took them along.
    fn bytes(&mut self) -> phalanx::Result<&mut [u8]>;
    /// Begins to reduce them.
    fn launch(&mut self, group: &ProcessGroup, op: ReduceOp) -> phalanx::Result<()>;
    /// Waits until they are reduced.
    fn land(&mut self) -> phalanx::Result<()>;
}

/// A slot for `elements` gradients of one type, all zero. Collective.
#[track_caller]
pub(crate) fn slot<T: Element>(group: &ProcessGroup, elements: usize) -> phalanx::Result<Box<dyn Slot>> {
    Ok(Box::new(Memory::Here(group.alloc::<T>(elements)?)))
}

enum Memory<T: Element> {
    Here(SharedBuffer<T>),
    InFlight(Work<SharedBuffer<T>>),
    Lost,
}

impl<T: Element> Slot for Memory<T> {
    fn bytes(&mut self) -> phalanx::Result<&mut [u8]> {
        match self {
            Self::Here(buffer) => Ok(bytemuck::cast_slice_mut(buffer)),
            _ => Err(lost()),
        }
    }

    #[track_caller]
    fn launch(&mut self, group: &ProcessGroup, op: ReduceOp) -> phalanx::Result<()> {
        match std::mem::replace(self, Self::Lost) {
            Self::Here(buffer) => *self = Self::InFlight(group.all_reduce_async(buffer, op)?),
            _ => return Err(lost()),
        }
        Ok(())
    }

    fn land(&mut self) -> phalanx::Result<()> {
        match std::mem::replace(self, Self::Lost) {
            Self::InFlight(work) => *self = Self::Here(work.wait()?),
            _ => return Err(lost()),
        }
        Ok(())
    }
}

fn lost() -> Error {
    Error::misuse(OpKind::AllReduce, "an operation that failed took the buckets along; wrap the model anew")
}
