//! `phalanx tune`: what moving bytes costs on this machine, measured and kept.

use phalanx_algo::Link;
use phalanx_core::Result;
use phalanx_group::{Prices, tune};

/// Measures, keeps the prices, and says what they are.
pub(crate) fn run() -> Result<String> {
    let prices = tune()?;
    let file = prices.save()?;
    Ok(format!("{}Kept in {}.\n", text(&prices), file.display()))
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
    fn prices_are_told_with_units_and_origin() {
        let text = text(&Prices::BUILT_IN);
        assert!(
            text.starts_with("Prices: built in") && text.contains("loopback  4.0 µs a message"),
            "{text}"
        );
    }
}
