//! candle's kernels, by name: plain loops on host memory, which a stream performs when it comes to them.
//!
//! So tests run candle's own code over tensors of "CUDA", as asynchronous as on a device. What the kernels do is read off how candle
//! calls them; they are exact to the element type's rounding, and no test of candle's own kernels.

mod conv;
mod element;
mod elementwise;
mod indexing;
mod params;
mod reduce;

pub(crate) use params::Elements;

use crate::cuda::{CudaResult, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, RawStream, SUCCESS};
use crate::lock;
use crate::stream;
use element::Number;
use half::{bf16, f16};
use params::{Kernel, Params};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::Write;
use std::sync::Mutex;

/// The kernel of this name.
fn find(name: &str) -> Option<Kernel> {
    let (root, dtype) = name.rsplit_once('_')?;
    match dtype {
        "u8" => of::<u8>(root),
        "u32" => of::<u32>(root),
        "i16" => of::<i16>(root),
        "i32" => of::<i32>(root),
        "i64" => of::<i64>(root),
        "f16" => of::<f16>(root),
        "bf16" => of::<bf16>(root),
        "f32" => of::<f32>(root),
        "f64" => of::<f64>(root),
        _ => None,
    }
}

fn of<T: Number>(root: &str) -> Option<Kernel> {
    elementwise::find::<T>(root)
        .or_else(|| reduce::find::<T>(root))
        .or_else(|| indexing::find::<T>(root))
        .or_else(|| conv::find::<T>(root))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut *mut c_void, _image: *const c_void) -> CudaResult {
    // All kernels are in one, which has no content.
    // SAFETY: the caller's pointer.
    unsafe { *module = std::ptr::dangling_mut::<usize>().cast() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(_module: *mut c_void) -> CudaResult {
    SUCCESS
}

/// A function is its number among those that were asked for, plus one.
static FUNCTIONS: Mutex<Vec<(String, Kernel)>> = Mutex::new(Vec::new());

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut *mut c_void,
    _module: *mut c_void,
    name: *const c_char,
) -> CudaResult {
    // SAFETY: the caller's text.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let Some(kernel) = find(&name) else {
        // The error itself does not say which.
        let _ = writeln!(std::io::stderr(), "the double has no kernel `{name}`");
        return NOT_FOUND;
    };
    let mut known = lock(&FUNCTIONS);
    let number = known.iter().position(|(other, _)| *other == name).unwrap_or(known.len());
    if number == known.len() {
        known.push((name, kernel));
    }
    // SAFETY: the caller's pointer.
    unsafe { *function = (number + 1) as *mut c_void };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: *mut c_void,
    _grid_x: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    _block_x: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _shared_bytes: c_uint,
    stream: RawStream,
    params: *const *const c_void,
    _extra: *const *const c_void,
) -> CudaResult {
    let number = (function as usize).wrapping_sub(1);
    let kernel = lock(&FUNCTIONS).get(number).map(|(_, kernel)| *kernel);
    let Some(kernel) = kernel else { return INVALID_VALUE };
    let work = kernel(&mut Params::new(params));
    // SAFETY: the caller's stream.
    unsafe { stream::of(stream) }.push(work);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncSetAttribute(
    _function: *mut c_void,
    _attribute: c_int,
    _value: c_int,
) -> CudaResult {
    SUCCESS
}

/// What cudarc links and candle does not call.
macro_rules! not_supported {
    ($($name:ident),*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() -> CudaResult {
            NOT_SUPPORTED
        }
    )* };
}

not_supported!(cuMemAlloc_v2, cuMemFree_v2, cuMemcpyPeerAsync, cuCtxDestroy_v2, cuModuleLoad);
