//! Streams, each a thread with a queue, and events.

use crate::context::current;
use crate::counters::{EVENTS, STREAMS};
use crate::cuda::{
    CudaResult, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_READY, RawEvent, RawStream, SUCCESS,
};
use crate::{capture, device, fault, lock};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: c_uint = 2;
type Task = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(crate) struct Stream {
    device: c_int,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    at_work: bool,
    destroyed: bool,
}

/// All that live, for calls that wait for a whole device.
static ALL: Mutex<Vec<Weak<Stream>>> = Mutex::new(Vec::new());

impl Stream {
    fn start(device: c_int) -> Arc<Self> {
        let stream = Arc::new(Self { device, ..Self::default() });
        lock(&ALL).push(Arc::downgrade(&stream));
        let worker = stream.clone();
        std::thread::spawn(move || worker.run());
        stream
    }

    /// A launch may come late to a stream that was destroyed meanwhile, after an abort: nobody does it then, and nobody waits for it.
    pub(crate) fn push(&self, task: impl FnOnce() + Send + 'static) {
        if capture::is_captured(std::ptr::from_ref(self).cast_mut().cast()) {
            return;
        }
        let mut queue = lock(&self.queue);
        if !queue.destroyed {
            queue.tasks.push_back(Box::new(task));
        }
        self.changed.notify_all();
    }

