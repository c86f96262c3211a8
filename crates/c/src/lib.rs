//! The C interface of phalanx: what `phalanx.h` declares. The header is written from these files, by `tests/header.rs`.
//!
//! What a caller in C owes, and the header says at its head, is what every `unsafe` function here relies on:
//!
//! - A pointer is null or points to what its type says: a buffer to as many elements as are given, a string to text that a null byte ends.
//! - A group or a work was made by this library, and was not freed.
//! - The memory of an operation is left alone until the operation is over.
//!
//! Null pointers, numbers that name nothing, lengths that no memory has and overlapping buffers are looked at here, and are errors.

#![allow(clippy::missing_safety_doc, reason = "it is said once, above and at the head of the header")]
#![allow(clippy::too_many_arguments, reason = "C has no other way to say so much")]

mod blocks;
mod call;
pub mod collectives;
pub mod elements;
pub mod failure;
pub mod group;
pub mod join;
mod memory;
pub mod messages;
pub mod part;
mod site;
pub mod status;
#[cfg(test)]
mod tests;
pub mod uneven;
pub mod version;
pub mod work;
