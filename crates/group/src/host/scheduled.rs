//! The backend for host memory: an algorithm's schedule, performed over a transport.

use crate::control::failure_report::SETTLE_TIME;
use crate::control::group_health::GroupHealth;
#[cfg(target_os = "linux")]
use crate::control::group_health::ParentCall;
use crate::engine::attempt::Attempt;
use crate::engine::collective::{Borrowed, Collective as Running, Memory};
use crate::engine::core::{Core, Fault, Progress};
use crate::engine::eager::EAGER_LIMIT;
use crate::engine::message::{self, Message, Payload};
use crate::engine::message_queues::Ticket;
use crate::engine::operation::Operation;
use crate::engine::partial::Arithmetic;
#[cfg(target_os = "linux")]
use crate::engine::partial::Partials;
use crate::engine::plan::{Plan, Sums};
use crate::engine::scratch;
use crate::engine::task::Task;
use crate::group::backend::{Address, Backend, Buffers, Collective, OnTimeout, counted};
use crate::group::pending::{Bytes, Completion, Pending, another_length};
use crate::host::neighbours::Neighbours;
use crate::progress::progress_thread;
use crate::progress::{Engine, Job};
use crate::trace::{Trace, clock};
use phalanx_algo::{Algorithm, Selector, Shape};
use phalanx_core::{Cause, Deadline, Error, GroupId, OpKind, Peer, Result, Signature};
use phalanx_rendezvous::BackendChoice;
use phalanx_transport::{Direction, Wire};
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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

    /// Gives a call its number and its plan.
    pub(crate) fn begin(&self, call: &Collective) -> Result<Running> {
        self.engine.health.check(&call.signature)?;
        let world_size = self.engine.health.members().len();
        let arithmetic = Arithmetic::of(&call.signature, world_size)?;
        let plan = self.plan(call, arithmetic.map_or(Sums::InPlace, |arithmetic| arithmetic.sums()));
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let seq = *next;
        *next += 1;
        let method = call.signature.method.then(&plan.method);
        let signature = Signature { method: method.clone(), ..call.signature.clone() };
        Ok(Running::new(seq, signature, method, plan, arithmetic))
    }

    fn choose(&self, call: &Collective, sums: Sums) -> Algorithm {
        let element = call.signature.dtype.map_or(1, phalanx_core::DType::size);
        // From what all ranks agree on alone: each must choose the same.
        let bytes = call.signature.count as usize * element;
        let kind = match call.signature.op {
            // What this rank has to give may be nothing where others have something.
            OpKind::AllToAll if call.recv_layout.is_some() => OpKind::AllToAll,
            // Nothing to move, but ranks that disagree must still find out: empty messages carry signatures.
            _ if call.layout.is_empty() => OpKind::Barrier,
            OpKind::Split => OpKind::AllGather,
            kind => kind,
        };
        let world_size = call.layout.world_size();
        match sums {
            Sums::Kept => self.selector.select_for_wide_sums(kind, bytes, world_size),
            Sums::InPlace => self.selector.select(kind, bytes, world_size),
            // Whatever the algorithm, about half of what it sends are sums.
            Sums::Begun => self.selector.select(kind, bytes.saturating_add(bytes / 2), world_size),
        }
    }

    fn plan(&self, call: &Collective, sums: Sums) -> Arc<Plan> {
        let layouts = call.recv_layout.iter().chain([&call.layout]);
        let own = layouts.fold(0u64, |hash, layout| hash.rotate_left(7) ^ layout.fingerprint());
        let fingerprint = call.signature.fingerprint();
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let is_ours = |(f, o, s, _): &&(u64, u64, Sums, Arc<Plan>)| (*f, *o, *s) == (fingerprint, own, sums);
        if let Some((.., plan)) = plans.iter().find(is_ours) {
            return plan.clone();
        }
        let element = call.signature.dtype.map_or(1, phalanx_core::DType::size);
        let algorithm = self.choose(call, sums);
        let shape = Shape {
            rank: self.engine.health.rank,
            world_size: call.layout.world_size(),
            layout: &call.layout,
            recv_layout: call.recv_layout.as_ref(),
            root: call.signature.root.unwrap_or(0) as usize,
        };
        tracing::debug!(call = %call.signature, algorithm = %algorithm, "planned");
        let method = method(algorithm, call, sums).into();
        let plan = Arc::new(Plan { method, ..Plan::new(algorithm, &shape, element, sums) });
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
        part: &Collective,
        buffers: Buffers<'_>,
        contributions: usize,
        begun: Option<Partials>,
    ) -> Result<()> {
        let arithmetic = Arithmetic::of(&part.signature, contributions)?;
        let sums = match &begun {
            Some(_) => Sums::Begun,
            None => arithmetic.map_or(Sums::InPlace, |arithmetic| arithmetic.sums()),
        };
        let plan = self.plan(part, sums);
        let method = whole.signature.method.then(&plan.method);
        let running = Running::new(whole.seq, whole.signature.clone(), method, plan, arithmetic);
        let running = match begun {
            Some(partials) => running.begun(partials),
            None => running,
        };
        self.engine.lock().turn = whole.seq;
        self.finish(running, part, buffers, Attempt::since(whole.called, whole.limit))
    }

    /// Runs what was begun to its end.
    fn finish(
        &self,
        running: Running,
        call: &Collective,
        buffers: Buffers<'_>,
        attempt: Attempt,
    ) -> Result<()> {
        match (call.signature.op, buffers) {
            (_, Buffers::InPlace(buffer)) => self.run(running, Memory::InPlace(buffer), attempt),
            (OpKind::ReduceScatter | OpKind::Gather | OpKind::Scatter, Buffers::Separate(input, output)) => {
                self.run_whole(running, call, input, output, attempt)
            }
            (_, Buffers::Separate(input, output)) => {
                self.run(running, Memory::Separate(input, output), attempt)
            }
        }
    }

    fn run(&self, collective: Running, memory: Memory<'_>, attempt: Attempt) -> Result<()> {
        self.engine.drive(&mut Borrowed { collective, memory }, attempt)
    }

    /// A schedule sees the whole buffer of the operation, of which this rank has only its block, or must keep the input.
    fn run_whole(
        &self,
        running: Running,
        call: &Collective,
        input: &[u8],
        output: &mut [u8],
        attempt: Attempt,
    ) -> Result<()> {
        let element = call.signature.dtype.map_or(1, phalanx_core::DType::size);
        let (own, len) = (call.layout.block(self.engine.health.rank), call.layout.len() * element);
        let own = own.start * element..own.end * element;
        if call.signature.op == OpKind::Scatter && input.len() == len {
            // The root only sends.
            return self.run(running, Memory::Separate(input, &mut []), attempt);
        }
        let mut scratch = scratch::take(len);
        let whole = &mut bytemuck::cast_slice_mut(&mut scratch)[..len];
        match call.signature.op {
            OpKind::ReduceScatter => whole.copy_from_slice(input),
            OpKind::Gather => whole[own.clone()].copy_from_slice(input),
            _ => {}
        }
        let done = self.run(running, Memory::InPlace(whole), attempt);
        if call.signature.op != OpKind::Gather {
            output.copy_from_slice(&whole[own]);
        }
        scratch::keep(scratch);
        done
    }

    /// An operation on a buffer of `len` bytes.
    fn owned(
        &self,
        task: Task,
        buffer: Box<dyn Bytes>,
        len: usize,
        completion: Completion,
        limit: Duration,
    ) -> Owned {
        Owned { task, buffer, len, completion, limit, health: self.engine.health.clone() }
    }

    /// A message that begins, and its number.
    pub(crate) fn message(&self, address: &Address, len: usize) -> Result<(Message, u64)> {
        self.engine.health.check(&address.signature)?;
        let health = &self.engine.health;
        let peer = health.members()[address.peer];
        let number = health.latch.messages.begin_message(&address.signature, peer, address.tag, clock::now);
        let key = message::queue_key(address.signature.op, address.peer, address.tag);
        let ticket: Ticket = self.engine.lock().queues.join(key);
        let message = Message::new(address.peer, address.tag, ticket, address.signature.clone(), len);
        Ok((message, number))
    }

    /// Runs a message to its end; it leaves its line whatever happens.
    fn run_message(&self, operation: &mut message::Borrowed<'_>, number: u64, limit: Duration) -> Result<()> {
        let done = self.engine.drive(operation, Attempt::new(Instant::now(), limit));
        self.message_ended(operation, number, done)
    }

    /// Sends a short message. If it would have to wait for its receiver, the group's own thread goes on with a copy.
    fn send_eagerly(&self, to: &Address, bytes: &[u8], limit: Duration) -> Result<()> {
        let (message, number) = self.message(to, bytes.len())?;
        let (payload, on_timeout) = (Payload::Out(bytes), OnTimeout::FailGroup);
        let mut operation = message::Borrowed { message, payload, on_timeout };
        let called = Instant::now();
        let mut attempt = Attempt::new(called, limit);
        let leaves = |core: &mut Core| {
            progress_thread::start(&self.engine).is_ok() && core.eager.reserve(to.peer, bytes.len())
        };
        match self.engine.drive_until(&mut operation, &mut attempt, leaves) {
            Ok(false) => {}
            done => return self.message_ended(&operation, number, done.map(drop)),
        }
        // Nobody waits for it. If it fails, the group has failed, and that is heard of there.
        let (_, completion) = Pending::new();
        let task = Task::Message(operation.message.eager(), number);
        let left = limit.saturating_sub(called.elapsed());
        let job = self.owned(task, Box::new(bytes.to_vec()), bytes.len(), completion, left);
        progress_thread::submit(&self.engine, Box::new(job));
        Ok(())
    }

    fn message_ended(&self, operation: &message::Borrowed<'_>, number: u64, done: Result<()>) -> Result<()> {
        let messages = &self.engine.health.latch.messages;
        if done.is_err() {
            operation.message.step_aside(&mut self.engine.lock());
        }
        messages.end_message(number, operation.message.signature(), done.is_ok(), clock::now);
        done
    }
}

