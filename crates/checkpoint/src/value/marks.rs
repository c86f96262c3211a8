//! The keys that tell a number written as its bits from an object of the program's own.

pub(super) const F64: &str = "$f64";
pub(super) const F32: &str = "$f32";
/// The prefix of the program's own keys that look like these.
pub(super) const ESCAPE: char = '$';
