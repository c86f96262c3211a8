//! What is asked for, apart from the tensors.

use phalanx::backend::Request;
use phalanx::error::OpKind;

/// A collective: `()` stands for the input, and for the output.
pub(crate) type Shape = Request<(), ()>;

/// One end of a message between two ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Message {
    SendTo(usize),
    RecvFrom(usize),
}

impl Message {
    pub(crate) fn op(self) -> OpKind {
        match self {
            Self::SendTo(_) => OpKind::Send,
            Self::RecvFrom(_) => OpKind::Recv,
        }
    }
}
