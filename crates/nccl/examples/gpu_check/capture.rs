//! A graph that a program captures, by the driver's own functions.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "looking a function up and calling it is one thing")]

use super::blocking::{Handle, check, enter, loaded};
use libloading::{Library, Symbol};
use phalanx_core::Result;
use phalanx_nccl::{Cuda, Stream};
use std::ffi::c_int;

pub(crate) struct Capture<'a> {
    cuda: Library,
    stream: &'a Stream,
}

impl<'a> Capture<'a> {
    /// From now on a call of any thread that can't be in a graph breaks it.
    pub(crate) fn begin(stream: &'a Stream) -> Result<Self> {
        const GLOBAL: c_int = 0;
        enter(stream.device())?;
        let cuda = loaded(Cuda::load()?.path());
        // SAFETY: the function has this type, and the stream lives.
        let code = unsafe {
            let begin: Symbol<'_, unsafe extern "C" fn(Handle, c_int) -> c_int> =
                cuda.get("cuStreamBeginCapture_v2").expect("it is needed");
            begin(stream.raw(), GLOBAL)
        };
        check("cuStreamBeginCapture", code)?;
        Ok(Self { cuda, stream })
    }

    /// It must not be broken.
    pub(crate) fn end(self) -> Result<()> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe {
            let end: Symbol<'_, unsafe extern "C" fn(Handle, *mut Handle) -> c_int> =
                self.cuda.get("cuStreamEndCapture").expect("it is needed");
            end(self.stream.raw(), &raw mut graph)
        };
        check("cuStreamEndCapture", code)?;
        if graph.is_null() {
            return Ok(());
        }
        // SAFETY: the function has this type, and the graph is not used again.
        let code = unsafe {
            let destroy: Symbol<'_, unsafe extern "C" fn(Handle) -> c_int> =
                self.cuda.get("cuGraphDestroy").expect("it is needed");
            destroy(graph)
        };
        check("cuGraphDestroy", code)
    }
}
