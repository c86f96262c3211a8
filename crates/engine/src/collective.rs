//! Performs one plan over the wire.
//!
//! Messages of different steps overlap as far as the data allows: bytes are passed on as soon as they are final here, and
//! received bytes are combined as soon as nobody needs the old ones. The rules are the schedule's own: a send
//! reads what earlier steps received, and a receive writes what its own and earlier steps have sent.

use crate::core::{Core, Fault, Progress};
use crate::operation::Operation;
use crate::partial::{Arithmetic, Operand, Partials, READ_LEN};
use crate::plan::{Plan, Sums, Transfer, clear_of};
use crate::scratch::{SCRATCH_LEN, Scratch};
use phalanx_algo::Action;
use phalanx_control::group_health::GroupHealth;
use phalanx_core::{Method, Signature};
use phalanx_kernels::copy_slice;
use phalanx_transport::sabotage::{Mechanism, breaks};
use phalanx_transport::{Channel, Direction, Key, Outbound, encode_signature};
use std::ops::Range;
use std::sync::Arc;

/// The bytes that one poll moves at most, about, so that the clock is looked at in between.
pub(crate) const POLL_BYTES: usize = 4 << 20;
/// How many messages each way may be under way at once.
const WINDOW: usize = 8;

/// The memory of a collective's elements. A rank whose plan touches only a part of them need not have the rest.
#[derive(Debug)]
pub struct Memory<'a> {
    /// The byte of the whole with which this memory begins.
    start: usize,
    /// Sent from, where that is not the buffer.
    input: Option<&'a [u8]>,
    /// Received into.
    buffer: &'a mut [u8],
}

impl<'a> Memory<'a> {
    /// Sent from and received into one buffer.
    pub fn in_place(buffer: &'a mut [u8]) -> Self {
        Self { start: 0, input: None, buffer }
    }

    /// Sent from the first, received into the second.
    pub fn separate(input: &'a [u8], buffer: &'a mut [u8]) -> Self {
        Self { start: 0, input: Some(input), buffer }
    }

    /// A part of the whole, which begins with this byte of it.
    #[must_use]
    pub fn beginning_at(self, start: usize) -> Self {
        Self { start, ..self }
    }

    /// What is sent from.
    pub(crate) fn input(&self) -> &[u8] {
        self.input.unwrap_or(self.buffer)
    }

    /// What is received into.
    pub(crate) fn buffer(&mut self) -> &mut [u8] {
        self.buffer
    }

    /// Where bytes of the whole are in this memory.
    fn here(&self, range: Range<usize>) -> Range<usize> {
        // Nothing is nowhere.
        if range.is_empty() { 0..0 } else { range.start - self.start..range.end - self.start }
    }

    fn outgoing(&self, range: Range<usize>) -> &[u8] {
        &self.input()[self.here(range)]
    }

    fn incoming(&mut self, range: Range<usize>) -> &mut [u8] {
        let here = self.here(range);
        &mut self.buffer[here]
    }

    fn is_in_place(&self) -> bool {
        self.input.is_none()
    }

    fn len(&self) -> usize {
        self.input().len().max(self.buffer.len())
    }
}

/// How far one message has come.
#[derive(Debug, Default, Clone)]
struct Done {
    /// Bytes of the buffer that were received, or bytes of the message that were sent.
    bytes: usize,
    complete: bool,
    /// Whether partial sums are received. Known when the first bytes are.
    is_partial: bool,
    /// The front of an element whose rest has not arrived.
    carry: [u8; 8],
    carry_len: usize,
}

