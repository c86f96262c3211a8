//! The lowest layer: UCX's types of C as `ucp/api/ucp.h` has them from 1.13 on, and a table of its functions. Nothing here is checked.
//!
//! UCX reads of a structure what its mask of fields names, so a structure of an older header is understood by every later library.
//! The test in `header.rs` compares all that stands here with the header, where there is one.

#[cfg(test)]
mod header;

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};

/// `ucs_status_t`.
pub(crate) type Status = c_int;
/// `ucs_status_ptr_t`: null where a call is done, a request where it is not, or a [`Status`].
pub(crate) type StatusPointer = *mut c_void;
/// `ucp_context_h`.
pub(crate) type RawContext = *mut c_void;
/// `ucp_worker_h`.
pub(crate) type RawWorker = *mut c_void;
/// `ucp_ep_h`.
pub(crate) type RawEndpoint = *mut c_void;
/// `ucp_address_t *`.
pub(crate) type RawAddress = *mut c_void;
/// `ucp_config_t *`.
pub(crate) type RawSettings = *mut c_void;

/// `UCS_OK`.
pub(crate) const OK: Status = 0;
/// `UCS_INPROGRESS`.
pub(crate) const IN_PROGRESS: Status = 1;
/// `UCS_ERR_NO_RESOURCE`.
pub(crate) const NO_RESOURCE: Status = -2;
/// `UCS_ERR_NO_MEMORY`.
pub(crate) const NO_MEMORY: Status = -4;
/// `UCS_ERR_UNREACHABLE`.
pub(crate) const UNREACHABLE: Status = -6;
/// `UCS_ERR_INVALID_ADDR`.
pub(crate) const INVALID_ADDRESS: Status = -7;
/// `UCS_ERR_NO_DEVICE`.
pub(crate) const NO_DEVICE: Status = -14;
/// `UCS_ERR_TIMED_OUT`.
pub(crate) const TIMED_OUT: Status = -20;
/// `UCS_ERR_ENDPOINT_TIMEOUT`.
pub(crate) const ENDPOINT_TIMEOUT: Status = -80;
/// `UCS_ERR_LAST`.
pub(crate) const ERR_LAST: Status = -100;

/// `UCP_PARAM_FIELD_FEATURES`.
pub(crate) const PARAM_FIELD_FEATURES: u64 = 1 << 0;
/// `UCP_PARAM_FIELD_ESTIMATED_NUM_EPS`.
pub(crate) const PARAM_FIELD_ESTIMATED_NUM_EPS: u64 = 1 << 6;
/// `UCP_FEATURE_WAKEUP`.
pub(crate) const FEATURE_WAKEUP: u64 = 1 << 4;
/// `UCP_FEATURE_AM`.
pub(crate) const FEATURE_AM: u64 = 1 << 6;
/// `UCP_WORKER_PARAM_FIELD_THREAD_MODE`.
pub(crate) const WORKER_PARAM_FIELD_THREAD_MODE: u64 = 1 << 0;
/// `UCP_WORKER_PARAM_FIELD_FLAGS`.
pub(crate) const WORKER_PARAM_FIELD_FLAGS: u64 = 1 << 5;
/// `UCS_THREAD_MODE_SERIALIZED`.
pub(crate) const THREAD_MODE_SERIALIZED: c_int = 1;
/// `UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK`.
pub(crate) const WORKER_FLAG_IGNORE_REQUEST_LEAK: u64 = 1 << 0;
/// `UCP_EP_PARAM_FIELD_REMOTE_ADDRESS`.
pub(crate) const EP_PARAM_FIELD_REMOTE_ADDRESS: u64 = 1 << 0;
/// `UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE`.
pub(crate) const EP_PARAM_FIELD_ERR_HANDLING_MODE: u64 = 1 << 1;
/// `UCP_EP_PARAM_FIELD_ERR_HANDLER`.
pub(crate) const EP_PARAM_FIELD_ERR_HANDLER: u64 = 1 << 2;
/// `UCP_ERR_HANDLING_MODE_NONE`.
pub(crate) const ERR_HANDLING_MODE_NONE: c_int = 0;
/// `UCP_ERR_HANDLING_MODE_PEER`.
pub(crate) const ERR_HANDLING_MODE_PEER: c_int = 1;
/// `UCP_EP_CLOSE_FLAG_FORCE`.
pub(crate) const EP_CLOSE_FLAG_FORCE: u32 = 1 << 0;
/// `UCP_AM_SEND_FLAG_EAGER`.
pub(crate) const AM_SEND_FLAG_EAGER: u32 = 1 << 1;
/// `UCP_AM_RECV_ATTR_FLAG_DATA`.
pub(crate) const AM_RECV_ATTR_FLAG_DATA: u64 = 1 << 16;
/// `UCP_AM_RECV_ATTR_FLAG_RNDV`.
pub(crate) const AM_RECV_ATTR_FLAG_RNDV: u64 = 1 << 17;
/// `UCP_AM_HANDLER_PARAM_FIELD_ID`, `_CB` and `_ARG`.
pub(crate) const AM_HANDLER_PARAM_FIELDS: u64 = 1 << 0 | 1 << 2 | 1 << 3;
/// `UCP_OP_ATTR_FIELD_CALLBACK`.
pub(crate) const OP_ATTR_FIELD_CALLBACK: u32 = 1 << 1;
/// `UCP_OP_ATTR_FIELD_USER_DATA`.
pub(crate) const OP_ATTR_FIELD_USER_DATA: u32 = 1 << 2;
/// `UCP_OP_ATTR_FIELD_FLAGS`.
pub(crate) const OP_ATTR_FIELD_FLAGS: u32 = 1 << 4;

