//! A team: the ranks that share a segment, and the steps of which their operations are made.
//!
//! The work of a team is cut into *pieces*, numbered through all operations, the same on all ranks. For each piece a rank may
//! **post**: it fills its slot (a line for small things and addresses, staging for more) and raises the slot's flag.
//! The others **await** what it posted, check that it belongs to the same call, and read. When a rank needs nobody's data of
//! a piece any more, it says that it is **done**; a slot is used again when all are done with the piece it held.

use crate::backoff::Backoff;
use crate::copy_clock::CopyClock;
use crate::copy_probe::{kernel_copies_are_worth_it, kernel_copies_were_measured};
use crate::cores::{self, Cores};
use crate::counter::{Counter, needed};
use crate::first_look::FirstLook;
use crate::forced::{Choice, Forced, NotTaken};
use crate::hash::mix;
use crate::long_reads::LongReads;
use crate::other_process::{Process, Processes, pid_namespace, word_of};
use crate::plan::{Kind, Plan};
use crate::region::{CELLS, LINE_WORDS, Region, SLICE_BYTES, Slot, Words};
use crate::shown_calls::{ShownCall, ShownCalls};
use crate::span::{FETCH_BYTES, FETCH_FAR_BYTES, Span};
use crate::stores::Stores;
use crate::sync::Ordering;
use crate::window::{Window, Windows};
use crate::{Call, Fault};
use phalanx_algo::{INLINE_BYTES, MemoryCall, MemoryWay};
use phalanx_core::{Error, OpKind, Result, Signature};
use phalanx_transport::OwnerProcess;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a rank that gives up waits for a peer that is writing its memory, before it ends that peer.
pub(crate) const DRAIN_TIME: Duration = Duration::from_secs(1);

/// After so many parts of an operation for which nobody had to be waited for, the check looks around: each takes up to a few hundred KiB.
const PARTS_UNWATCHED: u32 = 16;

/// Posts of up to so many bytes are written word by word and read by vectors. Longer ones are copied as staged data are.
const BY_WORDS_MAX: usize = 512;

/// One rank's part in the work of a group whose ranks share memory: see `team.rs` for the steps it takes.
#[derive(Debug)]
pub struct Team {
    pub(crate) region: Region,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    owner_process: OwnerProcess,
    backoff: Backoff,
    cores: Cores,
    /// The other ranks' processes (this one stands for itself); empty where they are not known: the system
    /// has no process descriptors, or they are in containers that count processes apart.
    pub(crate) processes: Arc<[Process]>,
    /// Whether large parts are copied between the ranks' memories: all may, and rank 0 found it worth it.
    pub(crate) reads_memory: bool,
    /// Bytes of a slice that a reduction stages at once.
    pub(crate) slice_bytes: usize,
    pub(crate) windows: Windows,
    pub(crate) stores: Stores,
    pub(crate) long_reads: LongReads,
    /// The next piece.
    pub(crate) piece: u64,
    /// The next cell: of the pieces in which ranks give each other parts.
    cell: u64,
    /// What to add to the number of such a piece of the running operation for that of its cell.
    cell_shift: u64,
    /// The end of the pieces whose data lie in cells, and of those whose data lie in the ranks' own slots.
    given_until: u64,
    pub(crate) staged_until: u64,
    /// With how many pieces each other rank is known to be done. Its posts say so too, and they are read anyway.
    known_done: Vec<u64>,
    /// The least of those: with so many pieces all others are done.
    granted: u64,
    /// The first piece of the running operation.
    first_piece: u64,
    /// The running operation.
    seq: u64,
    /// Over all calls so far: of two ranks that both only gave something, in calls that did not agree, each finds out at
    /// the next thing it takes.
    fingerprint: u64,
    shown: ShownCalls,
    /// The check of the running operation knows that data are on their way.
    told: bool,
    /// The piece that it posted last; `u64::MAX` before the first.
    posted: u64,
    first_look: FirstLook,
    /// Something was published since the sleepers were last woken.
    unheard: bool,
    /// Parts of the running operation since the check last looked around.
    unwatched: u32,
    /// Room for what is read from other address spaces.
    pub(crate) scratch: Vec<u64>,
    /// While it is measured how long copies take.
    pub(crate) copy_clock: Option<CopyClock>,
    forced: Forced,
}

