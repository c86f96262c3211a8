//! The backend for host memory: an algorithm's schedule, performed over a transport.

use crate::control::failure_report::SETTLE_TIME;
use crate::control::group_health::GroupHealth;
#[cfg(target_os = "linux")]
use crate::control::group_health::ParentCall;
use crate::engine::attempt::Attempt;
use crate::engine::batch::{Batch, Borrowed};
use crate::engine::collective::{self, Collective as Running};
use crate::engine::core::Core;
use crate::engine::message::Message;
use crate::engine::message_queues::{Ticket, queue_key};
use crate::engine::partial::Arithmetic;
#[cfg(target_os = "linux")]
use crate::engine::partial::Partials;
use crate::engine::plan::{Plan, Sums};
use crate::engine::task::Task;
use crate::group::backend::{Address, Backend, HostMessage, OnTimeout, Payload, counted};
use crate::group::call::{HostCall, OwnedCall, element};
use crate::group::memory::{Changed, Extent, OwnedBuffer, Readable, Writable};
use crate::group::pending::{Bytes, Completion, Pending};
use crate::group::request::Request;
use crate::host::BackendChoice;
use crate::host::forced;
use crate::host::memory_sharing::MemorySharing;
use crate::host::owned_operation::Owned;
use crate::host::workspace::{Pattern, Workspace};
use crate::progress::Engine;
use crate::progress::progress_thread;
use crate::trace::{Trace, clock};
#[cfg(target_os = "linux")]
use phalanx_algo::LevelsWay;
use phalanx_algo::{Algorithm, Kind, Selector, Shape, SumKind};
use phalanx_core::{Cause, Deadline, Error, GroupId, OpKind, Peer, ReduceOp, Result, Signature};
use phalanx_transport::Wire;
use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Messages so long, in bytes, are sent without a receiver, so they are sent where they are begun.
const SHORT: usize = 256 << 10;

/// Plans kept: a training loop repeats a handful of shapes.
const PLANS_KEPT: usize = 32;

/// Plans by what they depend on: the fingerprint of the call, the own counts, and where sums are.
type Plans = Mutex<VecDeque<(u64, u64, Sums, Arc<Plan>)>>;

/// One group on one rank, over any transport.
#[derive(Debug)]
pub(crate) struct ScheduledBackend {
    pub(crate) engine: Arc<Engine>,
    name: &'static str,
    selector: Arc<Selector>,
    choice: BackendChoice,
    plans: Plans,
    /// The number of the next collective, taken in the order of the calls.
    next: Mutex<u64>,
}

/// How a call is performed.
#[derive(Debug)]
pub(crate) struct Planned {
    plan: Arc<Plan>,
    arithmetic: Option<Arithmetic>,
}

impl ScheduledBackend {
    /// A group with this health, over the links that its job makes.
    pub(crate) fn new(health: Arc<GroupHealth>, choice: BackendChoice, selector: Arc<Selector>) -> Self {
        let wire = health.job.open(health.latch.group(), health.latch.members());
        Self::over(wire, health, choice, selector)
    }

    /// A group with this health, over `wire`. `choice` is for the groups it divides into.
    pub(crate) fn over(
        wire: Wire,
        health: Arc<GroupHealth>,
        choice: BackendChoice,
        selector: Arc<Selector>,
    ) -> Self {
        let name = wire.name();
        health.latch.has_links(health.members().to_vec(), wire.tally().clone());
        let engine = Arc::new(Engine::new(health, wire));
        Self { engine, name, selector, choice, plans: Plans::default(), next: Mutex::new(1) }
    }

    /// How a call that was [checked](Self::check) is performed.
    pub(crate) fn planned(&self, signature: &Signature, pattern: &Pattern) -> Result<Planned> {
        self.planned_of(signature, pattern, self.engine.health.members().len(), false)
    }

    /// As [`planned`](Self::planned); an average is divided by `contributions`. `is_begun`: what is to be combined are sums already.
    fn planned_of(
        &self,
        signature: &Signature,
        pattern: &Pattern,
        contributions: usize,
        is_begun: bool,
    ) -> Result<Planned> {
        let arithmetic = Arithmetic::of(signature, pattern.reduce, contributions)?;
        let sums = match (is_begun, &arithmetic) {
            (true, _) => Sums::Begun,
            (false, Some(arithmetic)) => arithmetic.sums(),
            (false, None) => Sums::InPlace,
        };
        Ok(Planned { plan: self.plan(signature, pattern, sums), arithmetic })
    }

