//! A user's own buffer that is another slice each time it is asked: no rank writes what is not the buffer.

#![cfg(target_os = "linux")]

mod support;

use phalanx::backend::Bytes;
use phalanx::{Buffer, ReduceOp};
use std::any::Any;

const LEN: usize = 1 << 20;

/// It has all its elements when the operation begins, and half of them when it is performed.
struct Shrinks {
    elements: Vec<f32>,
    asked: usize,
}

impl Bytes for Shrinks {
    fn bytes(&mut self) -> &mut [u8] {
        self.asked += 1;
        let len = if self.asked == 1 { LEN } else { LEN / 2 };
        bytemuck::cast_slice_mut(&mut self.elements[..len])
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Buffer for Shrinks {
    type Element = f32;
}

#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    let Some(_) = support::role() else { return };
    let group = phalanx::init().expect("all are there");
    let error = if group.rank() == 0 {
        let buffer = Shrinks { elements: vec![1.0; LEN], asked: 0 };
        let work = group.all_reduce_async(buffer, ReduceOp::Sum).expect("it begins");
        work.wait().map(drop).expect_err("the buffer has another length")
    } else {
        let mut buffer = vec![1.0f32; LEN];
        group.all_reduce(&mut buffer, ReduceOp::Sum).expect_err("rank 0 gives nothing")
    };
    support::say("error", error);
}

#[test]
fn a_buffer_that_is_another_slice_later_is_refused_and_its_rank_named() {
    for backend in ["shm", "tcp"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (launch, output) = support::job("rank", 2, folder.path());
        let outcome = launch.env("PHALANX_BACKEND", backend).run().expect("the job starts");
        assert!(outcome.is_success(), "{backend}: {outcome}\n{}", output.text());
        for rank in 0..2 {
            let said = output.said(rank, "error").concat();
            assert!(
                said.contains("has 2097152 bytes now, and had 4194304 when it began"),
                "{backend}: {said}"
            );
            assert!(rank == 0 || said.contains(": rank 0 ("), "{backend}: {said}");
        }
    }
}