/// A collective in progress. Its memory is lent to it for each poll.
#[derive(Debug)]
pub struct Collective {
    seq: u64,
    /// The signature of the group's call, as all its parts know it.
    signature: Signature,
    /// How it is performed here, which frames say too.
    method: Method,
    fingerprint: u64,
    encoded: Vec<u8>,
    /// Peers that have been sent the signature.
    told: Vec<usize>,
    plan: Arc<Plan>,
    arithmetic: Option<Arithmetic>,
    partials: Partials,
    /// Those of other ranks that wait for the rest, or a table of all: as the plan says.
    contributions: Scratch,
    element: usize,
    sends: Vec<Done>,
    recvs: Vec<Done>,
    /// All before these are complete.
    first_send: usize,
    first_recv: usize,
    received: u64,
    /// Bytes that may still be moved in this poll.
    budget: usize,
    begun: bool,
    /// Whether what is received overwrites what is to be sent.
    in_place: bool,
}

impl Collective {
    /// `method` is how it is performed, of which the signature need not say anything.
    pub fn new(
        seq: u64,
        mut signature: Signature,
        method: Method,
        plan: Arc<Plan>,
        arithmetic: Option<Arithmetic>,
    ) -> Self {
        // On the wire it says how it is performed here.
        let said = std::mem::replace(&mut signature.method, method);
        let (fingerprint, encoded) = (signature.fingerprint(), encode_signature(&signature));
        let method = std::mem::replace(&mut signature.method, said);
        Self {
            seq,
            fingerprint,
            encoded,
            element: signature.carries().map_or(1, phalanx_core::DType::size),
            signature,
            method,
            told: Vec::new(),
            sends: vec![Done::default(); plan.sends.len()],
            recvs: vec![Done::default(); plan.recvs.len()],
            plan,
            arithmetic,
            partials: Partials::default(),
            contributions: Scratch::default(),
            first_send: 0,
            first_recv: 0,
            received: 0,
            budget: 0,
            begun: false,
            in_place: true,
        }
    }

    /// Adds sums to begin with, which its plan knows of.
    pub fn begun(mut self, partials: Partials) -> Self {
        self.partials = partials;
        self
    }

    fn key(&self) -> Key {
        Key { channel: Channel::Collective, id: self.seq }
    }

    /// Does all that can be done now.
    pub fn poll(&mut self, core: &mut Core, memory: &mut Memory<'_>) -> Result<Progress, Fault> {
        if core.turn != self.seq {
            return Ok(Progress::Idle);
        }
        if !self.begun {
            self.begun = true;
            self.in_place = memory.is_in_place();
            core.health.remember(self.seq, &self.signature, core.log_clock);
            self.begin_partials(memory);
            self.begin_contributions(memory, &core.health);
        }
        let Some(row_len) = self.plan.row_len else { return self.exchange(core, memory) };
        let mut table = std::mem::take(&mut self.contributions);
        let progress = self.exchange(core, &mut Memory::in_place(table.bytes_mut()))?;
        if progress == Progress::Finished {
            self.fold_rows(&table, row_len, memory);
        }
        self.contributions = table;
        Ok(progress)
    }

    /// Moves what can be moved now.
    fn exchange(&mut self, core: &mut Core, memory: &mut Memory<'_>) -> Result<Progress, Fault> {
        let mut moved = false;
        self.budget = POLL_BYTES;
        // What was sent leaves room to receive into, and what was received can be sent on.
        loop {
            let sent = self.poll_sends(core, memory)?;
            if moved && !sent {
                break;
            }
            let received = self.poll_recvs(core, memory)?;
            moved |= sent || received;
            if !received || self.budget == 0 {
                break;
            }
        }
        if self.first_send == self.plan.sends.len() && self.first_recv == self.plan.recvs.len() {
            core.next_turn();
            return Ok(Progress::Finished);
        }
        Ok(if moved { Progress::Moved } else { Progress::Idle })
    }

    fn begin_partials(&mut self, memory: &Memory<'_>) {
        let is_missing = self.plan.has_partials && self.partials.is_empty();
        let Some(arithmetic) = self.arithmetic.filter(|_| is_missing) else { return };
        self.partials = Partials::new(memory.len());
        for range in &self.plan.widened {
            arithmetic.widen(memory.outgoing(range.clone()), self.partials.of(range));
        }
    }

