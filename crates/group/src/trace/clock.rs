//! When things happened, as cheaply as their length allows.

use phalanx_core::Signature;
use phalanx_trace::{Now, is_precise};

/// Now, for a log of such a call: nanoseconds since some moment, the same for all processes of a host. Where that is precise enough, the ticks of
/// the kernel, 1 to 10 ms apart, for a quarter of the price.
pub(crate) fn now(signature: &Signature) -> u64 {
    if is_precise(signature) { precise() } else { ticks() }
}

/// Now, for a trace.
pub(crate) fn of_trace() -> Now {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let at = precise();
    Now { at, epoch: (since_1970.as_nanos() as u64).saturating_sub(at) }
}

#[cfg(target_os = "linux")]
fn precise() -> u64 {
    nanoseconds(rustix::time::ClockId::Monotonic)
}

#[cfg(target_os = "linux")]
fn ticks() -> u64 {
    nanoseconds(rustix::time::ClockId::MonotonicCoarse)
}

#[cfg(target_os = "linux")]
fn nanoseconds(clock: rustix::time::ClockId) -> u64 {
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(not(target_os = "linux"))]
fn precise() -> u64 {
    use std::{sync::LazyLock, time::Instant};
    static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
    // Never 0, which stands for a call that has not ended.
    FIRST.elapsed().as_nanos() as u64 + 1_000
}

#[cfg(not(target_os = "linux"))]
fn ticks() -> u64 {
    precise()
}
