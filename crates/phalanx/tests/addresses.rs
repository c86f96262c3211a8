//! Where ranks listen and how they are reached: through a forwarded port, at an address that leads nowhere, on a host that has only IPv6, and
//! beside a clone of their own host.

#![cfg(target_os = "linux")]

mod support;

use phalanx::ReduceOp;
use phalanx::launch::Outcome;
use phalanx::store::Secret;
use phalanx_testkit::free_port;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use support::{ip, said};

const FIRST_HOST: &str = "10.78.0.1";

/// A rank: adds up ones, or says why it does not. Or a launcher of such ranks.
#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    match support::role().as_deref() {
        None => {}
        Some("launcher") => {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let (launch, output) = support::job("rank", 3, folder.path());
            let outcome = launch.run().expect("the job starts");
            assert!(matches!(outcome, Outcome::Success), "{outcome}\n{}", output.text());
            support::say("launched", output.text().matches("sum 3").count());
        }
        Some(_) => match phalanx::init() {
            Err(error) => support::say("error", error),
            Ok(group) => {
                let mut sum = vec![1u64; 10_000];
                group.all_reduce(&mut sum, ReduceOp::Sum).expect("all are there");
                support::say("sum", sum[9_999]);
                group.finalize().expect("all are there");
            }
        },
    }
}

