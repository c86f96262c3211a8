//! What tells apart a number written as its bits and an object of the program's own.

pub(super) const F64: &str = "$f64";
pub(super) const F32: &str = "$f32";
/// What keys of the program's own that look like these begin with.
pub(super) const ESCAPE: char = '$';
