//! Targets for a fuzzer: what this crate promises about bytes that anybody may have sent. Each takes any input and
//! panics where a promise is broken.

mod frames;
mod handshake;
mod pieces;
mod records;
mod sessions;
mod stream;

pub use frames::frames;
pub use handshake::handshake;
pub use pieces::pieces;
pub use records::records;
pub use sessions::sessions;