    fn run(&self) {
        let mut queue = lock(&self.queue);
        let mut random = std::ptr::from_ref(self) as u64 | 1;
        loop {
            if let Some(task) = queue.tasks.pop_front() {
                queue.at_work = true;
                drop(queue);
                if let Some(most) = fault::number("slow") {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    std::thread::sleep(Duration::from_micros((random >> 33) % most.max(1)));
                }
                task();
                queue = lock(&self.queue);
                queue.at_work = false;
                self.changed.notify_all();
            } else if queue.destroyed {
                return;
            } else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn destroy(&self) {
        lock(&self.queue).destroyed = true;
        self.changed.notify_all();
    }

    pub(crate) fn synchronize(&self) {
        let mut queue = lock(&self.queue);
        while queue.at_work || !queue.tasks.is_empty() {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Waits for everything that the device does, as the driver does when it frees pinned memory.
pub(crate) fn synchronize(device: c_int) {
    let all: Vec<_> = lock(&ALL).iter().filter_map(Weak::upgrade).collect();
    all.iter().filter(|stream| stream.device == device).for_each(|stream| stream.synchronize());
}

/// `CU_STREAM_PER_THREAD`: of each thread its own, which is what candle computes on.
const PER_THREAD: usize = 2;

/// The streams of a thread, one a device; they end with it, when they have done what they were given.
#[derive(Default)]
struct OfThread(Vec<Arc<Stream>>);

impl Drop for OfThread {
    fn drop(&mut self) {
        self.0.iter().for_each(|stream| stream.destroy());
    }
}

thread_local! {
    static OF_THREAD: RefCell<OfThread> = RefCell::default();
}

fn of_this_thread(device: c_int) -> Option<Arc<Stream>> {
    let own = OF_THREAD.try_with(|streams| {
        let streams = &mut streams.borrow_mut().0;
        let known = streams.iter().find(|stream| stream.device == device).cloned();
        known.unwrap_or_else(|| {
            streams.push(Stream::start(device));
            streams[streams.len() - 1].clone()
        })
    });
    own.ok()
}

/// A stream that is named on one thread and used on another.
#[derive(Clone)]
pub(crate) enum Named {
    This(Arc<Stream>),
    /// That of the thread that uses it.
    PerThread,
}

impl Named {
    pub(crate) unsafe fn of(raw: RawStream) -> Self {
        // SAFETY: as the caller says.
        if raw as usize == PER_THREAD { Self::PerThread } else { Self::This(unsafe { of(raw) }) }
    }

    /// Which it is on this thread.
    pub(crate) fn here(&self, device: c_int) -> Arc<Stream> {
        match self {
            Self::This(stream) => stream.clone(),
            Self::PerThread => of_this_thread(device).expect("a thread that launches has not ended"),
        }
    }
}

/// The stream that a caller means; null is the default stream.
pub(crate) unsafe fn of(raw: RawStream) -> Arc<Stream> {
    static DEFAULT: OnceLock<Arc<Stream>> = OnceLock::new();
    if raw.is_null() {
        return DEFAULT.get_or_init(|| Stream::start(0)).clone();
    }
    if raw as usize == PER_THREAD {
        // A thread that ends may still free what it has.
        let own = of_this_thread(current().unwrap_or_default());
        return own.unwrap_or_else(|| DEFAULT.get_or_init(|| Stream::start(0)).clone());
    }
    // SAFETY: it came from `cuStreamCreate`, and lives until `cuStreamDestroy`.
    unsafe { Arc::increment_strong_count(raw.cast::<Stream>()) };
    // SAFETY: the count was just raised.
    unsafe { Arc::from_raw(raw.cast::<Stream>()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut RawStream, _flags: c_uint) -> CudaResult {
    if let Err(code) = device::check() {
        return code;
    }
    let Some(device) = current() else { return INVALID_CONTEXT };
    STREAMS.add(1);
    // SAFETY: the caller's pointer.
    unsafe { *stream = Arc::into_raw(Stream::start(device)).cast_mut().cast() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: RawStream) -> CudaResult {
    if stream.is_null() {
        return INVALID_VALUE;
    }
    STREAMS.add(-1);
    // SAFETY: it came from `cuStreamCreate`, and the caller gives it up.
    let stream = unsafe { Arc::from_raw(stream.cast::<Stream>()) };
    stream.destroy();
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: RawStream) -> CudaResult {
    if let Err(code) = capture::check().and_then(|()| device::check()) {
        return code;
    }
    // SAFETY: the caller's stream.
    unsafe { of(stream) }.synchronize();
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize() -> CudaResult {
    let Some(device) = current() else { return INVALID_CONTEXT };
    if let Err(code) = capture::check().and_then(|()| device::check()) {
        return code;
    }
    synchronize(device);
    SUCCESS
}

#[derive(Default)]
struct Event {
    /// How often it was recorded, and which of those the streams have come past.
    counts: Mutex<(u64, u64)>,
    passed: Condvar,
    /// Whether it is made to tell the time, and that.
    is_timed: bool,
    at: Mutex<Option<Instant>>,
}

unsafe fn event(raw: RawEvent) -> Arc<Event> {
    // SAFETY: it came from `cuEventCreate`, and lives until `cuEventDestroy`.
    unsafe { Arc::increment_strong_count(raw.cast::<Event>()) };
    // SAFETY: the count was just raised.
    unsafe { Arc::from_raw(raw.cast::<Event>()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut RawEvent, flags: c_uint) -> CudaResult {
    if let Err(code) = device::check() {
        return code;
    }
    if current().is_none() {
        return INVALID_CONTEXT;
    }
    EVENTS.add(1);
    let new = Arc::new(Event { is_timed: flags & DISABLE_TIMING == 0, ..Event::default() });
    // SAFETY: the caller's pointer.
    unsafe { *event = Arc::into_raw(new).cast_mut().cast() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(ms: *mut f32, start: RawEvent, end: RawEvent) -> CudaResult {
    if let Err(code) = capture::check().and_then(|()| device::check()) {
        return code;
    }
    // SAFETY: the caller's event.
    let start = unsafe { event(start) };
    // SAFETY: the caller's event.
    let end = unsafe { event(end) };
    if !(start.is_timed && end.is_timed) {
        return INVALID_HANDLE;
    }
    let (Some(start), Some(end)) = (*lock(&start.at), *lock(&end.at)) else { return NOT_READY };
    // SAFETY: the caller's float.
    unsafe { *ms = end.saturating_duration_since(start).as_secs_f32() * 1e3 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: RawEvent) -> CudaResult {
    EVENTS.add(-1);
    // SAFETY: it came from `cuEventCreate`, and the caller gives it up.
    drop(unsafe { Arc::from_raw(event.cast::<Event>()) });
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(raw: RawEvent, stream: RawStream) -> CudaResult {
    if let Err(code) = device::check() {
        return code;
    }
    // SAFETY: the caller's event.
    let event = unsafe { event(raw) };
    // SAFETY: the caller's stream.
    let stream = unsafe { of(stream) };
    let mut counts = lock(&event.counts);
    counts.0 += 1;
    let number = counts.0;
    drop(counts);
    stream.push(move || {
        let mut counts = lock(&event.counts);
        counts.1 = counts.1.max(number);
        *lock(&event.at) = Some(Instant::now());
        event.passed.notify_all();
    });
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(raw: RawEvent) -> CudaResult {
    if let Err(code) = capture::check().and_then(|()| device::check()) {
        return code;
    }
    // SAFETY: the caller's event.
    let event = unsafe { event(raw) };
    let counts = lock(&event.counts);
    if counts.1 >= counts.0 { SUCCESS } else { NOT_READY }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(raw: RawEvent) -> CudaResult {
    if let Err(code) = capture::check().and_then(|()| device::check()) {
        return code;
    }
    // SAFETY: the caller's event.
    let event = unsafe { event(raw) };
    let mut counts = lock(&event.counts);
    let number = counts.0;
    while counts.1 < number {
        counts = event.passed.wait(counts).unwrap_or_else(PoisonError::into_inner);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(stream: RawStream, raw: RawEvent, _flags: c_uint) -> CudaResult {
    if let Err(code) = device::check() {
        return code;
    }
    // SAFETY: the caller's event.
    let event = unsafe { event(raw) };
    // SAFETY: the caller's stream.
    let stream = unsafe { of(stream) };
    let number = lock(&event.counts).0;
    stream.push(move || {
        let mut counts = lock(&event.counts);
        while counts.1 < number {
            counts = event.passed.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
    });
    SUCCESS
}
