//! The latest calls of a group on one rank.
//!
//! Every call passes here, also those that take 200 ns: to begin one costs a lock that nobody else wants and a copy into a
//! ring, to end one a store. Messages run side by side and may end much later, so they end only if nobody has taken their place.

use phalanx_core::{DType, Envelope, Signature};
use spin::Yield;
use spin::mutex::{SpinMutex, SpinMutexGuard};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// From so many bytes on a call takes long enough to pay for a look at the precise clock, twice.
const PRECISE_BYTES_MIN: u64 = 16 << 10;

/// Whether a call is to be told by a precise clock; otherwise by a cheap one, whose ticks may be milliseconds apart. Both ends of a call come
/// from one clock, so that no call seems longer than a tick more than it was.
pub fn is_precise(signature: &Signature) -> bool {
    signature.count.saturating_mul(signature.dtype.map_or(0, DType::size) as u64) >= PRECISE_BYTES_MIN
}

/// The call of the number that is in the other bits is running. No time has this bit.
const RUNNING: u64 = 1 << 63;
/// A call ended, too soon for the clock to tell.
const AT_ONCE: u64 = 1;
/// A call ended in an error that left its group alive.
const IN_VAIN: u64 = 2;

/// Calls of one kind, collectives or messages, in the order of their numbers.
///
/// Times are nanoseconds since some moment, the same for all processes of a host, and never less than 2. A method that needs one asks for it,
/// and gives the call, of which it depends which clock is looked at: see [`is_precise`].
#[derive(Debug)]
pub struct Log {
    /// Held for some nanoseconds, or for one copy of all of it: whoever finds it held lets other threads run until it is free.
    begun: SpinMutex<Begun, Yield>,
    /// When each ended, at its number modulo their length. Apart from the calls: an end takes no lock.
    ends: Box<[AtomicU64]>,
}

#[derive(Debug, Default)]
struct Begun {
    calls: Calls,
    /// Messages that have not ended, and whose place another call has taken.
    forgotten: usize,
    /// Collectives that wait for their turn, since when.
    scheduled: VecDeque<(Signature, u64)>,
}

/// The latest calls, in the order of their numbers. The newest takes the place of the oldest, where that lies: they are too long to be moved.
#[derive(Debug, Default)]
struct Calls {
    /// The first `oldest` of them came after the others.
    calls: Vec<Call>,
    oldest: usize,
}

impl Calls {
    /// The number of the newest; 0 if there is none.
    #[inline]
    fn last_number(&self) -> u64 {
        self.last().map_or(0, |call| call.number)
    }

    #[inline]
    fn last(&self) -> Option<&Call> {
        match self.oldest {
            0 => self.calls.last(),
            after => self.calls.get(after - 1),
        }
    }

    /// Oldest first.
    fn iter(&self) -> impl DoubleEndedIterator<Item = &Call> {
        let (newer, older) = self.calls.split_at(self.oldest);
        older.iter().chain(newer)
    }

    fn find(&mut self, number: u64) -> Option<&mut Call> {
        let (newer, older) = self.calls.split_at_mut(self.oldest);
        let part = if newer.first().is_some_and(|first| first.number <= number) { newer } else { older };
        let at = part.binary_search_by_key(&number, |call| call.number).ok()?;
        part.get_mut(at)
    }
}

/// A call that was begun.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Its place among the calls of its kind.
    pub number: u64,
    /// What was called.
    pub signature: Signature,
    /// The other end of a message, and its tag.
    pub with: Option<Envelope>,
    /// When it was called: before its turn came, if nobody waits for it.
    pub called: u64,
    /// When its turn came.
    pub begun: u64,
}

/// How far a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It waits for its turn.
    NotBegun,
    /// It runs.
    NotYet,
    /// It ended well, then.
    At(u64),
    /// It ended in an error that left its group alive.
    InVain,
}

impl Log {
    /// Remembers the latest `len` calls, or a few more.
    pub fn new(len: usize) -> Self {
        let ends = (0..len.next_power_of_two()).map(|_| AtomicU64::default()).collect();
        let calls = Calls { calls: Vec::with_capacity(len.next_power_of_two()), oldest: 0 };
        Self { begun: SpinMutex::new(Begun { calls, ..Begun::default() }), ends }
    }

