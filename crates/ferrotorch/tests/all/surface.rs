//! The surface of ferrotorch-distributed: what its operations return, on one rank and on several, and what they refuse.

use crate::common::everywhere;
use ferrotorch_core::{Float, Tensor, creation};
use half::{bf16, f16};
use phalanx_ferrotorch::{
    Backend, ReduceOp, SimulatedBackend, SubBackend, TcpBackend, all_gather, all_to_all,
    all_to_all_single_uneven, allreduce, allreduce_with_timeout, barrier, broadcast, recv, recv_into,
    recv_with_timeout, reduce_scatter, reduce_scatter_tensor, send, sendrecv,
};
use std::sync::Arc;
use std::time::Duration;

fn tensor<T: Float>(numbers: &[T], shape: &[usize]) -> Tensor<T> {
    creation::from_slice(numbers, shape).unwrap()
}

fn count(from: usize, len: usize) -> Vec<f32> {
    (from..from + len).map(|i| i as f32).collect()
}

#[track_caller]
fn assert_is<T: Float>(found: &Tensor<T>, numbers: &[T], shape: &[usize]) {
    assert_eq!((found.data_vec().unwrap(), found.shape()), (numbers.to_vec(), shape));
    assert!(!found.requires_grad());
}

#[test]
fn collectives_are_those_of_one_rank_alone() {
    everywhere(1, |backend| {
        let own = tensor(&count(1, 4), &[2, 2]);
        for op in [ReduceOp::Sum, ReduceOp::Mean] {
            assert_is(&allreduce(&own, &*backend, op).unwrap(), &count(1, 4), &[2, 2]);
            assert_is(&reduce_scatter(&own, &*backend, op).unwrap(), &count(1, 4), &[2, 2]);
        }
        assert_is(&broadcast(&own, &*backend, 0).unwrap(), &count(1, 4), &[2, 2]);
        assert_is(&all_gather(&own, &*backend).unwrap(), &count(1, 4), &[2, 2]);
        assert_is(&all_to_all(&own, &*backend).unwrap(), &count(1, 4), &[2, 2]);
        barrier(&*backend).unwrap();
    });
}

#[test]
fn collectives_have_the_shapes_and_values_of_ferrotorch_distributed() {
    everywhere(3, |backend| {
        let (backend, rank) = (&*backend, backend.rank());
        let own = tensor(&count(6 * rank, 6), &[3, 2]);
        let sum: Vec<f32> = (0..6).map(|i| (3 * i + 18) as f32).collect();
        assert_is(&allreduce(&own, backend, ReduceOp::Sum).unwrap(), &sum, &[3, 2]);
        let limit = Duration::from_secs(30);
        let mean = allreduce_with_timeout(&own, backend, ReduceOp::Mean, limit).unwrap();
        assert_is(&mean, &count(6, 6), &[3, 2]);
        assert_is(&broadcast(&own, backend, 1).unwrap(), &count(6, 6), &[3, 2]);
        assert_is(&all_gather(&own, backend).unwrap(), &count(0, 18), &[9, 2]);
        let scalar = tensor(&[rank as f32], &[]);
        assert_is(&all_gather(&scalar, backend).unwrap(), &count(0, 3), &[3]);
        let block = &sum[2 * rank..2 * rank + 2];
        assert_is(&reduce_scatter(&own, backend, ReduceOp::Sum).unwrap(), block, &[1, 2]);
        let block = count(6 + 2 * rank, 2);
        assert_is(&reduce_scatter_tensor(&own, backend, ReduceOp::Mean).unwrap(), &block, &[1, 2]);
        let blocks: Vec<f32> = (0..3).flat_map(|from| count(6 * from + 2 * rank, 2)).collect();
        assert_is(&all_to_all(&own, backend).unwrap(), &blocks, &[3, 2]);
        // Rank r sends r + 1 elements to each.
        let many = tensor(&count(100 * rank, 3 * (rank + 1)), &[3 * (rank + 1)]);
        let uneven = all_to_all_single_uneven(&many, &[rank + 1; 3], &[1, 2, 3], backend).unwrap();
        let parts: Vec<f32> =
            (0..3).flat_map(|from| count(100 * from + rank * (from + 1), from + 1)).collect();
        assert_is(&uneven, &parts, &[6]);
        // A tensor that is not contiguous is sent as it is seen, and nothing at all is nothing.
        let turned = own.permute(&[1, 0]).unwrap();
        let seen = turned
            .data_vec()
            .unwrap()
            .iter()
            .map(|x| 3.0 * (x - 6.0 * rank as f32) + 18.0)
            .collect::<Vec<_>>();
        assert_is(&allreduce(&turned, backend, ReduceOp::Sum).unwrap(), &seen, &[2, 3]);
        assert_is(&allreduce(&tensor::<f32>(&[], &[0, 2]), backend, ReduceOp::Sum).unwrap(), &[], &[0, 2]);
    });
}

#[test]
fn every_float_type_is_added_up() {
    everywhere(2, |backend| {
        let backend = &*backend;
        let sum = |x: f64| x * 2.0;
        assert_is(&allreduce(&tensor(&[1.5f64], &[1]), backend, ReduceOp::Sum).unwrap(), &[sum(1.5)], &[1]);
        let half = tensor(&[f16::from_f32(1.5)], &[1]);
        assert_is(&allreduce(&half, backend, ReduceOp::Sum).unwrap(), &[f16::from_f32(3.0)], &[1]);
        let half = tensor(&[bf16::from_f32(1.5)], &[1]);
        assert_is(&allreduce(&half, backend, ReduceOp::Mean).unwrap(), &[bf16::from_f32(1.5)], &[1]);
    });
}

