//! What several tests have in common.

#![allow(dead_code, unreachable_pub, reason = "each test has some of it")]

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub mod states;
pub mod values;
