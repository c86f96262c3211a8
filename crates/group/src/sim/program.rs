//! What the ranks of a run call, and what must come of it.

use super::division::{Division, Group};
use super::random::{Random, mix};
use crate::host::workspace::Pattern;
use phalanx_algo::{Algorithm, Selector, Way};
use phalanx_core::{CallSite, DType, Layout, Method, OpKind, ReduceOp, Signature};
use phalanx_rendezvous::Elastic;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Two messages from the root to the rank after it, which takes them in the other order.
const MESSAGES: OpKind = OpKind::Send;

/// A message from each rank to the root, which takes them as they come.
const FROM_ANY: OpKind = OpKind::RecvAny;

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

/// How often a program makes groups, at most.
const DIVISIONS_MAX: usize = 3;

/// One collective, as all ranks should call it, each in its group of a division.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) op: OpKind,
    /// Which of the program's divisions, and which one it makes: a split another one, `new_group` its own.
    pub(super) division: usize,
    pub(super) makes: Option<usize>,
    pub(super) count: usize,
    pub(super) reduce: ReduceOp,
    pub(super) root: usize,
    /// What each rank computes before it calls.
    pub(super) pauses: Vec<Duration>,
    /// All ranks' contributions, combined in each group; made when first needed.
    combined: OnceLock<Vec<Vec<i64>>>,
}

/// A random program, the same on all ranks.
#[derive(Debug)]
pub(super) struct Program {
    seed: u64,
    pub(super) world_size: usize,
    /// The first is that of all ranks.
    pub(super) divisions: Vec<Division>,
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
    /// How such a rank goes on after that; `None`: it ends.
    pub(super) goes_on: Option<GoesOn>,
}

/// The programs of all generations of a job.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) first: Arc<Program>,
    /// By generation and number of ranks.
    later: Mutex<BTreeMap<(u64, usize), Arc<Program>>>,
}

impl Script {
    pub(super) fn new(first: Program) -> Self {
        Self { first: Arc::new(first), later: Mutex::default() }
    }

    /// Whether so many ranks call the first program in this generation.
    pub(super) fn is_first(&self, generation: u64, world_size: usize) -> bool {
        (generation, world_size) == (0, self.first.world_size)
    }

    /// What so many ranks call in this generation.
    pub(super) fn of(&self, generation: u64, world_size: usize) -> Arc<Program> {
        if self.is_first(generation, world_size) {
            return self.first.clone();
        }
        let mut later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || Arc::new(self.first.of_generation(generation, world_size));
        later.entry((generation, world_size)).or_insert_with(make).clone()
    }
}

/// How the ranks of a job go on after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GoesOn {
    Shrinks,
    /// With replacements.
    Rejoins(Elastic),
}

impl Program {
    pub(super) fn draw(seed: u64, random: &mut Random) -> Self {
        let world_size = 2 + random.below(7);
        let lines = 1 + random.below(10);
        let mut program = Self::of_size(seed, world_size, lines, random);
        if random.chance(1, 3) {
            let size = Elastic::new(1 + random.below(world_size), world_size).expect("it is a size");
            program.goes_on = Some(*random.pick(&[GoesOn::Shrinks, GoesOn::Rejoins(size)]));
        }
        program
    }

    /// What the ranks of a later generation call.
    pub(super) fn of_generation(&self, generation: u64, world_size: usize) -> Self {
        let seed = mix(self.seed ^ generation << 56);
        let mut random = Random::new(seed);
        let lines = random.below(4);
        let Self { limit, init_limit, heartbeat, goes_on, linger, .. } = *self;
        Self {
            limit,
            init_limit,
            heartbeat,
            goes_on,
            linger,
            ..Self::of_size(seed, world_size, lines, &mut random)
        }
    }

