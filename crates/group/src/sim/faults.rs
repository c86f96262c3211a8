//! What goes wrong in a run: all knobs in one place, drawn from the seed.

use super::random::Random;
use std::time::Duration;

/// Moments are counted from the beginning of the run.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    /// What every segment takes on its way between two processes, at least …
    pub(super) delay: Duration,
    /// … and by how much that varies from segment to segment, so that pairs overtake each other.
    pub(super) jitter: Duration,
    /// Bytes a connection holds in each direction.
    pub(super) capacity: usize,
    pub(super) cuts: Vec<Cut>,
    /// Moments at which all connections between two ranks break.
    pub(super) resets: Vec<(Duration, [usize; 2])>,
    pub(super) stops: Vec<Stop>,
    pub(super) deaths: Vec<(Duration, usize)>,
    /// How long a rank takes for each look at anything.
    pub(super) slow: Vec<(usize, Duration)>,
    /// When ranks start that come late; `MAX`: never.
    pub(super) late: Vec<(usize, Duration)>,
    /// Callers without the secret.
    pub(super) strangers: Vec<Stranger>,
    /// Somebody else answers the calls from the first rank to the second.
    pub(super) impostor: Option<[usize; 2]>,
    /// Calls from the first rank to the second arrive at the third.
    pub(super) detour: Option<[usize; 3]>,
    pub(super) lie: Option<Lie>,
    pub(super) astray: Option<Astray>,
    /// What happens to processes that go on after a loss, at one of their requests to the store.
    pub(super) harms: Vec<Harm>,
    pub(super) slow_requests: Vec<SlowRequests>,
    /// How long processes compute before they go on.
    pub(super) dawdles: Vec<(usize, Duration)>,
    /// The process that shrinks at first where the others rejoin.
    pub(super) contrary: Option<usize>,
    /// When the store is gone.
    pub(super) store_ends: Option<Duration>,
    /// How long the replacements that the launcher has take to start, each; `MAX`: for ever.
    pub(super) spares: Vec<Duration>,
}

/// A process is hurt so long after one of its requests to the store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Harm {
    pub(super) process: usize,
    /// Which of its requests, from 1.
    pub(super) request: usize,
    pub(super) after: Duration,
    /// For how long it stops; `None`: it dies.
    pub(super) stops: Option<Duration>,
}

/// Some of a process's requests to the store take longer.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlowRequests {
    pub(super) process: usize,
    pub(super) requests: [usize; 2],
    pub(super) by: Duration,
    /// On the way back: what was asked for has been done long before.
    pub(super) after: bool,
}

impl SlowRequests {
    pub(super) fn concerns(&self, process: usize, request: usize) -> bool {
        let [first, last] = self.requests;
        self.process == process && (first..=last).contains(&request)
    }
}

/// Nothing gets from one rank to another.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) at: Duration,
    /// `MAX`: for ever.
    pub(super) until: Duration,
}

/// A process does nothing, while its system goes on taking what is sent to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop {
    pub(super) rank: usize,
    pub(super) at: Duration,
    /// `MAX`: for ever.
    pub(super) until: Duration,
}

/// A stranger that connects to a rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stranger {
    pub(super) at: Duration,
    pub(super) target: usize,
    pub(super) manner: Manner,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// Says nothing.
    Silent,
    /// Speaks something else.
    Garbage,
    /// Speaks another version.
    OtherVersion,
    /// Has the secret of another job.
    OtherSecret,
    /// Says again what a rank said before.
    Replay,
}

/// One frame of a rank is changed on its way out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lie {
    pub(super) rank: usize,
    /// Which of its frames.
    pub(super) frame: usize,
    pub(super) how: Falsehood,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Falsehood {
    Kind,
    Length,
    Ordinal,
    Fingerprint,
    /// It says that it belongs to the call before, or the one after.
    Earlier,
    Later,
    Reserved,
}

