//! Lines that rank 0 of a library has said become measurements of the report.

use crate::library::Library;
use crate::line::Line;
use crate::rank::BACKEND;
use crate::report::{Case, Measurement, Report};
use crate::setting::Setting;
use crate::stats::Stats;
use phalanx::{DType, Result};

/// Listens to rank 0 of one library.
#[derive(Debug)]
pub(crate) struct Listener<'l> {
    pub(crate) library: &'l Library,
    pub(crate) setting: Setting,
    dtype: DType,
    /// What carries the data.
    transport: String,
}

impl<'l> Listener<'l> {
    pub(crate) fn new(library: &'l Library, setting: Setting, dtype: DType) -> Self {
        let transport = library.transport(setting.backend).to_owned();
        Self { library, setting, dtype, transport }
    }

    /// Adds what a line says to the report; returns whether it was a case. The first time that a case comes is round 0, the second time round 1.
    pub(crate) fn hear(&mut self, text: &str, report: &mut Report) -> bool {
        if let Some(name) = text.strip_prefix(BACKEND) {
            name.clone_into(&mut self.transport);
            return false;
        }
        let Setting { backend, ranks, op } = self.setting;
        let size = self.dtype.size();
        let Some(line) = Line::parse(text) else {
            tracing::debug!(library = self.library.name(), text);
            return false;
        };
        let Some(count) = op.count(line.bytes, ranks, size) else { return false };
        let (bytes, stats) = (op.bytes(count, ranks, size), Stats::of(&line));
        let case = Case { backend, ranks, op, asked_bytes: line.bytes };
        let Line { place, variant, wrong, .. } = line;
        let (library, transport) = (self.library.name(), self.transport.clone());
        if wrong > 0 {
            tracing::warn!(library, %op, bytes, ranks, wrong, "elements came out wrong");
        }
        let is_same = |m: &&Measurement| {
            m.case == case && m.library == library && m.place == place && m.variant == variant
        };
        let round = report.measurements.iter().filter(is_same).count();
        report.measurements.push(Measurement {
            case,
            round,
            library,
            transport,
            place,
            variant,
            count,
            bytes,
            wrong,
            stats,
        });
        true
    }

    /// Whether the data was carried by what was asked for.
    ///
    /// # Errors
    /// `Config`: it was not.
    pub(crate) fn check(&self) -> Result<()> {
        self.library.check(self.setting.backend, &self.transport)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;
    use crate::op::{Op, Place};
    use crate::report::tests::report;
    use crate::subject::Subject;

    #[test]
    fn each_time_that_a_case_comes_is_a_round() {
        let library = Library::Ours { subject: Subject::Plain, algorithms: None };
        let setting = Setting { backend: Backend::AUTO, ranks: 2, op: Op::AllGather };
        let mut listener = Listener::new(&library, setting, DType::F32);
        let mut report = report(Vec::new());
        for (line, is_case) in [
            ("backend shm", false),
            ("a warning", false),
            ("case 64 in - 0 1.0 1000", true),
            ("case 64 out - 0 1.0 2000", true),
            ("case 4 in - 0 1.0 2000", false), // too little to be dealt out
            ("case 64 in - 0 1.0 3000", true),
        ] {
            assert_eq!(listener.hear(line, &mut report), is_case, "{line}");
        }
        let found =
            report.measurements.iter().map(|m| (m.place, m.round, m.stats.p50_us, m.transport.as_str()));
        let (inside, outside) = (Place::InPlace, Place::OutOfPlace);
        assert_eq!(
            found.collect::<Vec<_>>(),
            [(inside, 0, 1.0, "shm"), (outside, 0, 2.0, "shm"), (inside, 1, 3.0, "shm")]
        );
    }
}
