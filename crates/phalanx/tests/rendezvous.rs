//! How ranks come together: in any order, over IPv4 and IPv6, through a server or a directory; and what is said when they don't.

use phalanx::store::{Secret, TcpStoreServer};
use phalanx::{Config, Error, ReduceOp};
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

/// The configuration of one rank, from variables as a launcher would set them.
fn config(set: &[(&str, String)]) -> Config {
    let look_up = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.clone());
    Config::from_lookup(look_up).expect("the variables make sense")
}

fn phalanx_rank(rank: usize, world_size: usize, store: &str, secret: &Secret, init_timeout: &str) -> Config {
    config(&[
        ("PHALANX_RANK", rank.to_string()),
        ("PHALANX_WORLD_SIZE", world_size.to_string()),
        ("PHALANX_STORE", store.into()),
        ("PHALANX_SECRET", secret.to_hex()),
        ("PHALANX_JOB_ID", "test".into()),
        ("PHALANX_INIT_TIMEOUT_S", init_timeout.into()),
    ])
}

fn torchrun_rank(rank: usize, world_size: usize, port: u16, secret: &Secret) -> Config {
    config(&[
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", world_size.to_string()),
        ("MASTER_ADDR", "127.0.0.1".into()),
        ("MASTER_PORT", port.to_string()),
        ("PHALANX_SECRET", secret.to_hex()),
    ])
}

/// Joins, adds up the ranks with the others, and leaves in order.
fn take_part(config: &Config) -> phalanx::Result<u64> {
    let group = phalanx::join(config)?;
    let mut sum = [group.rank() as u64];
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    group.finalize()?;
    Ok(sum[0])
}

/// Runs one thread a configuration, each starting after its delay.
fn run(ranks: Vec<(Config, Duration)>) -> Vec<phalanx::Result<u64>> {
    let start = |(config, delay)| {
        thread::spawn(move || {
            thread::sleep(delay);
            take_part(&config)
        })
    };
    let threads: Vec<_> = ranks.into_iter().map(start).collect();
    threads.into_iter().map(|t| t.join().expect("no rank panics")).collect()
}

fn assert_all(outcomes: &[phalanx::Result<u64>], sum: u64) {
    assert!(outcomes.iter().all(|o| o.as_ref().is_ok_and(|s| *s == sum)), "{outcomes:?}");
}

const AT_ONCE: Duration = Duration::ZERO;
const LATE: Duration = Duration::from_millis(700);

#[test]
fn rank_0_may_start_last() {
    let secret = Secret::generate().unwrap();
    let server = TcpStoreServer::start(([127, 0, 0, 1], 0).into(), &secret).unwrap();
    let store = format!("tcp://{}", server.addr());
    let rank = |r| (phalanx_rank(r, 4, &store, &secret, "60"), if r == 0 { LATE } else { AT_ONCE });
    assert_all(&run((0..4).map(rank).collect()), 6);
}

#[test]
fn under_torchrun_rank_0_hosts_the_store_and_may_start_last() {
    let secret = Secret::generate().unwrap();
    let port = phalanx_testkit::free_port();
    let rank = |r| (torchrun_rank(r, 3, port, &secret), if r == 0 { LATE } else { AT_ONCE });
    assert_all(&run((0..3).map(rank).collect()), 3);
}

#[test]
fn over_ipv6() {
    let bind = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    if TcpListener::bind(bind).is_err() {
        #[expect(clippy::print_stderr, reason = "a skipped test says so")]
        {
            eprintln!("skipped: this machine has no IPv6 loopback");
        }
        return;
    }
    let secret = Secret::generate().unwrap();
    let server = TcpStoreServer::start(bind, &secret).unwrap();
    let store = format!("tcp://{}", server.addr());
    assert_all(&run((0..3).map(|r| (phalanx_rank(r, 3, &store, &secret, "60"), AT_ONCE)).collect()), 3);
}

