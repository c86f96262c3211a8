//! The process in which something was made.

/// The process in which something was made.
///
/// A fork copies memory and descriptors, and none of the threads but one. What a group is made of works in the process that
/// made it only. Its copy in another must neither be used nor be ended: both have the same connections, so to end them in
/// one ends them in the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerProcess(u32);

impl OwnerProcess {
    /// This process.
    ///
    /// # Examples
    /// ```
    /// use phalanx_transport::OwnerProcess;
    ///
    /// /// Something that works in the process that made it only.
    /// struct Device {
    ///     made_in: OwnerProcess,
    /// }
    ///
    /// impl Drop for Device {
    ///     fn drop(&mut self) {
    ///         if self.made_in.is_here() {
    ///             // Say farewell. A copy in a forked process says nothing.
    ///         }
    ///     }
    /// }
    /// drop(Device { made_in: OwnerProcess::here() });
    /// ```
    pub fn here() -> Self {
        Self(std::process::id())
    }

    /// Whether it is this process. Costs a system call.
    ///
    /// # Examples
    /// ```
    /// assert!(phalanx_transport::OwnerProcess::here().is_here());
    /// ```
    pub fn is_here(self) -> bool {
        self == Self::here()
    }

    /// The process's number.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(phalanx_transport::OwnerProcess::here().pid(), std::process::id());
    /// ```
    pub fn pid(self) -> u32 {
        self.0
    }
}
