//! Sizes as people write them.

use clap::Args;
use clap::builder::RangedU64ValueParser;
use phalanx::{Error, Result};

/// The flags that say which sizes are measured, or predicted.
#[derive(Debug, Clone, Args)]
pub struct SizeFlags {
    /// Smallest size of the whole buffer
    #[arg(short = 'b', long, value_name = "BYTES", default_value = "4", value_parser = parse_bytes)]
    pub(crate) min_bytes: usize,

    /// Largest size; 64K and 64KiB are 65536
    #[arg(short = 'e', long, value_name = "BYTES", default_value = "64MiB", value_parser = parse_bytes)]
    pub(crate) max_bytes: usize,

    /// From one size to the next
    #[arg(short = 'f', long, value_name = "FACTOR", default_value = "4",
        value_parser = RangedU64ValueParser::<usize>::new().range(2..=1 << 30))]
    pub(crate) factor: usize,
}

impl SizeFlags {
    /// Refuses sizes of which there are none.
    ///
    /// # Errors
    /// [`Error::Config`] if the smallest is more than the largest.
    ///
    /// # Examples
    /// ```
    /// fn sizes(flags: &phalanx_bench::SizeFlags) -> phalanx::Result<Vec<usize>> {
    ///     flags.check()?;
    ///     Ok(flags.sweep())
    /// }
    /// ```
    pub fn check(&self) -> Result<()> {
        if self.min_bytes > self.max_bytes {
            return Err(Error::config("--min-bytes is more than --max-bytes"));
        }
        Ok(())
    }

    /// All of them, the smallest first.
    ///
    /// # Examples
    /// ```
    /// fn smallest(flags: &phalanx_bench::SizeFlags) -> usize {
    ///     flags.sweep()[0]
    /// }
    /// ```
    pub fn sweep(&self) -> Vec<usize> {
        sweep(self.min_bytes, self.max_bytes, self.factor)
    }
}

/// Reads `4096`, `64K`, `64KiB`, `16M`, `1GiB`: K, M and G are powers of 1024. `KB` is refused, as it means two things.
///
/// # Errors
/// What is wrong, in words.
///
/// # Examples
/// ```
/// assert_eq!(phalanx_bench::parse_bytes("64KiB"), Ok(65536));
/// assert!(phalanx_bench::parse_bytes("64KB").is_err());
/// ```
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let unit = match unit {
        "" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        _ => return Err(NOT_A_SIZE.to_owned()),
    };
    let number: usize = digits.parse().map_err(|_| NOT_A_SIZE.to_owned())?;
    number.checked_mul(unit).ok_or_else(|| "more bytes than there are addresses".to_owned())
}

const NOT_A_SIZE: &str = "not a size such as 4096, 64K or 16MiB";

/// The shortest of `4 B`, `64 KiB`, `16 MiB`.
///
/// # Examples
/// ```
/// assert_eq!([1000, 65536].map(phalanx_bench::short), ["1000 B", "64 KiB"]);
/// ```
pub fn short(bytes: usize) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes > 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

/// From `min`, or 1, to `max`, each size `factor` times the last.
///
/// # Examples
/// ```
/// assert_eq!(phalanx_bench::sweep(4, 100, 4), [4, 16, 64]);
/// ```
pub fn sweep(min: usize, max: usize, factor: usize) -> Vec<usize> {
    let next = |&bytes: &usize| bytes.checked_mul(factor);
    std::iter::successors(Some(min.max(1)), next).take_while(|&bytes| bytes <= max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, size) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 64 << 10),
            ("16M", 16 << 20),
            ("1G", 1 << 30),
            ("2MiB", 2 << 20),
        ] {
            assert_eq!(parse_bytes(text), Ok(size));
        }
        let overflow = ["99999999999999999G", "99999999999999999999"];
        for text in ["", "K", "1.5M", "-1", "1µ", "64KB", "64 K"].into_iter().chain(overflow) {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        for (bytes, text) in [(0, "0 B"), (1000, "1000 B"), (1 << 16, "64 KiB"), (3 << 20, "3 MiB")] {
            assert_eq!(short(bytes), text);
        }
    }

    #[test]
    fn a_sweep_goes_up_to_its_end() {
        assert_eq!(sweep(4, 1024, 4), [4, 16, 64, 256, 1024]);
        assert_eq!(sweep(0, 5, 2), [1, 2, 4]);
        assert_eq!(sweep(usize::MAX / 2, usize::MAX, 3), [usize::MAX / 2]);
    }
}
