//! Targets for a fuzzer: what this crate promises about bytes that anybody may have sent. Each takes any input and
//! panics where a promise is broken.

mod frames;
mod handshake;
mod records;
mod sessions;

pub use frames::frames;
pub use handshake::handshake;
pub use records::records;
pub use sessions::sessions;
