//! `phalanx tune`: what moving bytes costs on this machine, measured and kept.

use phalanx_algo::Link;
use phalanx_core::Result;
use phalanx_group::{KernelCopyTimes, Prices, StagingTimes, tune, tune_staging};
use std::fmt;
use std::time::Duration;

/// Measures, keeps the prices, and says what they are.
pub(crate) fn run() -> Result<String> {
    let prices = tune()?;
    let file = prices.save()?;
    let staging = tune_staging()?.map_or_else(String::new, |times| staging_text(&times));
    Ok(format!("{}Kept in {}.\n{staging}", text(&prices), file.display()))
}

/// How two ranks of a host share memory, for people. It is not kept, since groups measure it in a few milliseconds.
fn staging_text(StagingTimes { all_gather, broadcast, kernel_copy }: &StagingTimes) -> String {
    let (ways, way) = told(all_gather);
    let (copies, by_library) = told(broadcast);
    let kernel = match kernel_copy {
        None => "the system lets no process copy from another".into(),
        Some(KernelCopyTimes { thread, kernel, is_worth_it }) => format!(
            "{} by a thread, {} by the kernel: a copy of 1 MiB. Ranks let the kernel copy between them where that takes less than twice as long, here {}; \
             PHALANX_KERNEL_COPY decides it.",
            us(*thread),
            us(*kernel),
            if *is_worth_it { "yes" } else { "no" },
        ),
    };
    format!(
        "staging   {ways}: an all_gather of 64 KiB each of two ranks with a core each. Groups take the fastest, here {way}; \
         PHALANX_STAGING decides it.\n\
         copies    {copies}: a broadcast of 64 KiB between two such ranks, by which copies are the C library's. Groups take the fastest, here {by_library}; \
         PHALANX_LIBRARY_COPY decides it.\n\
         kernel    {kernel}\n",
    )
}

/// All of the times, and the way that took the shortest.
fn told(times: &[(impl fmt::Display, Duration)]) -> (String, String) {
    let fastest = times.iter().min_by_key(|(_, time)| *time);
    let all: Vec<String> = times.iter().map(|(way, time)| format!("{way} {}", us(*time))).collect();
    (all.join(", "), fastest.map_or_else(String::new, |(way, _)| way.to_string()))
}

fn us(time: Duration) -> String {
    format!("{:.1} µs", 1e6 * time.as_secs_f64())
}

/// The prices, for people.
pub(crate) fn text(prices: &Prices) -> String {
    let line = |name, link: &Link| {
        format!(
            "{name:<9} {:.1} µs a message, {:.1} GB/s moved, {:.1} GB/s combined, {:.1} µs for each rank on the same core\n",
            1e6 * link.latency_s,
            link.bandwidth_bytes_per_s / 1e9,
            link.combine_bytes_per_s / 1e9,
            1e6 * link.turn_s,
        )
    };
    let (loopback, network) = (line("loopback", &prices.loopback), line("network", &prices.network));
    format!("Prices: {}\n{loopback}{network}", prices.origin())
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_group::{LibraryCopy, Staging};

    #[test]
    fn the_fastest_staging_is_named() {
        let ways = [(Staging::Own, 8_120), (Staging::Swapped, 3_400), (Staging::Claimed, 3_390)];
        let copies = [(LibraryCopy::Never, 2_960), (LibraryCopy::Write, 2_220), (LibraryCopy::Always, 1_870)];
        let all_gather = ways.map(|(way, time)| (way, Duration::from_nanos(time)));
        let broadcast = copies.map(|(way, time)| (way, Duration::from_nanos(time)));
        let [thread, kernel] = [20_000, 39_000].map(Duration::from_nanos);
        let kernel_copy = Some(KernelCopyTimes { thread, kernel, is_worth_it: true });
        let times = StagingTimes { all_gather, broadcast, kernel_copy };
        let text = staging_text(&times);
        assert!(text.starts_with("staging   own 8.1 µs, swapped 3.4 µs, claimed 3.4 µs: "), "{text}");
        assert!(text.contains("here claimed"), "{text}");
        assert!(text.contains("copies    never 3.0 µs, write 2.2 µs, always 1.9 µs: "), "{text}");
        assert!(text.contains("here always"), "{text}");
        assert!(text.contains("kernel    20.0 µs by a thread, 39.0 µs by the kernel: "), "{text}");
        assert!(text.contains("here yes"), "{text}");
        let refused = staging_text(&StagingTimes { kernel_copy: None, ..times });
        assert!(refused.ends_with("kernel    the system lets no process copy from another\n"), "{refused}");
    }

    #[test]
    fn prices_are_told_with_units_and_origin() {
        let text = text(&Prices::BUILT_IN);
        assert!(
            text.starts_with("Prices: built in") && text.contains("loopback  4.0 µs a message"),
            "{text}"
        );
    }
}