/// `ucp_params_t`.
#[repr(C)]
pub(crate) struct RawParams {
    pub(crate) field_mask: u64,
    pub(crate) features: u64,
    pub(crate) request_size: usize,
    pub(crate) request_init: *const c_void,
    pub(crate) request_cleanup: *const c_void,
    pub(crate) tag_sender_mask: u64,
    pub(crate) mt_workers_shared: c_int,
    pub(crate) estimated_num_eps: usize,
    pub(crate) estimated_num_ppn: usize,
    pub(crate) name: *const c_char,
}

/// `ucp_worker_params_t`.
#[repr(C)]
pub(crate) struct RawWorkerParams {
    pub(crate) field_mask: u64,
    pub(crate) thread_mode: c_int,
    pub(crate) cpu_mask: [c_ulong; 1024 / c_ulong::BITS as usize],
    pub(crate) events: c_uint,
    pub(crate) user_data: *mut c_void,
    pub(crate) event_fd: c_int,
    pub(crate) flags: u64,
    pub(crate) name: *const c_char,
    pub(crate) am_alignment: usize,
    pub(crate) client_id: u64,
}

/// `ucs_sock_addr_t`.
#[repr(C)]
pub(crate) struct RawSocketAddress {
    pub(crate) addr: *const c_void,
    pub(crate) addrlen: u32,
}

/// `ucp_err_handler_cb_t`.
pub(crate) type ErrorHandler = unsafe extern "C" fn(arg: *mut c_void, endpoint: RawEndpoint, status: Status);

/// `ucp_ep_params_t`, with its `ucp_err_handler_t` spelled out.
#[repr(C)]
pub(crate) struct RawEndpointParams {
    pub(crate) field_mask: u64,
    pub(crate) address: *const c_void,
    pub(crate) err_mode: c_int,
    pub(crate) err_handler_cb: ErrorHandler,
    pub(crate) err_handler_arg: *mut c_void,
    pub(crate) user_data: *mut c_void,
    pub(crate) flags: c_uint,
    pub(crate) sockaddr: RawSocketAddress,
    pub(crate) conn_request: *mut c_void,
    pub(crate) name: *const c_char,
    pub(crate) local_sockaddr: RawSocketAddress,
}

/// `ucp_am_recv_param_t`.
#[repr(C)]
pub(crate) struct RawMessageParam {
    pub(crate) recv_attr: u64,
    pub(crate) reply_ep: RawEndpoint,
}

/// `ucp_am_recv_callback_t`.
pub(crate) type MessageHandler = unsafe extern "C" fn(
    arg: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const RawMessageParam,
) -> Status;

/// `ucp_am_handler_param_t`.
#[repr(C)]
pub(crate) struct RawMessageHandlerParam {
    pub(crate) field_mask: u64,
    pub(crate) id: c_uint,
    pub(crate) flags: u32,
    pub(crate) cb: MessageHandler,
    pub(crate) arg: *mut c_void,
}

/// `ucp_send_nbx_callback_t`.
pub(crate) type SendHandler =
    unsafe extern "C" fn(request: *mut c_void, status: Status, user_data: *mut c_void);

