//! Groups: who is in them, and what is made of them.

use crate::failure::{Failure, entry, entry_with};
use crate::site::site;
use crate::status::Status;
use phalanx::ProcessGroup;
use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Some ranks that work together: this rank's handle on them. All threads of a process may use it.
#[derive(Debug)]
pub struct Group {
    group: ProcessGroup,
    is_finalized: AtomicBool,
    name: OnceLock<CString>,
    backend_name: OnceLock<CString>,
    description: OnceLock<CString>,
}

impl Group {
    pub(crate) fn new(group: ProcessGroup) -> Self {
        Self {
            group,
            is_finalized: AtomicBool::new(false),
            name: OnceLock::new(),
            backend_name: OnceLock::new(),
            description: OnceLock::new(),
        }
    }

    /// # Safety
    /// `group` is null, or a group that was not freed.
    unsafe fn of<'g>(group: *const Self) -> Result<&'g Self, String> {
        // SAFETY: the caller says so.
        let group = unsafe { group.as_ref() };
        group.ok_or_else(|| "the group is a null pointer: phalanx_init makes one".into())
    }

    /// The group, for an operation.
    ///
    /// # Safety
    /// `group` is null, or a group that was not freed.
    ///
    /// # Errors
    /// What is wrong, in words: there is none, or it was finalized.
    pub(crate) unsafe fn in_use<'g>(group: *const Self) -> Result<&'g ProcessGroup, String> {
        // SAFETY: the caller says so.
        let group = unsafe { Self::of(group) }?;
        if group.is_finalized.load(Ordering::Acquire) {
            return Err("the group was finalized, and can no longer be used".into());
        }
        Ok(&group.group)
    }
}

/// Where a new group is put: null, until there is one.
pub(crate) struct Out(*mut *mut Group);

impl Out {
    /// # Safety
    /// `place` is null or a place for a pointer.
    ///
    /// # Errors
    /// In words: it is null.
    pub(crate) unsafe fn of(place: *mut *mut Group) -> Result<Self, String> {
        if place.is_null() {
            return Err("the place for the new group is a null pointer".into());
        }
        // SAFETY: it is not null, so it is a place for a pointer.
        unsafe { place.write(std::ptr::null_mut()) };
        Ok(Self(place))
    }

    pub(crate) fn put(self, group: ProcessGroup) {
        // SAFETY: `of` has been told that it is a place for a pointer.
        unsafe { self.0.write(Box::into_raw(Box::new(Group::new(group)))) };
    }
}

pub(crate) fn number(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

unsafe fn asked(group: *const Group, ask: impl FnOnce(&ProcessGroup) -> usize) -> c_int {
    entry_with(|| {
        // SAFETY: the caller's part.
        let group = unsafe { Group::of(group) }.map_err(Failure::misuse)?;
        Ok(number(ask(&group.group)))
    })
    .unwrap_or(-1)
}

unsafe fn told(group: *const Group, tell: impl FnOnce(&Group) -> &CStr) -> *const c_char {
    entry_with(|| {
        // SAFETY: the caller's part.
        let group = unsafe { Group::of(group) }.map_err(Failure::misuse)?;
        Ok(tell(group).as_ptr())
    })
    .unwrap_or(c"".as_ptr())
}

fn c_text(text: impl Into<Vec<u8>>) -> CString {
    CString::new(text).unwrap_or_default()
}

/// This rank within the group, from 0. -1 if `group` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_rank(group: *const Group) -> c_int {
    // SAFETY: the caller's part.
    unsafe { asked(group, ProcessGroup::rank) }
}

/// How many ranks the group has. -1 if `group` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_world_size(group: *const Group) -> c_int {
    // SAFETY: the caller's part.
    unsafe { asked(group, ProcessGroup::world_size) }
}

/// This rank among those of the group on its host. -1 if `group` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_local_rank(group: *const Group) -> c_int {
    // SAFETY: the caller's part.
    unsafe { asked(group, ProcessGroup::local_rank) }
}

/// How many ranks of the group are on this host. -1 if `group` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_local_world_size(group: *const Group) -> c_int {
    // SAFETY: the caller's part.
    unsafe { asked(group, ProcessGroup::local_world_size) }
}

/// The name by which errors and traces know the group. It is there as long as the group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_name(group: *const Group) -> *const c_char {
    // SAFETY: the caller's part.
    unsafe { told(group, |of| of.name.get_or_init(|| c_text(of.group.id().to_string()))) }
}

/// What performs the operations: `"shm"`, `"tcp"`, …. It is there as long as the group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_backend_name(group: *const Group) -> *const c_char {
    // SAFETY: the caller's part.
    unsafe { told(group, |of| of.backend_name.get_or_init(|| c_text(of.group.backend_name()))) }
}

/// What performs the operations, in a sentence. It is there as long as the group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_describe(group: *const Group) -> *const c_char {
    // SAFETY: the caller's part.
    unsafe { told(group, |of| of.description.get_or_init(|| c_text(of.group.describe()))) }
}

/// Leaves the group in good order, and waits until the others do. The group can't be used afterwards; `phalanx_group_free` frees it. Of a group that was
/// finalized this does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_finalize_at(
    group: *const Group,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let site = unsafe { site(file, line) };
        // SAFETY: the caller's part.
        let group = unsafe { Group::of(group) };
        let group = group.map_err(|what| Failure::misuse(format!("finalize: {what}, at {site}")))?;
        if group.is_finalized.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        Ok(group.group.with_call_site(site).finalize()?)
    })
}

/// Fails the group on all its ranks, which are told the reason. From any thread, also while others wait in an operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_abort(group: *const Group, reason: *const c_char) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let group = unsafe { Group::in_use(group) };
        let group = group.map_err(|what| Failure::misuse(format!("abort: {what}")))?;
        if reason.is_null() {
            group.abort("no reason was given");
            return Ok(());
        }
        // SAFETY: it is not null, so it is text that a null byte ends.
        let reason = unsafe { CStr::from_ptr(reason) };
        group.abort(&reason.to_string_lossy());
        Ok(())
    })
}

/// Frees this handle. No other thread may be using it; operations in flight go on. A group that was not finalized is left when its last handle and its
/// last work are gone. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_group_free(group: *mut Group) {
    entry(|| {
        if !group.is_null() {
            // SAFETY: the caller's part: it was made by `Box::into_raw`, and is freed once.
            drop(unsafe { Box::from_raw(group) });
        }
        Ok(())
    });
}
