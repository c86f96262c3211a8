//! One rank of a check: symbols instead of numbers.

use crate::oracle::{self, Element, Ranks};
use crate::{Action, Job, Span, Step};
use phalanx_core::OpKind;

/// Lengths of the longest paths to some moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Path {
    pub(crate) moved: usize,
    pub(crate) combined: usize,
}

impl Path {
    pub(crate) fn later(self, other: Self) -> Self {
        Self { moved: self.moved.max(other.moved), combined: self.combined.max(other.combined) }
    }

    pub(crate) fn plus(self, moved: usize, combined: usize) -> Self {
        Self { moved: self.moved + moved, combined: self.combined + combined }
    }
}

/// One rank while the schedules run.
pub(crate) struct Memory {
    /// What receives write, and sends read unless there is an input.
    pub(crate) buffer: Vec<Element>,
    /// What sends read, where that is separate.
    pub(crate) input: Option<Vec<Element>>,
    /// What the current step received; in place only when the step is through, for sends read what was there before.
    pub(crate) arrived: Option<(Vec<Element>, Ranks)>,
    /// How many hops each element of the buffer has behind it, and the most of all that arrived.
    hops: Vec<usize>,
    pub(crate) hops_max: usize,
    /// Those of what the current step received.
    pub(crate) arrived_hops: usize,
    /// The ranks that are known to have entered the operation.
    pub(crate) heard: Ranks,
    pub(crate) sent: usize,
    /// When the current step was posted, and when those of its halves that are through were so.
    pub(crate) posted: Path,
    pub(crate) through: Path,
}

impl Memory {
    pub(crate) fn before(job: &Job, rank: usize) -> Self {
        let (buffer, input) = match job.op() {
            OpKind::AllToAll => (oracle::output_before(job, rank), Some(oracle::before(job, rank))),
            _ => (oracle::before(job, rank), None),
        };
        let (posted, through) = (Path::default(), Path::default());
        let hops = vec![0; buffer.len()];
        Self {
            buffer,
            input,
            arrived: None,
            hops,
            hops_max: 0,
            arrived_hops: 0,
            heard: 1 << rank,
            sent: 0,
            posted,
            through,
        }
    }

    pub(crate) fn source(&self) -> &[Element] {
        self.input.as_ref().unwrap_or(&self.buffer)
    }

    pub(crate) fn read(&self, span: &Span) -> Vec<Element> {
        span.parts().flat_map(|part| &self.source()[part]).copied().collect()
    }

    /// Hops behind what a send of `span` waits for. A message of nothing waits for all before it.
    pub(crate) fn hops(&self, span: &Span) -> usize {
        match &self.input {
            Some(_) => 0,
            None if span.is_empty() => self.hops_max,
            None => span.parts().flat_map(|part| &self.hops[part]).copied().max().unwrap_or(0),
        }
    }

    /// Puts what the step received in place.
    pub(crate) fn finish_step(&mut self, step: &Step, everybody: Ranks) -> Result<(), String> {
        self.posted = self.through;
        let (Some(recv), Some((values, heard))) = (&step.recv, self.arrived.take()) else { return Ok(()) };
        self.heard |= heard;
        self.hops_max = self.hops_max.max(self.arrived_hops);
        for at in recv.span.parts().flatten() {
            self.hops[at] = self.hops[at].max(self.arrived_hops);
        }
        for (at, value) in recv.span.parts().flatten().zip(values) {
            let there = &mut self.buffer[at];
            let put = match recv.action {
                Action::Copy if value == Element::BLANK => Err("copies an element that the sender never had"),
                Action::Copy if value.is_partial() => Err("copies a partial sum"),
                Action::Copy => Ok(value),
                Action::Combine => there.combine(value, false, everybody),
                Action::Finish => there.combine(value, true, everybody),
            };
            *there = put.map_err(|what| format!("{what} (from rank {}, to element {at})", recv.peer))?;
        }
        Ok(())
    }
}
