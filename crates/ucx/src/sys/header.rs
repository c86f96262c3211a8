//! Compares what stands in this folder with UCX's header, by a C program that compiles only if both are alike. Skipped by name where there is no header or no C
//! compiler: `apt-get install libucx-dev` has it.

use super::*;
use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::offset_of;
use std::process::{Command, Stdio};

const INCLUDES: &str = "#include <stddef.h>\n#include <ucp/api/ucp.h>\n";

/// The C types of the functions of the table.
const FUNCTIONS: &[(&str, &str)] = &[
    ("ucp_get_version", "void (*)(unsigned *, unsigned *, unsigned *)"),
    ("ucp_config_read", "ucs_status_t (*)(const char *, const char *, ucp_config_t **)"),
    ("ucp_config_modify", "ucs_status_t (*)(ucp_config_t *, const char *, const char *)"),
    ("ucp_config_release", "void (*)(ucp_config_t *)"),
    (
        "ucp_init_version",
        "ucs_status_t (*)(unsigned, unsigned, const ucp_params_t *, const ucp_config_t *, ucp_context_h *)",
    ),
    ("ucp_cleanup", "void (*)(ucp_context_h)"),
    ("ucp_worker_create", "ucs_status_t (*)(ucp_context_h, const ucp_worker_params_t *, ucp_worker_h *)"),
    ("ucp_worker_destroy", "void (*)(ucp_worker_h)"),
    ("ucp_worker_get_address", "ucs_status_t (*)(ucp_worker_h, ucp_address_t **, size_t *)"),
    ("ucp_worker_release_address", "void (*)(ucp_worker_h, ucp_address_t *)"),
    ("ucp_worker_get_efd", "ucs_status_t (*)(ucp_worker_h, int *)"),
    ("ucp_worker_arm", "ucs_status_t (*)(ucp_worker_h)"),
    ("ucp_worker_progress", "unsigned (*)(ucp_worker_h)"),
    ("ucp_worker_set_am_recv_handler", "ucs_status_t (*)(ucp_worker_h, const ucp_am_handler_param_t *)"),
    ("ucp_ep_create", "ucs_status_t (*)(ucp_worker_h, const ucp_ep_params_t *, ucp_ep_h *)"),
    ("ucp_ep_close_nbx", "ucs_status_ptr_t (*)(ucp_ep_h, const ucp_request_param_t *)"),
    (
        "ucp_am_send_nbx",
        "ucs_status_ptr_t (*)(ucp_ep_h, unsigned, const void *, size_t, const void *, size_t, const ucp_request_param_t *)",
    ),
    ("ucp_am_data_release", "void (*)(ucp_worker_h, void *)"),
    ("ucp_worker_flush_nbx", "ucs_status_ptr_t (*)(ucp_worker_h, const ucp_request_param_t *)"),
    ("ucp_request_check_status", "ucs_status_t (*)(void *)"),
    ("ucp_request_free", "void (*)(void *)"),
    ("ucs_status_string", "const char *(*)(ucs_status_t)"),
];