impl Team {
    /// Joins a team whose segment `file` is: [`create`](crate::create)d with [`segment_len`](crate::segment_len) by one
    /// rank and given to the others. Collective among the `world_size` ranks; `crowded` says that ranks outnumber the cores that
    /// this one may use. All do as where ranks share cores if one of them says so: what is posted where, and who looks at
    /// whom, depends on it.
    ///
    /// # Errors
    /// [`Fault::Failed`] if the memory cannot be mapped, or somebody has joined as `rank`; [`Fault::Stopped`] if the others did not come.
    ///
    /// # Panics
    /// If `rank` is not below `world_size`.
    pub fn join(
        file: impl AsFd,
        rank: usize,
        world_size: usize,
        crowded: bool,
        call: &mut Call<'_>,
    ) -> Result<Self, Fault> {
        let region = Region::map(file, world_size)?;
        // Two would both write what is one rank's alone.
        if region.control(rank).pid.0.swap(std::process::id(), Ordering::Relaxed) != 0 {
            let error = std::io::Error::new(ErrorKind::AlreadyExists, "a rank joins a team once");
            let doing = format!("joining a team in shared memory as rank {rank}, as another has");
            return Err(Error::io(doing, error).into());
        }
        let mut team = Self {
            region,
            rank,
            world_size,
            owner_process: OwnerProcess::here(),
            backoff: Backoff::new(crowded),
            cores: Cores::default(),
            processes: Arc::default(),
            reads_memory: false,
            slice_bytes: SLICE_BYTES,
            windows: Windows::default(),
            stores: Stores::default(),
            long_reads: LongReads::default(),
            piece: 0,
            cell: 0,
            cell_shift: 0,
            given_until: 0,
            staged_until: 0,
            known_done: vec![0; world_size],
            granted: 0,
            first_piece: 0,
            seq: 0,
            fingerprint: 0,
            shown: ShownCalls::default(),
            told: false,
            posted: u64::MAX,
            first_look: FirstLook::default(),
            unheard: false,
            unwatched: 0,
            scratch: Vec::new(),
            copy_clock: None,
            forced: Forced::default(),
        };
        cores::begin(rank, world_size);
        team.run(call, Plan::of(Kind::Join, MemoryWay::Mutual), |team, call| team.meet(crowded, call))?;
        Ok(team)
    }

    /// From now on this way is taken for calls of `op`, where it can be. The same on all ranks: a rank that takes another is found out.
    pub fn force(&mut self, op: OpKind, way: MemoryWay) {
        self.forced.force(op, way);
    }

    /// A forced way that could not be taken, and why; each is told once.
    pub fn not_taken(&mut self) -> Option<NotTaken> {
        self.forced.not_taken()
    }

    /// The way of a call of `called`, of which this is `op`: with `parts` of at most `part` bytes that each giver shows, of `len` in all.
    #[inline]
    pub(crate) fn choose(
        &mut self,
        called: OpKind,
        op: OpKind,
        len: usize,
        part: usize,
        parts: usize,
    ) -> Choice {
        let (is_crowded, reads_memory) = (self.is_crowded(), self.reads_memory);
        let call = MemoryCall { op, len, part, parts, world_size: self.world_size, is_crowded, reads_memory };
        self.forced.choose(called, &call)
    }

    /// For tests: this rank plans otherwise than a build does, whatever the others do.
    #[doc(hidden)]
    pub fn plan_otherwise(&mut self, reads_memory: bool, slice_bytes: usize) {
        (self.reads_memory, self.slice_bytes) = (reads_memory, slice_bytes);
    }

