//! How a rank ends itself when its launcher is gone.

/// Kills this process, and with it all of its process group, as the launcher would do: the wrapper it was started by, and what it has started.
/// No handler runs, and nothing is flushed: what outlives its job holds devices and ports that the next one needs.
pub(super) fn end_this_process() -> ! {
    #[cfg(unix)]
    {
        use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};
        // Each returns only if the system refuses it.
        let _ = kill_current_process_group(Signal::KILL);
        let _ = kill_process(getpid(), Signal::KILL);
    }
    std::process::abort()
}