    /// Room for contributions, and this rank's own in the table of all, where there is one.
    fn begin_contributions(&mut self, memory: &Memory<'_>, health: &GroupHealth) {
        let Some(row_len) = self.plan.row_len else {
            self.contributions = Scratch::new(self.plan.kept_len);
            return;
        };
        self.contributions = Scratch::new(health.members().len() * row_len);
        let own = health.rank * row_len;
        copy_slice(&mut self.contributions.bytes_mut()[own..own + row_len], memory.outgoing(0..row_len));
    }

    /// The result, of a table that has the contributions of all.
    fn fold_rows(&self, table: &Scratch, row_len: usize, memory: &mut Memory<'_>) {
        let arithmetic = self.arithmetic.expect("only reductions have contributions");
        if row_len > 0 {
            let rows: Vec<_> = table.bytes().chunks_exact(row_len).map(Some).collect();
            arithmetic.fold(memory.incoming(0..row_len), &rows);
        }
    }

    /// Combines the contributions to a range of the buffer, of which the last has just come `from` the sender of `last`.
    fn fold(
        &self,
        last: &Transfer,
        range: Range<usize>,
        from: &[u8],
        world_size: usize,
        memory: &mut Memory<'_>,
    ) {
        let arithmetic = self.arithmetic.expect("schedules combine only in reductions");
        let at = range.start - last.parts[0].start;
        // This rank's own is in the buffer.
        let mut contributions = vec![None; world_size];
        contributions[last.peer] = Some(from);
        for transfer in self.plan.recvs.iter().filter(|transfer| transfer.parts == last.parts) {
            if let Some(kept) = transfer.kept_at {
                contributions[transfer.peer] = Some(&self.contributions.bytes()[kept + at..][..range.len()]);
            }
        }
        arithmetic.fold(memory.incoming(range), &contributions);
    }

    /// The messages under way from `first` on, each the oldest of its peer.
    fn window(transfers: &[Transfer], done: &[Done], first: usize) -> impl Iterator<Item = usize> + use<> {
        let (mut picked, mut len) = ([0; WINDOW], 0);
        // Past this the scan stops: a long schedule with one slow peer must not be walked again and again.
        for i in (first..transfers.len().min(first + 4 * WINDOW)).filter(|&i| !done[i].complete) {
            if len == WINDOW {
                break;
            }
            let same_peer = |&e: &usize| transfers[e].peer == transfers[i].peer;
            if !(first..i).filter(|&e| !done[e].complete).any(|e| same_peer(&e)) {
                picked[len] = i;
                len += 1;
            }
        }
        picked.into_iter().take(len)
    }

    fn poll_sends(&mut self, core: &mut Core, memory: &Memory<'_>) -> Result<bool, Fault> {
        let plan = self.plan.clone();
        let mut moved = false;
        for i in Self::window(&plan.sends, &self.sends, self.first_send) {
            let transfer = &plan.sends[i];
            while let Some(ready) = self.ready(&plan, i) {
                let told = self.told.contains(&transfer.peer);
                let message = Outbound {
                    peer: transfer.peer,
                    key: self.key(),
                    ordinal: transfer.ordinal,
                    fingerprint: self.fingerprint,
                    signature: if told { &[] } else { &self.encoded },
                    message_len: transfer.sent_len() as u64,
                };
                let bytes = match transfer.is_partial {
                    // Half a byte of the buffer may have been sent.
                    true => self.partials.bytes(2 * ready.start + self.sends[i].bytes % 2..2 * ready.end),
                    false => memory.outgoing(ready),
                };
                let sent = core.wire.send(&message, bytes).map_err(|f| (transfer.peer, f))?;
                if !told && (sent.payload > 0 || sent.complete) {
                    self.told.push(transfer.peer);
                }
                self.sends[i].bytes += sent.payload;
                self.budget = self.budget.saturating_sub(sent.payload);
                moved |= sent.payload > 0 || sent.complete;
                if sent.complete && self.sends[i].bytes == transfer.sent_len() {
                    self.sends[i].complete = true;
                    break;
                }
                if !sent.complete || self.budget == 0 {
                    break;
                }
            }
        }
        while self.sends.get(self.first_send).is_some_and(|d| d.complete) {
            self.first_send += 1;
        }
        Ok(moved)
    }

