//! What the ranks of a run call, and what must come of it.

use super::random::{Random, mix};
use crate::host::stage::Pattern;
use phalanx_algo::{Algorithm, Selector, Way};
use phalanx_core::{CallSite, DType, Layout, Method, OpKind, ReduceOp, Signature};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Two messages from the root to the rank after it, which takes them in the other order.
const MESSAGES: OpKind = OpKind::Send;

const COLLECTIVES: [OpKind; 9] = [
    OpKind::AllReduce,
    OpKind::ReduceScatter,
    OpKind::AllGather,
    OpKind::Broadcast,
    OpKind::Reduce,
    OpKind::Gather,
    OpKind::Scatter,
    OpKind::AllToAll,
    OpKind::Barrier,
];

/// One collective, as all ranks should call it.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) op: OpKind,
    pub(super) count: usize,
    pub(super) reduce: ReduceOp,
    pub(super) root: usize,
    /// What each rank computes before it calls.
    pub(super) pauses: Vec<Duration>,
    /// All ranks' contributions, combined; made when first needed.
    combined: OnceLock<Vec<i64>>,
}

/// A random program, the same on all ranks.
#[derive(Debug)]
pub(super) struct Program {
    seed: u64,
    pub(super) world_size: usize,
    pub(super) lines: Vec<Line>,
    /// How long a call may take …
    pub(super) limit: Duration,
    /// … and the coming together.
    pub(super) init_limit: Duration,
    /// For how long a rank or the arbiter may say nothing.
    pub(super) heartbeat: Option<Duration>,
    pub(super) selector: Arc<Selector>,
    /// How long a rank that got an error stays.
    pub(super) linger: Duration,
}

impl Program {
    pub(super) fn draw(seed: u64, random: &mut Random) -> Self {
        let world_size = 2 + random.below(7);
        let mut selector = Selector::default();
        for op in COLLECTIVES {
            let algorithms: Vec<_> = Algorithm::of(op).filter(|a| a.supports(world_size)).collect();
            selector.forced.insert(op, Way::Messages(*random.pick(&algorithms)));
        }
        let mut lines: Vec<_> = (0..1 + random.below(10)).map(|_| Line::draw(random, world_size)).collect();
        // A rank that leaves one out is at another call than the others, whichever it is.
        for at in 1..lines.len() {
            let before = lines[..at].iter().rfind(|line| line.op != MESSAGES);
            if before.is_some_and(|before| (before.op, before.count) == (lines[at].op, lines[at].count)) {
                lines[at].count += world_size;
            }
        }
        // The last is where all wait for each other before they leave.
        lines.push(Line { op: OpKind::Barrier, ..Line::draw(random, world_size) });
        Self {
            seed,
            world_size,
            lines,
            limit: *random.pick(&[Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(10)]),
            init_limit: *random.pick(&[Duration::from_secs(4), Duration::from_secs(12)]),
            heartbeat: *random.pick(&[None, Some(Duration::from_secs(3)), Some(Duration::from_secs(8))]),
            selector: Arc::new(selector),
            linger: *random.pick(&[Duration::ZERO, Duration::ZERO, Duration::from_millis(300)]),
        }
    }

    /// About how long it takes when nothing goes wrong.
    pub(super) fn length(&self) -> Duration {
        let longest = |line: &Line| line.pauses.iter().max().copied().unwrap_or_default();
        self.lines.iter().map(|l| longest(l) + Duration::from_millis(10)).sum()
    }

    /// How long a call may be kept up by anything besides what other ranks compute.
    pub(super) fn leeway(&self) -> Duration {
        self.limit.saturating_sub(self.length())
    }

    /// What `rank` contributes to call `at` at place `i` of its input.
    fn value(&self, at: usize, rank: usize, i: usize) -> i64 {
        (mix(self.seed ^ (rank as u64) << 48 ^ (at as u64) << 32 ^ i as u64) % 2001) as i64 - 1000
    }

    fn block(&self, at: usize, rank: usize) -> std::ops::Range<usize> {
        Layout::even(self.world_size, self.lines[at].count).block(rank)
    }

    /// How many calls this rank makes for line `at`.
    pub(super) fn parts(&self, at: usize, rank: usize) -> usize {
        let (from, to) = self.ends(at);
        match self.lines[at].op {
            MESSAGES if rank == from || rank == to => 2,
            MESSAGES => 0,
            _ => 1,
        }
    }

    /// From whom to whom the messages of line `at` go.
    pub(super) fn ends(&self, at: usize) -> (usize, usize) {
        let from = self.lines[at].root;
        (from, (from + 1) % self.world_size)
    }

    /// Whether `rank` sends in that call, and which tag.
    pub(super) fn end_of(&self, at: usize, part: usize, rank: usize) -> (bool, u64) {
        let sends = rank == self.lines[at].root;
        (sends, if sends { part as u64 } else { 1 - part as u64 })
    }

    /// A message of `len` values.
    pub(super) fn sent(&self, at: usize, tag: u64, len: usize) -> Vec<i64> {
        let from = self.lines[at].root;
        (0..len).map(|i| self.value(at, from, i + (tag as usize + 1) * 0x1_0000)).collect()
    }

    /// The place of line `at` among the collectives, from 1.
    pub(super) fn seq(&self, at: usize) -> u64 {
        self.lines[..=at].iter().filter(|line| line.op != MESSAGES).count() as u64
    }