    /// Maps a window of `len` bytes a rank: `file` was [`create`](crate::create)d with [`window_len`](crate::window_len) by one rank and
    /// given to the others. Collective: all ranks make their windows in the same order, with equal `len`.
    ///
    /// # Errors
    /// [`Io`](phalanx_core::Error::Io) if the memory cannot be mapped.
    pub fn window(&mut self, file: impl AsFd, len: usize) -> Result<Window> {
        self.windows.map(file, len, self.rank, self.world_size)
    }

    /// The processes of its ranks. Those that are known outlive the team.
    pub fn processes(&self) -> Processes {
        Processes(self.processes.clone())
    }

    /// Finds out which processes the others are, and whether all can reach the memory of all and should.
    fn meet(&mut self, crowded: bool, call: &mut Call<'_>) -> Result<(), Fault> {
        let mut secret = word_of(self.rank).to_ne_bytes();
        // SAFETY: it is only read, by this process and others; were it gone, they would find that they can't.
        let probe = unsafe { Span::new(secret.as_mut_ptr(), secret.len()) };
        let met = self.exchange([probe.addr(), u64::from(crowded), pid_namespace()], call)?;
        let crowded = met.iter().any(|words| words[1] != 0);
        self.backoff = Backoff::new(crowded);
        self.choose_staging(crowded, call)?;
        self.choose_copy(call)?;
        let pid = |rank| self.region.control(rank).pid.0.load(Ordering::Relaxed);
        // In another container the number means another process: often this one.
        let is_here = |rank: usize| met[rank][2] == met[self.rank][2];
        let open = |rank| {
            if is_here(rank) { Process::open(pid(rank)) } else { Err(ErrorKind::NotFound.into()) }
        };
        let opened: std::io::Result<Vec<_>> = (0..self.world_size).map(open).collect();
        let found = opened.is_ok();
        let can_read = |(peer, process): (usize, &Process)| process.is_of_rank(peer, met[peer][0]);
        self.processes = opened.unwrap_or_default().into();
        // The right to write is the right to read.
        let reaches = found && self.processes.iter().enumerate().all(can_read);
        let is_worth_it = self.rank == 0 && reaches && kernel_copies_are_worth_it();
        let answers = [found, reaches, is_worth_it].map(u64::from);
        let answers = self.exchange(answers, call)?;
        if answers.iter().any(|words| words[0] == 0) {
            self.processes = Arc::default();
        }
        if answers[0][1] != 0 {
            kernel_copies_were_measured(answers[0][2] != 0);
        }
        self.reads_memory = answers.iter().all(|words| words[1] != 0) && answers[0][2] != 0;
        Ok(())
    }

    /// Gives all ranks some words, and returns what all gave, in rank order. Returns when all are done.
    pub(crate) fn exchange(&mut self, words: Words, call: &mut Call<'_>) -> Result<Vec<Words>, Fault> {
        let piece = self.next_piece();
        self.reserve(piece, Room::Line, call)?;
        self.post(piece, &words);
        let mut all = vec![words; self.world_size];
        for peer in self.peers() {
            all[peer] = self.arrived(peer, piece, call)?.words();
        }
        self.done(piece);
        self.all_done(piece, call)?;
        Ok(all)
    }

    /// The others, beginning after this rank, so that not all look at the same one first.
    pub(crate) fn peers(&self) -> impl ExactSizeIterator<Item = usize> + use<> {
        let (rank, world_size) = (self.rank, self.world_size);
        // A division would take longer than a look at a peer.
        (1..world_size).map(move |i| if rank + i < world_size { rank + i } else { rank + i - world_size })
    }

    pub(crate) fn is_crowded(&self) -> bool {
        self.backoff.is_crowded()
    }

