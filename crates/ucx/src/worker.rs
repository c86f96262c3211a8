//! One UCX worker: the safe face of what `sys` declares. It is driven by one thread at a time, whoever has it.

use crate::bytes::{Bytes, Kept};
use crate::load::Ucp;
use crate::message::HEADER_LEN;
use crate::sys::{
    self, RawContext, RawEndpoint, RawEndpointParams, RawMessageHandlerParam, RawMessageParam, RawParams,
    RawRequestParam, RawSocketAddress, RawWorker, RawWorkerParams, Status, UcpTable,
};
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_uint, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number under which our messages go.
const MESSAGE_ID: c_uint = 0;
/// Messages of at least so many bytes stay where UCX has put them until they are read; shorter ones are copied out.
const KEPT_MIN: usize = 1 << 10;
/// Buffers for messages that are kept to be used again.
const BUFFERS_KEPT: usize = 64;
/// How long a worker that ends may take to get out what UCX itself has to say to its peers.
const FLUSH_TIME: Duration = Duration::from_millis(250);
/// UCX's transports that carry nothing off the host, and the names of several of them. None of them hears of a peer's death, and UCX refuses them to endpoints
/// that would, up to 1.13 at least.
const OF_ONE_HOST: [&str; 9] = ["posix", "sysv", "cma", "knem", "xpmem", "self", "shm", "sm", "mm"];

/// A call of UCX that failed, and with what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) call: &'static str,
    pub(crate) status: Status,
}

/// Where UCX's callbacks leave what they hear. They run inside of calls of the worker's owner, on its thread.
struct Mail {
    table: &'static UcpTable,
    arrivals: RefCell<Vec<Arrival>>,
    /// Endpoints that have failed, by the peers' numbers.
    failures: RefCell<Vec<(u32, Status)>>,
    /// Buffers whose bytes UCX no longer needs.
    #[expect(clippy::vec_box, reason = "UCX gets the address of each")]
    returned: RefCell<Vec<Box<SendBuffer>>>,
    /// Buffers that UCX still needs.
    in_flight: Cell<usize>,
}

impl Mail {
    fn new(table: &'static UcpTable) -> Self {
        let (arrivals, failures, returned) = Default::default();
        Self { table, arrivals, failures, returned, in_flight: Cell::new(0) }
    }

    fn give_back(&self, buffer: Box<SendBuffer>) {
        self.in_flight.set(self.in_flight.get() - 1);
        let mut returned = self.returned.borrow_mut();
        if returned.len() < BUFFERS_KEPT {
            returned.push(buffer);
        }
    }
}

/// What an endpoint's error handler gets.
struct Tag {
    peer: u32,
    mail: NonNull<Mail>,
}

/// A message on its way out. UCX reads it until it gives it back.
pub(crate) struct SendBuffer {
    pub(crate) header: [u8; HEADER_LEN],
    pub(crate) payload: Vec<u8>,
    mail: NonNull<Mail>,
}

/// A message that has arrived.
pub(crate) struct Arrival {
    pub(crate) header: [u8; HEADER_LEN],
    pub(crate) bytes: Bytes,
}

/// A way to a peer's worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Endpoint(RawEndpoint);

/// A context with its one worker.
pub(crate) struct Worker {
    table: &'static UcpTable,
    context: RawContext,
    worker: RawWorker,
    address: Vec<u8>,
    event_fd: Arc<OwnedFd>,
    /// UCX's callbacks have its address: it is freed after the worker.
    mail: NonNull<Mail>,
    /// As `mail`.
    tags: Vec<NonNull<Tag>>,
    /// Whether endpoints hear of their peers' deaths, and may be closed at any moment.
    hears_of_deaths: bool,
}

// SAFETY: the worker is made for threads that take turns (`UCS_THREAD_MODE_SERIALIZED`), and whoever has it has all that its callbacks touch.
unsafe impl Send for Worker {}

// SAFETY: a name of what the worker has, of use only together with that.
unsafe impl Send for Endpoint {}