    /// Gives a call its number. Nothing may be wrong with it any more: the others wait for this rank from then on.
    pub(crate) fn begin(&self, signature: &Signature, planned: Planned) -> Running {
        let Planned { plan, arithmetic } = planned;
        let mut next = self.next();
        let seq = *next;
        *next += 1;
        let method = signature.method.then(&plan.method);
        let signature = Signature { method: method.clone(), ..signature.clone() };
        Running::new(seq, signature, method, plan, arithmetic)
    }

    /// Refuses a call that can't begin. Before its buffers are touched.
    pub(crate) fn check(&self, signature: &Signature) -> Result<()> {
        self.engine.health.check(signature, || *self.next())?;
        self.check_order(signature)
    }

    /// Refuses a reduction in the order of the ranks for which a way is forced that has another order.
    pub(crate) fn check_order(&self, signature: &Signature) -> Result<()> {
        if signature.method.is_in_rank_order() {
            self.selector.check_rank_order(signature.op)
        } else {
            Ok(())
        }
    }

    /// The forced ways that the group can never take, in words; it works together `by` ways of this kind.
    pub(crate) fn never_taken(&self, by: Kind) -> String {
        forced::never_taken(&self.selector, &self.engine.health, by)
    }

    /// Whether an algorithm of messages is forced for this operation, and can be taken.
    #[cfg(target_os = "linux")]
    pub(crate) fn is_forced(&self, op: OpKind) -> bool {
        let world_size = self.engine.health.members().len();
        self.selector.forced_messages(op).is_some_and(|algorithm| algorithm.supports(world_size))
    }

    /// The way over several hosts that is forced for this operation.
    #[cfg(target_os = "linux")]
    pub(crate) fn forced_levels(&self, op: OpKind) -> Option<LevelsWay> {
        self.selector.forced_levels(op)
    }

    fn choose(&self, kind: OpKind, bytes: usize, world_size: usize, sums: Sums) -> Algorithm {
        match sums {
            Sums::Kept => self.selector.select_for(kind, SumKind::Wide, bytes, world_size),
            Sums::InPlace => self.selector.select(kind, bytes, world_size),
            Sums::InRankOrder => self.selector.select_for(kind, SumKind::InRankOrder, bytes, world_size),
            // Whatever the algorithm, about half of what it sends are sums.
            Sums::Begun => self.selector.select(kind, bytes.saturating_add(bytes / 2), world_size),
        }
    }

    fn plan(&self, signature: &Signature, pattern: &Pattern, sums: Sums) -> Arc<Plan> {
        let layouts = pattern.recv_layout.iter().chain([&pattern.layout]);
        // A call may be performed as another operation than it says.
        let own = Signature::detail_of(&[pattern.kind as usize, pattern.root]);
        let own = layouts.fold(own, |hash, layout| hash.rotate_left(7) ^ layout.fingerprint());
        let fingerprint = signature.fingerprint();
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let is_ours = |(f, o, s, _): &&(u64, u64, Sums, Arc<Plan>)| (*f, *o, *s) == (fingerprint, own, sums);
        if let Some((.., plan)) = plans.iter().find(is_ours) {
            return plan.clone();
        }
        // From what all ranks agree on alone: each must choose the same. What this rank has to give may be nothing where others have something.
        let (is_agreed, layout) = (pattern.recv_layout.is_none(), &pattern.layout);
        let count = if is_agreed { layout.len() } else { signature.count as usize };
        let element = element(signature.carries());
        // Nothing to move, but ranks that disagree must still find out: empty messages carry signatures.
        let kind = if is_agreed && layout.is_empty() { OpKind::Barrier } else { pattern.kind };
        let algorithm = self.choose(kind, count * element, layout.world_size(), sums);
        let shape = Shape {
            rank: self.engine.health.rank,
            world_size: layout.world_size(),
            layout,
            recv_layout: pattern.recv_layout.as_ref(),
            root: pattern.root,
        };
        tracing::debug!(call = %signature, algorithm = %algorithm, "planned");
        let method = method(algorithm, pattern, sums).into();
        let plan = Plan::new(algorithm, &shape, element, sums);
        let plan = Arc::new(Plan { method, ..plan });
        if plans.len() == PLANS_KEPT {
            plans.pop_front();
        }
        plans.push_back((fingerprint, own, sums, plan.clone()));
        plan
    }

