//! Every store passes the same suite.

use phalanx_core::Deadline;
use phalanx_rendezvous::{FileStore, MemoryStore, PrefixStore, TcpStore, TcpStoreServer};
use phalanx_transport::Secret;
use std::time::{Duration, Instant};

fn memory() -> impl Fn() -> MemoryStore {
    let store = MemoryStore::new();
    move || store.clone()
}

fn file() -> impl Fn() -> FileStore {
    let dir = tempfile::tempdir().unwrap();
    move || FileStore::open(dir.path(), "job").unwrap()
}

fn tcp(bind: &str) -> impl Fn() -> TcpStore + use<> {
    let secret = Secret::generate().unwrap();
    let server = TcpStoreServer::start(bind.parse().unwrap(), &secret).unwrap();
    move || {
        let deadline = Deadline::after(Instant::now(), Duration::from_secs(60));
        TcpStore::connect(&server.addr().to_string(), &secret, &deadline).unwrap()
    }
}

fn prefixed() -> impl Fn() -> PrefixStore<PrefixStore<MemoryStore>> {
    let client = memory();
    move || PrefixStore::new("inner", PrefixStore::new("outer", client()))
}

mod memory_store {
    phalanx_testkit::store_conformance!(super::memory());
}

mod file_store {
    phalanx_testkit::store_conformance!(super::file());
}

mod tcp_store {
    phalanx_testkit::store_conformance!(super::tcp("127.0.0.1:0"));
}

mod tcp_store_ipv6 {
    phalanx_testkit::store_conformance!(super::tcp("[::1]:0"));
}

mod prefix_store {
    phalanx_testkit::store_conformance!(super::prefixed());
}