    fn lock(&self) -> SpinMutexGuard<'_, Begun, Yield> {
        self.begun.lock()
    }

    fn end_of(&self, number: u64) -> &AtomicU64 {
        // The length is a power of two: no division.
        &self.ends[number as usize & (self.ends.len() - 1)]
    }

    /// A collective is called that begins when its turn comes.
    pub fn schedule(&self, signature: &Signature, now: impl FnOnce(&Signature) -> u64) {
        self.lock().scheduled.push_back((signature.clone(), now(signature)));
    }

    /// A collective begins. Once for each number, however many parts the call has.
    pub fn begin(&self, number: u64, signature: &Signature, now: impl FnOnce(&Signature) -> u64) {
        let begun = &mut *self.lock();
        if begun.calls.last().is_some_and(|last| last.number == number) {
            return;
        }
        // Those that were scheduled begin in this order, each at a call site of its own.
        let called = begun
            .scheduled
            .pop_front_if(|(first, _)| first.calls_as(signature) && first.site == signature.site);
        self.push(begun, number, signature, None, called.map(|(_, at)| at), now(signature));
    }

    /// A message begins; it gets a number.
    pub fn begin_message(
        &self,
        signature: &Signature,
        with: Envelope,
        now: impl FnOnce(&Signature) -> u64,
    ) -> u64 {
        let begun = &mut *self.lock();
        let number = begun.calls.last_number() + 1;
        self.push(begun, number, signature, Some(with), None, now(signature));
        number
    }

    /// A message begins and ends: nobody waited for it.
    pub fn message_at_once(
        &self,
        signature: &Signature,
        with: Envelope,
        now: impl FnOnce(&Signature) -> u64,
    ) {
        let begun = &mut *self.lock();
        let number = begun.calls.last_number() + 1;
        self.push(begun, number, signature, Some(with), None, now(signature));
        self.end_of(number).store(AT_ONCE, Ordering::Relaxed);
    }

    /// A message that was awaited from any rank comes from `peer`, a rank of the job.
    pub fn comes_from(&self, number: u64, peer: usize) {
        if let Some(Call { with: Some(with), .. }) = self.lock().calls.find(number) {
            with.peer = Some(peer);
        }
    }

    #[inline]
    fn push(
        &self,
        begun: &mut Begun,
        number: u64,
        signature: &Signature,
        with: Option<Envelope>,
        called: Option<u64>,
        now: u64,
    ) {
        let end = self.end_of(number);
        if end.load(Ordering::Relaxed) < RUNNING {
            end.store(RUNNING | number, Ordering::Relaxed);
        } else if end.swap(RUNNING | number, Ordering::Relaxed) >= RUNNING {
            // It has not ended since that look either.
            begun.forgotten += 1;
        }
        let called = called.unwrap_or(now);
        let Calls { calls, oldest } = &mut begun.calls;
        if calls.len() < self.ends.len() {
            return calls.push(Call { number, signature: signature.clone(), with, called, begun: now });
        }
        if let Some(place) = calls.get_mut(*oldest) {
            place.signature.clone_from(signature);
            (place.number, place.with, place.called, place.begun) = (number, with, called, now);
        }
        // Their number is a power of two.
        *oldest = (*oldest + 1) & (calls.len() - 1);
    }

    /// A collective ends well. It is among the latest: they run one after the other.
    pub fn end(&self, number: u64, signature: &Signature, now: impl FnOnce(&Signature) -> u64) {
        self.end_of(number).store(now(signature), Ordering::Relaxed);
    }

    /// As [`end`](Self::end), where nobody was waited for: a small call is over before it is worth a look at the clock.
    pub fn end_at_once(&self, number: u64, signature: &Signature, now: impl FnOnce(&Signature) -> u64) {
        if is_precise(signature) {
            return self.end(number, signature, now);
        }
        self.end_of(number).store(AT_ONCE, Ordering::Relaxed);
    }

    /// A message ends, well or in an error.
    pub fn end_message(
        &self,
        number: u64,
        signature: &Signature,
        well: bool,
        now: impl FnOnce(&Signature) -> u64,
    ) {
        self.message_ends(number, if well { now(signature) } else { IN_VAIN });
    }

    /// As [`end_message`](Self::end_message), well, where nobody was waited for: see [`end_at_once`](Self::end_at_once).
    #[inline]
    pub fn end_message_at_once(
        &self,
        number: u64,
        signature: &Signature,
        now: impl FnOnce(&Signature) -> u64,
    ) {
        self.message_ends(number, if is_precise(signature) { now(signature) } else { AT_ONCE });
    }

    #[inline]
    fn message_ends(&self, number: u64, end: u64) {
        let place = self.end_of(number);
        if place.compare_exchange(RUNNING | number, end, Ordering::Release, Ordering::Relaxed).is_err() {
            // So many have begun since that another has its place.
            let forgotten = &mut self.lock().forgotten;
            *forgotten = forgotten.saturating_sub(1);
        }
    }

    /// The messages that have begun and not ended; `None` if so many came after one of them that it is forgotten.
    pub fn open_messages(&self) -> Option<Vec<Call>> {
        let begun = self.lock();
        let open = begun.calls.iter().filter(|call| self.is_running(call.number));
        (begun.forgotten == 0).then(|| open.cloned().collect())
    }

    /// The collective that has begun and not ended, and the number of the last that was called.
    pub fn open_collective(&self) -> (Option<Call>, u64) {
        let begun = self.lock();
        let open = begun.calls.last().filter(|call| self.is_running(call.number)).cloned();
        (open, begun.calls.last_number() + begun.scheduled.len() as u64)
    }

    /// The number of the last collective that has ended well; 0 for none.
    pub fn finished(&self) -> u64 {
        let begun = self.lock();
        let ended_well =
            |call: &&Call| !matches!(self.end_of(call.number).load(Ordering::Acquire), RUNNING.. | IN_VAIN);
        begun.calls.iter().rev().find(ended_well).map_or(0, |call| call.number)
    }

    fn is_running(&self, number: u64) -> bool {
        // With what its thread did before the end, as if both had taken the lock.
        self.end_of(number).load(Ordering::Acquire) == RUNNING | number
    }

    /// What was called with this number, if that was lately.
    pub fn find(&self, number: u64) -> Option<Signature> {
        self.lock().calls.find(number).map(|call| call.signature.clone())
    }

    /// The last `len`, or fewer, oldest first.
    pub fn latest(&self, len: usize) -> Vec<(u64, Signature)> {
        let calls = &self.lock().calls;
        let first = calls.calls.len().saturating_sub(len);
        calls.iter().skip(first).map(|call| (call.number, call.signature.clone())).collect()
    }

    /// All that is remembered, oldest first, with times in order: those of two clocks may contradict each other by a tick.
    pub fn calls(&self) -> Vec<(Call, End)> {
        let (begun, next, scheduled) = {
            let begun = self.lock();
            let calls: Vec<_> = begun.calls.iter().cloned().collect();
            (calls, begun.calls.last_number() + 1, begun.scheduled.clone())
        };
        let mut last = 0;
        let in_order = |mut call: Call| {
            if call.with.is_none() {
                // Collectives run one after the other; messages run side by side.
                call.begun = call.begun.max(last);
            }
            let end = match self.end_of(call.number).load(Ordering::Relaxed) {
                RUNNING.. => End::NotYet,
                IN_VAIN => End::InVain,
                AT_ONCE => End::At(call.begun),
                at => End::At(at.max(call.begun)),
            };
            last = if let End::At(at) = end { at } else { call.begun };
            (call, end)
        };
        let waiting = |(number, (signature, called))| {
            (Call { number, signature, with: None, called, begun: called }, End::NotBegun)
        };
        begun.into_iter().map(in_order).chain((next..).zip(scheduled).map(waiting)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::{CallSite, DType, Method, OpKind};

    /// Every look at the clock is later than the one before.
    fn now(_call: &Signature) -> u64 {
        static LOOKS: AtomicU64 = AtomicU64::new(2);
        LOOKS.fetch_add(1, Ordering::Relaxed)
    }

    fn signature(count: u64) -> Signature {
        let site = CallSite { file: "a.rs".into(), line: 1 };
        Signature {
            op: OpKind::AllReduce,
            dtype: Some(DType::U8),
            count,
            reduce: None,
            root: None,
            detail: 0,
            method: Method::UNSAID,
            site,
        }
    }

    #[test]
    fn the_latest_calls_are_remembered_one_by_one() {
        let log = Log::new(64);
        // Each in two parts.
        for number in (1..=200).flat_map(|number| [number, number]) {
            log.begin(number, &signature(u64::from(number == 190)), now);
        }
        assert!(log.latest(20).iter().map(|(number, _)| *number).eq(181..=200));
        assert!(log.latest(100).iter().map(|(number, _)| *number).eq(137..=200));
        assert_eq!(log.find(190), Some(signature(1)));
        assert_eq!(log.find(189), Some(signature(0)));
        assert_eq!((log.find(3), log.find(201)), (None, None));
    }

    #[test]
    fn the_last_that_ended_well_is_known_until_it_is_forgotten() {
        let log = Log::new(64);
        assert_eq!(log.finished(), 0);
        for number in 1..=200 {
            log.begin(number, &signature(0), now);
            assert_eq!(log.finished(), number - 1, "this one runs");
            log.end(number, &signature(0), now);
        }
        log.begin(201, &signature(0), now);
        log.end_message(201, &signature(0), false, now);
        assert_eq!(log.finished(), 200, "the newest ended in an error");
        let log = Log::new(64);
        (1..=200).for_each(|number| log.begin(number, &signature(0), now));
        assert_eq!(log.finished(), 0);
    }

    #[test]
    fn each_call_has_its_own_end() {
        let log = Log::new(4);
        let [small, large] = [1, 1 << 20].map(signature);
        for (number, signature) in (1..=9).zip([&small, &large].into_iter().cycle()) {
            log.begin(number, signature, now);
        }
        log.end(7, &small, now);
        log.end_at_once(6, &large, now);
        log.end_message(8, &large, false, now);
        let calls = log.calls();
        assert!(calls.iter().map(|(call, _)| call.number).eq(6..=9));
        let [(_, End::At(sixth)), (seven, End::At(seventh)), (_, End::InVain), (_, End::NotYet)] = &calls[..]
        else {
            panic!("{calls:?}")
        };
        // Whatever the clocks say, nothing begins before what came before it ends.
        assert!(*sixth <= seven.begun && seven.begun <= *seventh, "{calls:?}");
        log.begin(10, &small, now);
        assert_eq!(log.calls()[3].1, End::NotYet, "not the end of 6, which was in its place");
    }

    #[test]
    fn what_was_scheduled_begins_in_its_turn() {
        let log = Log::new(4);
        let [first, second, blocking] = [1, 2, 3].map(signature);
        log.schedule(&first, now);
        log.schedule(&second, now);
        log.begin(1, &first, now);
        log.end(1, &first, now);
        log.begin(2, &blocking, now);
        let calls = log.calls();
        assert!(calls.iter().map(|(call, _)| call.number).eq(1..=3));
        assert!(calls[0].0.called <= calls[0].0.begun);
        assert_eq!(calls[1].1, End::NotYet);
        assert_eq!((&calls[2].0.signature, calls[2].1), (&second, End::NotBegun));
    }

    fn with(peer: usize, tag: u64) -> Envelope {
        Envelope { peer: Some(peer), tag }
    }

    #[test]
    fn a_message_from_any_rank_is_told_with_its_sender_once_that_is_known() {
        let log = Log::new(2);
        let from_any = Envelope { peer: None, tag: 5 };
        let numbers = [(); 3].map(|()| log.begin_message(&signature(3), from_any, now));
        log.comes_from(numbers[2], 7);
        // It is forgotten.
        log.comes_from(numbers[0], 8);
        let with = log.calls().into_iter().map(|(call, _)| call.with);
        assert_eq!(with.collect::<Vec<_>>(), [Some(from_any), Some(Envelope { peer: Some(7), tag: 5 })]);
    }

    #[test]
    fn messages_are_numbered_here() {
        let log = Log::new(2);
        let numbers = [5, 6, 7].map(|tag| log.begin_message(&signature(3), with(1, tag), now));
        assert_eq!(numbers, [1, 2, 3]);
        log.end_at_once(3, &signature(3), now);
        let calls = log.calls();
        assert_eq!(
            calls.iter().map(|(call, _)| call.with).collect::<Vec<_>>(),
            [Some(with(1, 6)), Some(with(1, 7))]
        );
        assert!(matches!(calls[..], [(_, End::NotYet), (_, End::At(_))]));
    }

    #[test]
    fn a_message_that_ends_late_ends_no_other() {
        let log = Log::new(2);
        for tag in 1..=4 {
            log.begin_message(&signature(3), with(1, tag), now);
        }
        log.end_message(1, &signature(3), true, now);
        log.end_message(2, &signature(3), false, now);
        assert!(log.calls().iter().all(|(_, end)| *end == End::NotYet), "{:?}", log.calls());
    }

    #[test]
    fn which_messages_are_open_is_known_again_when_the_forgotten_ones_have_ended() {
        let log = Log::new(2);
        let open = || log.open_messages().map(|open| open.iter().map(|call| call.number).collect::<Vec<_>>());
        assert_eq!(open(), Some(vec![]));
        let numbers = [1, 2, 3, 4].map(|tag| log.begin_message(&signature(3), with(1, tag), now));
        assert_eq!(open(), None);
        log.end_message_at_once(numbers[0], &signature(3), now);
        log.end_message_at_once(numbers[3], &signature(3), now);
        assert_eq!(open(), None, "the second is under way");
        log.end_message(numbers[1], &signature(3), true, now);
        assert_eq!(open(), Some(vec![3]));
        log.message_at_once(&signature(3), with(1, 5), now);
        assert_eq!(open(), None, "it has the place of the third");
        log.end_message_at_once(numbers[2], &signature(3), now);
        assert_eq!(open(), Some(vec![]));
    }

    #[test]
    fn threads_whose_messages_take_each_others_places_leave_none_open() {
        let (log, signature) = (Log::new(2), signature(3));
        let work = || {
            for tag in 0..20_000 {
                let number = log.begin_message(&signature, with(1, tag), now);
                log.end_message_at_once(number, &signature, now);
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
        assert_eq!(log.open_messages(), Some(vec![]));
    }
}