    /// Performs `part` of a call of the group, among the ranks of this backend. All collectives here are such parts, at most one
    /// of each call, in the order of their numbers. An average is divided by `contributions`. `begun`: this rank's part in a sum of half
    /// types, where that is a sum already; the result goes to the buffer.
    #[cfg(target_os = "linux")]
    pub(crate) fn perform_part(
        &self,
        whole: ParentCall<'_>,
        part: HostCall<'_>,
        contributions: usize,
        begun: Option<Partials>,
    ) -> Result<()> {
        let (signature, request) = part.into_parts();
        let (planned, workspace) = self.prepare(signature, request, |pattern| {
            self.planned_of(signature, pattern, contributions, begun.is_some())
        })?;
        let Planned { plan, arithmetic } = planned;
        let method = whole.signature.method.then(&plan.method);
        let running = Running::new(whole.seq, whole.signature.clone(), method, plan, arithmetic);
        let running = match begun {
            Some(partials) => running.begun(partials),
            None => running,
        };
        self.engine.lock().turn = whole.seq;
        self.run(running, workspace, Attempt::since(whole.called, whole.limit))
    }

    /// How a request is performed, as `plan` says, and the memory that its schedule works on.
    #[inline]
    fn prepare<I: Readable, O: Writable>(
        &self,
        signature: &Signature,
        request: Request<I, O>,
        plan: impl FnOnce(&Pattern) -> Result<Planned>,
    ) -> Result<(Planned, Workspace<I, O>)> {
        let (rank, world_size) = (self.engine.health.rank, self.engine.health.members().len());
        let misuse =
            |changed: Changed| Error::misuse(signature.op, changed.describe(signature.op, &signature.site));
        let workspace = Workspace::of(request, signature.carries(), rank, world_size);
        let (pattern, mut workspace) = workspace.map_err(misuse)?;
        let planned = plan(&pattern)?;
        workspace.settle(&planned.plan.touched).map_err(misuse)?;
        Ok((planned, workspace))
    }

    /// Gives a call its number, with the memory that it works on.
    #[inline]
    fn begin_request<I: Readable, O: Writable>(
        &self,
        signature: &Signature,
        request: Request<I, O>,
    ) -> Result<(Running, Workspace<I, O>)> {
        let (planned, workspace) =
            self.prepare(signature, request, |pattern| self.planned(signature, pattern))?;
        Ok((self.begin(signature, planned), workspace))
    }

    fn next(&self) -> MutexGuard<'_, u64> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs what was begun to its end.
    #[inline]
    fn run(
        &self,
        collective: Running,
        mut workspace: Workspace<&[u8], &mut [u8]>,
        attempt: Attempt,
    ) -> Result<()> {
        let memory = workspace.memory().expect("a slice keeps its length");
        let done = self.engine.drive(&mut collective::Borrowed { collective, memory }, attempt);
        workspace.finish().expect("a slice keeps its length");
        done
    }

    /// An operation on buffers that it owns.
    pub(super) fn owned(
        &self,
        task: Task,
        workspace: Workspace<OwnedBuffer, OwnedBuffer>,
        completion: Completion,
        limit: Duration,
    ) -> Owned {
        Owned::new(task, workspace, completion, limit, self.engine.health.clone())
    }

    /// A message that begins, and its number.
    pub(crate) fn message(&self, address: &Address, len: usize) -> Result<(Message, u64)> {
        self.engine.health.check_message(&address.signature, Some(address.peer), address.tag)?;
        Ok((self.queued(address, len), self.log(address)))
    }

    /// A message with a place in its queue.
    fn queued(&self, address: &Address, len: usize) -> Message {
        let key = queue_key(address.signature.op, address.peer, address.tag);
        let ticket: Ticket = self.engine.lock().queues.join(key);
        Message::new(address.peer, address.tag, ticket, address.signature.clone(), len)
    }

