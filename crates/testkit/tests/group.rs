//! Every backend passes the same suite.

use phalanx_testkit::World;

mod thread {
    phalanx_testkit::group_conformance!(super::World::thread());
}

mod tcp {
    phalanx_testkit::group_conformance!(super::World::tcp());
}
