//! `phalanx tune`: what moving bytes costs on this machine, measured and kept.

use phalanx_algo::Link;
use phalanx_core::Result;
use phalanx_group::{Prices, tune, tune_staging};
use std::fmt::Display;
use std::time::Duration;

/// Measures, keeps the prices, and says what they are.
pub(crate) fn run() -> Result<String> {
    let prices = tune()?;
    let file = prices.save()?;
    let staging = tune_staging()?.map_or_else(String::new, staging_text);
    Ok(format!("{}Kept in {}.\n{staging}", text(&prices), file.display()))
}

/// Where two ranks of a host stage, for people. It is not kept, since groups measure it in two milliseconds.
fn staging_text<S: Display>(times: [(S, Duration); 3]) -> String {
    let fastest =
        times.iter().min_by_key(|(_, time)| *time).map_or_else(String::new, |(way, _)| way.to_string());
    let times = times.map(|(way, time)| format!("{way} {:.1} µs", 1e6 * time.as_secs_f64()));
    format!(
        "staging   {}: an all_gather of 64 KiB each of two ranks with a core each. Groups take the fastest, here {fastest}; \
         PHALANX_STAGING decides it.\n",
        times.join(", ")
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

    #[test]
    fn the_fastest_staging_is_named() {
        let times = [("own", 8_120), ("swapped", 3_400), ("claimed", 3_390)];
        let text = staging_text(times.map(|(way, time)| (way, Duration::from_nanos(time))));
        assert!(text.starts_with("staging   own 8.1 µs, swapped 3.4 µs, claimed 3.4 µs: "), "{text}");
        assert!(text.contains("here claimed"), "{text}");
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
