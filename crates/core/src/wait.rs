//! A rank's wait for another, and circles of such waits.

use crate::{OpKind, Peer, Signature};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A call in which a rank waits, and for whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The rank that waits.
    pub peer: Peer,
    /// The call in which it waits.
    pub call: Signature,
    /// The call's place in the sequence of its group; 0 for a message.
    pub seq: u64,
    /// The tag of a message.
    pub tag: Option<u64>,
    /// The rank (of the job) that it waits for.
    pub on: usize,
}

/// `send to rank 1 with tag 3 (train.rs:41)`, `all_reduce #5 for rank 1 (train.rs:41)`.
impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, seq, tag, on, .. } = self;
        match (call.op, tag) {
            (OpKind::Send, Some(tag)) => write!(f, "send to rank {on} with tag {tag}")?,
            (OpKind::Recv, Some(tag)) => write!(f, "recv from rank {on} with tag {tag}")?,
            (OpKind::RecvAny, Some(tag)) => write!(f, "recv_any with tag {tag}, from rank {on} as from any")?,
            (op, _) => write!(f, "{op} #{seq} for rank {on}")?,
        }
        write!(f, " ({})", call.site)
    }
}

/// Waits that follow each other in a circle, in words.
pub(crate) fn circle(f: &mut fmt::Formatter<'_>, waits: &[Wait]) -> fmt::Result {
    for (i, wait) in waits.iter().enumerate() {
        match i {
            0 => write!(f, "rank {} waits in {wait}", wait.peer.rank)?,
            _ => write!(f, ", which waits in {wait}")?,
        }
    }
    let are_all = |op| waits.iter().all(|wait| wait.call.op == op);
    f.write_str(if are_all(OpKind::Send) {
        ": use send_async or recv_async"
    } else if are_all(OpKind::NewGroup) {
        ": their lists of ranks differ, or they ask for the same groups in different orders"
    } else {
        ": none of them can go on"
    })
}

#[cfg(test)]
mod tests {
    use crate::{CallSite, Cause, Peer, Signature, Wait};
    use crate::{DType, OpKind};

    fn wait(rank: usize, op: OpKind, on: usize) -> Wait {
        let site = CallSite { file: "a.rs".into(), line: 7 + rank as u32 };
        let dtype = Some(DType::U8);
        let call = Signature {
            op,
            dtype,
            count: 9,
            reduce: None,
            root: None,
            detail: 0,
            method: crate::Method::UNSAID,
            site,
        };
        let is_message = matches!(op, OpKind::Send | OpKind::Recv | OpKind::RecvAny);
        let (seq, tag) = if is_message { (0, Some(3)) } else { (5, None) };
        Wait { peer: Peer { rank, host: "h".into() }, call, seq, tag, on }
    }

    #[test]
    fn a_circle_reads_well() {
        let waits = vec![wait(0, OpKind::Send, 1), wait(1, OpKind::Send, 0)];
        assert_eq!(
            Cause::Deadlock { waits }.to_string(),
            "rank 0 waits in send to rank 1 with tag 3 (a.rs:7), which waits in send to rank 0 with tag 3 (a.rs:8): \
             use send_async or recv_async"
        );
        let waits = vec![wait(0, OpKind::AllReduce, 1), wait(1, OpKind::Recv, 0)];
        assert_eq!(
            Cause::Deadlock { waits }.to_string(),
            "rank 0 waits in all_reduce #5 for rank 1 (a.rs:7), which waits in recv from rank 0 with tag 3 (a.rs:8): \
             none of them can go on"
        );
        let waits = vec![wait(0, OpKind::RecvAny, 1), wait(1, OpKind::Recv, 0)];
        assert_eq!(
            Cause::Deadlock { waits }.to_string(),
            "rank 0 waits in recv_any with tag 3, from rank 1 as from any (a.rs:7), which waits in recv from rank 0 with tag 3 \
             (a.rs:8): none of them can go on"
        );
        let waits = vec![wait(0, OpKind::NewGroup, 1), wait(1, OpKind::NewGroup, 0)];
        assert_eq!(
            Cause::Deadlock { waits }.to_string(),
            "rank 0 waits in new_group #5 for rank 1 (a.rs:7), which waits in new_group #5 for rank 0 (a.rs:8): \
             their lists of ranks differ, or they ask for the same groups in different orders"
        );
    }
}
