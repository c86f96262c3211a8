//! When things happened, as cheaply as their length allows.

use phalanx_core::{DType, Signature};

/// From so many bytes on a call takes long enough to pay for a look at the precise clock, twice.
const PRECISE_BYTES_MIN: u64 = 16 << 10;

/// Whether a call is told by the precise clock; otherwise by the ticks of the kernel, 1 to 10 ms apart, for a quarter of the price.
/// Both ends of a call come from one clock, so that no call seems longer than a tick more than it was.
pub(super) fn is_precise(signature: &Signature) -> bool {
    signature.count.saturating_mul(signature.dtype.map_or(0, DType::size) as u64) >= PRECISE_BYTES_MIN
}

/// Now, for such a call: nanoseconds since some moment, the same for all processes of a host.
pub(super) fn now(signature: &Signature) -> u64 {
    if is_precise(signature) { precise() } else { ticks() }
}

/// What to add to such times to get nanoseconds since 1970.
pub(super) fn since_1970() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64).saturating_sub(precise())
}

#[cfg(target_os = "linux")]
pub(super) fn precise() -> u64 {
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
pub(super) fn precise() -> u64 {
    use std::{sync::LazyLock, time::Instant};
    static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
    // Never 0, which stands for a call that has not ended.
    FIRST.elapsed().as_nanos() as u64 + 1_000
}

#[cfg(not(target_os = "linux"))]
fn ticks() -> u64 {
    precise()
}
