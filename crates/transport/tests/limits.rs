//! The limit of open files. Alone in its process, because it lowers it.

#![cfg(unix)]

use phalanx_transport::Secret;
use phalanx_transport::tcp::Exchange;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_rank_may_open_as_many_files_as_the_system_allows() {
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: hard }).unwrap();
    let _rank = Exchange::start(([127, 0, 0, 1], 0).into(), Secret::generate().unwrap(), 0, 2, None).unwrap();
    let raised = getrlimit(Resource::Nofile);
    assert_eq!(
        (raised.current, raised.maximum),
        (Some(hard.map_or(1 << 20, |hard| hard.min(1 << 20))), hard)
    );
}
