//! Windows: memory that all ranks of a team map, so that operations on it copy nothing.

use crate::memory::Memory;
use crate::span::Span;
use crate::sync::{AtomicU32, Ordering};
use phalanx_core::Result;
use phalanx_transport::OwnerProcess;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Parts begin on pages, so that no two ranks write one line.
const PAGE: usize = 4096;

/// One rank's part of memory in which every rank of a team has a part of the same length.
///
/// The part is this rank's own, like a `Vec`: the others touch it only in operations that this rank takes part in with it.
/// It is zero at first. When the last rank has dropped its window the memory is given back: by each rank as it begins the team's next
/// operation, or drops the team.
///
/// What is read of it can't be kept while an operation has it:
///
/// ```compile_fail,E0502
/// fn misuse(window: &mut phalanx_shm::Window, operation: impl Fn(&mut [u8])) {
///     let read = window.bytes();
///     operation(window.bytes_mut());
///     println!("{read:?}");
/// }
/// ```
#[derive(Debug)]
pub struct Window(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    memory: Memory,
    owner_process: OwnerProcess,
    rank: usize,
    world_size: usize,
    /// Bytes of a part that are used, and from one part to the next.
    len: usize,
    part_len: usize,
    /// Those of [`Windows`].
    idle: Arc<AtomicU32>,
}

fn part_len(len: usize) -> Option<usize> {
    len.max(1).checked_next_multiple_of(PAGE)
}

/// Bytes of a window with `len` bytes for each of `world_size` ranks; `None` if that is more than there can be.
pub fn window_len(world_size: usize, len: usize) -> Option<usize> {
    // At the end: whether each rank has dropped it.
    let flags = world_size.checked_mul(size_of::<AtomicU32>())?.checked_next_multiple_of(PAGE)?;
    let all = part_len(len)?.checked_mul(world_size)?.checked_add(flags)?;
    (all <= isize::MAX as usize).then_some(all)
}

impl Shared {
    fn part(&self, rank: usize) -> NonNull<u8> {
        self.memory.at(rank * self.part_len, self.len)
    }

    fn dropped(&self, rank: usize) -> &AtomicU32 {
        let flags = self.world_size * self.part_len;
        let at = self.memory.at(flags + rank * size_of::<AtomicU32>(), size_of::<AtomicU32>());
        // SAFETY: mapped for as long as `self`, aligned, zero or written as an atomic only.
        unsafe { at.cast().as_ref() }
    }

    fn is_dropped_here(&self) -> bool {
        self.dropped(self.rank).load(Ordering::Relaxed) != 0
    }

    fn is_dropped_everywhere(&self) -> bool {
        (0..self.world_size).all(|rank| self.dropped(rank).load(Ordering::Relaxed) != 0)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if !self.0.owner_process.is_here() {
            return;
        }
        self.0.dropped(self.0.rank).store(1, Ordering::Relaxed);
        self.0.idle.fetch_add(1, Ordering::Relaxed);
    }
}

impl Window {
    /// The own part.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for as long as the window, and nobody writes it while it is borrowed: the others write it only
        // in operations for which this rank gives it away mutably.
        unsafe { std::slice::from_raw_parts(self.0.part(self.0.rank).as_ptr(), self.0.len) }
    }

    /// The own part.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; and a window has one owner here, who is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.0.part(self.0.rank).as_ptr(), self.0.len) }
    }
}

/// The windows of a team, as one rank knows them. It keeps one mapped until all ranks have dropped it: another may still
/// offer its part to an operation that this rank has no part of it in.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    /// With their numbers.
    entries: Vec<(u64, Arc<Shared>)>,
    /// Windows are made together, so their numbers are the same on all ranks. The first is 1.
    made: u64,
    /// How many of the entries this rank has dropped.
    idle: Arc<AtomicU32>,
}

impl Windows {
    /// Maps the next one, of `len` bytes a rank: `file` has [`window_len`].
    ///
    /// # Errors
    /// [`Io`](phalanx_core::Error::Io) if the memory cannot be mapped.
    pub(crate) fn map(
        &mut self,
        file: impl AsFd,
        len: usize,
        rank: usize,
        world_size: usize,
    ) -> Result<Window> {
        self.made += 1;
        let all = window_len(world_size, len).unwrap_or(usize::MAX);
        let part_len = part_len(len).unwrap_or(usize::MAX);
        let memory = Memory::map(file, all)?;
        memory.populate(rank * part_len, part_len);
        let (owner_process, idle) = (OwnerProcess::here(), self.idle.clone());
        let shared = Arc::new(Shared { memory, owner_process, rank, world_size, len, part_len, idle });
        self.entries.push((self.made, shared.clone()));
        Ok(Window(shared))
    }

