//! The process in which something was made, known without asking the system: that takes longer than the smallest collective.

use phalanx_transport::OwnerProcess;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

const LEN: usize = 4096;

/// A page that the system wipes in the child when a process forks.
#[derive(Debug, Clone, Copy)]
struct Page(NonNull<AtomicU32>);

// SAFETY: it points to an atomic, which is never unmapped.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// The page of this process; `None` where the system can't wipe pages.
    fn of_this_process() -> Option<Self> {
        static PAGE: OnceLock<Option<Page>> = OnceLock::new();
        *PAGE.get_or_init(Self::map)
    }

    fn map() -> Option<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the system's choice touches no memory that is in use.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), LEN, protection, MapFlags::PRIVATE) }.ok()?;
        // SAFETY: the page was just mapped, and nobody else has it.
        if unsafe { madvise(start, LEN, Advice::LinuxWipeOnFork) }.is_err() {
            // SAFETY: as above.
            let _ = unsafe { munmap(start, LEN) };
            return None;
        }
        NonNull::new(start.cast()).map(Self)
    }

    fn value(&self) -> &AtomicU32 {
        // SAFETY: mapped for ever, aligned (the mapping is, to a page), zero or written as an atomic only.
        unsafe { self.0.as_ref() }
    }
}

/// As [`OwnerProcess`], for whoever asks often: costs one load.
#[derive(Debug, Clone, Copy)]
pub struct QuickOwnerProcess {
    owner_process: OwnerProcess,
    page: Option<Page>,
}

impl QuickOwnerProcess {
    /// This process.
    pub fn here() -> Self {
        let (owner_process, page) = (OwnerProcess::here(), Page::of_this_process());
        if let Some(page) = page {
            page.value().store(owner_process.pid(), Ordering::Relaxed);
        }
        Self { owner_process, page }
    }

    /// Whether it is this process.
    pub fn is_here(self) -> bool {
        match self.page {
            Some(page) => page.value().load(Ordering::Relaxed) == self.owner_process.pid(),
            None => self.owner_process.is_here(),
        }
    }

    /// The process's number.
    pub fn pid(self) -> u32 {
        self.owner_process.pid()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_here_and_a_wiped_page_is_not() {
        let here = QuickOwnerProcess::here();
        assert!(here.is_here() && QuickOwnerProcess::here().is_here());
        let page = Page::map().expect("this system wipes pages");
        let elsewhere = QuickOwnerProcess { page: Some(page), ..here };
        assert!(!elsewhere.is_here());
        assert!(QuickOwnerProcess { page: None, ..here }.is_here());
    }
}