    /// The ranges that receives of steps before `step` have yet to deliver.
    fn undelivered<'s>(&'s self, plan: &'s Plan, step: u32) -> impl Iterator<Item = Range<usize>> + 's {
        (self.first_recv..plan.recvs.len())
            .take_while(move |&i| plan.recvs[i].step < step)
            .filter(|&i| !self.recvs[i].complete)
            .flat_map(|i| plan.recvs[i].left(self.recvs[i].bytes))
    }

    /// The ranges that sends up to and including `step` have yet to send.
    fn unsent<'s>(&'s self, plan: &'s Plan, step: u32) -> impl Iterator<Item = Range<usize>> + 's {
        (self.first_send..plan.sends.len())
            .take_while(move |&i| plan.sends[i].step <= step)
            .filter(|&i| !self.sends[i].complete)
            .flat_map(|i| plan.sends[i].left(plan.sends[i].sent_of_buffer(self.sends[i].bytes)))
    }

    fn poll_recvs(&mut self, core: &mut Core, memory: &mut Memory<'_>) -> Result<bool, Fault> {
        let plan = self.plan.clone();
        let mut moved = false;
        for i in Self::window(&plan.recvs, &self.recvs, self.first_recv) {
            let transfer = &plan.recvs[i];
            while !self.recvs[i].complete && self.budget > 0 {
                let Some(free) = self.free(&plan, i) else { break };
                if !self.receive(core, memory, i, transfer, free)? {
                    break;
                }
                moved = true;
            }
        }
        while self.recvs.get(self.first_recv).is_some_and(|d| d.complete) {
            self.first_recv += 1;
        }
        Ok(moved)
    }

    /// Receives into `free` what has arrived of message `i`; whether anything happened.
    fn receive(
        &mut self,
        core: &mut Core,
        memory: &mut Memory<'_>,
        i: usize,
        transfer: &Transfer,
        free: Range<usize>,
    ) -> Result<bool, Fault> {
        let (peer, key) = (transfer.peer, self.key());
        let Some(arrival) = core.wire.arrival(peer, key).map_err(|f| (peer, f))? else { return Ok(false) };
        let is_first = self.recvs[i].bytes + self.recvs[i].carry_len == 0;
        let is_partial = self.check(core, transfer, arrival.header)?;
        if is_first {
            self.recvs[i].is_partial = is_partial;
        }
        let width = if self.recvs[i].is_partial { 2 } else { 1 };
        let due = width * (transfer.len() - self.recvs[i].bytes) - self.recvs[i].carry_len;
        if arrival.left > due {
            let what = format!("in {}: {} bytes where {due} were due", self.signature, arrival.left);
            return Err(Fault::Nonsense { peer, what });
        }
        let read = match transfer.action {
            _ if arrival.left == 0 => 0,
            Action::Copy => {
                let n = free.len().min(arrival.left);
                let into = memory.incoming(free.start..free.start + n);
                let n = if n == 0 { 0 } else { core.wire.read(peer, key, into).map_err(|f| (peer, f))? };
                self.recvs[i].bytes += n;
                n
            }
            Action::Combine if transfer.kept_at.is_some() => self.keep(core, i, transfer, arrival.left)?,
            Action::Combine | Action::Finish => {
                // Whole elements only: the rest of a cut one is needed by somebody still.
                let whole = free.len() / self.element * self.element;
                self.combine(core, memory, i, transfer, free.start..free.start + whole, arrival.left)?
            }
        };
        self.received += (read / width) as u64;
        self.budget = self.budget.saturating_sub(read);
        if arrival.left == read {
            core.wire.finish(peer, key);
            let done = &mut self.recvs[i];
            done.complete = done.bytes == transfer.len();
            return Ok(true);
        }
        Ok(read > 0)
    }