/// A rank whose program is another from some call on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Astray {
    pub(super) rank: usize,
    pub(super) call: usize,
    pub(super) how: Misdeed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Misdeed {
    OtherOp,
    OtherCount,
    /// It leaves out one call.
    Skips,
    Aborts,
    Leaves,
    Panics,
}

impl Faults {
    /// Faults for a world whose program takes about `length`.
    pub(super) fn draw(random: &mut Random, world_size: usize, calls: usize, length: Duration) -> Self {
        let mut faults = Self {
            delay: random.micros(5..2_000),
            jitter: random.micros(1..3_000),
            // More than the head of a frame, for who has not sent what lies somewhere can't receive there.
            capacity: *random.pick(&[167, 600, 4_000, 70_000]),
            ..Self::default()
        };
        let moment = |random: &mut Random| length.mul_f64(random.below(1000) as f64 / 1000.0);
        let rank = |random: &mut Random| random.below(world_size);
        let pair = |random: &mut Random| {
            let one = random.below(world_size);
            [one, (one + 1 + random.below(world_size - 1)) % world_size]
        };
        let while_from = |random: &mut Random, at: Duration| match random.below(3) {
            0 => Duration::MAX,
            1 => at + random.millis(1..600),
            _ => at + random.millis(1..20_000),
        };
        for _ in 0..random.below(4) {
            match random.below(11) {
                0 => {
                    let ([from, to], at) = (pair(random), moment(random));
                    let until = while_from(random, at);
                    faults.cuts.push(Cut { from, to, at, until });
                    if random.chance(1, 2) {
                        faults.cuts.push(Cut { from: to, to: from, at, until });
                    }
                }
                1 => {
                    // One side of the world from the other.
                    let (at, sides, both) = (moment(random), random.bits(), random.chance(2, 3));
                    let until = while_from(random, at);
                    let side = |r: usize| sides >> r & 1;
                    for (from, to) in (0..world_size).flat_map(|a| (0..world_size).map(move |b| (a, b))) {
                        if side(from) < side(to) || both && side(from) > side(to) {
                            faults.cuts.push(Cut { from, to, at, until });
                        }
                    }
                }
                2 => faults.resets.push((moment(random), pair(random))),
                3 => {
                    let (rank, at) = (rank(random), moment(random));
                    let until = while_from(random, at);
                    faults.stops.push(Stop { rank, at, until });
                }
                4 => faults.deaths.push((moment(random), rank(random))),
                5 => faults.slow.push((rank(random), random.micros(10..20_000))),
                6 => {
                    let when = if random.chance(1, 4) { Duration::MAX } else { random.millis(0..15_000) };
                    faults.late.push((rank(random), when));
                }
                7 => {
                    use Manner::{Garbage, OtherSecret, OtherVersion, Replay, Silent};
                    for _ in 0..1 + random.below(20) {
                        let manner = *random.pick(&[Silent, Garbage, OtherVersion, OtherSecret, Replay]);
                        faults.strangers.push(Stranger { at: moment(random), target: rank(random), manner });
                    }
                }
                8 => {
                    let [from, to] = pair(random);
                    match rank(random) {
                        other if other != to => faults.detour = Some([from, to, other]),
                        _ => faults.impostor = Some([from, to]),
                    }
                }
                9 => {
                    use Falsehood::{Earlier, Fingerprint, Kind, Later, Length, Ordinal, Reserved};
                    let all = [Kind, Length, Ordinal, Fingerprint, Earlier, Later, Reserved];
                    let how = *random.pick(&all);
                    faults.lie = Some(Lie { rank: rank(random), frame: random.below(20), how });
                }
                _ => {
                    use Misdeed::{Aborts, Leaves, OtherCount, OtherOp, Panics, Skips};
                    let how = *random.pick(&[OtherOp, OtherCount, Skips, Aborts, Leaves, Panics]);
                    faults.astray = Some(Astray { rank: rank(random), call: random.below(calls), how });
                }
            }
        }
        faults
    }

