//! Pictures of schedules.

use crate::unbuffered::{self, Event};
use crate::{Action, Algorithm, Buffers, Job, Span};
use phalanx_core::Layout;
use std::fmt::Write;

/// Draws the schedule of `algorithm` for `world_size` ranks with one element each, the root being rank 0. Where it gathers the
/// [contributions](Buffers::Contributions) of all, an element is that of the rank whose number it has.
///
/// A column is a rank, a row a round: what happens at the same time if all transfers take equally long. `2→1` sends element 2
/// to rank 1; `+2←0` combines element 2 with what comes from rank 0, `Σ2←0` does so for the last time, `2←0` copies it. `0-3`
/// are several elements, `3,0` a span that wraps around, `·` is an empty message.
///
/// # Panics
/// If the algorithm does not support the world size.
///
/// # Examples
/// ```
/// use phalanx_algo::{Algorithm, draw};
/// let picture = draw(Algorithm::ReduceScatterRing, 3);
/// assert_eq!(picture.lines().nth(1), Some("    1  2→1 +1←2  0→2 +2←0  1→0 +0←1"));
/// ```
pub fn draw(algorithm: Algorithm, world_size: usize) -> String {
    let len = if algorithm.buffers() == Buffers::Contributions { 1 } else { world_size };
    let schedules = Job::new(algorithm.op(), Layout::even(world_size, len), 0).schedules(algorithm);
    let events = unbuffered::run(&schedules).unwrap_or_else(|why| panic!("{algorithm}: {why}"));
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for event in events {
        let Event::Transfer { from, to, round } = event else { continue };
        while rows.len() < round {
            rows.push(vec![Cell::default(); world_size]);
        }
        let row = &mut rows[round - 1];
        if let Some(send) = &schedules[from.rank][from.step].send {
            row[from.rank].send = format!("{}→{}", elements(&send.span), send.peer);
        }
        if let Some(recv) = &schedules[to.rank][to.step].recv {
            row[to.rank].recv = format!("{}{}←{}", sign(recv.action), elements(&recv.span), recv.peer);
        }
    }
    table(&rows, world_size)
}

/// What one rank does in one round.
#[derive(Clone, Default)]
struct Cell {
    send: String,
    recv: String,
}

fn sign(action: Action) -> &'static str {
    match action {
        Action::Copy => "",
        Action::Combine => "+",
        Action::Finish => "Σ",
    }
}

fn elements(span: &Span) -> String {
    let part = |r: std::ops::Range<usize>| {
        if r.len() == 1 { r.start.to_string() } else { format!("{}-{}", r.start, r.end - 1) }
    };
    let parts: Vec<_> = span.parts().map(part).collect();
    if parts.is_empty() { "·".to_owned() } else { parts.join(",") }
}

/// Aligns sends and receives of each rank, leaving out halves that a rank never uses.
fn table(rows: &[Vec<Cell>], world_size: usize) -> String {
    let width = |half: fn(&Cell) -> &String, rank: usize| {
        rows.iter().map(|row| half(&row[rank]).chars().count()).max().unwrap_or(0)
    };
    let mut text = String::from("round");
    let mut lines = vec![String::new(); rows.len()];
    for rank in 0..world_size {
        let (send, recv) = (width(|c| &c.send, rank), width(|c| &c.recv, rank));
        let gap = usize::from(send > 0 && recv > 0);
        let title = format!("rank {rank}");
        let column = (send + gap + recv).max(title.len());
        let _ = write!(text, "  {title:<column$}");
        for (line, row) in lines.iter_mut().zip(rows) {
            let cell = format!("{:<send$}{:gap$}{:<recv$}", row[rank].send, "", row[rank].recv);
            let _ = write!(line, "  {cell:<column$}");
        }
    }
    let rows = lines.iter().enumerate().map(|(i, line)| format!("{:>5}{line}", i + 1));
    std::iter::once(text).chain(rows).map(|line| format!("{}\n", line.trim_end())).collect()
}