impl Worker {
    /// Opens what UCX finds of devices, or those that `UCX_TLS` and `UCX_NET_DEVICES` name; with `transports`, those instead of `UCX_TLS`.
    pub(crate) fn open(ucp: Ucp, transports: Option<&CStr>, peers: usize) -> Result<Self, Refusal> {
        let table = ucp.table();
        let context = context(table, transports, peers)?;
        let worker = worker(table, context).inspect_err(|_| {
            // SAFETY: nothing was made of it.
            unsafe { (table.cleanup)(context) };
        })?;
        let mail = NonNull::from(Box::leak(Box::new(Mail::new(table))));
        let made = |address, event_fd| {
            let (tags, hears_of_deaths) = (Vec::new(), hear_of_deaths(&named(transports)));
            Self { table, context, worker, address, event_fd, mail, tags, hears_of_deaths }
        };
        let ready =
            hear(table, worker, mail).and_then(|()| Ok((address(table, worker)?, event_fd(table, worker)?)));
        match ready {
            Ok((address, event_fd)) => Ok(made(address, Arc::new(event_fd))),
            Err(refusal) => {
                // SAFETY: nobody else has it.
                unsafe { (table.worker_destroy)(worker) };
                // SAFETY: its only worker is gone.
                unsafe { (table.cleanup)(context) };
                // SAFETY: it was leaked above, and who had its address is gone.
                drop(unsafe { Box::from_raw(mail.as_ptr()) });
                Err(refusal)
            }
        }
    }

    /// What a peer needs to reach it.
    pub(crate) fn address(&self) -> &[u8] {
        &self.address
    }

    /// Can be read when there is something to do, if it was [armed](Self::arm).
    pub(crate) fn event_fd(&self) -> &Arc<OwnedFd> {
        &self.event_fd
    }

    /// What UCX calls this status.
    pub(crate) fn text(&self, status: Status) -> String {
        self.table.text(status)
    }

    fn mail(&self) -> &Mail {
        // SAFETY: it lives as long as the worker, and is never borrowed to be changed.
        unsafe { self.mail.as_ref() }
    }

    /// Does what can be done now; whether that was anything.
    pub(crate) fn progress(&mut self) -> bool {
        // SAFETY: the worker is this thread's, and is not used by what its callbacks call.
        unsafe { (self.table.worker_progress)(self.worker) > 0 }
    }

    /// Whether a sleep on the descriptor will end when there is something to do. If not, there is something to do now.
    pub(crate) fn arm(&mut self) -> bool {
        // SAFETY: the worker is this thread's.
        unsafe { (self.table.worker_arm)(self.worker) == sys::OK }
    }

    /// Messages that have come since the last call, in UCX's order.
    pub(crate) fn arrivals(&mut self) -> Vec<Arrival> {
        self.mail().arrivals.take()
    }

    /// Peers whose endpoints have failed since the last call.
    pub(crate) fn failures(&mut self) -> Vec<(u32, Status)> {
        self.mail().failures.take()
    }

    /// Buffers that UCX still needs.
    pub(crate) fn in_flight(&self) -> usize {
        self.mail().in_flight.get()
    }

    /// A buffer for a message, used before if there is one.
    pub(crate) fn buffer(&mut self) -> Box<SendBuffer> {
        let used = self.mail().returned.borrow_mut().pop();
        used.unwrap_or_else(|| {
            Box::new(SendBuffer { header: [0; HEADER_LEN], payload: Vec::new(), mail: self.mail })
        })
    }