    /// Receives the contribution of another rank to where it is kept.
    fn keep(&mut self, core: &mut Core, i: usize, transfer: &Transfer, left: usize) -> Result<usize, Fault> {
        let done = &mut self.recvs[i];
        let from = transfer.kept_at.expect("it is kept") + done.bytes;
        let into = &mut self.contributions.bytes_mut()[from..from + left];
        let n = core.wire.read(transfer.peer, Key { channel: Channel::Collective, id: self.seq }, into);
        let n = n.map_err(|f| (transfer.peer, f))?;
        done.bytes += n;
        Ok(n)
    }

    fn combine(
        &mut self,
        core: &mut Core,
        memory: &mut Memory<'_>,
        i: usize,
        transfer: &Transfer,
        free: Range<usize>,
        left: usize,
    ) -> Result<usize, Fault> {
        let arithmetic = self.arithmetic.expect("schedules combine only in reductions");
        let done = &mut self.recvs[i];
        let (width, read_max) = match (done.is_partial, arithmetic.is_wide()) {
            (is_partial, true) => (1 + usize::from(is_partial), READ_LEN),
            (_, false) => (1, SCRATCH_LEN),
        };
        let room = (width * free.len()).min(read_max).saturating_sub(done.carry_len);
        let want = room.min(left);
        if want == 0 {
            return Ok(0);
        }
        let scratch: &mut [u8] = bytemuck::cast_slice_mut(&mut core.scratch);
        scratch[..done.carry_len].copy_from_slice(&done.carry[..done.carry_len]);
        let key = Key { channel: Channel::Collective, id: self.seq };
        let into = &mut scratch[done.carry_len..done.carry_len + want];
        let n = core.wire.read(transfer.peer, key, into).map_err(|f| (transfer.peer, f))?;
        let have = done.carry_len + n;
        let whole = have / (width * self.element) * (width * self.element);
        let (range, from) = (free.start..free.start + whole / width, &scratch[..whole]);
        let last = transfer.action == Action::Finish;
        let len = range.len();
        if arithmetic.sums() == Sums::InRankOrder {
            let world_size = core.health.members().len();
            self.fold(transfer, range, from, world_size, memory);
        } else if !arithmetic.is_wide() || last && !transfer.is_partial && !done.is_partial {
            arithmetic.combine(memory.incoming(range.clone()), from, last);
        } else {
            let from = if done.is_partial { Operand::Partial(from) } else { Operand::Elements(from) };
            let partial = self.partials.of(&range);
            match (transfer.is_partial, last) {
                (false, false) => arithmetic.begin(memory.outgoing(range.clone()), from, partial),
                (true, false) => arithmetic.add(partial, from),
                (false, true) => {
                    arithmetic.widen(memory.outgoing(range.clone()), partial);
                    arithmetic.end(partial, from, memory.incoming(range.clone()));
                }
                (true, true) => arithmetic.end(partial, from, memory.incoming(range.clone())),
            }
        }
        let done = &mut self.recvs[i];
        done.bytes += len;
        done.carry_len = have - whole;
        done.carry[..done.carry_len].copy_from_slice(&scratch[whole..have]);
        Ok(n)
    }

    /// Whether a frame belongs to this message of this operation; whether it holds partial sums.
    fn check(
        &self,
        core: &Core,
        transfer: &Transfer,
        header: phalanx_transport::Header,
    ) -> Result<bool, Fault> {
        if header.fingerprint != self.fingerprint && !breaks(Mechanism::Fingerprint) {
            let theirs = core.wire.signature(transfer.peer, self.key());
            return Err(Fault::Mismatch {
                peer: transfer.peer,
                seq: self.seq,
                tag: None,
                ours: Box::new(Signature { method: self.method.clone(), ..self.signature.clone() }),
                theirs,
            });
        }
        let len = transfer.len() as u64;
        let may_be_partial = transfer.action != Action::Copy && self.plan.has_partials;
        let is_partial = may_be_partial && header.message_len == 2 * len;
        if header.ordinal != transfer.ordinal || header.message_len != len && !is_partial {
            let what = format!(
                "in {}: message {} of {} bytes where message {} of {} was due",
                self.signature,
                header.ordinal,
                header.message_len,
                transfer.ordinal,
                transfer.len()
            );
            return Err(Fault::Nonsense { peer: transfer.peer, what });
        }
        Ok(is_partial)
    }

