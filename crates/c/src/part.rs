//! Groups that are made of a group.

use crate::failure::{Failure, Result, entry};
use crate::group::{Group, Out};
use crate::site::site;
use crate::status::Status;
use crate::work::duration;
use phalanx::ProcessGroup;
use std::ffi::{c_char, c_int, c_uint};

/// Puts what `make` makes of the group where the program wants it: null where there is none.
///
/// # Safety
/// `group` is null or a group that was not freed, `out` is null or a place for a pointer, `file` is null or ends with a null byte.
unsafe fn made(
    function: &str,
    group: *const Group,
    out: *mut *mut Group,
    (file, line): (*const c_char, c_uint),
    make: impl FnOnce(ProcessGroup) -> Result<Option<ProcessGroup>>,
) -> Status {
    entry(|| {
        // SAFETY: the caller says so.
        let site = unsafe { site(file, line) };
        // SAFETY: the caller says so.
        let out = unsafe { Out::of(out) };
        let wrong = |what: String| Failure::misuse(format!("{function}: {what}, at {site}"));
        let out = out.map_err(wrong)?;
        // SAFETY: the caller says so.
        let group = unsafe { Group::in_use(group) }.map_err(wrong)?;
        if let Some(group) = make(group.with_call_site(site.clone()))? {
            out.put(group);
        }
        Ok(())
    })
}

/// Splits the group: ranks that give the same `color` are in one group, in the order of `key`, then of their ranks. A rank whose color is negative is in
/// none, and gets null. Collective.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_split_at(
    group: *const Group,
    color: i64,
    key: i64,
    part: *mut *mut Group,
    file: *const c_char,
    line: c_uint,
) -> Status {
    let split = |group: ProcessGroup| {
        let color = match color {
            ..0 => None,
            _ => Some(u32::try_from(color).map_err(|_| {
                let what = format!("there is no color {color}: colors are 0 to {}", u32::MAX);
                Failure::misuse(format!("split: {what}, at {}", group.site()))
            })?),
        };
        Ok(group.split(color, key)?)
    };
    // SAFETY: the caller's part.
    unsafe { made("split", group, part, (file, line), split) }
}

/// Makes a group of `count` ranks of this one, in whose order they count there too. Only they need call it; a rank that is not among them gets null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_new_group_at(
    group: *const Group,
    ranks: *const c_int,
    count: usize,
    part: *mut *mut Group,
    file: *const c_char,
    line: c_uint,
) -> Status {
    let new_group = |group: ProcessGroup| {
        let wrong = |what: String| Failure::misuse(format!("new_group: {what}, at {}", group.site()));
        if count > group.world_size() {
            return Err(wrong(format!("{count} ranks of a group that has {}", group.world_size())));
        }
        if count > 0 && (ranks.is_null() || !ranks.is_aligned()) {
            return Err(wrong("the ranks are no array".into()));
        }
        let ranks = if count == 0 {
            &[]
        } else {
            // SAFETY: the caller's part: so many numbers are there.
            unsafe { std::slice::from_raw_parts(ranks, count) }
        };
        let known =
            |&rank: &c_int| usize::try_from(rank).map_err(|_| wrong(format!("there is no rank {rank}")));
        let ranks: Vec<usize> = ranks.iter().map(known).collect::<Result<_>>()?;
        Ok(group.new_group(&ranks)?)
    };
    // SAFETY: the caller's part.
    unsafe { made("new_group", group, part, (file, line), new_group) }
}

/// Makes another handle on this group, with another time limit for each operation, in seconds (`INFINITY`: none). Ranks may have different limits; the first
/// that passes fails the group for all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_with_timeout_at(
    group: *const Group,
    seconds: f64,
    handle: *mut *mut Group,
    file: *const c_char,
    line: c_uint,
) -> Status {
    let with_timeout = |group: ProcessGroup| {
        let limit = duration(seconds);
        let limit =
            limit.map_err(|what| Failure::misuse(format!("with_timeout: {what}, at {}", group.site())))?;
        Ok(Some(group.with_timeout(limit)))
    };
    // SAFETY: the caller's part.
    unsafe { made("with_timeout", group, handle, (file, line), with_timeout) }
}

/// Makes another handle on this group, whose reductions add up in the order of the ranks: the same bits on every machine, whatever carries the data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_reproducible_at(
    group: *const Group,
    handle: *mut *mut Group,
    file: *const c_char,
    line: c_uint,
) -> Status {
    // SAFETY: the caller's part.
    unsafe { made("reproducible", group, handle, (file, line), |group| Ok(Some(group.reproducible()))) }
}
