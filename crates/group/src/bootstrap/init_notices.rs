//! Notices that ranks leave for each other in the store while they come together, when they may have no line to the arbiter yet.

use crate::bootstrap::regroup::{Assignment, roster};
use crate::bootstrap::start::Start;
use phalanx_core::{Deadline, Error, Result};
use phalanx_rendezvous::{OpenStore, PrefixStore, Store, Workers};
use phalanx_transport::random_number;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// The rank that gave up first.
const GAVE_UP: &str = "gave up";
/// How often rank 0 was asked whether it is there, and up to which of these questions it has answered.
const QUESTIONS: &str = "is rank 0 there";
const ANSWERED: &str = "rank 0 is there";
/// Longest reason that is told, in bytes.
const WORDS_LEN_MAX: usize = 2 << 10;

/// A rank that gave up, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct GaveUp {
    rank: usize,
    /// Its host and process.
    host: String,
    words: String,
    /// Tells it from one that gave up for the same reason in a start before.
    id: u64,
}

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} ({}) gave up: {}", self.rank, self.host, self.words)
    }
}

/// One rank's view of the store while a generation forms.
pub(crate) struct InitNotices<'a> {
    assignment: &'a Assignment,
    /// As the rank 0 of the first generation opened it.
    job: &'a OpenStore,
    /// The start of the job that this rank takes part in, where there may have been another.
    start: Option<Start>,
    /// The generation's part of the job's store, and of the start's.
    notices: PrefixStore<Arc<dyn Store>>,
    corner: PrefixStore<Arc<dyn Store>>,
    /// A rank gave up before this one came: in this start, or in one before.
    before: Option<Vec<u8>>,
    deadline: &'a Deadline,
    answered: Cell<i64>,
    /// Whether the end of this rank's wait is not to be told to the others.
    is_private: Cell<bool>,
    /// Because it was heard from one of them; others may not have heard it yet.
    is_heard: Cell<bool>,
}

impl<'a> InitNotices<'a> {
    /// The notices of a generation that cannot be confused with another.
    pub(crate) fn new(assignment: &'a Assignment, open: &'a OpenStore, deadline: &'a Deadline) -> Self {
        let corner = roster::corner(&open.store, assignment.generation);
        let (start, notices, before) = (None, corner.clone(), None);
        let (answered, is_private, is_heard) = Default::default();
        Self {
            assignment,
            job: open,
            start,
            notices,
            corner,
            before,
            deadline,
            answered,
            is_private,
            is_heard,
        }
    }