/// All that decides which bytes go where, as far as all ranks know it: what they send each other in uneven blocks, only the two know.
fn method(algorithm: Algorithm, call: &Collective, sums: Sums) -> String {
    let Collective { signature, layout, recv_layout } = call;
    let mut method = algorithm.name().to_owned();
    if !layout.is_empty() && (recv_layout.is_none() || signature.count > 0) {
        method += &format!(" in {}", layout.describe());
    }
    method += match sums {
        Sums::InPlace => "",
        Sums::Kept => " with sums in f32",
        Sums::Begun => " of sums in f32",
    };
    method
}

/// A receive that need not get anything is under way.
struct InVain<'f>(&'f GroupHealth);

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
        let ranks = counted(health.members().len(), "rank");
        let hosts: Option<BTreeSet<_>> = health.members().iter().map(|&m| health.job.host_of(m)).collect();
        let on_hosts =
            hosts.map_or_else(String::new, |hosts| format!(" on {}", counted(hosts.len(), "host")));
        let auto = self.choice == BackendChoice::Auto && self.name == "tcp";
        let why_not = auto.then(|| Neighbours::new(&*health.job, health.members()).why_not()).flatten();
        let why_not = why_not.map_or_else(String::new, |why| format!("; {why}"));
        format!("{}: {ranks}{on_hosts}{why_not}", self.name)
    }

    fn algorithm(&self, call: &Collective) -> Option<&'static str> {
        let arithmetic = Arithmetic::of(&call.signature, 1).ok().flatten();
        Some(self.choose(call, arithmetic.map_or(Sums::InPlace, |arithmetic| arithmetic.sums())).name())
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

    fn perform(&self, call: &Collective, buffers: Buffers<'_>, timeout: Duration) -> Result<()> {
        let running = self.begin(call)?;
        let seq = running.seq();
        self.finish(running, call, buffers, Attempt::new(Instant::now(), timeout))?;
        self.engine.health.ended(seq, &call.signature, clock::now);
        Ok(())
    }

    fn submit(&self, call: Collective, buffer: Box<dyn Bytes>, timeout: Duration) -> Result<Pending> {
        progress_thread::start(&self.engine)?;
        let running = self.begin(&call)?;
        self.engine.health.latch.collectives.schedule(running.signature(), clock::now);
        let task = Task::Collective(Box::new(running));
        let (pending, completion) = Pending::new();
        let job = self.owned(task, buffer, call.len_bytes(), completion, timeout);
        progress_thread::submit(&self.engine, Box::new(job));
        Ok(pending)
    }

    fn send(&self, to: Address, bytes: &[u8], timeout: Duration) -> Result<()> {
        if bytes.len() <= EAGER_LIMIT {
            return self.send_eagerly(&to, bytes, timeout);
        }
        let (message, number) = self.message(&to, bytes.len())?;
        let (payload, on_timeout) = (Payload::Out(bytes), OnTimeout::FailGroup);
        self.run_message(&mut message::Borrowed { message, payload, on_timeout }, number, timeout)
    }

    fn recv(&self, from: Address, bytes: &mut [u8], timeout: Duration, on_timeout: OnTimeout) -> Result<()> {
        let (message, number) = self.message(&from, bytes.len())?;
        let payload = Payload::In(bytes);
        let _in_vain = (on_timeout == OnTimeout::ReturnNoMessage).then(|| InVain::begin(&self.engine.health));
        self.run_message(&mut message::Borrowed { message, payload, on_timeout }, number, timeout)
    }

    fn submit_message(
        &self,
        address: Address,
        mut buffer: Box<dyn Bytes>,
        timeout: Duration,
    ) -> Result<Pending> {
        progress_thread::start(&self.engine)?;
        let len = buffer.bytes().len();
        let (message, number) = self.message(&address, len)?;
        let task = Task::Message(message, number);
        let (pending, completion) = Pending::new();
        let job = self.owned(task, buffer, len, completion, timeout);
        progress_thread::submit(&self.engine, Box::new(job));
        Ok(pending)
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

/// An operation with the buffer it owns.
struct Owned {
    task: Task,
    buffer: Box<dyn Bytes>,
    /// Its bytes when the operation began.
    len: usize,
    completion: Completion,
    limit: Duration,
    health: Arc<GroupHealth>,
}

impl Operation for Owned {
    fn poll(&mut self, core: &mut Core) -> Result<Progress, Fault> {
        let bytes = self.buffer.bytes();
        if bytes.len() != self.len {
            let what = another_length(bytes.len(), self.len, self.task.signature());
            return Err(Fault::Nonsense { peer: self.health.rank, what });
        }
        self.task.poll(core, &mut Memory::InPlace(bytes))
    }

    fn wants(&self, core: &Core, wants: &mut Vec<(usize, Direction)>) {
        self.task.wants(core, wants);
    }

    fn signature(&self) -> &Signature {
        self.task.signature()
    }

    fn seq(&self) -> u64 {
        self.task.seq()
    }

    fn bytes(&self) -> (u64, u64) {
        self.task.bytes()
    }

    fn is_due(&self, core: &Core) -> bool {
        self.task.is_due(core)
    }

    fn message(&self) -> Option<(usize, u64)> {
        self.task.message()
    }
}

impl Job for Owned {
    fn complete(self: Box<Self>, outcome: Result<()>) {
        let Self { task, completion, buffer, health, .. } = *self;
        // If it failed, the group has, and that says it all.
        if outcome.is_ok() {
            task.ended(&health, clock::now);
        }
        completion.complete(outcome.map(|()| buffer));
    }

    fn is_awaited(&self) -> bool {
        self.completion.is_awaited()
    }

    fn limit(&self) -> Duration {
        self.limit
    }
}