    /// Makes a way to the worker with this address. Nothing waits for that; failures come later, under the number of the peer.
    pub(crate) fn connect(&mut self, peer: u32, address: &[u8]) -> Result<Endpoint, Refusal> {
        let tag = NonNull::from(Box::leak(Box::new(Tag { peer, mail: self.mail })));
        self.tags.push(tag);
        let params = RawEndpointParams {
            field_mask: sys::EP_PARAM_FIELD_REMOTE_ADDRESS
                | sys::EP_PARAM_FIELD_ERR_HANDLING_MODE
                | sys::EP_PARAM_FIELD_ERR_HANDLER,
            address: address.as_ptr().cast(),
            err_mode: match self.hears_of_deaths {
                true => sys::ERR_HANDLING_MODE_PEER,
                false => sys::ERR_HANDLING_MODE_NONE,
            },
            err_handler_cb: failed,
            err_handler_arg: tag.as_ptr().cast(),
            user_data: null_mut(),
            flags: 0,
            sockaddr: RawSocketAddress { addr: null(), addrlen: 0 },
            conn_request: null_mut(),
            name: null(),
            local_sockaddr: RawSocketAddress { addr: null(), addrlen: 0 },
        };
        let mut endpoint = null_mut();
        // SAFETY: `params` says which of its fields count, and the address, which a worker of the job has made, is read before the call returns.
        let status = unsafe { (self.table.ep_create)(self.worker, &raw const params, &raw mut endpoint) };
        refused("ucp_ep_create", status)?;
        Ok(Endpoint(endpoint))
    }

    /// Sends header and payload of `buffer`. They count as sent when UCX has taken them; what becomes of them, the endpoint's failure says.
    pub(crate) fn send(&mut self, endpoint: Endpoint, buffer: Box<SendBuffer>) -> Result<(), Refusal> {
        let raw = Box::into_raw(buffer);
        let params = RawRequestParam {
            op_attr_mask: sys::OP_ATTR_FIELD_CALLBACK
                | sys::OP_ATTR_FIELD_USER_DATA
                | sys::OP_ATTR_FIELD_FLAGS,
            flags: sys::AM_SEND_FLAG_EAGER,
            cb: Some(sent),
            user_data: raw.cast(),
            ..RawRequestParam::nothing()
        };
        // SAFETY: `raw` came from a box, and nobody else has it yet.
        let SendBuffer { header, payload, .. } = unsafe { &*raw };
        let (header, len): (*const c_void, _) = (header.as_ptr().cast(), payload.len());
        let payload: *const c_void = payload.as_ptr().cast();
        let mail = self.mail();
        mail.in_flight.set(mail.in_flight.get() + 1);
        // SAFETY: the endpoint is the worker's and open, and header and payload stay where they are until UCX is done with them: they are freed only after
        // `sent` was called, or below.
        let pointer = unsafe {
            (self.table.message_send)(
                endpoint.0,
                MESSAGE_ID,
                header,
                HEADER_LEN,
                payload,
                len,
                &raw const params,
            )
        };
        let Some(status) = sys::status_of(pointer) else { return Ok(()) };
        // SAFETY: a call that is done, or was refused, calls nobody back and reads nothing any more.
        let buffer = unsafe { Box::from_raw(raw) };
        self.mail().give_back(buffer);
        refused("ucp_am_send_nbx", status)
    }

    /// Gives bytes back that UCX has kept.
    pub(crate) fn release(&mut self, bytes: Bytes) {
        if let Bytes::Kept(kept) = bytes {
            // SAFETY: UCX was told that they are kept, and this gives them back once.
            unsafe { (self.table.message_release)(self.worker, kept.start()) };
        }
    }

    /// Ends an endpoint at once, whatever its peer does. What it had not sent yet is lost.
    pub(crate) fn close(&mut self, endpoint: Endpoint) {
        if !self.hears_of_deaths {
            // UCX would wait for the peer. It ends with the worker.
            return;
        }
        let params = RawRequestParam {
            op_attr_mask: sys::OP_ATTR_FIELD_FLAGS,
            flags: sys::EP_CLOSE_FLAG_FORCE,
            ..RawRequestParam::nothing()
        };
        // SAFETY: the endpoint is the worker's, and its owner forgets it.
        let pointer = unsafe { (self.table.ep_close)(endpoint.0, &raw const params) };
        if sys::status_of(pointer).is_none() {
            // SAFETY: a request may be given back before it is done. Nobody asks after it.
            unsafe { (self.table.request_free)(pointer) };
        }
    }

