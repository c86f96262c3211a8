//! The line of text by which rank 0 reports a case, the same from every library's program.
//!
//! `case <bytes asked for> <in|out> <variant, or -> <wrong elements> <ns back to back> <ns of each sample>…`

use crate::op::Place;
use std::fmt::Write;

/// One case, as a library measured it. Times are in nanoseconds; a sample is the longest of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    pub(crate) bytes: usize,
    pub(crate) place: Place,
    /// The algorithm, where a library lets its user choose and all are measured.
    pub(crate) variant: Option<String>,
    pub(crate) wrong: u64,
    pub(crate) back_to_back_ns: f64,
    pub(crate) samples_ns: Vec<f64>,
}

impl Line {
    /// `None` for what is no such line.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.strip_prefix("case ")?.split_whitespace();
        let line = Self {
            bytes: words.next()?.parse().ok()?,
            place: match words.next()? {
                "in" => Place::InPlace,
                "out" => Place::OutOfPlace,
                _ => return None,
            },
            variant: words.next().filter(|&name| name != "-").map(str::to_owned),
            wrong: words.next()?.parse().ok()?,
            back_to_back_ns: words.next()?.parse().ok()?,
            samples_ns: words.map(|word| word.parse().ok()).collect::<Option<_>>()?,
        };
        (!line.samples_ns.is_empty()).then_some(line)
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { bytes, place, variant, wrong, back_to_back_ns, samples_ns } = self;
        let place = if *place == Place::InPlace { "in" } else { "out" };
        let variant = variant.as_deref().unwrap_or("-");
        write!(f, "case {bytes} {place} {variant} {wrong} {back_to_back_ns:.1}")?;
        samples_ns.iter().try_for_each(|sample| {
            f.write_char(' ')?;
            write!(f, "{sample:.0}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_as_it_was_written() {
        let line = Line {
            bytes: 4096,
            place: Place::OutOfPlace,
            variant: Some("ring".into()),
            wrong: 2,
            back_to_back_ns: 1500.5,
            samples_ns: vec![1000.0, 2000.0],
        };
        assert_eq!(line.to_string(), "case 4096 out ring 2 1500.5 1000 2000");
        assert_eq!(Line::parse(&line.to_string()), Some(line.clone()));
        let plain = Line { variant: None, ..line };
        assert_eq!(Line::parse(&plain.to_string()), Some(plain));
    }

    #[test]
    fn other_lines_are_none() {
        for text in ["", "case", "a warning", "case 4 in - 0 1.0", "case 4 up - 0 1 1", "case 4 in - 0 1 x"] {
            assert_eq!(Line::parse(text), None, "{text}");
        }
    }
}
