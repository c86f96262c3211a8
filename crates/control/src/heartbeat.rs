//! Heartbeats: both ends of a line say something regularly, so that silence means something. Without a clock: time is an argument.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Beats in the time after which silence is a loss: most of them may be late.
const BEATS: u32 = 10;

/// The actions that are due.
#[derive(Debug, PartialEq, Eq)]
pub struct Due {
    /// Whether to send a beat to all.
    pub beat: bool,
    /// The ranks that have been silent for too long; each is told once.
    pub silent: Vec<usize>,
}

/// One end's view of those at the other ends of its lines.
#[derive(Debug)]
pub struct Heartbeat {
    /// How long silence may last.
    limit: Duration,
    next_beat: Instant,
    /// When somebody last said something.
    heard: BTreeMap<usize, Instant>,
    /// All were heard at this moment or later: only once that is long ago is it worth while to look who was not. `None` if nobody is expected.
    all_since: Option<Instant>,
}

impl Heartbeat {
    /// Of lines that stand since `now`. Silence may last for `limit`.
    pub fn new(limit: Duration, now: Instant) -> Self {
        Self { limit, next_beat: now, heard: BTreeMap::new(), all_since: None }
    }

    /// How long silence may last.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// A beat comes so often. Only after that does silence begin: a network that is cut for less than the limit has cost nobody its place.
    fn interval(&self) -> Duration {
        self.limit / BEATS
    }

    /// The ranks that have been silent for so long that it is worth while to ask in another way.
    pub fn in_doubt(&self, now: Instant) -> impl Iterator<Item = usize> + '_ {
        let is_late = move |at: &Instant| now.saturating_duration_since(*at) >= self.limit / 2;
        let worth_while = self.all_since.as_ref().is_some_and(is_late);
        let heard = worth_while.then_some(&self.heard).into_iter().flatten();
        heard.filter(move |(_, at)| is_late(at)).map(|(&rank, _)| rank)
    }

    /// When somebody was heard last, or its time began.
    pub fn heard_at(&self, rank: usize) -> Option<Instant> {
        self.heard.get(&rank).copied()
    }

    /// `rank` said something. The first word begins its time.
    pub fn heard(&mut self, rank: usize, now: Instant) {
        self.heard.insert(rank, now);
        self.all_since = Some(self.all_since.map_or(now, |since| since.min(now)));
    }

    /// Nothing more is expected from `rank`.
    pub fn forget(&mut self, rank: usize) {
        self.heard.remove(&rank);
    }

    /// When to [`poll`](Self::poll), if nothing happens before.
    pub fn deadline(&self) -> Instant {
        let silence = self.all_since.map(|since| since + self.limit + self.interval());
        silence.map_or(self.next_beat, |at| at.min(self.next_beat))
    }

    /// The actions that are due. Call it after everything that has arrived was [`heard`](Self::heard).
    pub fn poll(&mut self, now: Instant) -> Due {
        let interval = self.interval();
        let late = now.saturating_duration_since(self.next_beat);
        if late > interval {
            // This process was stopped itself, or its whole machine: nobody else is to blame for what it did not hear meanwhile. The
            // rest of the time counts, or where processes are starved nobody would ever be silent.
            self.heard.values_mut().for_each(|at| *at = (*at + late).min(now));
        }
        let beat = now >= self.next_beat;
        if beat {
            self.next_beat = now + interval;
        }
        let is_silent = |at: &Instant| now.saturating_duration_since(*at) >= self.limit + interval;
        let is_old = |since| now.saturating_duration_since(since) >= self.limit / 2;
        let mut silent = Vec::new();
        if late > interval || self.all_since.is_some_and(is_old) {
            silent.extend(self.heard.iter().filter(|(_, at)| is_silent(at)).map(|(&rank, _)| rank));
            silent.iter().for_each(|rank| self.forget(*rank));
            self.all_since = self.heard.values().min().copied();
        }
        Due { beat, silent }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test has a clock")]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn seconds(s: f64) -> Duration {
        Duration::from_secs_f64(s)
    }

    #[test]
    fn who_is_silent_for_the_whole_time_is_told_once() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(LIMIT, start);
        heartbeat.heard(1, start);
        heartbeat.heard(2, start + seconds(0.5));
        let mut beats = 0;
        let mut silent = Vec::new();
        let mut now = start;
        while now < start + seconds(21.0) {
            let due = heartbeat.poll(now);
            beats += u32::from(due.beat);
            if due.beat {
                heartbeat.heard(2, now); // it answers
            }
            silent.extend(due.silent.into_iter().map(|rank| (rank, now - start)));
            assert!(heartbeat.deadline() > now, "it would spin");
            now = heartbeat.deadline();
        }
        assert_eq!(silent, [(1, LIMIT + LIMIT / BEATS)], "not before its time, and not after");
        assert_eq!(beats, 21, "every second");
    }

    #[test]
    fn who_was_stopped_itself_blames_nobody() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(LIMIT, start);
        heartbeat.heard(1, start);
        assert!(heartbeat.poll(start).beat);
        let resumed = start + seconds(3600.0);
        assert_eq!(heartbeat.poll(resumed), Due { beat: true, silent: vec![] });
        // From then on it counts.
        let silent = (0..20).find_map(|_| {
            let now = heartbeat.deadline();
            let silent = heartbeat.poll(now).silent;
            (!silent.is_empty()).then_some((silent, now - resumed))
        });
        assert_eq!(silent, Some((vec![1], LIMIT)), "the time before it was stopped counts");
    }

    #[test]
    fn who_is_always_late_finds_out_nevertheless() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(LIMIT, start);
        heartbeat.heard(1, start);
        let silent = (0..20u32).find(|&i| !heartbeat.poll(start + i * seconds(5.0)).silent.is_empty());
        assert_eq!(silent, Some(11), "of five seconds between looks, one counts");
    }

    #[test]
    fn a_silence_shorter_than_the_limit_is_none_and_whoever_is_late_is_asked() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(LIMIT, start);
        heartbeat.heard(1, start); // the last beat before the network is cut
        for tenth in 0..=107u32 {
            let now = start + tenth * seconds(0.1);
            assert!(heartbeat.poll(now).silent.is_empty(), "at {tenth}");
            assert_eq!(heartbeat.in_doubt(now).count(), usize::from(tenth >= 50), "at {tenth}");
        }
        heartbeat.heard(1, start + seconds(10.8)); // healed after 9.8 s, and asked
        assert!(heartbeat.poll(start + seconds(15.0)).silent.is_empty());
    }

    #[test]
    fn nothing_is_expected_from_who_is_forgotten() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(LIMIT, start);
        heartbeat.heard(1, start);
        heartbeat.forget(1);
        for i in 0..20 {
            assert!(heartbeat.poll(start + i * seconds(1.9)).silent.is_empty());
        }
    }
}