    /// Of the first generation, in a store that earlier starts of the job may have used, unless it is `fresh`.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn of_job(
        assignment: &'a Assignment,
        job: &'a OpenStore,
        fresh: bool,
        deadline: &'a Deadline,
    ) -> Result<Self> {
        let new = Self::new(assignment, job, deadline);
        let before = if fresh { None } else { new.notices.try_get(GAVE_UP)? };
        Ok(Self { before, ..new })
    }

    /// Takes part in that start from now on.
    pub(crate) fn follow(&mut self, start: Start) {
        self.start = Some(start);
        self.corner = roster::corner(&start.corner(self.job.store.clone()), self.assignment.generation);
        self.is_private.set(false);
        self.is_heard.set(false);
    }

    /// The generation's part of the store.
    pub(crate) fn corner(&self) -> &PrefixStore<Arc<dyn Store>> {
        &self.corner
    }

    /// Keeps the end of this rank's wait to itself: it is nobody else's trouble.
    pub(crate) fn keep_to_itself(&self) {
        self.is_private.set(true);
    }

    /// Another start of the job than the one that this rank takes part in, and a later one.
    pub(crate) fn later_start(&self) -> Option<Start> {
        let latest = Start::latest(&*self.job.store).ok().flatten();
        latest.filter(|latest| self.start.is_some_and(|start| start != *latest))
    }

    /// Whether there is still a point in waiting; to be asked now and then. Rank 0 answers the others meanwhile.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] says what is the matter: a worker has ended, a rank gave up, rank 0 was started anew. Those of the store.
    pub(crate) fn check(&self) -> Result<()> {
        if self.start.is_none() {
            let workers = Workers::read(&self.job.store)?;
            self.assignment.check(workers.as_ref(), self.deadline.elapsed(Instant::now()))?;
        }
        if let Some(gave_up) = self.heard()? {
            self.is_private.set(true);
            self.is_heard.set(true);
            return Err(self.error(gave_up.to_string()));
        }
        // A server that rank 0 runs has seen no other.
        let latest = match &self.job.server {
            None if self.start.is_some() => Start::latest(&*self.job.store)?,
            _ => self.start,
        };
        // None is there when rank 0 has removed the job's files, because all have come.
        if latest.is_some_and(|latest| self.start != Some(latest)) {
            return Err(self.replaced());
        }
        if self.assignment.rank == 0 { self.answer() } else { Ok(()) }
    }

    fn heard(&self) -> Result<Option<GaveUp>> {
        let present = self.notices.try_get(GAVE_UP)?;
        let news = present.filter(|present| Some(present) != self.before.as_ref());
        Ok(news.and_then(|bytes| self.read(&bytes)))
    }

    fn read(&self, bytes: &[u8]) -> Option<GaveUp> {
        // Of a job of another size it is none of ours.
        postcard::from_bytes(bytes)
            .ok()
            .filter(|gave_up: &GaveUp| gave_up.rank < self.assignment.roster.len())
    }

    /// Rank 0 was started once more: what this rank ends with concerns nobody in that start, which the others join.
    pub(crate) fn replaced(&self) -> Error {
        self.is_private.set(true);
        self.error(match self.assignment.rank {
            0 => "another process was started as rank 0 of this job (was a rank started twice?)".into(),
            _ => "rank 0 was started anew".into(),
        })
    }

    /// The rank that had given up before this one came, in words for its error.
    pub(crate) fn earlier(&self) -> String {
        let earlier = self.before.as_ref().and_then(|bytes| self.read(bytes));
        earlier.map_or_else(String::new, |gave_up| {
            format!("; before this rank came, in this start of the job or an earlier one, {gave_up}")
        })
    }

    /// Tells the others that this rank gives up, and why. The first who does so counts. Whether others may still have to hear why the
    /// job does not come together, from this rank or from the one of which this rank has heard it.
    pub(crate) fn give_up(&self, host: &str, error: &Error) -> bool {
        if self.is_private.get() {
            return self.is_heard.get();
        }
        let words = match error {
            Error::Rendezvous { what, .. } => what.clone(),
            other => other.to_string(),
        };
        let words = words[..words.floor_char_boundary(WORDS_LEN_MAX)].to_owned();
        let gave_up =
            GaveUp { rank: self.assignment.rank, host: host.into(), words, id: random_number().unwrap_or(0) };
        let value = postcard::to_stdvec(&gave_up).expect("it is plain data");
        // If the store is gone, nobody is left to hear it there.
        while let Ok(present) = self.notices.try_get(GAVE_UP) {
            let is_old = present.is_none() || present == self.before;
            if !is_old || !matches!(self.notices.compare_set(GAVE_UP, present.as_deref(), &value), Ok(false))
            {
                break;
            }
        }
        true
    }

    /// All are here, so whoever had given up was of another start.
    pub(crate) fn forget(&self) {
        if self.before.is_some() {
            // It would only be taken for what it is: old.
            let _ = self.notices.delete(GAVE_UP);
        }
    }

    /// Asks rank 0 through the store whether it is there; returns the number of the question.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn ask(&self) -> Result<i64> {
        self.corner.add(QUESTIONS, 1)
    }

    /// Whether it has answered that question.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn is_answered(&self, question: i64) -> Result<bool> {
        Ok(number(self.corner.try_get(ANSWERED)?) >= question)
    }

    fn answer(&self) -> Result<()> {
        let asked = number(self.corner.try_get(QUESTIONS)?);
        if asked > self.answered.get() {
            self.corner.set(ANSWERED, asked.to_string().as_bytes())?;
            self.answered.set(asked);
        }
        Ok(())
    }

    /// The error of a wait that is over.
    pub(crate) fn error(&self, what: String) -> Error {
        let (rank, world_size) = (self.assignment.rank, self.assignment.roster.len());
        Error::Rendezvous { rank, world_size, what, waited: self.deadline.elapsed(Instant::now()) }
    }
}