    /// Runs one operation. If it fails or panics, the team is closed, and this rank's memory is its own when this ends.
    ///
    /// The `plan` must be the same on all ranks. It is part of what each post is checked by: a rank that does otherwise, or whose buffer has
    /// another length than the signature says, touches nobody's memory, and nobody touches its.
    pub(crate) fn run<R>(
        &mut self,
        call: &mut Call<'_>,
        plan: Plan<'_>,
        operation: impl FnOnce(&mut Self, &mut Call<'_>) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        self.seq = call.seq;
        self.first_piece = self.piece;
        self.unwatched = 0;
        self.told = false;
        let called = call.signature.fingerprint();
        self.fingerprint = mix(self.fingerprint, called ^ call.seq);
        self.follow(plan, call.signature, called);
        self.windows.tidy();
        let mut running = Running { team: self, succeeded: false };
        // In two arms, or else the result would be put into memory and copied from there.
        match operation(running.team, call) {
            Ok(done) => {
                running.team.tell(call);
                running.succeeded = true;
                Ok(done)
            }
            Err(fault) => {
                running.team.tell(call);
                Err(fault)
            }
        }
    }

    #[inline]
    fn tell(&mut self, call: &mut Call<'_>) {
        if !std::mem::replace(&mut self.told, true) {
            call.wait_check.on_the_way();
        }
    }

    /// Sets the plan that this rank's posts name from here on; `called` is the fingerprint of the call. An operation whose lengths are agreed on only now has a second
    /// plan.
    #[inline(always)]
    pub(crate) fn follow(&mut self, plan: Plan<'_>, signature: &Signature, called: u64) {
        let planned = plan.fingerprint();
        self.fingerprint = mix(self.fingerprint, planned);
        let call = ShownCall { seq: self.seq, fingerprints: (called, planned), signature, plan };
        self.shown.show(&call, &self.region, self.rank);
    }

    /// Takes the numbers of `steps` pieces whose data are staged in the ranks' own slots, and returns the first.
    pub(crate) fn next_staged(&mut self, steps: usize) -> u64 {
        let first = self.next_pieces(steps);
        self.staged_until = self.piece;
        first
    }

    /// Takes the number of a new piece whose data need no slot of staging.
    pub(crate) fn next_piece(&mut self) -> u64 {
        self.next_pieces(1)
    }

    fn next_pieces(&mut self, steps: usize) -> u64 {
        let first = self.piece;
        self.piece = first + steps as u64;
        first
    }

    /// Takes the numbers of `steps` pieces in which parts are given, and returns the first.
    pub(crate) fn next_given(&mut self, steps: usize) -> u64 {
        let first = self.next_pieces(steps);
        self.cell_shift = self.cell.wrapping_sub(first);
        self.cell += steps as u64;
        self.given_until = self.piece;
        first
    }

    /// Where `giver` stages what it gives of `piece`.
    pub(crate) fn given(&self, giver: usize, piece: u64) -> Span {
        self.region.given(giver, piece, piece.wrapping_add(self.cell_shift))
    }

    /// Waits until the own slot for `piece` may be filled; `room` says with what.
    pub(crate) fn reserve(&mut self, piece: u64, room: Room, call: &mut Call<'_>) -> Result<(), Fault> {
        let needed = match room {
            Room::Cell if self.region.is_swapped() => needed(piece, CELLS.into()).max(self.staged_until),
            Room::Slot if self.region.is_swapped() => {
                needed(piece, self.region.slots()).max(self.given_until)
            }
            _ => needed(piece, self.region.slots()),
        };
        if self.granted >= needed {
            return Ok(());
        }
        self.others_done(needed, call)
    }

    /// Waits until all others are done with so many pieces, if that is not known.
    fn others_done(&mut self, pieces: u64, call: &mut Call<'_>) -> Result<(), Fault> {
        let mut least = self.piece;
        for peer in self.peers() {
            if self.known_done[peer] < pieces {
                self.wait(peer, pieces, call, |team, peer| &team.region.control(peer).done.0)?;
                self.known_done[peer] = self.region.control(peer).done.0.value();
            }
            least = least.min(self.known_done[peer]);
        }
        self.granted = least;
        Ok(())
    }

    /// Shows the others the own slot for `piece`, with `words` in its lines.
    ///
    /// The lines must be taken from those that have read them. Where that is not [asked for ahead](Region::asks_ahead) it is asked for now: all lines at once, and not one
    /// after the other as they are written.
    #[inline(never)] // Where it was inlined, reductions of 4 KiB took 1.04 to 1.07 of the time.
    pub(crate) fn post(&mut self, piece: u64, words: &[u64]) {
        self.post_filled(piece, 8 * words.len(), |_, slot| {
            for (to, from) in slot.words.iter().zip(words) {
                to.store(*from, Ordering::Relaxed);
            }
        });
    }

    /// As [`post`](Self::post), with `bytes` in the lines. Few are read as words where they lie.
    ///
    /// # Panics
    /// If they do not fit.
    pub(crate) fn post_bytes(&mut self, piece: u64, bytes: Span) {
        assert!(bytes.len() <= INLINE_BYTES, "{} bytes in the lines of a flag", bytes.len());
        if bytes.len() <= BY_WORDS_MAX {
            return self.post_filled(piece, bytes.len(), |_, slot| {
                bytes.each_word(|n, word| slot.words[n].store(word, Ordering::Relaxed));
            });
        }
        self.post_filled(piece, bytes.len(), |region, slot| {
            region.put(slot.lines().part(0..bytes.len()), bytes, true);
        });
    }

    /// As [`post`](Self::post), where `fill` writes in the first `len` bytes of the lines.
    #[inline(always)]
    pub(crate) fn post_filled(&mut self, piece: u64, len: usize, fill: impl FnOnce(&Region, &Slot)) {
        let (asks_ahead, words) = (self.region.asks_ahead(), len.div_ceil(8));
        let (slot, call) = self.region.post(self.rank, piece);
        if !asks_ahead && words > LINE_WORDS {
            slot.claim(words);
        }
        fill(&self.region, slot);
        slot.fingerprint.store(self.fingerprint, Ordering::Relaxed);
        call.seq.store(self.seq, Ordering::Relaxed);
        call.signature.store(self.shown.index() as u32, Ordering::Relaxed);
        slot.posted.publish(piece);
        self.unheard = true;
        self.posted = piece;
        if asks_ahead {
            self.region.slot(self.rank, piece + 1).claim(words);
        }
    }

    /// Copies what lies in the lines of a flag to where it belongs.
    pub(crate) fn get_inline(&self, to: Span, lines: Span) {
        if lines.len() <= BY_WORDS_MAX { to.copy_from(lines) } else { self.region.get(to, lines, false) }
    }

    /// Waits for what `peer` posts for `piece`.
    pub(crate) fn arrived(&mut self, peer: usize, piece: u64, call: &mut Call<'_>) -> Result<&Slot, Fault> {
        self.arrived_with(peer, piece, Span::EMPTY, call)
    }

    /// As [`arrived`](Self::arrived); what comes with it lies in `data`, and is on its way when this returns.
    pub(crate) fn arrived_with(
        &mut self,
        peer: usize,
        piece: u64,
        data: Span,
        call: &mut Call<'_>,
    ) -> Result<&Slot, Fault> {
        let posted = piece + 1;
        if !self.told {
            self.tell(call);
            self.wait_for_first_look(peer, piece);
        }
        self.wait_with(peer, posted, data, call, |team, peer| &team.region.slot(peer, piece).posted)?;
        // Whoever takes part in this operation is done with the pieces of those before it. If it turns out to do another, the team is closed.
        self.known_done[peer] = self.known_done[peer].max(self.first_piece);
        let slot = self.region.slot(peer, piece);
        if slot.fingerprint.load(Ordering::Relaxed) != self.fingerprint {
            return Err(self.mismatch(peer, piece));
        }
        debug_assert!(
            self.region.control(peer).done.0.has_reached(self.known_done[peer]),
            "rank {peer} is not done with as many pieces as its post was taken to say"
        );
        Ok(slot)
    }

    /// Before the first thing that this rank waits for in an operation: if all post there, and it has, the others' posts are about to be written. Not where lines are
    /// [asked for ahead](Region::asks_ahead), for which it was not measured.
    #[inline]
    fn wait_for_first_look(&mut self, peer: usize, piece: u64) {
        if self.posted == piece && !self.is_crowded() && !self.region.asks_ahead() {
            let slot = self.region.slot(peer, piece);
            self.first_look.wait(|| slot.posted.has_reached(piece + 1));
        }
    }

    fn mismatch(&self, peer: usize, piece: u64) -> Fault {
        let (_, posted) = self.region.post(peer, piece);
        let encoded = self.region.control(peer).signature(posted.signature.load(Ordering::Relaxed) as usize);
        let theirs = postcard::from_bytes(&encoded).ok().map(Box::new);
        let method = self.shown.method();
        Fault::Mismatch { peer, seq: self.seq, their_seq: posted.seq.load(Ordering::Relaxed), theirs, method }
    }

    /// Says that this rank has combined its part of `piece`.
    pub(crate) fn combined(&mut self, piece: u64) {
        self.region.control(self.rank).combined.0.publish(piece);
        self.unheard = true;
    }

    pub(crate) fn has_combined(&mut self, peer: usize, piece: u64, call: &mut Call<'_>) -> Result<(), Fault> {
        self.wait(peer, piece + 1, call, |team, peer| &team.region.control(peer).combined.0)
    }

    /// Says that this rank needs nobody's data of `piece`, or of those before, any more.
    pub(crate) fn done(&mut self, piece: u64) {
        self.region.control(self.rank).done.0.publish(piece);
        self.unheard = true;
    }

    /// Waits until all others are done with `piece`.
    pub(crate) fn all_done(&mut self, piece: u64, call: &mut Call<'_>) -> Result<(), Fault> {
        self.others_done(piece + 1, call)
    }

    fn wait(
        &mut self,
        peer: usize,
        value: u64,
        call: &mut Call<'_>,
        counter: impl Fn(&Self, usize) -> &Counter,
    ) -> Result<(), Fault> {
        self.wait_with(peer, value, Span::EMPTY, call, counter)
    }

    fn wait_with(
        &mut self,
        peer: usize,
        value: u64,
        data: Span,
        call: &mut Call<'_>,
        counter: impl Fn(&Self, usize) -> &Counter,
    ) -> Result<(), Fault> {
        let asks_far = data.len() > FETCH_BYTES && self.asks_far(call.signature.op);
        let most = if asks_far { FETCH_FAR_BYTES } else { FETCH_BYTES };
        // What is about to come needs no clock and no waker: a line from another core takes 0.1 µs.
        let awaited = counter(self, peer);
        let here = || awaited.has_reached(value);
        let is_here = if self.is_crowded() {
            // The data are in the cache of the core that it shares with others, or will be when it is its turn again.
            (0..100).any(|_| here())
        } else if data.len() == 0 {
            (0..1000).any(|_| here())
        } else if self.first_look.is_near() && here() {
            // Between near cores the first look asks for the flag alone: to ask for data that are still being written would take their lines from the writer.
            data.fetch(FETCH_BYTES);
            true
        } else {
            (0..1000).any(|_| {
                data.fetch(most);
                here()
            })
        };
        if is_here {
            return self.watch(peer, call);
        }
        self.wait_longer(peer, value, call, &counter)
    }

    /// Whether more of what this operation waits for is asked for, since it comes from far. Only where that was faster: among more ranks some may be near, and reduces of 2 KiB took
    /// 1.3 of the time.
    fn asks_far(&mut self, op: OpKind) -> bool {
        let one_way = matches!(op, OpKind::Broadcast | OpKind::Gather | OpKind::Scatter);
        one_way && self.world_size == 2 && self.first_look.is_still_far()
    }

    /// Looks around between the parts of a long operation. Its time may be over though nobody is waited for, or the group have failed; what
    /// comes next is of `peer`.
    pub(crate) fn watch(&mut self, peer: usize, call: &mut Call<'_>) -> Result<(), Fault> {
        self.unwatched += 1;
        if self.unwatched < PARTS_UNWATCHED {
            return Ok(());
        }
        self.unwatched = 0;
        call.wait_check.look_meanwhile(peer)?;
        Ok(())
    }

    #[cold]
    fn wait_longer(
        &mut self,
        peer: usize,
        value: u64,
        call: &mut Call<'_>,
        counter: &dyn Fn(&Self, usize) -> &Counter,
    ) -> Result<(), Fault> {
        self.tell(call);
        // Who waits for us must not sleep while we wait for them.
        if std::mem::take(&mut self.unheard) {
            self.wake_sleepers();
        }
        let now = Instant::now();
        self.cores.look(now, &self.region, self.rank, self.world_size);
        let mut backoff = self.backoff;
        let awaited = counter(self, peer);
        let closed = self.region.closed();
        let ready = || awaited.has_reached(value) || closed.is_closed();
        let waited = backoff.wait(now, ready, &self.region.control(peer).waker, peer, call.wait_check);
        let reached = awaited.has_reached(value);
        self.backoff = backoff;
        match waited {
            _ if reached => self.watch(peer, call),
            Ok(()) => Err(self.closed_fault()),
            Err(stopped) => Err(stopped.into()),
        }
    }

    /// The fault of a call that finds the team closed.
    pub(crate) fn closed_fault(&self) -> Fault {
        let by = self.region.closed().closed_by();
        Fault::Closed { by: by.filter(|rank| *rank < self.world_size) }
    }

    fn wake_sleepers(&mut self) {
        self.unheard = false;
        self.region.control(self.rank).waker.wake();
    }

    /// Copies to or from others' memory in a way that ends before any of them gives up: see `lease.rs`.
    pub(crate) fn under_lease<R>(&self, write: impl FnOnce() -> R) -> Result<R, Fault> {
        let lease = &self.region.control(self.rank).lease;
        lease.hold(self.region.closed(), write).ok_or_else(|| self.closed_fault())
    }

    /// Ends the work of the team on all its ranks, and waits until nobody writes this rank's memory.
    pub fn close(&mut self) {
        self.region.closed().close(self.rank);
        for rank in 0..self.world_size {
            // Each rank sleeps on the waker of another.
            self.region.control(rank).waker.wake();
        }
        let late = Instant::now() + DRAIN_TIME;
        for peer in self.peers() {
            self.drain(peer, late);
        }
    }

    /// Waits until `peer` writes nobody's memory, and ends it if that is `late`. It must not return before, or the peer would
    /// write what is no longer this call's. But it ends: a lease is held for one copy, so only a process that was stopped takes
    /// long, and being stopped keeps none from being killed. Only where the system refuses that, to a rank of another user, this one waits
    /// until the other goes on or is ended by somebody else. Ranks that are threads of this process stop with this one.
    fn drain(&self, peer: usize, late: Instant) {
        let Some(process) = self.processes.get(peer) else { return };
        let lease = &self.region.control(peer).lease;
        let mut ended = false;
        while lease.is_held() && !process.has_ended() {
            if !ended && Instant::now() >= late {
                ended = true;
                process.end_its_copy(peer);
            }
            if ended {
                std::thread::sleep(Duration::from_millis(1));
            } else {
                std::thread::yield_now();
            }
        }
    }
}

/// What a piece is about to take.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Room {
    /// The line of its flag.
    Line,
    /// A slot of this rank's own staging, too.
    Slot,
    /// What ranks give each other, too: a [cell](Region::given), where these change hands.
    Cell,
}

/// An operation that others may be writing this rank's buffer for.
struct Running<'t> {
    team: &'t mut Team,
    succeeded: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.team.unheard {
            self.team.wake_sleepers();
        }
        if !self.succeeded {
            self.team.close();
        }
    }
}

/// A panic in a user's program ends its part in the team.
impl Drop for Team {
    fn drop(&mut self) {
        if std::thread::panicking() && self.owner_process.is_here() {
            self.close();
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Failed(Box::new(error))
    }
}