#[test]
fn what_does_not_fit_is_refused_and_the_group_goes_on() {
    everywhere(2, |backend| {
        let backend = &*backend;
        let odd = tensor(&count(0, 3), &[3]);
        let refused = |outcome: ferrotorch_core::FerrotorchResult<Tensor<f32>>, part: &str| {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        refused(reduce_scatter(&odd, backend, ReduceOp::Sum), "can't be divided among 2 ranks");
        refused(reduce_scatter(&tensor(&[1.0], &[]), backend, ReduceOp::Sum), "can't be divided");
        refused(all_to_all(&odd, backend), "3 elements can't be divided among 2 ranks");
        refused(broadcast(&odd, backend, 2), "root");
        refused(all_to_all_single_uneven(&odd, &[3], &[3], backend), "2");
        refused(recv(&[usize::MAX, 2], 1 - backend.rank(), backend), "no tensor has the shape");
        let own = backend.rank();
        assert!(send(&odd, own, backend).unwrap_err().to_string().contains("this rank"));
        assert!(send(&odd, 2, backend).unwrap_err().to_string().contains("out of range"));
        let error = recv_with_timeout::<f32>(&[1], 1 - own, backend, Duration::from_millis(5)).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("no such message came from rank") && error.contains("tests/all/surface.rs"),
            "{error}"
        );
        barrier(backend).unwrap();
    });
}

#[test]
fn tensors_and_bytes_go_from_rank_to_rank() {
    everywhere(2, |backend| {
        let (backend, rank) = (&*backend, backend.rank());
        // Longer than what needs no receiver: nobody waits for the other to receive.
        let mine = creation::full(&[200, 1000], rank as f64).unwrap();
        let theirs = sendrecv(&mine, &[1000, 200], 1 - rank, backend).unwrap();
        assert_is(&theirs, &vec![1.0 - rank as f64; 200_000], &[1000, 200]);
        if rank == 0 {
            send(&tensor(&[1f32, 2.0], &[2]), 1, backend).unwrap();
            backend.send(b"five!", 1).unwrap();
        } else {
            let mut out = tensor(&[0f32, 0.0], &[1, 2]);
            recv_into(&mut out, 0, backend).unwrap();
            assert_is(&out, &[1.0, 2.0], &[1, 2]);
            let mut bytes = [0; 5];
            backend.recv_timeout(&mut bytes, 0, Duration::from_secs(20)).unwrap();
            assert_eq!(&bytes, b"five!");
        }
    });
}

#[test]
fn a_sub_backend_is_a_group_of_its_members() {
    everywhere(4, |backend| {
        let rank = backend.rank();
        let error = |members: Vec<usize>| SubBackend::new(backend.clone(), members).unwrap_err().to_string();
        assert!(error(vec![]).contains("no members"));
        assert!(error(vec![rank, 4]).contains("no rank 4 among 4"));
        let sub = SubBackend::new(backend.clone(), vec![rank % 2 + 2, rank % 2, rank % 2]).unwrap();
        assert_eq!(
            (sub.rank(), sub.world_size(), sub.members()),
            (rank / 2, 2, &[rank % 2, rank % 2 + 2][..])
        );
        assert_eq!(sub.to_global(sub.rank()), rank);
        assert_eq!((sub.to_local(rank), sub.to_local((rank + 1) % 4)), (Some(rank / 2), None));
        let sum = allreduce(&tensor(&[rank as f32], &[1]), &sub, ReduceOp::Sum).unwrap();
        assert_is(&sum, &[(2 * (rank % 2) + 2) as f32], &[1]);
        assert_eq!(sub.parent().world_size(), 4);
    });
}

#[test]
fn backends_that_can_not_be_are_refused() {
    let refused = |outcome: ferrotorch_core::FerrotorchResult<TcpBackend>, part: &str| {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(TcpBackend::new(0, 1, "127.0.0.1:4000"), "a world of 1 ranks");
    refused(TcpBackend::new(2, 2, "127.0.0.1:4000"), "no rank 2 among 2");
    refused(TcpBackend::new(0, 2, "4000"), "expected host:port");
    refused(TcpBackend::new(0, 2, "127.0.0.1:http"), "MASTER_PORT");
    assert!(SimulatedBackend::create_group(0).unwrap_err().to_string().contains("0 ranks"));
}

/// Also the ranks of [`processes_meet_at_an_address`].
#[test]
fn rank_of_processes() {
    let Ok(rank) = std::env::var("FERROTORCH_TEST_RANK") else { return };
    let rank: usize = rank.parse().unwrap();
    let address = std::env::var("FERROTORCH_TEST_ADDRESS").unwrap();
    let backend: Arc<dyn Backend> = Arc::new(TcpBackend::new(rank, 2, &address).unwrap());
    let sum = allreduce(&tensor(&[rank as f32 + 1.0], &[1]), &*backend, ReduceOp::Sum).unwrap();
    assert_is(&sum, &[3.0], &[1]);
}

#[test]
fn processes_meet_at_an_address() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let rank = |rank: usize| {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "surface::rank_of_processes"])
            .env("FERROTORCH_TEST_RANK", rank.to_string())
            .env("FERROTORCH_TEST_ADDRESS", format!("127.0.0.1:{port}"))
            .env("PHALANX_SECRET", "5e".repeat(32))
            .spawn()
            .unwrap()
    };
    let ranks = [rank(0), rank(1)];
    for mut rank in ranks {
        assert!(rank.wait().unwrap().success());
    }
}
