//! The process in which something was made.

/// The process in which something was made.
///
/// A fork copies memory and descriptors, and none of the threads but one. What a group is made of works in the process that
/// made it only. Its copy in another must neither be used nor be ended: both have the same connections, so to end them in
/// one ends them in the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Birthplace(u32);

impl Birthplace {
    /// This process.
    pub fn here() -> Self {
        Self(std::process::id())
    }

    /// Whether it is this process. Costs a system call.
    pub fn is_here(self) -> bool {
        self == Self::here()
    }

    /// The process's number.
    pub fn pid(self) -> u32 {
        self.0
    }
}
