//! Memory of a C program, as the buffers of operations.

use phalanx::DType;
use phalanx::backend::Bytes;
use std::any::Any;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Memory that an operation reads or writes.
pub(crate) struct Region {
    address: *mut u8,
    len: usize,
    /// Of an operation in flight: gone with the region, which is how its `Work` knows that nobody uses the memory any more.
    #[allow(dead_code, reason = "it is dropped")]
    in_use: Option<Sender<()>>,
}

// SAFETY: whoever made the region sees to it that the memory stays until the region is dropped, and that nobody else touches it, on whichever thread it is.
unsafe impl Send for Region {}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Region {
    /// `count` elements at `address`.
    ///
    /// # Safety
    /// So many elements lie there, if `address` is not null, until the region is dropped. Nobody else writes them meanwhile; if
    /// [`write`](Self::write) is called, they may be written, and nobody else reads them.
    ///
    /// # Errors
    /// What is wrong, in words: there are elements at no address, or more than memory can have.
    pub(crate) unsafe fn of(address: *mut c_void, count: usize, dtype: DType) -> Result<Self, String> {
        let len = count.checked_mul(dtype.size()).filter(|&len| isize::try_from(len).is_ok());
        let Some(len) = len.filter(|&len| address.addr().checked_add(len).is_some()) else {
            return Err(format!("has {count} elements of {dtype}, which no memory has (a negative count?)"));
        };
        if address.is_null() && len > 0 {
            return Err(format!("is a null pointer, and should have {count} elements of {dtype}"));
        }
        // Memory of no elements may be nowhere.
        let address = if len == 0 { std::ptr::dangling_mut::<u64>().cast() } else { address.cast() };
        Ok(Self { address, len, in_use: None })
    }

    /// Whether this memory and `other` have a byte in common.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let (one, two) = (self.address.addr(), other.address.addr());
        self.len > 0 && other.len > 0 && one < two + other.len && two < one + self.len
    }

    /// Whether this memory is that part of `whole`, in bytes.
    pub(crate) fn is_part(&self, whole: &Self, part: &Range<usize>) -> bool {
        self.address.addr() == whole.address.addr() + part.start && self.len == part.len()
    }

    /// The bytes, for an operation that reads them.
    pub(crate) fn read(&self) -> &[u8] {
        // SAFETY: so many bytes lie there, no more than `isize::MAX`, and nobody writes them: whoever made the region has said so.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }

    /// The bytes, for an operation that writes them.
    pub(crate) fn write(&mut self) -> &mut [u8] {
        // SAFETY: as in `read`; and they may be written, and nobody else reads them.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.len) }
    }
}

impl Bytes for Region {
    fn bytes(&mut self) -> &mut [u8] {
        self.write()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// Notices when all regions of an operation are gone.
#[derive(Debug)]
pub(crate) struct Users {
    of_each: Option<Sender<()>>,
    gone: Receiver<()>,
}

impl Users {
    pub(crate) fn new() -> Self {
        let (of_each, gone) = channel();
        Self { of_each: Some(of_each), gone }
    }

    /// The region as one of the operation's.
    pub(crate) fn join(&self, region: Region) -> Region {
        Region { in_use: self.of_each.clone(), ..region }
    }

    /// Waits until all regions are gone, of which there are no more to come.
    pub(crate) fn wait(mut self) {
        self.of_each = None;
        // Nobody sends: it returns when the last sender is gone.
        let _ = self.gone.recv();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(bytes: &mut [u8]) -> Region {
        // SAFETY: the tests keep the bytes, and use them by the region only.
        unsafe { Region::of(bytes.as_mut_ptr().cast(), bytes.len(), DType::U8) }.unwrap()
    }

    #[test]
    fn lengths_that_no_memory_has_are_refused() {
        let mut value = 0u64;
        let address = (&raw mut value).cast();
        for count in [usize::MAX, usize::MAX / 8, isize::MAX as usize / 8 + 1, usize::MAX / 8 + 1] {
            // SAFETY: a region that is refused is none.
            let refused = unsafe { Region::of(address, count, DType::U64) }.unwrap_err();
            assert!(refused.contains("no memory has"), "{refused}");
        }
        // SAFETY: as above.
        let refused = unsafe { Region::of(std::ptr::null_mut(), 1, DType::U64) }.unwrap_err();
        assert!(refused.contains("null pointer"), "{refused}");
        // SAFETY: memory of no elements may be nowhere.
        assert!(unsafe { Region::of(std::ptr::null_mut(), 0, DType::U64) }.unwrap().read().is_empty());
    }

    #[test]
    fn overlaps_and_parts_are_seen() {
        let mut bytes = [0u8; 8];
        let (front, back) = bytes.split_at_mut(4);
        let (front, back) = (region(front), region(back));
        assert!(!front.overlaps(&back) && !back.overlaps(&front) && front.overlaps(&front));
        let whole = region(&mut bytes);
        assert!(whole.overlaps(&back) && back.overlaps(&whole));
        assert!(
            back.is_part(&whole, &(4..8))
                && !back.is_part(&whole, &(3..7))
                && !front.is_part(&whole, &(4..8))
        );
        assert!(!region(&mut []).overlaps(&whole));
    }

    #[test]
    fn whoever_waits_for_memory_waits_for_the_last_region() {
        let (mut one, mut two) = (vec![1u8; 4], vec![2u8; 4]);
        let users = Users::new();
        let regions = [users.join(region(&mut one)), users.join(region(&mut two))];
        let thread = std::thread::spawn(move || {
            for mut region in regions {
                std::thread::sleep(std::time::Duration::from_millis(5));
                region.write().fill(7);
            }
        });
        users.wait();
        assert_eq!([one, two], [[7; 4]; 2]);
        thread.join().unwrap();
    }
}