    /// So many lines and a barrier.
    fn of_size(seed: u64, world_size: usize, count: usize, random: &mut Random) -> Self {
        let mut selector = Selector::default();
        for op in COLLECTIVES {
            let algorithms: Vec<_> = Algorithm::of(op).filter(|a| a.supports(world_size)).collect();
            selector.forced.insert(op, Way::Messages(*random.pick(&algorithms)));
        }
        let mut divisions = vec![Division::world(world_size)];
        let mut lines = Vec::new();
        for _ in 0..count {
            let line = Line::draw(random, &lines, &mut divisions, world_size);
            lines.push(line);
        }
        // A rank that leaves one out is at another call than the others, whichever it is.
        for at in 1..lines.len() {
            let (before, later) = lines.split_at_mut(at);
            let line = &mut later[0];
            let before = before.iter().rfind(|l| !l.is_messages() && l.division == line.division);
            if before.is_some_and(|before| (before.op, before.count) == (line.op, line.count)) {
                line.count += world_size;
            }
        }
        // The last is where all wait for each other before they leave.
        let last = Line::draw(random, &lines, &mut Vec::from([Division::world(world_size)]), world_size);
        lines.push(Line { op: OpKind::Barrier, division: 0, makes: None, ..last });
        Self {
            seed,
            world_size,
            divisions,
            lines,
            limit: *random.pick(&[Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(10)]),
            init_limit: *random.pick(&[Duration::from_secs(4), Duration::from_secs(12)]),
            heartbeat: *random.pick(&[None, Some(Duration::from_secs(3)), Some(Duration::from_secs(8))]),
            selector: Arc::new(selector),
            linger: *random.pick(&[Duration::ZERO, Duration::ZERO, Duration::from_millis(300)]),
            goes_on: None,
        }
    }