    /// What goes wrong besides in a job whose ranks go on after a loss. In an elastic one a replacement is a process like the others.
    pub(super) fn draw_later(
        &mut self,
        random: &mut Random,
        world_size: usize,
        length: Duration,
        is_elastic: bool,
    ) {
        if random.chance(3, 4) {
            for _ in 0..1 + random.below(2) {
                let at = length.mul_f64(random.below(1000) as f64 / 1000.0);
                let rank = if random.chance(1, 3) { 0 } else { random.below(world_size) };
                match random.below(3) {
                    0 => self.stops.push(Stop { rank, at, until: at + random.millis(1..30_000) }),
                    _ => self.deaths.push((at, rank)),
                }
            }
        }
        if is_elastic {
            for _ in 0..random.below(4) {
                let starts = *random.pick(&[10, 10, 100, 15_000]);
                let never = random.chance(1, 8);
                self.spares.push(if never { Duration::MAX } else { random.millis(0..starts) });
            }
        }
        let processes = world_size + self.spares.len();
        for _ in 0..random.below(3) {
            let process = random.below(processes);
            match random.below(8) {
                0..=3 => {
                    let (most, longest) = (*random.pick(&[10, 20, 200]), *random.pick(&[1, 5_000, 60_000]));
                    let (request, after) = (1 + random.below(most), random.micros(0..longest));
                    let stops = random.chance(1, 2).then(|| random.millis(1..25_000));
                    self.harms.push(Harm { process, request, after, stops });
                }
                4 => {
                    let (first, most) = (1 + random.below(30), *random.pick(&[1, 10]));
                    let requests = [first, first + random.below(most)];
                    let longest = *random.pick(&[100, 1_000, 12_000]);
                    let by = random.millis(1..longest);
                    self.slow_requests.push(SlowRequests {
                        process,
                        requests,
                        by,
                        after: random.chance(1, 2),
                    });
                }
                5 => self.dawdles.push((process, random.millis(0..15_000))),
                6 if is_elastic => self.contrary = Some(process),
                7 if random.chance(1, 4) => self.store_ends = Some(random.millis(0..5_000)),
                _ => {}
            }
        }
    }

    /// What of it concerns these processes, which are ranks in this order.
    pub(super) fn among(&self, roster: &[u64]) -> Self {
        let rank_of = |process: usize| roster.iter().position(|worker| *worker == process as u64);
        let pair = |[one, other]: [usize; 2]| Some([rank_of(one)?, rank_of(other)?]);
        let mut here = self.clone();
        here.cuts = (self.cuts.iter())
            .filter_map(|cut| Some(Cut { from: rank_of(cut.from)?, to: rank_of(cut.to)?, ..*cut }))
            .collect();
        here.resets = self.resets.iter().filter_map(|(at, of)| Some((*at, pair(*of)?))).collect();
        here.stops =
            self.stops.iter().filter_map(|stop| Some(Stop { rank: rank_of(stop.rank)?, ..*stop })).collect();
        here.deaths = self.deaths.iter().filter_map(|(at, who)| Some((*at, rank_of(*who)?))).collect();
        let by_rank = |list: &[(usize, Duration)]| {
            list.iter().filter_map(|(who, by)| Some((rank_of(*who)?, *by))).collect()
        };
        (here.slow, here.late, here.dawdles) =
            (by_rank(&self.slow), by_rank(&self.late), by_rank(&self.dawdles));
        here.impostor = self.impostor.and_then(pair);
        here.detour = self.detour.and_then(|[from, to, instead]| {
            Some([rank_of(from)?, rank_of(to)?, rank_of(instead).unwrap_or(roster.len())])
        });
        here.lie = self.lie.and_then(|lie| Some(Lie { rank: rank_of(lie.rank)?, ..lie }));
        here.astray = self.astray.and_then(|astray| Some(Astray { rank: rank_of(astray.rank)?, ..astray }));
        here.harms = (self.harms.iter())
            .filter_map(|harm| Some(Harm { process: rank_of(harm.process)?, ..*harm }))
            .collect();
        here.slow_requests = (self.slow_requests.iter())
            .filter_map(|slow| Some(SlowRequests { process: rank_of(slow.process)?, ..*slow }))
            .collect();
        here.contrary = self.contrary.and_then(rank_of);
        here
    }