fn start(
    mut command: Command,
    rank: usize,
    world_size: usize,
    secret: &Secret,
    more: &[(&str, &str)],
) -> Child {
    command
        .envs([("RANK", rank.to_string()), ("WORLD_SIZE", world_size.to_string())])
        .env("PHALANX_SECRET", secret.to_hex())
        .env("PHALANX_INIT_TIMEOUT_S", "90")
        .envs(more.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().expect("this test can be started")
}

/// Forwards one port to another, as the gateway of a private network does; counts the connections.
fn forward(to: String) -> (String, Arc<AtomicUsize>) {
    let gateway = TcpListener::bind("127.0.0.2:0").expect("there is a port");
    let port = gateway.local_addr().expect("it is bound").port().to_string();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let copy = |mut from: TcpStream, mut to: TcpStream| {
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    };
    thread::spawn(move || {
        for caller in gateway.incoming() {
            let Ok(caller) = caller else { return };
            let Ok(inside) = TcpStream::connect(format!("127.0.0.1:{to}")) else { continue };
            counted.fetch_add(1, Ordering::Relaxed);
            copy(caller.try_clone().expect("it is open"), inside.try_clone().expect("it is open"));
            copy(inside, caller);
        }
    });
    (port, count)
}

#[test]
fn ranks_are_reached_through_forwarded_ports() {
    let (secret, master) = (Secret::generate().expect("there is randomness"), free_port().to_string());
    let ports = [free_port().to_string(), free_port().to_string()];
    let gateways = ports.clone().map(forward);
    let ranks: Vec<Child> = (0..2)
        .map(|rank| {
            let host = format!("127.0.0.2:{}", gateways[rank].0);
            let more = [
                ("MASTER_ADDR", "127.0.0.1"),
                ("MASTER_PORT", master.as_str()),
                ("PHALANX_BIND", "0.0.0.0"),
                ("PHALANX_PORT", ports[rank].as_str()),
                ("PHALANX_HOST", host.as_str()),
                ("PHALANX_BACKEND", "tcp"),
            ];
            start(support::again("rank"), rank, 2, &secret, &more)
        })
        .collect();
    for rank in ranks {
        assert_eq!(said(rank, "sum"), "2");
    }
    let [to_0, to_1] = gateways.map(|(_, count)| count.load(Ordering::Relaxed));
    // The line goes to rank 0; either rank may have called the other for their link.
    assert!(to_0 >= 1 && to_0 + to_1 >= 2, "line and link to rank 0: {to_0}, links to rank 1: {to_1}");
}

/// Three ports in a row that nobody else has: the first is taken, by what is returned, and the others are free.
fn three_ports() -> (TcpListener, u16) {
    let take = |port: u16| TcpListener::bind(("127.0.0.1", port)).ok();
    let three = |first: u16| {
        let (taken, _second, _third) =
            (take(first)?, take(first.checked_add(1)?)?, take(first.checked_add(2)?)?);
        Some((taken, first))
    };
    (0..100).find_map(|_| three(free_port())).expect("there are three such ports")
}

#[test]
fn ranks_take_what_is_free_of_the_ports_of_an_interface() {
    let (secret, master) = (Secret::generate().expect("there is randomness"), free_port().to_string());
    let (_of_another_job, first) = three_ports();
    let job = |ports: &str| {
        let more = [
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", master.as_str()),
            ("PHALANX_INTERFACE", "nothing0,lo"),
            ("PHALANX_PORT", ports),
            ("PHALANX_BACKEND", "tcp"),
        ];
        [0, 1].map(|rank| start(support::again("rank"), rank, 2, &secret, &more))
    };
    for rank in job(&format!("{first}-{}", first + 2)) {
        assert_eq!(said(rank, "sum"), "2");
    }
    for rank in job(&format!("{first}-{first}")) {
        let error = said(rank, "error");
        assert!(
            error.contains(&format!("the ports {first} to {first} of 127.0.0.1 are all in use")),
            "{error}"
        );
    }
}

#[test]
fn a_rank_0_that_cannot_be_reached_is_told_from_one_that_is_not_there() {
    let (secret, master) = (Secret::generate().expect("there is randomness"), free_port().to_string());
    // Nobody listens there, whoever's it is.
    let nowhere = format!("127.0.0.3:{}", free_port());
    let more = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", master.as_str())];
    let zero = [&more[..], &[("PHALANX_BIND", "127.0.0.1"), ("PHALANX_HOST", nowhere.as_str())]].concat();
    let zero = start(support::again("rank"), 0, 3, &secret, &zero);
    let others = [1, 2].map(|rank| start(support::again("rank"), rank, 3, &secret, &more));
    // Rank 0 first: what is the matter with it is the reason of what the others say.
    let errors = [zero].into_iter().chain(others).map(|rank| said(rank, "error")).collect::<Vec<_>>();
    for words in ["rank 0 is there", &nowhere, "PHALANX_HOST at rank 0", "PHALANX_PORT"] {
        assert!(errors.iter().all(|error| error.contains(words)), "{words}: {errors:#?}");
    }
}

/// Network namespaces, gone with this.
struct Namespaces(Vec<String>);

impl Namespaces {
    fn new(names: &[&str], prepare: impl Fn(&[String]) -> Result<(), String>) -> Result<Self, String> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let (id, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let made = Self(names.iter().map(|name| format!("phalanx-{id}-{number}{name}")).collect());
        made.0.iter().try_for_each(|name| ip(&format!("netns add {name}")))?;
        prepare(&made.0)?;
        Ok(made)
    }
}

impl Namespaces {
    /// Two hosts with one cable between them; [`FIRST_HOST`] is the first one's address.
    fn with_a_cable() -> Result<Self, String> {
        Self::new(&["a", "b"], |names| {
            let [a, b] = names else { unreachable!("two were asked for") };
            ip(&format!("link add cable netns {a} type veth peer name cable netns {b}"))?;
            for (host, addr) in [(a, FIRST_HOST), (b, "10.78.0.2")] {
                ip(&format!("-n {host} addr add {addr}/24 dev cable"))?;
                ip(&format!("-n {host} link set cable up"))?;
                ip(&format!("-n {host} link set lo up"))?;
            }
            Ok(())
        })
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            // It may never have been there.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "a test that is skipped says so")]
fn a_host_that_has_only_ipv6_is_enough() {
    let made = Namespaces::new(&["v6"], |names| {
        let name = &names[0];
        ip(&format!("-n {name} link set lo up"))?;
        ip(&format!("-n {name} addr del 127.0.0.1/8 dev lo"))
    });
    let namespaces = match made {
        Ok(made) => made,
        Err(why) => return println!("skipped: no network namespaces here: {why}"),
    };
    let name = &namespaces.0[0];
    let mut launcher = support::again_in(name, "launcher");
    let launcher =
        launcher.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("ip was there before");
    assert_eq!(said(launcher, "launched"), "3");
    let (secret, folder) =
        (Secret::generate().expect("there is randomness"), tempfile::tempdir().expect("a temporary folder"));
    let store = format!("file://{}", folder.path().display());
    let more = [("PHALANX_STORE", store.as_str()), ("PHALANX_JOB_ID", "v6"), ("PHALANX_BACKEND", "tcp")];
    let ranks = [0, 1].map(|rank| start(support::again_in(name, "rank"), rank, 2, &secret, &more));
    for rank in ranks {
        assert_eq!(said(rank, "sum"), "2");
    }
}

/// From the second host, only some ports of the first one can be reached.
#[test]
#[allow(clippy::print_stdout, reason = "a test that is skipped says so")]
fn behind_a_firewall_the_error_says_what_to_open_and_then_it_works() {
    let walled = Namespaces::with_a_cable().and_then(|hosts| {
        let b = &hosts.0[1];
        for (number, ports) in [(10, "29500"), (11, "6000-6001")] {
            ip(&format!(
                "-n {b} rule add pref {number} to {FIRST_HOST} ipproto tcp dport {ports} lookup main"
            ))?;
        }
        ip(&format!("-n {b} rule add pref 20 to {FIRST_HOST} ipproto tcp prohibit"))?;
        Ok(hosts)
    });
    let hosts = match walled {
        Ok(hosts) => hosts,
        Err(why) => return println!("skipped: no network namespaces with such rules here: {why}"),
    };
    let secret = Secret::generate().expect("there is randomness");
    let ranks = |port: Option<&str>| {
        [0, 1].map(|rank| {
            let mut more = vec![("MASTER_ADDR", FIRST_HOST), ("MASTER_PORT", "29500")];
            more.extend(port.map(|port| ("PHALANX_PORT", port)));
            start(support::again_in(&hosts.0[rank], "rank"), rank, 2, &secret, &more)
        })
    };
    for rank in ranks(None) {
        let error = said(rank, "error");
        for words in ["rank 0 is there", "its own port can't be used from here: 10.78.0.1:", "PHALANX_PORT"] {
            assert!(error.contains(words), "{words}: {error}");
        }
    }
    for rank in ranks(Some("6000")) {
        assert_eq!(said(rank, "sum"), "2");
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "a test that is skipped says so")]
fn cloned_hosts_hear_how_to_tell_them_apart() {
    let made = Namespaces::with_a_cable();
    let namespaces = match made {
        Ok(made) => made,
        Err(why) => return println!("skipped: no network namespaces here: {why}"),
    };
    // A clone says the same of itself as its original: here, because both look at the same files instead of their own.
    let copy = tempfile::tempdir().expect("a temporary folder");
    for (file, text) in [("sys/kernel/random/boot_id", "cloned\n"), ("self/ns/net", "")] {
        let path = copy.path().join(file);
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("the folder is ours");
        std::fs::write(path, text).expect("the folder is ours");
    }
    let secret = Secret::generate().expect("there is randomness");
    let myself = std::env::current_exe().expect("this test has a path");
    let clones = |id: bool| {
        [0, 1].map(|rank| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &namespaces.0[rank], "unshare", "-m", "sh", "-c"]).arg(format!(
                "mount --bind {} /proc && exec {} --exact rank --ignored --nocapture --test-threads=1",
                copy.path().display(),
                myself.display()
            ));
            command.env("PHALANX_TEST_ROLE", "rank");
            let host_id = rank.to_string();
            let mut more =
                vec![("MASTER_ADDR", FIRST_HOST), ("MASTER_PORT", "29500"), ("PHALANX_TIMEOUT_S", "20")];
            if id {
                more.push(("PHALANX_HOST_ID", &host_id));
            }
            start(command, rank, 2, &secret, &more)
        })
    };
    for rank in clones(true) {
        assert_eq!(said(rank, "sum"), "2");
    }
    for rank in clones(false) {
        let error = said(rank, "error");
        assert!(error.contains("PHALANX_HOST_ID"), "{error}");
    }
}