#[cfg(unix)]
#[test]
fn through_a_directory_that_is_left_empty() {
    let secret = Secret::generate().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = format!("file://{}", dir.path().display());
    let rank = |r| (phalanx_rank(r, 3, &store, &secret, "60"), if r == 0 { LATE } else { AT_ONCE });
    assert_all(&run((0..3).map(rank).collect()), 3);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn everyone_who_came_says_who_did_not() {
    let secret = Secret::generate().unwrap();
    let server = TcpStoreServer::start(([127, 0, 0, 1], 0).into(), &secret).unwrap();
    let store = format!("tcp://{}", server.addr());
    let outcomes = run([0, 2, 4].map(|r| (phalanx_rank(r, 6, &store, &secret, "2"), AT_ONCE)).into());
    for outcome in outcomes {
        let Err(Error::Rendezvous { what, waited, .. }) = &outcome else { panic!("{outcome:?}") };
        assert!(what.contains("3 of 6 ranks came, missing: [1, 3, 5]"), "{what}");
        // The first deadline that passes ends it for all.
        assert!(*waited >= Duration::from_secs(1), "{waited:?}");
    }
}

#[test]
fn without_rank_0_the_others_say_so() {
    let secret = Secret::generate().unwrap();
    let server = TcpStoreServer::start(([127, 0, 0, 1], 0).into(), &secret).unwrap();
    let store = format!("tcp://{}", server.addr());
    let outcomes = run(vec![(phalanx_rank(1, 2, &store, &secret, "1"), AT_ONCE)]);
    let Err(error) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert!(error.to_string().contains("rank 0 has not come"), "{error}");
}

#[test]
fn a_rank_that_is_started_twice_is_refused_and_the_job_goes_on() {
    let secret = Secret::generate().unwrap();
    let server = TcpStoreServer::start(([127, 0, 0, 1], 0).into(), &secret).unwrap();
    let store = format!("tcp://{}", server.addr());
    let mut ranks: Vec<_> = (0..3).map(|r| (phalanx_rank(r, 3, &store, &secret, "60"), AT_ONCE)).collect();
    ranks[2].1 = LATE * 2; // so that the second rank 1 comes while all wait
    ranks.push((phalanx_rank(1, 3, &store, &secret, "60"), LATE));
    let mut outcomes = run(ranks);
    let refused = outcomes.pop().unwrap();
    let Err(error) = &refused else { panic!("a second rank 1 took part: {refused:?}") };
    assert!(error.to_string().contains("connected already"), "{error}");
    assert_all(&outcomes, 3);
}

#[test]
fn another_secret_does_not_come_in() {
    let secret = Secret::generate().unwrap();
    let server = TcpStoreServer::start(([127, 0, 0, 1], 0).into(), &secret).unwrap();
    let store = format!("tcp://{}", server.addr());
    let outcomes = run(vec![(phalanx_rank(1, 2, &store, &Secret::generate().unwrap(), "1"), AT_ONCE)]);
    let Err(error) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert!(error.to_string().contains("another secret?"), "{error}");
}

#[test]
fn a_rank_that_differs_in_encryption_is_told_so() {
    let secret = Secret::generate().unwrap();
    let server = TcpStoreServer::start(([127, 0, 0, 1], 0).into(), &secret).unwrap();
    let store = format!("tcp://{}", server.addr());
    let mut rank = (phalanx_rank(1, 2, &store, &secret, "60"), AT_ONCE);
    rank.0.secret = rank.0.secret.map(Secret::encrypting);
    let outcome = run(vec![rank]).remove(0);
    let Err(error) = &outcome else { panic!("it came in") };
    let said =
        "it does not encrypt and this process encrypts: PHALANX_ENCRYPT must be the same for all ranks";
    assert!(error.to_string().contains(said), "{error}");
}

#[test]
fn ranks_that_were_told_different_algorithms_are_told_so() {
    let secret = Secret::generate().unwrap();
    let server = TcpStoreServer::start(([127, 0, 0, 1], 0).into(), &secret).unwrap();
    let store = format!("tcp://{}", server.addr());
    let mut ranks: Vec<_> = (0..2).map(|r| (phalanx_rank(r, 2, &store, &secret, "60"), AT_ONCE)).collect();
    ranks[1].0.algorithms = Some("all_reduce=ring".into());
    for outcome in run(ranks) {
        let Err(error) = &outcome else { panic!("they came together") };
        assert!(error.to_string().contains("all_reduce=ring"), "{error}");
    }
}

#[test]
fn survivors_are_told_when_the_store_was_lost_with_rank_0() {
    let secret = Secret::generate().unwrap();
    let port = phalanx_testkit::free_port();
    let rank = |rank| {
        let config = torchrun_rank(rank, 3, port, &secret);
        thread::spawn(move || {
            let group = phalanx::join(&config).unwrap();
            if rank == 0 {
                group.barrier().unwrap();
            }
            // Rank 0 leaves, and its store with it. That may also end the first barrier on a rank that is still in it.
            (rank > 0).then(|| {
                (0..2).find_map(|_| group.barrier().err()).expect("rank 0 has left");
                group.shrink().unwrap_err().to_string()
            })
        })
    };
    let told: Vec<_> = (0..3).map(rank).collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap()).collect();
    assert!(told[1..].iter().flatten().all(|error| error.contains("rank 0 ran the job's store")), "{told:?}");
}
