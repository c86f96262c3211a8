//! The collectives in which each rank has a block of a whole, whether or not all blocks are equally long.

use crate::call::Call;
use crate::failure::Result;
use phalanx::ReduceOp;
use phalanx::backend::{Buffers, Layout, Request};
use std::ffi::c_void;

/// # Safety
/// `input` has as many elements as this rank's block, `output` as all blocks.
pub(crate) unsafe fn all_gather(
    call: Call<'_>,
    input: *const c_void,
    output: *mut c_void,
    blocks: Layout,
) -> Result<()> {
    // SAFETY: the caller's part.
    let input = unsafe { call.input(input, call.own_count(&blocks)) }?;
    // SAFETY: the caller's part.
    let output = unsafe { call.output(output, blocks.len()) }?;
    let buffers = match call.is_in_place(&input, &output, &blocks)? {
        true => Buffers::InPlace(output),
        false => Buffers::Separate(input, output),
    };
    call.perform(Request::AllGather { buffers, blocks })
}

/// # Safety
/// `input` has as many elements as all blocks, `output` as this rank's.
pub(crate) unsafe fn reduce_scatter(
    call: Call<'_>,
    input: *const c_void,
    output: *mut c_void,
    blocks: Layout,
    reduce: ReduceOp,
) -> Result<()> {
    // SAFETY: the caller's part.
    let input = unsafe { call.input(input, blocks.len()) }?;
    // SAFETY: the caller's part.
    let output = unsafe { call.output(output, call.own_count(&blocks)) }?;
    let buffers = match call.is_in_place(&output, &input, &blocks)? {
        true => Buffers::InPlace(input),
        false => Buffers::Separate(input, output),
    };
    call.perform(Request::ReduceScatter { buffers, blocks, reduce })
}

/// # Safety
/// `input` has as many elements as this rank's block, on the root `output` as all blocks.
pub(crate) unsafe fn gather(
    call: Call<'_>,
    input: *const c_void,
    output: *mut c_void,
    blocks: Layout,
    root: usize,
) -> Result<()> {
    // SAFETY: the caller's part.
    let input = unsafe { call.input(input, call.own_count(&blocks)) }?;
    // SAFETY: the caller's part.
    let output = unsafe { call.whole_output(root, output, &blocks) }?;
    let is_in_place = output.as_ref().map_or(Ok(false), |whole| call.is_in_place(&input, whole, &blocks))?;
    call.perform(Request::Gather { input: (!is_in_place).then_some(input), output, blocks, root })
}

/// # Safety
/// On the root `input` has as many elements as all blocks, `output` as this rank's.
pub(crate) unsafe fn scatter(
    call: Call<'_>,
    input: *const c_void,
    output: *mut c_void,
    blocks: Layout,
    root: usize,
) -> Result<()> {
    // SAFETY: the caller's part.
    let input = unsafe { call.whole_input(root, input, &blocks) }?;
    // SAFETY: the caller's part.
    let output = unsafe { call.output(output, call.own_count(&blocks)) }?;
    let is_in_place = input.as_ref().map_or(Ok(false), |whole| call.is_in_place(&output, whole, &blocks))?;
    call.perform(Request::Scatter { input, output: (!is_in_place).then_some(output), blocks, root })
}