    /// The whole buffer of `rank` before call `at`, when it is called as written.
    pub(super) fn input(&self, at: usize, rank: usize) -> Vec<i64> {
        let line = &self.lines[at];
        let all = || (0..line.count).map(|i| self.value(at, rank, i)).collect();
        match line.op {
            OpKind::Barrier => Vec::new(),
            // Of the whole, only the own block is there.
            OpKind::AllGather | OpKind::Gather => {
                let own = self.block(at, rank);
                (0..line.count)
                    .map(|i| if own.contains(&i) { self.value(at, rank, i) } else { i64::MIN })
                    .collect()
            }
            OpKind::Broadcast | OpKind::Scatter if rank != line.root => vec![i64::MIN; line.count],
            _ => all(),
        }
    }

    /// What must stand in the buffer of `rank` after a call of line `at`, and where.
    pub(super) fn expected(&self, at: usize, part: usize, rank: usize) -> (std::ops::Range<usize>, Vec<i64>) {
        let line = &self.lines[at];
        let all = 0..line.count;
        match line.op {
            MESSAGES => {
                let (_, tag) = self.end_of(at, part, rank);
                let len = line.count + tag as usize;
                (0..len, self.sent(at, tag, len))
            }
            OpKind::AllReduce => (all, self.combined(at).to_vec()),
            OpKind::Reduce if rank == line.root => (all, self.combined(at).to_vec()),
            OpKind::ReduceScatter => {
                let own = self.block(at, rank);
                (own.clone(), self.combined(at)[own].to_vec())
            }
            OpKind::Broadcast => (all.clone(), all.map(|i| self.value(at, line.root, i)).collect()),
            OpKind::Scatter if rank != line.root => {
                let own = self.block(at, rank);
                (own.clone(), own.map(|i| self.value(at, line.root, i)).collect())
            }
            OpKind::Gather if rank != line.root => (0..0, Vec::new()),
            OpKind::AllGather | OpKind::Gather => {
                let of = |r: usize| self.block(at, r).map(move |i| self.value(at, r, i));
                (all, (0..self.world_size).flat_map(of).collect())
            }
            OpKind::AllToAll => {
                let from = |r: usize| self.block(at, rank).map(move |i| self.value(at, r, i));
                (all, (0..self.world_size).flat_map(from).collect())
            }
            _ => (0..0, Vec::new()),
        }
    }

    fn combined(&self, at: usize) -> &[i64] {
        let line = &self.lines[at];
        line.combined.get_or_init(|| {
            let combine = |a: i64, b: i64| match line.reduce {
                ReduceOp::Min => a.min(b),
                ReduceOp::Max => a.max(b),
                ReduceOp::BitXor => a ^ b,
                _ => a + b,
            };
            let at_place = |i| (0..self.world_size).map(|r| self.value(at, r, i)).reduce(combine);
            (0..line.count).map(|i| at_place(i).expect("a world has ranks")).collect()
        })
    }

    /// Call `at` as `rank` makes it; `line` is what it takes for that.
    pub(super) fn call(&self, at: usize, rank: usize, line: &Line) -> (Signature, Pattern) {
        let is_barrier = line.op == OpKind::Barrier;
        let reduces = matches!(line.op, OpKind::AllReduce | OpKind::ReduceScatter | OpKind::Reduce);
        let count = if is_barrier { 0 } else { line.count };
        let signature = Signature {
            op: line.op,
            dtype: (!is_barrier).then_some(DType::I64),
            count: count as u64,
            reduce: reduces.then_some(line.reduce),
            root: line.is_rooted().then_some(line.root as u32),
            detail: 0,
            method: Method::UNSAID,
            site: CallSite { file: format!("rank{rank}.rs").into(), line: at as u32 + 1 },
        };
        let pattern = Pattern::of_call(&signature, Layout::even(self.world_size, count));
        (signature, pattern)
    }
}

impl Line {
    fn draw(random: &mut Random, world_size: usize) -> Self {
        let op = if random.chance(1, 6) { MESSAGES } else { *random.pick(&COLLECTIVES) };
        let most: usize = *random.pick(&[1, 10, 10, 100, 1000]);
        let count = match op {
            OpKind::AllToAll => world_size * (1 + random.below(most.div_ceil(world_size))),
            _ => 1 + random.below(most),
        };
        let most_pause = *random.pick(&[1, 20, 20, 100, 700]);
        Self {
            op,
            count,
            reduce: *random.pick(&[
                ReduceOp::Sum,
                ReduceOp::Sum,
                ReduceOp::Min,
                ReduceOp::Max,
                ReduceOp::BitXor,
            ]),
            root: random.below(world_size),
            pauses: (0..world_size).map(|_| random.millis(0..most_pause)).collect(),
            combined: OnceLock::new(),
        }
    }

    pub(super) fn is_rooted(&self) -> bool {
        matches!(self.op, OpKind::Broadcast | OpKind::Reduce | OpKind::Gather | OpKind::Scatter)
    }

    /// The same call made otherwise.
    pub(super) fn other_op(&self) -> Self {
        let op = if self.op == OpKind::AllReduce { OpKind::Barrier } else { OpKind::AllReduce };
        Self { op, ..self.clone() }
    }

    pub(super) fn other_count(&self, world_size: usize) -> Self {
        match self.op {
            // A barrier has none.
            OpKind::Barrier => self.other_op(),
            _ => Self { count: self.count + world_size, ..self.clone() },
        }
    }
}