    /// For as long as a receive goes on that need not get anything.
    pub(super) fn in_vain(&self, on_timeout: OnTimeout) -> Option<InVain<'_>> {
        (on_timeout == OnTimeout::ReturnNoMessage).then(|| InVain::begin(&self.engine.health))
    }

    /// Performs messages side by side. Where only short ones to send are left that would have to wait for their receivers, the group's own thread goes
    /// on with copies.
    fn perform_all(&self, messages: Vec<HostMessage<'_>>, limit: Duration) -> Result<()> {
        let Some(first) = messages.first() else { return Ok(()) };
        let Address { signature, peer, tag } = &first.address;
        self.engine.health.check_message(signature, Some(*peer), *tag)?;
        let numbers: Vec<_> = messages.iter().map(|message| self.log(&message.address)).collect();
        self.perform_begun(messages.into_iter().zip(numbers).collect(), limit, OnTimeout::FailGroup)
    }

    /// As [`perform_all`](Self::perform_all), where each has a number in the log. There is at least one.
    fn perform_begun(
        &self,
        messages: Vec<(HostMessage<'_>, u64)>,
        limit: Duration,
        on_timeout: OnTimeout,
    ) -> Result<()> {
        let queued = |(HostMessage { address, payload }, number)| {
            Borrowed::new(self.queued(&address, payload.len()), number, payload)
        };
        let mut batch = Batch::new(messages.into_iter().map(queued).collect(), on_timeout);
        let called = Instant::now();
        let mut attempt = Attempt::new(called, limit);
        let leaves = |core: &mut Core, batch: &Batch<'_>| {
            batch.is_short_sends() && progress_thread::start(&self.engine).is_ok() && batch.reserve(core)
        };
        match self.engine.drive_until(&mut batch, &mut attempt, leaves) {
            Ok(true) => {}
            // Nobody waits for them. If one fails, the group has failed, and that is heard of there.
            Ok(false) => batch.into_eager().for_each(|(message, number, bytes)| {
                let (_, completion) = Pending::new();
                let copy = OwnedBuffer::new(Box::new(bytes.to_vec()));
                let left = limit.saturating_sub(called.elapsed());
                let task = Task::Message(message, number);
                let job = self.owned(task, Workspace::InPlace(copy), completion, left);
                progress_thread::submit(&self.engine, Box::new(job));
            }),
            Err(error) => {
                batch.withdraw(&mut self.engine.lock());
                return Err(error);
            }
        }
        Ok(())
    }
}

/// All that decides which bytes go where, as far as all ranks know it: what they send each other in uneven blocks, only the two know.
fn method(algorithm: Algorithm, pattern: &Pattern, sums: Sums) -> String {
    let Pattern { layout, recv_layout, .. } = pattern;
    let mut method = algorithm.name().to_owned();
    if !layout.is_empty() && recv_layout.is_none() {
        method += &format!(" in {}", layout.describe());
    }
    method += match sums {
        Sums::InPlace | Sums::InRankOrder => "",
        Sums::Kept => " with sums in f32",
        Sums::Begun => " of sums in f32",
    };
    method
}

/// A receive that need not get anything is under way.
pub(super) struct InVain<'f>(&'f GroupHealth);

impl<'f> InVain<'f> {
    fn begin(health: &'f GroupHealth) -> Self {
        health.latch.in_vain.fetch_add(1, Ordering::Relaxed);
        Self(health)
    }
}