    /// The window in which a span of this rank lies, and its offset in this rank's part.
    pub(crate) fn find(&self, span: Span) -> Option<(u64, u64)> {
        let (start, len) = (span.addr(), span.len() as u64);
        self.entries.iter().find_map(|(number, shared)| {
            let offset = start.checked_sub(shared.part(shared.rank).as_ptr().expose_provenance() as u64)?;
            let inside = offset <= shared.len as u64 && len <= shared.len as u64 - offset;
            (inside && !shared.is_dropped_here()).then_some((*number, offset))
        })
    }

    /// Whether none is mapped, so that no rank can offer its part of one.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many are mapped.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// A range of a rank's part, if there is such a window and it is that large.
    pub(crate) fn part(&self, number: u64, rank: usize, offset: u64, len: usize) -> Option<Span> {
        let (_, shared) = self.entries.iter().find(|(n, _)| *n == number)?;
        let offset = usize::try_from(offset).ok().filter(|&o| o <= shared.len && len <= shared.len - o)?;
        // SAFETY: the window stays mapped until all ranks have dropped it, and the one whose part this is offers it to
        // an operation that is not over; the protocol of that says who writes what.
        Some(unsafe { Span::new(shared.part(rank).as_ptr(), shared.len) }.part(offset..offset + len))
    }

    /// Gives back what nobody has any more. Cheap while this rank has dropped nothing.
    pub(crate) fn tidy(&mut self) {
        if self.idle.load(Ordering::Relaxed) == 0 {
            return;
        }
        let before = self.entries.len();
        self.entries.retain(|(_, shared)| !shared.is_dropped_here() || !shared.is_dropped_everywhere());
        self.idle.fetch_sub((before - self.entries.len()) as u32, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LEN: usize = 5000;

    /// A window of one of three ranks, as its number 1, in memory that ends where it ends.
    fn windows(rank: usize) -> (Windows, Window) {
        let mut windows = Windows::default();
        let shared = Arc::new(Shared {
            memory: Memory::private(window_len(3, LEN).unwrap()),
            owner_process: OwnerProcess::here(),
            rank,
            world_size: 3,
            len: LEN,
            part_len: part_len(LEN).unwrap(),
            idle: windows.idle.clone(),
        });
        windows.entries.push((1, shared.clone()));
        (windows, Window(shared))
    }

    #[test]
    fn what_a_peer_names_is_inside_its_part_or_nowhere() {
        let (windows, mut own) = windows(2);
        own.bytes_mut().fill(2);
        for rank in 0..2 {
            windows.part(1, rank, 0, LEN).unwrap().write(&[rank as u8; LEN]);
        }
        assert!(own.bytes().iter().all(|&byte| byte == 2), "the others' parts are others");
        let mut last = [0];
        windows.part(1, 2, LEN as u64 - 1, 1).unwrap().read(&mut last);
        assert_eq!(last, [2]);
        assert_eq!(windows.part(1, 0, LEN as u64, 0).unwrap().len(), 0);
        for (offset, len) in
            [(0, LEN + 1), (1, LEN), (LEN as u64, 1), (LEN as u64 + 1, 0), (u64::MAX, 1), (1, usize::MAX)]
        {
            assert!(windows.part(1, 0, offset, len).is_none(), "{len} bytes from {offset}");
        }
        assert!(windows.part(2, 0, 0, 1).is_none(), "there is no such window");
    }

    #[test]
    fn only_what_lies_in_the_own_part_is_found() {
        let (windows, mut own) = windows(1);
        // SAFETY: the window lives, and nobody else touches it.
        let own = unsafe { Span::new(own.bytes_mut().as_mut_ptr(), LEN) };
        assert_eq!(windows.find(own), Some((1, 0)));
        assert_eq!(windows.find(own.part(17..LEN)), Some((1, 17)));
        assert_eq!(windows.find(windows.part(1, 0, 0, LEN).unwrap()), None, "another's");
        // SAFETY: it is looked at, and nothing is touched.
        let longer = unsafe { Span::new(own.as_ptr(), LEN + 1) };
        assert_eq!(windows.find(longer), None);
    }

    #[test]
    fn a_window_goes_when_all_have_dropped_theirs() {
        let (mut windows, own) = windows(0);
        drop(own);
        windows.tidy();
        assert_eq!(windows.len(), 1, "the others have theirs");
        let shared = windows.entries[0].1.clone();
        (0..3).for_each(|rank| shared.dropped(rank).store(1, Ordering::Relaxed));
        windows.tidy();
        assert_eq!(windows.len(), 0);
    }
}