/// Whether the compiler takes it, or what it says.
fn compiles(program: &str) -> Result<(), String> {
    let cc = Command::new("cc")
        .args(["-fsyntax-only", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut cc = cc.map_err(|error| format!("cc: {error}"))?;
    // A compiler that ends early says why itself.
    let _ = cc.stdin.take().expect("it is piped").write_all(program.as_bytes());
    let output = cc.wait_with_output().map_err(|error| format!("cc: {error}"))?;
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(words) }
}

fn assertion(program: &mut String, claim: &str) {
    writeln!(program, "_Static_assert({claim}, \"phalanx says so\");").expect("a string takes all");
}

/// A program that claims what stands here.
fn claims() -> String {
    let mut program = INCLUDES.to_owned();
    macro_rules! layout {
        ($raw:ty, $name:literal: $($field:ident = $member:literal),*) => {
            $(assertion(
                &mut program,
                &format!("offsetof({}, {}) == {}", $name, $member, offset_of!($raw, $field)),
            );)*
        };
    }
    layout!(RawParams, "ucp_params_t": field_mask = "field_mask", features = "features", request_size = "request_size",
        request_init = "request_init", request_cleanup = "request_cleanup", tag_sender_mask = "tag_sender_mask",
        mt_workers_shared = "mt_workers_shared", estimated_num_eps = "estimated_num_eps",
        estimated_num_ppn = "estimated_num_ppn", name = "name");
    layout!(RawWorkerParams, "ucp_worker_params_t": field_mask = "field_mask", thread_mode = "thread_mode",
        cpu_mask = "cpu_mask", events = "events", user_data = "user_data", event_fd = "event_fd", flags = "flags",
        name = "name", am_alignment = "am_alignment", client_id = "client_id");
    layout!(RawEndpointParams, "ucp_ep_params_t": field_mask = "field_mask", address = "address", err_mode = "err_mode",
        err_handler_cb = "err_handler.cb", err_handler_arg = "err_handler.arg", user_data = "user_data", flags = "flags",
        sockaddr = "sockaddr", conn_request = "conn_request", name = "name", local_sockaddr = "local_sockaddr");
    layout!(RawMessageHandlerParam, "ucp_am_handler_param_t": field_mask = "field_mask", id = "id", flags = "flags",
        cb = "cb", arg = "arg");
    layout!(RawMessageParam, "ucp_am_recv_param_t": recv_attr = "recv_attr", reply_ep = "reply_ep");
    layout!(RawRequestParam, "ucp_request_param_t": op_attr_mask = "op_attr_mask", flags = "flags", request = "request",
        cb = "cb", datatype = "datatype", user_data = "user_data", reply_buffer = "reply_buffer",
        memory_type = "memory_type", recv_info = "recv_info", memh = "memh");
    macro_rules! numbers {
        ($($number:ident = $name:literal),* $(,)?) => {
            $(assertion(&mut program, &format!("({}) == ({})", $name, $number));)*
        };
    }
    numbers!(
        OK = "UCS_OK",
        IN_PROGRESS = "UCS_INPROGRESS",
        NO_RESOURCE = "UCS_ERR_NO_RESOURCE",
        NO_MEMORY = "UCS_ERR_NO_MEMORY",
        UNREACHABLE = "UCS_ERR_UNREACHABLE",
        INVALID_ADDRESS = "UCS_ERR_INVALID_ADDR",
        NO_DEVICE = "UCS_ERR_NO_DEVICE",
        TIMED_OUT = "UCS_ERR_TIMED_OUT",
        ENDPOINT_TIMEOUT = "UCS_ERR_ENDPOINT_TIMEOUT",
        ERR_LAST = "UCS_ERR_LAST",
        PARAM_FIELD_FEATURES = "UCP_PARAM_FIELD_FEATURES",
        PARAM_FIELD_ESTIMATED_NUM_EPS = "UCP_PARAM_FIELD_ESTIMATED_NUM_EPS",
        FEATURE_WAKEUP = "UCP_FEATURE_WAKEUP",
        FEATURE_AM = "UCP_FEATURE_AM",
        WORKER_PARAM_FIELD_THREAD_MODE = "UCP_WORKER_PARAM_FIELD_THREAD_MODE",
        WORKER_PARAM_FIELD_FLAGS = "UCP_WORKER_PARAM_FIELD_FLAGS",
        THREAD_MODE_SERIALIZED = "UCS_THREAD_MODE_SERIALIZED",
        WORKER_FLAG_IGNORE_REQUEST_LEAK = "UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK",
        EP_PARAM_FIELD_REMOTE_ADDRESS = "UCP_EP_PARAM_FIELD_REMOTE_ADDRESS",
        EP_PARAM_FIELD_ERR_HANDLING_MODE = "UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE",
        EP_PARAM_FIELD_ERR_HANDLER = "UCP_EP_PARAM_FIELD_ERR_HANDLER",
        ERR_HANDLING_MODE_NONE = "UCP_ERR_HANDLING_MODE_NONE",
        ERR_HANDLING_MODE_PEER = "UCP_ERR_HANDLING_MODE_PEER",
        EP_CLOSE_FLAG_FORCE = "UCP_EP_CLOSE_FLAG_FORCE",
        AM_SEND_FLAG_EAGER = "UCP_AM_SEND_FLAG_EAGER",
        AM_RECV_ATTR_FLAG_DATA = "UCP_AM_RECV_ATTR_FLAG_DATA",
        AM_RECV_ATTR_FLAG_RNDV = "UCP_AM_RECV_ATTR_FLAG_RNDV",
        AM_HANDLER_PARAM_FIELDS =
            "UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG",
        OP_ATTR_FIELD_CALLBACK = "UCP_OP_ATTR_FIELD_CALLBACK",
        OP_ATTR_FIELD_USER_DATA = "UCP_OP_ATTR_FIELD_USER_DATA",
        OP_ATTR_FIELD_FLAGS = "UCP_OP_ATTR_FIELD_FLAGS",
    );
    for (function, of_type) in FUNCTIONS {
        assertion(&mut program, &format!("__builtin_types_compatible_p(__typeof__(&{function}), {of_type})"));
    }
    program
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn the_header_says_the_same() {
    if let Err(why) = compiles(INCLUDES) {
        eprintln!("skipped: no header of UCX, or no C compiler: {why}");
        return;
    }
    let program = claims();
    compiles(&program).expect("all of it is what the header says");
    // Each claim is one that can be wrong.
    for (right, wrong) in [
        ("offsetof(ucp_worker_params_t, flags) == 168", "offsetof(ucp_worker_params_t, flags) == 160"),
        ("(UCP_FEATURE_AM) == (64)", "(UCP_FEATURE_AM) == (32)"),
        ("unsigned (*)(ucp_worker_h)", "unsigned (*)(ucp_context_h)"),
    ] {
        assert!(program.contains(right), "{right}");
        assert!(compiles(&program.replace(right, wrong)).is_err(), "{wrong}");
    }
}

#[test]
fn pointers_that_are_statuses_are_told_from_requests() {
    let pointer = |code: isize| std::ptr::without_provenance_mut(code as usize);
    for code in [0, -1, -25, -100] {
        assert_eq!(status_of(pointer(code)), Some(code as Status));
    }
    for request in [-101, 4096, isize::MAX] {
        assert_eq!(status_of(pointer(request)), None);
    }
}