    /// Whether nothing of it keeps a call from being in time that may take `limit`.
    pub(super) fn are_harmless(&self, limit: Duration) -> bool {
        let misled = self.impostor.is_some() || self.detour.is_some();
        let lost = !self.resets.is_empty() || !self.deaths.is_empty() || misled;
        let wrong = self.lie.is_some() || self.astray.is_some() || self.store_ends.is_some();
        let cut = self.cuts.iter().map(|c| c.until.saturating_sub(c.at)).max().unwrap_or_default();
        let stopped = self.stops.iter().map(|s| s.until.saturating_sub(s.at));
        let slow: Duration = self.slow.iter().map(|(_, by)| *by * 100).sum();
        let late = self.late.iter().map(|(_, by)| *by).max().unwrap_or_default();
        let asking = self.store_delay();
        let delays = [cut, slow, late, asking]
            .into_iter()
            .chain(stopped)
            .fold(Duration::ZERO, Duration::saturating_add);
        !lost && !wrong && delays < limit.min(Duration::from_millis(900))
    }

    /// Whether something was done to this rank or to one of its connections.
    pub(super) fn touch(&self, rank: usize) -> bool {
        self.cuts.iter().any(|c| c.from == rank || c.to == rank)
            || self.resets.iter().any(|(_, pair)| pair.contains(&rank))
            || self.stops.iter().any(|s| s.rank == rank)
            || self.deaths.iter().any(|(_, r)| *r == rank)
            || self.slow.iter().any(|(r, _)| *r == rank)
            || self.late.iter().any(|(r, _)| *r == rank)
            || self.impostor.is_some_and(|pair| pair.contains(&rank))
            || self.detour.is_some_and(|[from, to, _]| [from, to].contains(&rank))
            || self.lie.is_some_and(|lie| lie.rank == rank)
            || self.astray.is_some_and(|astray| astray.rank == rank)
            || self.slow_requests.iter().any(|slow| slow.process == rank)
            || self.dawdles.iter().any(|(r, _)| *r == rank)
            || self.contrary == Some(rank)
    }

    /// Whether this rank and the arbiter hear each other all the time, each at its own pace. An arbiter that leaves early is heard by
    /// nobody.
    pub(super) fn spare_line(&self, rank: usize) -> bool {
        let ends = [0, rank];
        let stays =
            |astray: Astray| astray.rank != 0 || !matches!(astray.how, Misdeed::Leaves | Misdeed::Skips);
        let touches = |ranks: &[usize]| ranks.iter().all(|r| ends.contains(r));
        let itself = |r: &usize| ends.contains(r);
        self.astray.is_none_or(stays)
            && !self.cuts.iter().any(|c| touches(&[c.from, c.to]))
            && !self.resets.iter().any(|(_, pair)| touches(pair))
            && !self.stops.iter().any(|s| itself(&s.rank))
            && !self.deaths.iter().any(|(_, r)| itself(r))
            && !self.slow.iter().any(|(r, _)| itself(r))
            && !self.impostor.is_some_and(|pair| touches(&pair))
            && !self.detour.is_some_and(|[from, to, _]| touches(&[from, to]))
    }

    /// Whether ranks are cut off from each other for longer than an attempt to come together takes.
    pub(super) fn are_cut_for_long(&self) -> bool {
        self.cuts.iter().any(|cut| cut.until - cut.at > Duration::from_millis(900))
    }

    /// By how much the store's answers are late, all together.
    pub(super) fn store_delay(&self) -> Duration {
        self.slow_requests.iter().map(|slow| slow.by * (1 + slow.requests[1] - slow.requests[0]) as u32).sum()
    }

    /// How long this rank may take longer for anything than others.
    pub(super) fn lag(&self, rank: usize) -> Duration {
        self.slow.iter().filter(|(r, _)| *r == rank).map(|(_, by)| *by).sum()
    }
}
