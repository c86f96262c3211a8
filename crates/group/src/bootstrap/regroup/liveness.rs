//! Which workers still show that they live, while no arbiter watches over them. A state machine without a clock or a store.

use crate::control::heartbeat::Heartbeat;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// One worker's knowledge of the others' beats.
#[derive(Debug)]
pub(crate) struct Liveness {
    heartbeat: Heartbeat,
    /// The workers that are watched, and their beats as they were seen last.
    beats: BTreeMap<u64, Option<Vec<u8>>>,
    silent: BTreeSet<u64>,
}

impl Liveness {
    /// A worker that does not beat for as long as `limit` is silent.
    pub(crate) fn new(limit: Duration, now: Instant) -> Self {
        Self { heartbeat: Heartbeat::new(limit, now), beats: BTreeMap::new(), silent: BTreeSet::new() }
    }

    /// Watches these workers, and nobody else. A worker that is new among them has the whole time from now on.
    pub(crate) fn watch(&mut self, workers: &BTreeSet<u64>, now: Instant) {
        let Self { heartbeat, beats, silent } = self;
        beats.retain(|worker, _| {
            let stays = workers.contains(worker);
            if !stays {
                heartbeat.forget(*worker as usize);
                silent.remove(worker);
            }
            stays
        });
        for &worker in workers {
            beats.entry(worker).or_insert_with(|| {
                heartbeat.heard(worker as usize, now);
                None
            });
        }
    }

    pub(crate) fn watched(&self) -> Vec<u64> {
        self.beats.keys().copied().collect()
    }

    /// The beat that stands in the store; one that has changed is a sign of life.
    pub(crate) fn saw(&mut self, worker: u64, beat: Option<Vec<u8>>, now: Instant) {
        let Some(last) = self.beats.get_mut(&worker) else { return };
        if beat.is_some() && *last != beat {
            *last = beat;
            self.heard(worker, now);
        }
    }

    /// Notes that another worker has heard of it.
    pub(crate) fn heard(&mut self, worker: u64, now: Instant) {
        if self.beats.contains_key(&worker) {
            self.silent.remove(&worker);
            self.heartbeat.heard(worker as usize, now);
        }
    }

    /// Whether it is time for a beat of one's own. Call it after what can be seen was [`saw`](Self::saw).
    pub(crate) fn poll(&mut self, now: Instant) -> bool {
        let due = self.heartbeat.poll(now);
        self.silent.extend(due.silent.into_iter().map(|worker| worker as u64));
        due.beat
    }

    /// The workers that have not beaten for the whole time. One that beats again is none of them.
    pub(crate) fn silent(&self) -> &BTreeSet<u64> {
        &self.silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn who_beats_lives_and_who_stops_is_silent_until_it_beats_again() {
        let start = Instant::now();
        let mut liveness = Liveness::new(LIMIT, start);
        liveness.watch(&BTreeSet::from([1, 2, 3]), start);
        let mut fell_silent = BTreeMap::new();
        for tenth in 0..300u32 {
            let now = start + tenth * Duration::from_millis(100);
            let beat = |until: u32| Some(vec![(tenth.min(until) / 20) as u8]);
            // Worker 1 beats, worker 2 stops after 5 s, and goes on after 20 s; the arbiter knows of worker 3 for 8 s.
            liveness.saw(1, beat(u32::MAX), now);
            liveness.saw(2, if tenth < 200 { beat(50) } else { beat(u32::MAX) }, now);
            if tenth <= 80 {
                liveness.heard(3, now);
            }
            liveness.poll(now);
            for &worker in liveness.silent() {
                fell_silent.entry(worker).or_insert(tenth);
            }
        }
        assert_eq!(fell_silent, BTreeMap::from([(2, 150), (3, 190)]));
        assert_eq!(*liveness.silent(), BTreeSet::from([3]), "worker 2 is back");
        liveness.watch(&BTreeSet::from([1]), start + 3 * LIMIT);
        assert!(liveness.silent().is_empty() && liveness.watched() == [1]);
    }
}
