//! A task: one operation at several sizes, measured by one run of one library.

use crate::effort::Effort;
use crate::op::Op;
use crate::subject::Subject;
use phalanx::{DType, Error, ReduceOp, Result};
use serde::{Deserialize, Serialize};

/// Tells a process that the benchmark has started it as a rank, and what to measure.
pub(crate) const TASK_VAR: &str = "PHALANX_BENCH_TASK";

/// One operation at several sizes, and how long to measure it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) op: Op,
    /// Which of our own performs it; peers do as they always do.
    pub(crate) subject: Subject,
    /// Sizes of the whole buffer.
    pub(crate) bytes: Vec<usize>,
    pub(crate) dtype: DType,
    pub(crate) reduce: ReduceOp,
    pub(crate) effort: Effort,
    /// How often each size is measured.
    pub(crate) rounds: usize,
    /// The port at which [turns](crate::turns) are given; `None` where the ranks measure alone.
    pub(crate) turns: Option<u16>,
}

impl Task {
    /// This task for one of our own.
    pub(crate) fn of(&self, subject: Subject) -> Self {
        Self { subject, ..self.clone() }
    }

    /// The task of this process, if the benchmark has started it as a rank.
    ///
    /// # Errors
    /// `Config`: the variable is set, but not by this version of the benchmark.
    pub(crate) fn from_env() -> Result<Option<Self>> {
        let Some(text) = std::env::var_os(TASK_VAR) else { return Ok(None) };
        let task = serde_json::from_str(&text.to_string_lossy());
        task.map(Some).map_err(|error| Error::config(format!("{TASK_VAR}: {error}")))
    }

    /// As the value of [`TASK_VAR`].
    pub(crate) fn to_env(&self) -> String {
        serde_json::to_string(self).expect("a task is plain data")
    }

    /// As the arguments of the peers' programs: `op budget_s samples warmup touch rounds port bytes…`, with -1 for what the
    /// method decides. Peers always take turns.
    pub(crate) fn to_args(&self) -> Vec<String> {
        let Effort { budget, samples, warmup, touch } = self.effort;
        let number = |choice: Option<usize>| choice.map_or_else(|| "-1".to_owned(), |n| n.to_string());
        let (budget, touch) = (budget.as_secs_f64().to_string(), usize::from(touch).to_string());
        let (rounds, port) = (self.rounds.to_string(), self.turns.unwrap_or(0).to_string());
        let args = [self.op.name().to_owned(), budget, number(samples), number(warmup), touch, rounds, port];
        args.into_iter().chain(self.bytes.iter().map(ToString::to_string)).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::time::Duration;

    /// Two samples of an all_reduce of four bytes.
    pub(crate) fn task() -> Task {
        let budget = Duration::from_millis(1);
        Task {
            op: Op::AllReduce,
            subject: Subject::Plain,
            bytes: vec![4],
            dtype: DType::F32,
            reduce: ReduceOp::Sum,
            effort: Effort { budget, samples: Some(2), warmup: Some(0), touch: true },
            rounds: 1,
            turns: None,
        }
    }

    #[test]
    fn a_task_reads_as_it_was_written() {
        let effort =
            Effort { budget: Duration::from_millis(50), samples: None, warmup: Some(3), touch: true };
        let (op, bytes) = (Op::AllToAll, vec![4, 1 << 20]);
        let task = Task { op, bytes, dtype: DType::BF16, effort, rounds: 5, turns: Some(4000), ..task() };
        assert_eq!(serde_json::from_str::<Task>(&task.to_env()).unwrap(), task);
        assert_eq!(task.to_args().join(" "), "all_to_all 0.05 -1 3 1 5 4000 4 1048576");
    }
}
