//! One rank's part of a task: every size of it; rank 0 says what came out.

use crate::case::Case;
use crate::data::Value;
use crate::limit::Limit;
use crate::op::Op;
use crate::subject::Subject;
use crate::task::Task;
use crate::timing;
use crate::turns::Turn;
use crate::wire::{self, Wire};
use half::{bf16, f16};
use phalanx::{DType, Error, ProcessGroup, Result};
use std::io::Write;

/// The beginning of rank 0's first line; the backend of its group follows.
pub(crate) const BACKEND: &str = "backend ";

/// Measures a task on `group`. On rank 0, hands each line to `say`.
///
/// # Errors
/// What an operation returns.
pub(crate) fn sweep(group: &ProcessGroup, task: &Task, mut say: impl FnMut(String)) -> Result<()> {
    let mut say = |line| {
        if group.rank() == 0 {
            say(line);
        }
    };
    say(format!("{BACKEND}{}", group.backend_name()));
    if task.subject == Subject::Limit {
        return limits(group, task, &mut say);
    }
    match task.dtype {
        DType::F32 => sweep_of::<f32>(group, task, &mut say),
        DType::F64 => sweep_of::<f64>(group, task, &mut say),
        DType::F16 => sweep_of::<f16>(group, task, &mut say),
        DType::BF16 => sweep_of::<bf16>(group, task, &mut say),
        DType::I8 => sweep_of::<i8>(group, task, &mut say),
        DType::I16 => sweep_of::<i16>(group, task, &mut say),
        DType::I32 => sweep_of::<i32>(group, task, &mut say),
        DType::I64 => sweep_of::<i64>(group, task, &mut say),
        DType::U8 => sweep_of::<u8>(group, task, &mut say),
        DType::U16 => sweep_of::<u16>(group, task, &mut say),
        DType::U32 => sweep_of::<u32>(group, task, &mut say),
        DType::U64 => sweep_of::<u64>(group, task, &mut say),
        other => Err(Error::config(format!("the benchmark has no data of type {other}"))),
    }
}

fn sweep_of<T: Value>(group: &ProcessGroup, task: &Task, say: &mut impl FnMut(String)) -> Result<()> {
    let Task { op, subject, reduce, .. } = *task;
    // What is compared is measured at one time, in place and out of place. Alone a table of each reads better.
    let places = op.places();
    let together = if task.turns.is_some() { places.len() } else { 1 };
    for places in places.chunks(together) {
        each_size(task, |bytes| {
            let Some(count) = op.count(bytes, group.world_size(), size_of::<T>()) else { return Ok(()) };
            for &place in places {
                let mut case = Case::<T>::new(op, place, reduce, count, group, subject)?;
                say(timing::measure(&mut case, bytes, &task.effort)?.to_string());
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Measures each size in each round, when it is the turn.
fn each_size(task: &Task, mut measure: impl FnMut(usize) -> Result<()>) -> Result<()> {
    let mut turn = Turn::of(task)?;
    for &bytes in &task.bytes {
        for _ in 0..task.rounds {
            turn.take(|| measure(bytes))?;
        }
    }
    Ok(())
}

fn limits(group: &ProcessGroup, task: &Task, say: &mut impl FnMut(String)) -> Result<()> {
    let wire = match group.backend_name() {
        "tcp" if Wire::knows(task.op, group.world_size()) => {
            let host = std::env::var("MASTER_ADDR")
                .map_err(|_| Error::config("--limit over TCP needs MASTER_ADDR, the address of rank 0"))?;
            Some(wire::connect(group, &host)?)
        }
        _ => None,
    };
    each_size(task, |bytes| {
        let line = match &wire {
            Some(stream) => {
                let mut limit = Wire::new(task.op, bytes / size_of::<f32>(), group, stream);
                timing::measure(&mut limit, bytes, &task.effort)?
            }
            None if group.backend_name() != "tcp" && task.op == Op::AllReduce => {
                let mut limit = Limit::new(bytes / size_of::<f32>(), group);
                timing::measure(&mut limit, bytes, &task.effort)?
            }
            None => return Ok(()),
        };
        say(line.to_string());
        Ok(())
    })
}

/// The whole life of a process that the benchmark has started as a rank.
///
/// # Errors
/// As [`sweep`]; and if the ranks do not meet.
pub(crate) fn process(task: &Task) -> Result<()> {
    let group = phalanx::init()?;
    let mut out = std::io::stdout().lock();
    // A reader that has gone away ends the job by itself.
    sweep(&group, task, |line| drop(writeln!(out, "{line}").and_then(|()| out.flush())))?;
    group.finalize()
}