    /// Gets out what UCX has to say to its peers, until there is nothing; whether that was in time.
    ///
    /// UCX 1.13 ends the process when a worker is destroyed while its own messages about a connection are still waiting.
    fn flush(&mut self) -> bool {
        let begun = Instant::now();
        loop {
            let nothing = RawRequestParam::nothing();
            // SAFETY: the worker is this thread's.
            let request = unsafe { (self.table.worker_flush)(self.worker, &raw const nothing) };
            if sys::status_of(request).is_some() {
                return true;
            }
            // What comes in meanwhile may be answered: then there is something to flush again.
            while begun.elapsed() < FLUSH_TIME && self.is_under_way(request) {
                if !self.progress() {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
            // SAFETY: a request may be given back before it is done. Nobody asks after it.
            unsafe { (self.table.request_free)(request) };
            if begun.elapsed() >= FLUSH_TIME {
                return false;
            }
        }
    }

    fn is_under_way(&self, request: sys::StatusPointer) -> bool {
        // SAFETY: the request was not given back yet.
        unsafe { (self.table.request_status)(request) == sys::IN_PROGRESS }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let is_flushed = self.flush();
        for arrival in self.arrivals() {
            self.release(arrival.bytes);
        }
        if !is_flushed {
            tracing::debug!(
                "a UCX worker with a peer that does not answer is left to the end of the process"
            );
            return;
        }
        // SAFETY: nobody else has it, what it kept for us was given back, and it ends its endpoints itself.
        unsafe { (self.table.worker_destroy)(self.worker) };
        // SAFETY: its only worker is gone.
        unsafe { (self.table.cleanup)(self.context) };
        for tag in &self.tags {
            // SAFETY: it was leaked by `connect`, and the endpoint that had its address is gone.
            drop(unsafe { Box::from_raw(tag.as_ptr()) });
        }
        if self.in_flight() == 0 {
            // SAFETY: it was leaked by `open`. The worker that had its address is gone, and no buffer has it, other than those in it.
            drop(unsafe { Box::from_raw(self.mail.as_ptr()) });
        }
    }
}

/// The list of transports that a worker may use: these, or those of `UCX_TLS`.
fn named(transports: Option<&CStr>) -> String {
    let of_environment = || std::env::var("UCX_TLS").unwrap_or_default();
    transports.map_or_else(of_environment, |named| named.to_string_lossy().into_owned())
}

/// Whether endpoints over the transports of this list can be told of deaths.
fn hear_of_deaths(list: &str) -> bool {
    !list.split(',').all(|name| OF_ONE_HOST.contains(&name.trim()))
}

/// Whether UCX's TCP may be among the transports of this list.
fn may_have_tcp(list: &str) -> bool {
    list.is_empty()
        || list.starts_with('^')
        || list.split(',').any(|name| ["all", "tcp"].contains(&name.trim()))
}

impl RawRequestParam {
    fn nothing() -> Self {
        Self {
            op_attr_mask: 0,
            flags: 0,
            request: null_mut(),
            cb: None,
            datatype: 0,
            user_data: null_mut(),
            reply_buffer: null_mut(),
            memory_type: 0,
            recv_info: null_mut(),
            memh: null_mut(),
        }
    }
}

fn refused(call: &'static str, status: Status) -> Result<(), Refusal> {
    if status == sys::OK { Ok(()) } else { Err(Refusal { call, status }) }
}

fn context(table: &UcpTable, transports: Option<&CStr>, peers: usize) -> Result<RawContext, Refusal> {
    let params = RawParams {
        field_mask: sys::PARAM_FIELD_FEATURES | sys::PARAM_FIELD_ESTIMATED_NUM_EPS,
        features: sys::FEATURE_AM | sys::FEATURE_WAKEUP,
        request_size: 0,
        request_init: null(),
        request_cleanup: null(),
        tag_sender_mask: 0,
        mt_workers_shared: 0,
        estimated_num_eps: peers,
        estimated_num_ppn: 0,
        name: null(),
    };
    let mut settings = null_mut();
    // SAFETY: without a prefix and a file UCX reads its own variables.
    let status = unsafe { (table.config_read)(null(), null(), &raw mut settings) };
    refused("ucp_config_read", status)?;
    let set = |name: &CStr, value: &CStr| {
        // SAFETY: the settings were just read, and both are C strings, which UCX copies.
        refused("ucp_config_modify", unsafe {
            (table.config_modify)(settings, name.as_ptr(), value.as_ptr())
        })
    };
    let mut chosen = transports.map_or(Ok(()), |transports| set(c"TLS", transports));
    // No call waits for a connection, which takes minutes where nobody answers. Beyond its own settings UCX takes those of transports without their prefix.
    if may_have_tcp(&named(transports)) && std::env::var_os("UCX_TCP_CONN_NB").is_none() {
        chosen = chosen.and_then(|()| set(c"CONN_NB", c"y"));
    }
    let mut context = null_mut();
    let made = chosen.and_then(|()| {
        // SAFETY: the version is that of the header from which `params` is, which says which of its fields count.
        let status = unsafe { (table.init_version)(1, 13, &raw const params, settings, &raw mut context) };
        refused("ucp_init", status)
    });
    // SAFETY: the context has what it needs of them.
    unsafe { (table.config_release)(settings) };
    made.map(|()| context)
}

fn worker(table: &UcpTable, context: RawContext) -> Result<RawWorker, Refusal> {
    let params = RawWorkerParams {
        field_mask: sys::WORKER_PARAM_FIELD_THREAD_MODE | sys::WORKER_PARAM_FIELD_FLAGS,
        thread_mode: sys::THREAD_MODE_SERIALIZED,
        cpu_mask: [0; _],
        events: 0,
        user_data: null_mut(),
        event_fd: -1,
        // A peer that has died leaves requests.
        flags: sys::WORKER_FLAG_IGNORE_REQUEST_LEAK,
        name: null(),
        am_alignment: 0,
        client_id: 0,
    };
    let mut worker = null_mut();
    // SAFETY: the context was just made, and `params` says which of its fields count.
    let status = unsafe { (table.worker_create)(context, &raw const params, &raw mut worker) };
    refused("ucp_worker_create", status).map(|()| worker)
}

/// Has messages put into `mail`, which outlives the worker.
fn hear(table: &UcpTable, worker: RawWorker, mail: NonNull<Mail>) -> Result<(), Refusal> {
    let (id, flags, arg) = (MESSAGE_ID, 0, mail.as_ptr().cast());
    let param =
        RawMessageHandlerParam { field_mask: sys::AM_HANDLER_PARAM_FIELDS, id, flags, cb: arrived, arg };
    // SAFETY: `arrived` takes what it is called with, and `mail` is there as long as the worker.
    let status = unsafe { (table.set_message_handler)(worker, &raw const param) };
    refused("ucp_worker_set_am_recv_handler", status)
}

fn address(table: &UcpTable, worker: RawWorker) -> Result<Vec<u8>, Refusal> {
    let (mut address, mut len) = (null_mut(), 0);
    // SAFETY: the worker was just made.
    let status = unsafe { (table.worker_get_address)(worker, &raw mut address, &raw mut len) };
    refused("ucp_worker_get_address", status)?;
    // SAFETY: there are so many bytes, until they are released.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len) }.to_vec();
    // SAFETY: they are this worker's, and were copied.
    unsafe { (table.worker_release_address)(worker, address) };
    Ok(bytes)
}

/// A copy of the worker's descriptor: threads that sleep may have it after the worker has ended.
fn event_fd(table: &UcpTable, worker: RawWorker) -> Result<OwnedFd, Refusal> {
    let mut fd = -1;
    // SAFETY: the worker was made with the feature that has a descriptor.
    let status = unsafe { (table.worker_get_efd)(worker, &raw mut fd) };
    refused("ucp_worker_get_efd", status)?;
    // SAFETY: the descriptor is open as long as the worker is there.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fd.try_clone_to_owned().map_err(|_| Refusal { call: "dup", status: sys::NO_RESOURCE })
}

/// Called by UCX for each message.
///
/// # Safety
/// `arg` is a [`Mail`], and the rest as `ucp_am_recv_callback_t` says.
unsafe extern "C" fn arrived(
    arg: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const RawMessageParam,
) -> Status {
    // SAFETY: UCX hands over what is good for this call.
    let recv_attr = unsafe { (*param).recv_attr };
    if header_length != HEADER_LEN || recv_attr & sys::AM_RECV_ATTR_FLAG_RNDV != 0 {
        // No rank sends that.
        return sys::OK;
    }
    // SAFETY: there are so many bytes, of any alignment.
    let header = unsafe { header.cast::<[u8; HEADER_LEN]>().read_unaligned() };
    let start = NonNull::new(data.cast::<u8>()).filter(|_| length > 0);
    let keeps = length >= KEPT_MIN && recv_attr & sys::AM_RECV_ATTR_FLAG_DATA != 0;
    let bytes = match start {
        // SAFETY: UCX says that they may be kept, and is told below that they are.
        Some(start) if keeps => Bytes::Kept(unsafe { Kept::new(start, length) }),
        // SAFETY: there are so many bytes.
        Some(start) => Bytes::Copied(unsafe { std::slice::from_raw_parts(start.as_ptr(), length) }.to_vec()),
        None => Bytes::Copied(Vec::new()),
    };
    let status = if matches!(bytes, Bytes::Kept(_)) { sys::IN_PROGRESS } else { sys::OK };
    // SAFETY: `hear` gave this address, which outlives the worker, and nobody borrows what is in it while UCX is at work.
    let mail = unsafe { &*arg.cast::<Mail>() };
    mail.arrivals.borrow_mut().push(Arrival { header, bytes });
    status
}

/// Called by UCX when it is done with a message that took a while, however that ended.
///
/// # Safety
/// `user_data` is a [`SendBuffer`] that [`Worker::send`] has handed over.
unsafe extern "C" fn sent(request: *mut c_void, _: Status, user_data: *mut c_void) {
    // SAFETY: the buffer was a box, and UCX calls once.
    let buffer = unsafe { Box::from_raw(user_data.cast::<SendBuffer>()) };
    let mail = buffer.mail;
    // SAFETY: the mail outlives the worker and the buffers in flight, and nobody borrows what is in it while UCX is at work.
    let mail = unsafe { mail.as_ref() };
    mail.give_back(buffer);
    // SAFETY: UCX allows it here, and nobody else has the request.
    unsafe { (mail.table.request_free)(request) };
}

/// Called by UCX when an endpoint has failed.
///
/// # Safety
/// `arg` is a [`Tag`].
unsafe extern "C" fn failed(arg: *mut c_void, _: RawEndpoint, status: Status) {
    // SAFETY: `connect` gave this address, which outlives the worker.
    let tag = unsafe { &*arg.cast::<Tag>() };
    // SAFETY: the mail outlives the worker, and nobody borrows what is in it while UCX is at work.
    let mail = unsafe { tag.mail.as_ref() };
    mail.failures.borrow_mut().push((tag.peer, status));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_transports_of_one_host_are_deaf() {
        for (list, hears) in [
            ("tcp,self", true),
            ("posix,cma,self", false),
            ("sm", false),
            ("rc,sm", true),
            ("^tcp", true),
            ("all", true),
            ("", true),
        ] {
            assert_eq!(hear_of_deaths(list), hears, "{list:?}");
        }
    }

    #[test]
    fn tcp_is_told_apart_from_lists_without_it() {
        for (list, may_have) in [
            ("tcp,self", true),
            ("", true),
            ("all", true),
            ("^rc", true),
            ("rc,self", false),
            ("posix,cma,self", false),
        ] {
            assert_eq!(may_have_tcp(list), may_have, "{list:?}");
        }
    }
}
