//! A link as people write it: `25G,10us`.

use phalanx_algo::Link;
use std::str::FromStr;

/// Bandwidth and latency of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LinkFlag {
    bytes_per_s: f64,
    latency_s: f64,
}

impl LinkFlag {
    /// The link with what else `like` costs.
    pub(crate) fn of(self, like: Link) -> Link {
        Link { latency_s: self.latency_s, bandwidth_bytes_per_s: self.bytes_per_s, ..like }
    }
}

impl FromStr for LinkFlag {
    type Err = String;

    /// Bits a second as `25G` or `25Gbit/s`, or bytes as `3.1GB/s`; then the time of a short message. K, M, G and T are powers of 1000, as where
    /// links are sold.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is not a bandwidth and a latency, such as 25G,10us or 3.1GB/s,500ns");
        let (bandwidth, latency) = text.split_once(',').ok_or_else(wrong)?;
        let (number, unit) = split(bandwidth).ok_or_else(wrong)?;
        let (scale, of) = match unit.split_at_checked(1).ok_or_else(wrong)? {
            ("K", of) => (1e3, of),
            ("M", of) => (1e6, of),
            ("G", of) => (1e9, of),
            ("T", of) => (1e12, of),
            _ => return Err(wrong()),
        };
        let bits = match of {
            "" | "bit/s" | "b/s" => 1.0,
            "B/s" => 8.0,
            _ => return Err(wrong()),
        };
        let bytes_per_s = number * scale * bits / 8.0;
        let (number, unit) = split(latency).ok_or_else(wrong)?;
        let latency_s = number
            * match unit {
                "ns" => 1e-9,
                "us" | "µs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                _ => return Err(wrong()),
            };
        let is_sane = (1.0..=1e15).contains(&bytes_per_s) && (1e-12..=3600.0).contains(&latency_s);
        if is_sane {
            Ok(Self { bytes_per_s, latency_s })
        } else {
            Err(format!("{text:?} is no link that there can be"))
        }
    }
}

fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    Some((text[..end].parse().ok()?, text[end..].trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_bits_unless_they_say_bytes() {
        for (text, bytes_per_s, latency_s) in [
            ("25G,10us", 3.125e9, 10e-6),
            ("200G, 300ns", 25e9, 300e-9),
            ("100Gbit/s,1.5µs", 12.5e9, 1.5e-6),
            ("3.1GB/s,1ms", 3.1e9, 1e-3),
            ("800M,0.1s", 100e6, 0.1),
        ] {
            let link: LinkFlag = text.parse().unwrap();
            let near = |a: f64, b: f64| (a - b).abs() < 1e-9 * b;
            assert!(
                near(link.bytes_per_s, bytes_per_s) && near(link.latency_s, latency_s),
                "{text}: {link:?}"
            );
        }
        for text in [
            "",
            ",",
            "25G",
            "25,10us",
            "25G,10",
            "G,us",
            "1e9G,1us",
            "25GB,1us",
            "0G,1us",
            "25G,0us",
            "1.2.3G,1us",
            "25µ,1us",
        ] {
            assert!(text.parse::<LinkFlag>().is_err(), "{text}");
        }
    }
}
