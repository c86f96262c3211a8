//! What C programs do with handles and memory, on ranks that are threads.

use crate::collectives::{phalanx_all_gather_at, phalanx_all_reduce_at, phalanx_barrier_at};
use crate::elements::{Dtype, Op};
use crate::failure::{phalanx_last_error, phalanx_last_error_rank};
use crate::group::{Group, phalanx_group_free, phalanx_name, phalanx_rank};
use crate::messages::{phalanx_recv_any_async_at, phalanx_send_at};
use crate::part::phalanx_with_timeout_at;
use crate::status::Status;
use crate::work::{Work, phalanx_work_free, phalanx_work_source, phalanx_work_wait};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr::{null, null_mut};

const FILE: *const c_char = c"train.c".as_ptr();
const LINE: c_uint = 41;
const F32: c_int = Dtype::F32 as c_int;
const SUM: c_int = Op::Sum as c_int;

fn last_error() -> String {
    // SAFETY: it is text that a null byte ends.
    unsafe { CStr::from_ptr(phalanx_last_error()) }.to_string_lossy().into_owned()
}

/// Runs `rank` on each of two ranks, with a handle that it frees.
fn on_two(rank: impl Fn(*mut Group) + Sync) {
    std::thread::scope(|scope| {
        for group in phalanx::threads(2) {
            let rank = &rank;
            scope.spawn(move || rank(Box::into_raw(Box::new(Group::new(group)))));
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "ranks of one host share memory, of which Miri knows nothing")]
fn handles_and_memory_go_to_and_fro() {
    on_two(|group| {
        // SAFETY: the handle was made by `on_two`, and is freed below.
        let rank = unsafe { phalanx_rank(group) };
        let (mut whole, mut limited) = ([0.0f32; 2], null_mut());
        // SAFETY: so are these; `limited` is a place for a pointer.
        let made = unsafe { phalanx_with_timeout_at(group, 60.0, &raw mut limited, FILE, LINE) };
        assert_eq!(made, Status::Ok, "{}", last_error());
        let mut own = [rank as f32 + 1.0];
        let (input, output) = (own.as_mut_ptr().cast(), whole.as_mut_ptr().cast());
        // SAFETY: two floats go in on two ranks, one on each.
        let gathered =
            unsafe { phalanx_all_gather_at(limited, input, output, 1, F32, null_mut(), FILE, LINE) };
        assert_eq!((gathered, whole), (Status::Ok, [1.0, 2.0]));
        // SAFETY: made above, freed once.
        unsafe { phalanx_group_free(limited) };
        // SAFETY: the handle is there until the end of this.
        let name = unsafe { phalanx_name(group) };
        // SAFETY: it is text that a null byte ends.
        let name = unsafe { CStr::from_ptr(name) };
        assert!(!name.is_empty());
        // SAFETY: the handle was made by `on_two`, and this is its end.
        unsafe { phalanx_group_free(group) };
    });
}

#[test]
#[cfg_attr(miri, ignore = "ranks of one host share memory, of which Miri knows nothing")]
fn a_work_that_is_freed_has_let_go_of_the_memory() {
    on_two(|group| {
        let (mut values, mut works) = (vec![vec![1.0f32; 3]; 4], [null_mut::<Work>(); 4]);
        for (values, work) in values.iter_mut().zip(&mut works) {
            let buffer = values.as_mut_ptr().cast();
            // SAFETY: the buffer is left alone until the work is freed.
            let begun = unsafe { phalanx_all_reduce_at(group, buffer, 3, F32, SUM, work, FILE, LINE) };
            assert_eq!(begun, Status::Ok, "{}", last_error());
        }
        // SAFETY: the works keep what they need.
        unsafe { phalanx_group_free(group) };
        for (i, work) in works.into_iter().enumerate().rev() {
            if i % 2 == 0 {
                // SAFETY: it was not freed.
                assert_eq!(unsafe { phalanx_work_wait(work, f64::INFINITY) }, Status::Ok);
            }
            // SAFETY: it was not freed.
            unsafe { phalanx_work_free(work) };
            assert_eq!(values[i], [2.0; 3]);
            values[i].clear();
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "ranks of one host share memory, of which Miri knows nothing")]
fn whoever_takes_any_message_is_told_whose_it_was() {
    on_two(|group| {
        // SAFETY: the handle was made by `on_two`, and is freed below.
        let rank = unsafe { phalanx_rank(group) };
        let (mut got, mut work) = ([0.0f32], null_mut());
        let (buffer, sent) = (got.as_mut_ptr().cast(), (&raw const rank).cast());
        // SAFETY: the buffer is left alone until the work is freed.
        let begun = unsafe { phalanx_recv_any_async_at(group, buffer, 1, F32, 3, &raw mut work, FILE, LINE) };
        assert_eq!(begun, Status::Ok);
        // SAFETY: an `int` has the size of a float.
        let done = unsafe { phalanx_send_at(group, sent, 1, F32, 1 - rank, 3, null_mut(), FILE, LINE) };
        assert_eq!(done, Status::Ok);
        // SAFETY: it was not freed.
        assert_eq!(unsafe { phalanx_work_wait(work, f64::INFINITY) }, Status::Ok);
        // SAFETY: it was not freed.
        assert_eq!(unsafe { phalanx_work_source(work) }, 1 - rank);
        // SAFETY: it was not freed.
        unsafe { phalanx_work_free(work) };
        assert_eq!(got[0].to_bits() as c_int, 1 - rank);
        // SAFETY: the handle was made by `on_two`, and this is its end.
        unsafe { phalanx_group_free(group) };
    });
}

#[test]
fn what_is_refused_is_told_to_this_thread_alone() {
    // SAFETY: null is allowed.
    let refused = unsafe { phalanx_barrier_at(null(), null_mut(), FILE, LINE) };
    assert_eq!(refused, Status::ErrorMisuse);
    assert_eq!(last_error(), "barrier: the group is a null pointer: phalanx_init makes one, at train.c:41");
    assert_eq!(phalanx_last_error_rank(), -1);
    std::thread::spawn(|| assert_eq!(last_error(), "")).join().unwrap();
}

#[test]
fn a_panic_is_an_error_that_ends_nothing() {
    let status = crate::failure::entry(|| panic!("so it went\0wrong"));
    assert_eq!(status, Status::ErrorInternal);
    assert_eq!(last_error(), "a bug in phalanx, please report it: a panic: so it wentwrong");
}
