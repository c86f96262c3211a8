//! What tests ask the double, beside the two interfaces.

use crate::cuda::RawStream;
use crate::{fault, lock, stream};
use std::ffi::{CStr, c_char};
use std::time::Duration;

/// The stream does nothing for some time, as if it were at work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanxDoubleDelay(stream: RawStream, micros: u64) {
    // SAFETY: tests pass a stream of this library.
    let stream = unsafe { stream::of(stream) };
    stream.push(move || std::thread::sleep(Duration::from_micros(micros)));
}

/// From now on this list of faults holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanxDoubleFaults(list: *const c_char) {
    // SAFETY: tests pass a text that ends with NUL.
    let list = unsafe { CStr::from_ptr(list) };
    *lock(&fault::GIVEN) = Some(list.to_string_lossy().into_owned());
}