/// `ucp_request_param_t`.
#[repr(C)]
pub(crate) struct RawRequestParam {
    pub(crate) op_attr_mask: u32,
    pub(crate) flags: u32,
    pub(crate) request: *mut c_void,
    pub(crate) cb: Option<SendHandler>,
    pub(crate) datatype: u64,
    pub(crate) user_data: *mut c_void,
    pub(crate) reply_buffer: *mut c_void,
    pub(crate) memory_type: c_int,
    pub(crate) recv_info: *mut c_void,
    pub(crate) memh: *mut c_void,
}

/// The status in a pointer that is one; `None` for a request.
pub(crate) fn status_of(pointer: StatusPointer) -> Option<Status> {
    // As UCS_PTR_IS_ERR: the last hundred addresses are statuses.
    let address = pointer.addr();
    match address.cast_signed() {
        0 => Some(OK),
        code if code < 0 && code >= ERR_LAST as isize => Some(code as Status),
        _ => None,
    }
}

/// Defines the struct of function pointers with `read`, which looks all of them up and tells which are missing.
macro_rules! table {
    ($(#[$doc:meta])* $name:ident { $($field:ident = $symbol:literal: fn($($arg:ty),* $(,)?) $(-> $ret:ty)?;)* }) => {
        $(#[$doc])*
        pub(crate) struct $name {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl $name {
            /// The table of `library`, or the names that it lacks.
            ///
            /// # Safety
            /// Functions of these names in `library` have these types.
            pub(crate) unsafe fn read(library: &libloading::Library) -> Result<Self, Vec<&'static str>> {
                let mut missing = Vec::new();
                $(
                    // SAFETY: the caller vouches for the type.
                    let $field = unsafe { library.get::<unsafe extern "C" fn($($arg),*) $(-> $ret)?>($symbol) };
                    if $field.is_err() {
                        missing.push($symbol);
                    }
                )*
                match ($($field,)*) {
                    ($(Ok($field),)*) => Ok(Self { $($field: *$field,)* }),
                    _ => Err(missing),
                }
            }
        }
    };
}

table! {
    /// Functions of libucp, and one of libucs, which libucp brings and where the loader therefore looks too.
    UcpTable {
        get_version = "ucp_get_version": fn(*mut c_uint, *mut c_uint, *mut c_uint);
        config_read = "ucp_config_read": fn(*const c_char, *const c_char, *mut RawSettings) -> Status;
        config_modify = "ucp_config_modify": fn(RawSettings, *const c_char, *const c_char) -> Status;
        config_release = "ucp_config_release": fn(RawSettings);
        init_version = "ucp_init_version": fn(c_uint, c_uint, *const RawParams, RawSettings, *mut RawContext) -> Status;
        cleanup = "ucp_cleanup": fn(RawContext);
        worker_create = "ucp_worker_create": fn(RawContext, *const RawWorkerParams, *mut RawWorker) -> Status;
        worker_destroy = "ucp_worker_destroy": fn(RawWorker);
        worker_get_address = "ucp_worker_get_address": fn(RawWorker, *mut RawAddress, *mut usize) -> Status;
        worker_release_address = "ucp_worker_release_address": fn(RawWorker, RawAddress);
        worker_get_efd = "ucp_worker_get_efd": fn(RawWorker, *mut c_int) -> Status;
        worker_arm = "ucp_worker_arm": fn(RawWorker) -> Status;
        worker_progress = "ucp_worker_progress": fn(RawWorker) -> c_uint;
        set_message_handler = "ucp_worker_set_am_recv_handler": fn(RawWorker, *const RawMessageHandlerParam) -> Status;
        ep_create = "ucp_ep_create": fn(RawWorker, *const RawEndpointParams, *mut RawEndpoint) -> Status;
        ep_close = "ucp_ep_close_nbx": fn(RawEndpoint, *const RawRequestParam) -> StatusPointer;
        message_send = "ucp_am_send_nbx": fn(RawEndpoint, c_uint, *const c_void, usize, *const c_void, usize, *const RawRequestParam) -> StatusPointer;
        message_release = "ucp_am_data_release": fn(RawWorker, *mut c_void);
        worker_flush = "ucp_worker_flush_nbx": fn(RawWorker, *const RawRequestParam) -> StatusPointer;
        request_status = "ucp_request_check_status": fn(*mut c_void) -> Status;
        request_free = "ucp_request_free": fn(*mut c_void);
        status_string = "ucs_status_string": fn(Status) -> *const c_char;
    }
}

impl UcpTable {
    /// What UCX calls this status.
    pub(crate) fn text(&self, status: Status) -> String {
        // SAFETY: any number is taken.
        let text = unsafe { (self.status_string)(status) };
        if text.is_null() {
            return format!("status {status}");
        }
        // SAFETY: UCX's texts are C strings that are never changed.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}
