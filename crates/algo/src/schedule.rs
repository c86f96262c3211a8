//! What an algorithm produces: the steps of one rank, and nothing else.

use std::ops::Range;

/// Elements that travel together: a range that may wrap around the end of the buffer once.
///
/// Blocks of consecutive ranks are contiguous in rank order but may wrap past the last rank; `first` travels before `second`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Span {
    /// The part that travels first.
    pub first: Range<usize>,
    /// The rest after wrapping around; usually empty.
    pub second: Range<usize>,
}

impl Span {
    /// Elements in both parts.
    pub fn len(&self) -> usize {
        self.first.len() + self.second.len()
    }

    /// Whether there is nothing to move.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The non-empty parts in the order in which they travel.
    pub fn parts(&self) -> impl Iterator<Item = Range<usize>> {
        [self.first.clone(), self.second.clone()].into_iter().filter(|r| !r.is_empty())
    }
}

impl From<Range<usize>> for Span {
    fn from(first: Range<usize>) -> Self {
        Self { first, second: 0..0 }
    }
}

/// What becomes of received elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// They replace what is there.
    Copy,
    /// They are combined with what is there.
    Combine,
    /// They are combined, and that was the last contribution: the operator is finished here (`Avg` divides).
    /// Happens exactly once to each element of the result, before it is copied to anybody.
    Finish,
}

/// What a rank sends in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Send {
    /// To whom.
    pub peer: usize,
    /// Which elements.
    pub span: Span,
}

/// What a rank receives in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recv {
    /// From whom.
    pub peer: usize,
    /// Where the elements go.
    pub span: Span,
    /// What becomes of them.
    pub action: Action,
}

/// One step of one rank. Both halves go on at the same time, and each may be absent; what is sent is what
/// stood there *before* this step's receive. Empty messages are still messages: the barrier is made of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Step {
    /// The outgoing half.
    pub send: Option<Send>,
    /// The incoming half.
    pub recv: Option<Recv>,
}