    /// The links it waits for, and which way.
    pub fn wants(&self, core: &Core, wants: &mut Vec<(usize, Direction)>) {
        if core.turn == self.seq {
            let sends = Self::window(&self.plan.sends, &self.sends, self.first_send);
            let sends = sends.filter(|&i| self.ready(&self.plan, i).is_some());
            wants.extend(sends.map(|i| (self.plan.sends[i].peer, Direction::Send)));
            let recvs = Self::window(&self.plan.recvs, &self.recvs, self.first_recv);
            let recvs = recvs.filter(|&i| self.free(&self.plan, i).is_some());
            wants.extend(recvs.map(|i| (self.plan.recvs[i].peer, Direction::Recv)));
        }
    }

    /// The range that can be sent of message `i`; `None` if it has to wait for what is to be received.
    fn ready(&self, plan: &Plan, i: usize) -> Option<Range<usize>> {
        let transfer = &plan.sends[i];
        let next = transfer.next(transfer.sent_of_buffer(self.sends[i].bytes));
        if next.is_empty() {
            // All an empty message says is that this rank has come so far.
            let mut open = (self.first_recv..plan.recvs.len()).filter(|&r| !self.recvs[r].complete);
            return open.all(|r| plan.recvs[r].step >= transfer.step).then_some(next);
        }
        if !self.in_place {
            return Some(next);
        }
        Some(clear_of(next, self.undelivered(plan, transfer.step))).filter(|ready| !ready.is_empty())
    }

    /// Where message `i` may be received; `None` if it has to wait. Looking at a link costs a system call, so nobody looks for what
    /// could not be used.
    fn free(&self, plan: &Plan, i: usize) -> Option<Range<usize>> {
        let transfer = &plan.recvs[i];
        let next = transfer.next(self.recvs[i].bytes);
        if next.is_empty() {
            let mut earlier = self.first_recv..i;
            return earlier.all(|r| self.recvs[r].complete).then_some(next);
        }
        // What is kept goes nowhere that anybody reads yet.
        if !self.in_place || transfer.kept_at.is_some() {
            return Some(next);
        }
        let older = clear_of(next, self.undelivered(plan, transfer.step));
        Some(clear_of(older, self.unsent(plan, transfer.step))).filter(|free| !free.is_empty())
    }

    /// Its place among the group's collectives.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// What was called.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Payload bytes received, and all there are to receive.
    pub fn bytes(&self) -> (u64, u64) {
        (self.received, self.plan.recv_bytes)
    }
}

/// A collective with the memory it works on, for a caller that waits.
#[derive(Debug)]
pub struct Borrowed<'a> {
    /// The collective.
    pub collective: Collective,
    /// The elements.
    pub memory: Memory<'a>,
}

impl Operation for Borrowed<'_> {
    fn poll(&mut self, core: &mut Core) -> Result<Progress, Fault> {
        self.collective.poll(core, &mut self.memory)
    }

    fn wants(&self, core: &Core, wants: &mut Vec<(usize, Direction)>) {
        self.collective.wants(core, wants);
    }

    fn signature(&self) -> &Signature {
        self.collective.signature()
    }

    fn seq(&self) -> u64 {
        self.collective.seq()
    }

    fn bytes(&self) -> (u64, u64) {
        self.collective.bytes()
    }

    fn is_due(&self, core: &Core) -> bool {
        core.turn == self.seq()
    }
}
