//! NCCL as NVIDIA's examples use it, without anything of ours: a communicator that blocks, its all_reduce and its all_gather.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "looking a function up and calling it is one thing")]

use libloading::{Library, Symbol};
use phalanx_core::{Error, Result};
use phalanx_nccl::{Cuda, DataType, Device, Nccl, Stream};
use std::ffi::{c_int, c_void};

pub(crate) type Handle = *mut c_void;
type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int;

type AllGather = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Handle, Handle) -> c_int;

#[repr(C)]
#[derive(Clone, Copy)]
struct Id([u8; 128]);

/// Its device's context is that of the thread that has made it, which alone uses it.
pub(crate) struct Blocking {
    nccl: Library,
    all_reduce: AllReduce,
    all_gather: AllGather,
    comm: Handle,
}

pub(crate) fn check(call: &'static str, code: c_int) -> Result<()> {
    let what = format!("code {code}");
    if code == 0 { Ok(()) } else { Err(Error::Library { library: "itself".into(), call: call.into(), what }) }
}

/// The library that is loaded from `path` already.
pub(crate) fn loaded(path: &std::path::Path) -> Library {
    // SAFETY: it is in this process, so nothing runs.
    unsafe { Library::new(path) }.expect("it is loaded")
}

impl Blocking {
    /// Waits for all ranks, however long that takes.
    pub(crate) fn new(
        nccl: Nccl,
        device: &Device,
        id: &[u8; 128],
        rank: usize,
        world_size: usize,
    ) -> Result<Self> {
        enter(device)?;
        let library = loaded(nccl.path());
        let mut comm = std::ptr::null_mut();
        // SAFETY: the functions have these types; no configuration means that calls block.
        let (code, all_reduce, all_gather) = unsafe {
            let init: Symbol<
                '_,
                unsafe extern "C" fn(*mut Handle, c_int, Id, c_int, *const c_void) -> c_int,
            > = library.get("ncclCommInitRankConfig").expect("it is needed");
            let (rank, size) = (rank as c_int, world_size as c_int);
            let code = init(&raw mut comm, size, Id(*id), rank, std::ptr::null());
            let all_reduce = *library.get::<AllReduce>("ncclAllReduce").expect("it is needed");
            let all_gather = *library.get::<AllGather>("ncclAllGather").expect("it is needed");
            (code, all_reduce, all_gather)
        };
        check("ncclCommInitRankConfig", code)?;
        Ok(Self { nccl: library, all_reduce, all_gather, comm })
    }

    /// The largest of all ranks' numbers, in place.
    ///
    /// # Safety
    /// There are `count` floats of the device at `address`, which nothing else uses until `stream` is past this.
    pub(crate) unsafe fn max(&self, address: u64, count: usize, stream: &Stream) -> Result<()> {
        const MAX: c_int = 2;
        let at = address as *mut c_void;
        // SAFETY: as the caller says; the communicator lives.
        let code =
            unsafe { (self.all_reduce)(at, at, count, DataType::F32 as c_int, MAX, self.comm, stream.raw()) };
        check("ncclAllReduce", code)
    }

    /// All ranks' numbers, from one place to another.
    ///
    /// # Safety
    /// As for [`max`](Self::max), there are `count` floats at `from`, and as many of each rank at `to`.
    pub(crate) unsafe fn gather(&self, from: u64, to: u64, count: usize, stream: &Stream) -> Result<()> {
        let (from, to) = (from as *const c_void, to as *mut c_void);
        // SAFETY: as the caller says; the communicator lives.
        let code =
            unsafe { (self.all_gather)(from, to, count, DataType::F32 as c_int, self.comm, stream.raw()) };
        check("ncclAllGather", code)
    }

    pub(crate) fn end(self) -> Result<()> {
        // SAFETY: the function has this type, and the communicator is not used again.
        let code = unsafe {
            let destroy: Symbol<'_, unsafe extern "C" fn(Handle) -> c_int> =
                self.nccl.get("ncclCommDestroy").expect("it is needed");
            destroy(self.comm)
        };
        check("ncclCommDestroy", code)
    }
}

/// Makes the device's context that of this thread, for good.
pub(crate) fn enter(device: &Device) -> Result<()> {
    let cuda = loaded(Cuda::load()?.path());
    let mut context = std::ptr::null_mut();
    // SAFETY: the functions have these types.
    let (retained, set) = unsafe {
        let retain: Symbol<'_, unsafe extern "C" fn(*mut Handle, c_int) -> c_int> =
            cuda.get("cuDevicePrimaryCtxRetain").expect("it is needed");
        let set: Symbol<'_, unsafe extern "C" fn(Handle) -> c_int> =
            cuda.get("cuCtxSetCurrent").expect("it is needed");
        let retained = retain(&raw mut context, device.ordinal() as c_int);
        (retained, set(context))
    };
    check("cuDevicePrimaryCtxRetain", retained)?;
    check("cuCtxSetCurrent", set)
}
