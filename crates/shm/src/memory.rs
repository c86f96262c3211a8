//! Memory that several processes map: anonymous, without a name anywhere, gone with the last who maps it.

use phalanx_core::{Error, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::process::{Resource, getrlimit};
use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

/// A descriptor of `len` bytes of new shared memory, all zero. Nobody can shrink or grow it any more, so who maps it
/// is never killed for touching what has been cut off.
///
/// # Errors
/// [`Error::Io`] where the system refuses `memfd_create`, where the limit of file sizes (`ulimit -f`) is lower than `len`, and
/// where the process has no descriptors left.
pub fn create(len: usize) -> Result<OwnedFd> {
    let failed = |e: rustix::io::Errno| Error::io(format!("making {len} bytes of shared memory"), e.into());
    // The system would end the process with SIGXFSZ.
    if let Some(limit) = file_size_limit().filter(|&limit| limit < len as u64) {
        let what = format!("files of this process may have {limit} bytes (`ulimit -f`)");
        let error = std::io::Error::new(std::io::ErrorKind::FileTooLarge, what);
        return Err(Error::io(format!("making {len} bytes of shared memory"), error));
    }
    let file = memfd_create("phalanx", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(failed)?;
    ftruncate(&file, len as u64).map_err(failed)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(failed)?;
    Ok(file)
}

/// The longest shared memory that this process may [`create`], in bytes: what the limit of file sizes says, if there is one.
///
/// # Errors
/// Those of [`create`]: the process can make none at all, as in some sandboxes.
pub fn longest() -> Result<u64> {
    let limit = file_size_limit().unwrap_or(u64::MAX);
    if limit >= TRIAL_LEN as u64 {
        Memory::map(create(TRIAL_LEN)?, TRIAL_LEN)?;
    }
    Ok(limit)
}

const TRIAL_LEN: usize = 4096;

fn file_size_limit() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// Shared memory, mapped into this process until dropped.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is an address range; whoever reads or writes it goes through raw pointers and answers for that.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps what [`create`] made, here or in another process.
    ///
    /// # Errors
    /// [`Error::Io`] if it is not exactly `len` bytes that nobody can shrink, or cannot be mapped.
    pub(crate) fn map(file: impl AsFd, len: usize) -> Result<Self> {
        let failed = |e: std::io::Error| Error::io(format!("mapping {len} bytes of shared memory"), e);
        let size = fstat(&file).map_err(|e| failed(e.into()))?.st_size;
        let seals = fcntl_get_seals(&file).map_err(|e| failed(e.into()))?;
        if size as usize != len || !seals.contains(SealFlags::SHRINK) {
            return Err(failed(std::io::Error::other(format!("it has {size} bytes, sealed {seals:?}"))));
        }
        // SAFETY: a new mapping at an address of the system's choice touches no memory that is in use.
        let start = unsafe {
            mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
        };
        let start = start.map_err(|e| failed(e.into()))?;
        let start = NonNull::new(start.cast()).expect("the system never maps address zero");
        Ok(Self { start, len })
    }

    /// Memory of this process alone: Miri knows no other.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn private(len: usize) -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as in `map`.
        let start =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE) };
        let start = NonNull::new(start.expect("there is memory").cast()).expect("never at zero");
        Self { start, len }
    }

    /// The address of `len` bytes from `offset`.
    ///
    /// # Panics
    /// If they are not all inside.
    pub(crate) fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "outside the shared memory");
        // SAFETY: the offset was just checked to be within the mapping.
        unsafe { self.start.add(offset) }
    }

    /// Makes the system give the pages now: the first touch of each would cost 2 µs later, in an operation.
    pub(crate) fn populate(&self, offset: usize, len: usize) {
        let start = self.at(offset, len).as_ptr().cast::<c_void>();
        // SAFETY: the range is within the mapping; populating changes no byte.
        // An old system does not know the advice: then the pages come when touched.
        let _ = unsafe { madvise(start, len, Advice::LinuxPopulateWrite) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing made of this mapping outlives its owner.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let file = create(8192).unwrap();
        let (one, two) = (Memory::map(&file, 8192).unwrap(), Memory::map(&file, 8192).unwrap());
        one.populate(4096, 4096);
        // SAFETY: within the first mapping; nobody else uses it.
        unsafe { one.at(8191, 1).write(7) };
        // SAFETY: within the second mapping; nobody writes it now.
        assert_eq!(unsafe { two.at(8191, 1).read() }, 7);
    }

    #[test]
    fn it_lies_in_no_file_system() {
        let file = create(4096).unwrap();
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        assert_eq!(path.to_str(), Some("/memfd:phalanx (deleted)"));
    }

    #[test]
    fn what_was_not_made_for_this_is_refused() {
        let file = create(4096).unwrap();
        assert!(Memory::map(&file, 8192).is_err(), "too short");
        let open = memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&open, 4096).unwrap();
        assert!(Memory::map(&open, 4096).is_err(), "can be shrunk under us");
        assert!(ftruncate(&file, 0).is_err(), "sealed");
    }
}
