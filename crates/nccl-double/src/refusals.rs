//! What the real NCCL refuses, and what is left of a communicator then.

use crate::config::Config;
use crate::nccl::{
    UniqueId, ncclAllReduce, ncclCommAbort, ncclCommCount, ncclCommGetAsyncError, ncclCommInitRankConfig,
    ncclGetUniqueId, ncclGroupEnd, ncclGroupStart,
};
use crate::result::{IN_PROGRESS, INVALID_ARGUMENT, NcclResult, OK};
use crate::{context, stream};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

pub(crate) const FLOAT: c_int = 7;
const SUM: c_int = 0;

pub(crate) fn config() -> Config {
    Config { size: size_of::<Config>(), magic: 0xcafe_beef, version: 21_400, blocking: 0 }
}

/// Rank 0 of so many on device 0.
pub(crate) fn init(size: c_int, mut config: Config) -> (NcclResult, *mut c_void) {
    let (mut id, mut comm) = (MaybeUninit::<UniqueId>::uninit(), null_mut());
    // SAFETY: `id` is good for one.
    unsafe { ncclGetUniqueId(id.as_mut_ptr()) };
    let mut context = null_mut();
    // SAFETY: `context` is good for one pointer.
    unsafe { context::cuDevicePrimaryCtxRetain(&raw mut context, 0) };
    // SAFETY: it was made just now.
    unsafe { context::cuCtxSetCurrent(context) };
    // SAFETY: it was written.
    let id = unsafe { id.assume_init() };
    // SAFETY: the pointers are good.
    let code = unsafe { ncclCommInitRankConfig(&raw mut comm, size, id, 0, &raw mut config) };
    (code, comm)
}

pub(crate) fn status(comm: *mut c_void) -> NcclResult {
    let mut status = OK;
    // SAFETY: the communicator lives.
    unsafe { ncclCommGetAsyncError(comm, &raw mut status) };
    status
}

pub(crate) fn all_reduce(comm: *mut c_void, from: &f32, to: &mut f32, dtype: c_int) -> NcclResult {
    let (from, to) = (std::ptr::from_ref(from).cast(), std::ptr::from_mut(to).cast());
    // SAFETY: one element each, for which the tests wait.
    unsafe { ncclAllReduce(from, to, 1, dtype, SUM, comm, null_mut()) }
}

#[test]
fn a_configuration_is_one_of_nccl_and_of_its_version() {
    let of_none = Config { magic: 0, ..config() };
    assert_eq!(init(1, of_none), (INVALID_ARGUMENT, null_mut()));
    assert_eq!(init(1, Config { blocking: 2, ..config() }), (INVALID_ARGUMENT, null_mut()));
    // Of what it does not have yet it says nothing.
    for old in [Config { version: 21_300, ..config() }, Config { size: 16, ..config() }] {
        let (code, comm) = init(1, old);
        assert_eq!(code, OK, "it did not block");
        // SAFETY: nobody uses it any more.
        unsafe { ncclCommAbort(comm) };
    }
}

#[test]
fn a_communicator_that_is_busy_does_not_say_how_large_it_is() {
    let (code, comm) = init(2, config());
    let mut count = -1;
    // SAFETY: the pointers are good.
    let outcome = unsafe { ncclCommCount(comm, &raw mut count) };
    assert_eq!((code, outcome, count), (IN_PROGRESS, INVALID_ARGUMENT, -1));
    // SAFETY: nobody uses it any more.
    unsafe { ncclCommAbort(comm) };
}

#[test]
fn a_call_that_is_refused_takes_its_group_and_the_communicator_with_it() {
    const NO_TYPE: c_int = 99;
    let (_, comm) = init(1, config());
    while status(comm) == IN_PROGRESS {
        std::thread::yield_now();
    }
    let (from, mut to) = (1.0, 0.0);
    // SAFETY: it takes nothing.
    unsafe { ncclGroupStart() };
    assert_eq!(all_reduce(comm, &from, &mut to, FLOAT), OK);
    assert_eq!(all_reduce(comm, &from, &mut to, NO_TYPE), INVALID_ARGUMENT);
    // SAFETY: as above.
    assert_eq!(unsafe { ncclGroupEnd() }, INVALID_ARGUMENT);
    stream::synchronize(0);
    assert_eq!((to, status(comm)), (0.0, INVALID_ARGUMENT));
    assert_eq!(all_reduce(comm, &from, &mut to, FLOAT), INVALID_ARGUMENT);
    // SAFETY: nobody uses it any more.
    unsafe { ncclCommAbort(comm) };
}