    /// The size of an elastic job.
    pub(super) fn elastic(&self) -> Option<Elastic> {
        if let Some(GoesOn::Rejoins(size)) = self.goes_on { Some(size) } else { None }
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

    /// The group in which `rank` makes the calls of line `at`, if it is in one.
    pub(super) fn group(&self, at: usize, rank: usize) -> Option<&Group> {
        self.divisions[self.lines[at].division].group_of(rank)
    }

    fn own_group(&self, at: usize, rank: usize) -> &Group {
        self.group(at, rank).expect("whoever calls in a group is in it")
    }

    fn block(&self, at: usize, group: &Group, rank: usize) -> std::ops::Range<usize> {
        let size = group.members.len();
        Layout::even(size, self.lines[at].count_in(size)).block(group.rank_of(rank))
    }

    /// How many calls this rank makes for line `at`.
    pub(super) fn parts(&self, at: usize, rank: usize) -> usize {
        let Some(group) = self.group(at, rank) else { return 0 };
        match self.lines[at].op {
            MESSAGES if group.members.len() == 1 => 0,
            FROM_ANY if rank == self.lines[at].root_in(group) => group.members.len() - 1,
            MESSAGES => {
                let (from, to) = self.ends(at, rank);
                if rank == from || rank == to { 2 } else { 0 }
            }
            _ => 1,
        }
    }

    /// From whom to whom the messages of line `at` go in the group of `rank`, as ranks of the job.
    pub(super) fn ends(&self, at: usize, rank: usize) -> (usize, usize) {
        let members = &self.own_group(at, rank).members;
        let from = self.lines[at].root % members.len();
        (members[from], members[(from + 1) % members.len()])
    }

    /// Whether `rank` sends in that call, and which tag.
    pub(super) fn end_of(&self, at: usize, part: usize, rank: usize) -> (bool, u64) {
        let sends = rank == self.ends(at, rank).0;
        (sends, if sends { part as u64 } else { 1 - part as u64 })
    }

    /// A message of `len` values in the group of `rank`.
    pub(super) fn sent(&self, at: usize, rank: usize, tag: u64, len: usize) -> Vec<i64> {
        let (from, _) = self.ends(at, rank);
        (0..len).map(|i| self.value(at, from, i + (tag as usize + 1) * 0x1_0000)).collect()
    }

    /// What `rank` sends at line `at`, of which the root does not know when it comes.
    pub(super) fn sent_to_any(&self, at: usize, rank: usize) -> (std::ops::Range<usize>, Vec<i64>) {
        let all = 0..self.lines[at].count;
        (all.clone(), all.map(|i| self.value(at, rank, i)).collect())
    }

    /// The place of line `at` among the collectives of its division, from 1.
    pub(super) fn seq(&self, at: usize) -> u64 {
        let division = self.lines[at].division;
        let before = self.lines[..=at].iter();
        before.filter(|line| !line.is_messages() && line.division == division).count() as u64
    }

    /// Color and key of `rank` in split `at`.
    fn said(&self, at: usize, rank: usize) -> [i64; 2] {
        let made = self.lines[at].makes.expect("it is a split");
        let (color, key) = self.divisions[made].said[rank];
        [color.map_or(-1, i64::from), key]
    }

    /// The whole buffer of `rank` before call `at`, when it is called as written.
    pub(super) fn input(&self, at: usize, rank: usize) -> Vec<i64> {
        let (line, group) = (&self.lines[at], self.own_group(at, rank));
        let count = line.count_in(group.members.len());
        let all = || (0..count).map(|i| self.value(at, rank, i)).collect();
        match line.op {
            OpKind::Barrier | OpKind::NewGroup => Vec::new(),
            // Of the whole, only the own block is there.
            OpKind::AllGather | OpKind::Gather => {
                let own = self.block(at, group, rank);
                (0..count)
                    .map(|i| if own.contains(&i) { self.value(at, rank, i) } else { i64::MIN })
                    .collect()
            }
            OpKind::Split => {
                let mut whole = vec![i64::MIN; count];
                whole[self.block(at, group, rank)].copy_from_slice(&self.said(at, rank));
                whole
            }
            OpKind::Broadcast | OpKind::Scatter if rank != line.root_in(group) => vec![i64::MIN; count],
            _ => all(),
        }
    }

    /// What must stand in the buffer of `rank` after a call of line `at`, and where.
    pub(super) fn expected(&self, at: usize, part: usize, rank: usize) -> (std::ops::Range<usize>, Vec<i64>) {
        let (line, group) = (&self.lines[at], self.own_group(at, rank));
        let all = 0..line.count_in(group.members.len());
        let (root, members) = (line.root_in(group), || group.members.iter().copied());
        match line.op {
            FROM_ANY => self.sent_to_any(at, rank),
            MESSAGES => {
                let (_, tag) = self.end_of(at, part, rank);
                let len = line.count + tag as usize;
                (0..len, self.sent(at, rank, tag, len))
            }
            OpKind::AllReduce => (all, self.combined(at, rank).to_vec()),
            OpKind::Reduce if rank == root => (all, self.combined(at, rank).to_vec()),
            OpKind::ReduceScatter => {
                let own = self.block(at, group, rank);
                (own.clone(), self.combined(at, rank)[own].to_vec())
            }
            OpKind::Broadcast => (all.clone(), all.map(|i| self.value(at, root, i)).collect()),
            OpKind::Scatter if rank != root => {
                let own = self.block(at, group, rank);
                (own.clone(), own.map(|i| self.value(at, root, i)).collect())
            }
            OpKind::Gather if rank != root => (0..0, Vec::new()),
            OpKind::AllGather | OpKind::Gather => {
                let of = |r: usize| self.block(at, group, r).map(move |i| self.value(at, r, i));
                (all, members().flat_map(of).collect())
            }
            OpKind::Split => (all, members().flat_map(|r| self.said(at, r)).collect()),
            OpKind::AllToAll => {
                let from = |r: usize| self.block(at, group, rank).map(move |i| self.value(at, r, i));
                (all, members().flat_map(from).collect())
            }
            _ => (0..0, Vec::new()),
        }
    }

    /// The combined contributions of the group of `rank`.
    fn combined(&self, at: usize, rank: usize) -> &[i64] {
        let line = &self.lines[at];
        let division = &self.divisions[line.division];
        let combine = |a: i64, b: i64| match line.reduce {
            ReduceOp::Min => a.min(b),
            ReduceOp::Max => a.max(b),
            ReduceOp::BitXor => a ^ b,
            _ => a + b,
        };
        let combined = |group: &Group| {
            let at_place = |i| group.members.iter().map(|&r| self.value(at, r, i)).reduce(combine);
            let count = line.count_in(group.members.len());
            (0..count).map(|i| at_place(i).expect("a group has ranks")).collect()
        };
        let all = line.combined.get_or_init(|| division.groups.iter().map(combined).collect());
        &all[division.place_of(rank).expect("whoever calls in a group is in it")]
    }

    /// Call `at` as `rank` makes it; `line` is what it takes for that.
    pub(super) fn call(&self, at: usize, rank: usize, line: &Line) -> (Signature, Pattern) {
        let group = self.own_group(at, rank);
        let is_barrier = matches!(line.op, OpKind::Barrier | OpKind::NewGroup);
        let reduces = matches!(line.op, OpKind::AllReduce | OpKind::ReduceScatter | OpKind::Reduce);
        let count = if is_barrier { 0 } else { line.count_in(group.members.len()) };
        let root = line.root % group.members.len();
        let signature = Signature {
            op: line.op,
            dtype: (!is_barrier).then_some(DType::I64),
            count: count as u64,
            reduce: reduces.then_some(line.reduce),
            root: line.is_rooted().then_some(root as u32),
            detail: 0,
            method: Method::UNSAID,
            site: CallSite { file: format!("rank{rank}.rs").into(), line: at as u32 + 1 },
        };
        let mut pattern = Pattern::of_call(&signature, Layout::even(group.members.len(), count));
        match line.op {
            OpKind::Split => pattern.kind = OpKind::AllGather,
            OpKind::NewGroup => pattern.kind = OpKind::Barrier,
            _ => {}
        }
        (signature, pattern)
    }
}

impl Line {
    /// The line after `before`.
    fn draw(random: &mut Random, before: &[Self], divisions: &mut Vec<Division>, world_size: usize) -> Self {
        let division = random.below(divisions.len());
        // All splits of a group look alike to it, so there is something else between two of them.
        let last = before.iter().rfind(|line| !line.is_messages() && line.division == division);
        let may_divide = divisions.len() <= DIVISIONS_MAX;
        if may_divide && random.chance(1, 10) {
            return Self::new_group(random, divisions, world_size);
        }
        let may_split = may_divide && last.is_none_or(|last| last.op != OpKind::Split);
        if may_split && random.chance(1, 4) {
            return Self::split(random, divisions, division, world_size);
        }
        let op = match random.below(12) {
            0 | 1 => MESSAGES,
            2 => FROM_ANY,
            _ => *random.pick(&COLLECTIVES),
        };
        let most: usize = *random.pick(&[1, 10, 10, 100, 1000]);
        let count = match op {
            OpKind::AllToAll => world_size * (1 + random.below(most.div_ceil(world_size))),
            _ => 1 + random.below(most),
        };
        let most_pause = *random.pick(&[1, 20, 20, 100, 700]);
        Self {
            op,
            division,
            makes: None,
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

    /// Divides the groups of `division`.
    fn split(random: &mut Random, divisions: &mut Vec<Division>, division: usize, world_size: usize) -> Self {
        let splits = divisions.iter().filter(|made| made.parent == division && !made.said.is_empty());
        let number = 1 + splits.count() as u64;
        let made = Division::draw(random, (division, &divisions[division]), number, world_size);
        divisions.push(made);
        let makes = Some(divisions.len() - 1);
        Self { makes, ..Self::making(random, OpKind::Split, division, world_size) }
    }

    /// Some of all ranks make a group.
    fn new_group(random: &mut Random, divisions: &mut Vec<Division>, world_size: usize) -> Self {
        let mut members: Vec<_> = (0..world_size).filter(|_| random.chance(2, 3)).collect();
        if members.is_empty() {
            members.push(random.below(world_size));
        }
        let is_one = |made: &&Division| made.said.is_empty() && made.number > 0;
        let same = divisions.iter().filter(is_one).filter(|made| made.groups[0].members == members);
        let made = Division::of_some(members.clone(), 1 + same.count() as u64);
        divisions.push(made);
        let division = divisions.len() - 1;
        Self { makes: Some(division), ..Self::making(random, OpKind::NewGroup, division, world_size) }
    }

    /// A line that makes groups.
    fn making(random: &mut Random, op: OpKind, division: usize, world_size: usize) -> Self {
        Self {
            op,
            division,
            makes: None,
            count: 0,
            reduce: ReduceOp::Sum,
            root: 0,
            pauses: (0..world_size).map(|_| random.millis(0..20)).collect(),
            combined: OnceLock::new(),
        }
    }

    /// Elements in the buffer of a rank, in a group of so many.
    pub(super) fn count_in(&self, size: usize) -> usize {
        match self.op {
            OpKind::AllToAll => self.count.next_multiple_of(size),
            OpKind::Split => 2 * size,
            _ => self.count,
        }
    }

    /// The root in this group, as a rank of the job.
    pub(super) fn root_in(&self, group: &Group) -> usize {
        group.members[self.root % group.members.len()]
    }

    /// Whether it has no place among the collectives.
    pub(super) fn is_messages(&self) -> bool {
        matches!(self.op, MESSAGES | FROM_ANY)
    }

    pub(super) fn is_rooted(&self) -> bool {
        matches!(self.op, OpKind::Broadcast | OpKind::Reduce | OpKind::Gather | OpKind::Scatter)
    }

    /// The same call made otherwise.
    pub(super) fn other_op(&self) -> Self {
        let op = if self.op == OpKind::AllReduce { OpKind::Barrier } else { OpKind::AllReduce };
        Self { op, count: self.count.max(1), ..self.clone() }
    }

    pub(super) fn other_count(&self, world_size: usize) -> Self {
        match self.op {
            // They have none of their own.
            OpKind::Barrier | OpKind::Split | OpKind::NewGroup => self.other_op(),
            _ => Self { count: self.count + world_size, ..self.clone() },
        }
    }
}