fn number(value: Option<Vec<u8>>) -> i64 {
    value.and_then(|text| std::str::from_utf8(&text).ok()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_rendezvous::MemoryStore;
    use std::time::Duration;

    fn open(store: &MemoryStore) -> OpenStore {
        OpenStore { store: Arc::new(store.clone()), local_ip: None, server: None }
    }

    fn assignment(rank: usize) -> Assignment {
        Assignment::new(0, rank, vec![0, 1, 2])
    }

    #[test]
    fn who_gave_up_is_heard_by_all_and_not_by_the_next_start() {
        let (store, deadline) =
            (MemoryStore::new(), Deadline::after(Instant::now(), Duration::from_secs(60)));
        let job = open(&store);
        let seats = [0, 1, 2].map(assignment);
        let of = |rank: usize| InitNotices::of_job(&seats[rank], &job, false, &deadline).unwrap();
        let (mut zero, one, two) = (of(0), of(1), of(2));
        zero.follow(Start::begin(&*job.store).unwrap());
        assert!(zero.check().is_ok() && one.check().is_ok());
        assert!(two.give_up("h2:7", &Error::config("nonsense")));
        assert!(one.give_up("h1:7", &Error::config("more nonsense")), "the first counts");
        for init_notices in [&zero, &one] {
            let error = init_notices.check().unwrap_err().to_string();
            assert!(error.contains("rank 2 (h2:7) gave up: configuration: nonsense"), "{error}");
            // Nobody hears that; but rank 0 has to stay until all have heard of rank 2.
            assert!(init_notices.give_up("h", &Error::config("because another did")));
            assert!(init_notices.check().unwrap_err().to_string().contains("rank 2 (h2:7) gave up"));
        }
        // The same job again.
        let (mut zero, one) = (of(0), of(1));
        zero.follow(Start::begin(&*job.store).unwrap());
        assert!(zero.check().is_ok() && one.check().is_ok());
        assert!(zero.earlier().contains("rank 2 (h2:7) gave up"), "{}", zero.earlier());
        assert!(one.give_up("h1:8", &Error::config("nonsense")));
        assert!(zero.check().unwrap_err().to_string().contains("rank 1 (h1:8)"));
        of(0).forget();
        assert_eq!(of(0).earlier(), "");
    }

    #[test]
    fn a_rank_of_a_job_of_another_size_is_none_of_ours() {
        let (store, deadline) =
            (MemoryStore::new(), Deadline::after(Instant::now(), Duration::from_secs(60)));
        let (job, zero) = (open(&store), assignment(0));
        let stray = Assignment::new(0, 3, vec![0, 1, 2, 3]);
        let ours = InitNotices::of_job(&zero, &job, true, &deadline).unwrap();
        InitNotices::of_job(&stray, &job, true, &deadline).unwrap().give_up("h", &Error::config("nonsense"));
        assert!(ours.check().is_ok());
    }

    #[test]
    fn rank_0_answers_in_its_own_start_only() {
        let (store, deadline) =
            (MemoryStore::new(), Deadline::after(Instant::now(), Duration::from_secs(60)));
        let (job, seats) = (open(&store), [0, 1].map(assignment));
        let first = Start::begin(&*job.store).unwrap();
        let [mut zero, mut one] =
            [0, 1].map(|r| InitNotices::of_job(&seats[r], &job, false, &deadline).unwrap());
        zero.follow(first);
        one.follow(first);
        let question = one.ask().unwrap();
        assert!(!one.is_answered(question).unwrap());
        zero.check().unwrap();
        assert!(one.is_answered(question).unwrap());
        assert_eq!(one.later_start(), None);
        let second = Start::begin(&*job.store).unwrap();
        assert!(one.check().unwrap_err().to_string().contains("rank 0 was started anew"));
        assert!(zero.check().unwrap_err().to_string().contains("another process was started as rank 0"));
        assert_eq!(one.later_start(), Some(second));
        one.follow(second);
        let question = one.ask().unwrap();
        zero.check().unwrap_err();
        assert!(!one.is_answered(question).unwrap());
    }
}