impl Drop for InVain<'_> {
    fn drop(&mut self) {
        self.0.latch.in_vain.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Backend for ScheduledBackend {
    fn name(&self) -> &'static str {
        self.name
    }

    fn describe(&self) -> String {
        let health = &self.engine.health;
        if health.members().len() == 1 {
            return "alone: 1 rank, nothing is sent".to_owned();
        }
        let ranks = counted(health.members().len(), "rank");
        let hosts: Option<BTreeSet<_>> = health.members().iter().map(|&m| health.job.host_of(m)).collect();
        let on_hosts =
            hosts.map_or_else(String::new, |hosts| format!(" on {}", counted(hosts.len(), "host")));
        let auto = self.choice == BackendChoice::Auto && self.name == "tcp";
        let why_not = auto.then(|| MemorySharing::new(&*health.job, health.members()).why_not()).flatten();
        let why_not = why_not.map_or_else(String::new, |why| format!("; {why}"));
        format!("{}: {ranks}{on_hosts}{why_not}{}", self.name, self.never_taken(Kind::Messages))
    }

    fn algorithm(&self, call: &Signature) -> Option<&'static str> {
        Algorithm::of(call.op).next()?;
        // What is multiplied before is added up.
        let reduce = call.reduce.map(|op| op.factor().map_or(op, |_| ReduceOp::Sum));
        let arithmetic = Arithmetic::of(call, reduce, 1).ok().flatten();
        let sums = arithmetic.map_or(Sums::InPlace, |arithmetic| arithmetic.sums());
        let bytes = call.count as usize * element(call.carries());
        Some(self.choose(call.op, bytes, self.members().len(), sums).name())
    }

    fn id(&self) -> GroupId {
        self.engine.health.latch.group()
    }

    fn rank(&self) -> usize {
        self.engine.health.rank
    }

    fn members(&self) -> &[usize] {
        self.engine.health.latch.members()
    }

    fn local(&self) -> (usize, usize) {
        let place = self.engine.health.job.place();
        (place.local_rank, place.local_world_size)
    }

    fn timeout(&self) -> Duration {
        self.engine.health.job.place().timeout
    }

    fn perform(&self, call: HostCall<'_>, timeout: Duration) -> Result<()> {
        call.check_place(self.rank(), self.members().len())?;
        let (signature, request) = call.into_parts();
        self.check(signature)?;
        let (running, workspace) = self.begin_request(signature, request)?;
        let seq = running.seq();
        self.run(running, workspace, Attempt::new(Instant::now(), timeout))?;
        self.engine.health.ended(seq, signature, clock::now);
        Ok(())
    }

    fn submit(&self, call: OwnedCall, timeout: Duration) -> Result<Pending> {
        call.check_place(self.rank(), self.members().len())?;
        progress_thread::start(&self.engine)?;
        let (signature, request) = call.into_parts();
        self.check(&signature)?;
        let (running, workspace) = self.begin_request(&signature, request)?;
        self.engine.health.latch.collectives.schedule(running.signature(), clock::now);
        let task = Task::Collective(Box::new(running));
        let (pending, completion) = Pending::new();
        let job = self.owned(task, workspace, completion, timeout);
        progress_thread::submit(&self.engine, Box::new(job));
        Ok(pending.driven_by(self.engine.clone()))
    }

    fn send(&self, to: Address, bytes: &[u8], timeout: Duration) -> Result<()> {
        let ControlFlow::Continue(number) = self.send_at_once(&to, bytes)? else { return Ok(()) };
        let number = number.unwrap_or_else(|| self.log(&to));
        let message = HostMessage { address: to, payload: Payload::Out(bytes) };
        self.perform_begun(vec![(message, number)], timeout, OnTimeout::FailGroup)
    }

    fn recv(&self, from: Address, bytes: &mut [u8], timeout: Duration, on_timeout: OnTimeout) -> Result<()> {
        let _in_vain = self.in_vain(on_timeout);
        let ControlFlow::Continue(number) = self.recv_at_once(&from, bytes, timeout)? else { return Ok(()) };
        let number = number.unwrap_or_else(|| self.log(&from));
        let message = HostMessage { address: from, payload: Payload::In(bytes) };
        self.perform_begun(vec![(message, number)], timeout, on_timeout)
    }

    fn recv_any(
        &self,
        call: Signature,
        tag: u64,
        bytes: &mut [u8],
        timeout: Duration,
        on_timeout: OnTimeout,
    ) -> Result<usize> {
        self.receive_any(call, tag, bytes, timeout, on_timeout)
    }

    fn submit_recv_any(
        &self,
        call: Signature,
        tag: u64,
        buffer: Box<dyn Bytes>,
        timeout: Duration,
    ) -> Result<Pending> {
        self.submit_any(call, tag, buffer, timeout)
    }

    fn perform_messages(&self, messages: Vec<HostMessage<'_>>, timeout: Duration) -> Result<()> {
        self.perform_all(messages, timeout)
    }

    fn submit_message(&self, address: Address, buffer: Box<dyn Bytes>, timeout: Duration) -> Result<Pending> {
        progress_thread::start(&self.engine)?;
        let buffer = OwnedBuffer::new(buffer);
        let is_short = buffer.len_bytes() <= SHORT;
        let (message, number) = self.message(&address, buffer.len_bytes())?;
        let task = Task::Message(message, number);
        let (pending, completion) = Pending::new();
        let job = Box::new(self.owned(task, Workspace::InPlace(buffer), completion, timeout));
        if is_short {
            progress_thread::submit_short(&self.engine, job);
        } else {
            progress_thread::submit(&self.engine, job);
        }
        Ok(pending.driven_by(self.engine.clone()))
    }

    fn forgo(&self, id: GroupId, why: &Error) {
        self.engine.health.forgo(id, why);
    }

    fn trace(&self) -> Option<Trace> {
        Some(self.engine.health.trace())
    }

    fn peer(&self, rank: usize) -> Peer {
        self.engine.health.peer(rank)
    }

    fn failure(&self) -> Option<Cause> {
        self.engine.health.latch.cause().cloned()
    }

    fn fail(&self, cause: Cause) -> Cause {
        self.engine.health.give_up(cause)
    }

    fn leave(&self) {
        if self.id() == phalanx_core::WORLD {
            // The others may need the arbiter until the last of them is late, and knows why.
            let limit = self.timeout() + SETTLE_TIME;
            self.engine.health.job.leave(&Deadline::after(Instant::now(), limit));
        }
    }
}

impl Drop for ScheduledBackend {
    fn drop(&mut self) {
        if self.engine.health.is_here() {
            if std::thread::panicking() {
                self.engine.health.panicked();
            }
            progress_thread::end(&self.engine);
        }
    }
}
