//! `phalanx tune`: what moving bytes costs on this machine, measured and kept.

use phalanx_algo::Link;
use phalanx_core::Result;
use phalanx_group::{Prices, StagingTimes, tune, tune_staging};
use std::time::Duration;

/// Measures, keeps the prices, and says what they are.
pub(crate) fn run() -> Result<String> {
    let prices = tune()?;
    let file = prices.save()?;
    let staging = tune_staging()?.map_or_else(String::new, |times| staging_text(&times));
    Ok(format!("{}Kept in {}.\n{staging}", text(&prices), file.display()))
}

/// Where two ranks of a host stage, for people. It is not kept, since groups measure it in two milliseconds.
fn staging_text(StagingTimes { all_gather, vectors, library, kernel_copy }: &StagingTimes) -> String {
    let us = |time: Duration| format!("{:.1} µs", 1e6 * time.as_secs_f64());
    let fastest =
        all_gather.iter().min_by_key(|(_, time)| *time).map_or_else(String::new, |(way, _)| way.to_string());
    let ways = all_gather.map(|(way, time)| format!("{way} {}", us(time))).join(", ");
    let copy = if library < vectors { "the C library" } else { "vectors" };
    let kernel = match kernel_copy {
        None => "the system lets no process copy from another".into(),
        Some([thread, kernel]) => format!(
            "{} by a thread, {} by the kernel: a copy of 1 MiB. Ranks let the kernel copy between them where that takes less than twice as long, here {}; \
             PHALANX_KERNEL_COPY decides it.",
            us(*thread),
            us(*kernel),
            if *kernel < 2 * *thread { "yes" } else { "no" },
        ),
    };
    format!(
        "staging   {ways}: an all_gather of 64 KiB each of two ranks with a core each. Groups take the fastest, here {fastest}; \
         PHALANX_STAGING decides it.\n\
         copies    by vectors {}, by the C library {}: a broadcast of 16 KiB between two such ranks. Groups take the faster, here {copy}; \
         PHALANX_LIBRARY_COPY decides it, where they do not stage in memory of their own.\n\
         kernel    {kernel}\n",
        us(*vectors),
        us(*library),
    )
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
    use phalanx_group::Staging;

    #[test]
    fn the_fastest_staging_is_named() {
        let ways = [(Staging::Own, 8_120), (Staging::Swapped, 3_400), (Staging::Claimed, 3_390)];
        let [vectors, library] = [960, 720].map(Duration::from_nanos);
        let all_gather = ways.map(|(way, time)| (way, Duration::from_nanos(time)));
        let kernel_copy = Some([20_000, 39_000].map(Duration::from_nanos));
        let times = StagingTimes { all_gather, vectors, library, kernel_copy };
        let text = staging_text(&times);
        assert!(text.starts_with("staging   own 8.1 µs, swapped 3.4 µs, claimed 3.4 µs: "), "{text}");
        assert!(text.contains("here claimed"), "{text}");
        assert!(text.contains("copies    by vectors 1.0 µs, by the C library 0.7 µs: "), "{text}");
        assert!(text.contains("here the C library"), "{text}");
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
