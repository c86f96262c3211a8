//! Tensors on GPUs. `scripts/cuda-on-double` runs these on the double of NCCL and of CUDA. They say nothing of a GPU.

use ferrotorch_core::{Tensor, creation};
use ferrotorch_gpu::{GpuDevice, GpuTensor, tensor_to_gpu};
use phalanx_ferrotorch::{Backend, ReduceOp, SimulatedBackend, allreduce};
use phalanx_ferrotorch_gpu::{ENABLE_FALLBACK, HybridBackend, gpu_allreduce, gpu_broadcast};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// One test at a time has the GPUs: a rank that ends waits for all that its GPU does, so ranks of two tests could wait for each other for ever.
static GPUS: Mutex<()> = Mutex::new(());

/// GPUs of this machine.
fn gpus() -> usize {
    phalanx_nccl::Device::count(phalanx_nccl::Cuda::load().unwrap()).unwrap()
}

/// Runs `rank` once for each of as many threads, with a GPU each; where there are fewer, threads share them.
fn on_gpus<R: Send>(ranks: usize, rank: impl Fn(&dyn Backend, &GpuDevice) -> R + Sync) -> Vec<R> {
    let _gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        let rank = &rank;
        let start = |backend: SimulatedBackend| {
            scope.spawn(move || rank(&backend, &GpuDevice::new(backend.rank() % gpus()).unwrap()))
        };
        let started: Vec<_> = SimulatedBackend::create_group(ranks).unwrap().into_iter().map(start).collect();
        started.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn numbers(rank: usize) -> Tensor<f32> {
    let values: Vec<f32> = (0..6).map(|i| (i + 10 * rank) as f32).collect();
    creation::from_slice(&values, &[2, 3]).unwrap()
}

fn of(tensor: &GpuTensor<f32>) -> Vec<f32> {
    tensor.cpu().unwrap().data_vec().unwrap()
}

/// NCCL takes one rank of a process for each GPU.
fn are_there(ranks: usize) -> bool {
    let are_there = gpus() >= ranks;
    if !are_there {
        eprintln!("left out: {ranks} ranks over NCCL need as many GPUs, and there are {}", gpus());
    }
    are_there
}

#[test]
fn one_rank_has_over_nccl_what_it_gave() {
    on_gpus(1, |backend, device| {
        let hybrid = HybridBackend::over(backend, device).unwrap();
        let host = numbers(4);
        let mine = tensor_to_gpu(&host, device).unwrap();
        for op in [ReduceOp::Sum, ReduceOp::Mean] {
            assert_eq!(of(&gpu_allreduce(&mine, &hybrid, op).unwrap()), host.data_vec().unwrap());
        }
        assert_eq!(of(&gpu_broadcast(&mine, &hybrid, 0).unwrap()), host.data_vec().unwrap());
        hybrid.synchronize_nccl().unwrap();
    });
}

#[test]
fn collectives_of_gpu_tensors_have_the_values_of_the_hosts_and_leave_what_they_were_given() {
    if !are_there(3) {
        return;
    }
    on_gpus(3, |backend, device| {
        let hybrid = HybridBackend::over(backend, device).unwrap();
        let (rank, host) = (hybrid.rank(), numbers(hybrid.rank()));
        let mine = tensor_to_gpu(&host, device).unwrap();
        for op in [ReduceOp::Sum, ReduceOp::Mean] {
            let combined = gpu_allreduce(&mine, &hybrid, op).unwrap();
            assert_eq!((combined.shape(), combined.device().ordinal()), (&[2, 3][..], rank));
            // NCCL multiplies by a third where the host divides by 3.
            let hosts = allreduce(&host, &hybrid, op).unwrap().data_vec().unwrap();
            assert!(
                of(&combined).iter().zip(&hosts).all(|(a, b)| (a - b).abs() <= 1e-6 * b),
                "{combined:?}, {hosts:?}"
            );
        }
        assert_eq!(of(&gpu_broadcast(&mine, &hybrid, 2).unwrap()), numbers(2).data_vec().unwrap());
        assert_eq!(of(&mine), host.data_vec().unwrap());
        let doubles = creation::from_slice(&[rank as f64], &[1]).unwrap();
        let doubles = tensor_to_gpu(&doubles, device).unwrap();
        let sum = gpu_allreduce(&doubles, &hybrid, ReduceOp::Sum).unwrap();
        assert_eq!(sum.cpu().unwrap().data_vec().unwrap(), [3.0]);
        hybrid.synchronize_nccl().unwrap();
        hybrid.barrier().unwrap();
    });
}

#[test]
fn what_can_not_be_done_is_refused_with_what_helps() {
    if !are_there(3) {
        return;
    }
    on_gpus(2, |backend, device| {
        let hybrid = HybridBackend::over(backend, device).unwrap();
        let mine = tensor_to_gpu(&numbers(0), device).unwrap();
        let no_root = gpu_broadcast(&mine, &hybrid, 2).unwrap_err().to_string();
        assert!(no_root.contains("there is no rank 2") || no_root.contains("root"), "{no_root}");
        // Before any rank hears of it, so nobody waits.
        let other = GpuDevice::new(2).unwrap();
        let elsewhere = tensor_to_gpu(&numbers(0), &other).unwrap();
        let refused = gpu_allreduce(&elsewhere, &hybrid, ReduceOp::Sum).unwrap_err().to_string();
        let expected = format!("gpu_allreduce: the tensor is on GPU 2, the backend's is {}", hybrid.rank());
        assert!(refused.contains(&expected), "{refused}");
        let no_gpus = gpu_allreduce(&mine, backend, ReduceOp::Sum).unwrap_err().to_string();
        assert!(no_gpus.contains("make a HybridBackend, or set FERROTORCH_ENABLE_GPU_FALLBACK"), "{no_gpus}");
        hybrid.barrier().unwrap();
    });
}

/// In a process of its own, whose environment says so.
#[test]
fn the_variable_of_ferrotorch_lets_tensors_go_over_the_host() {
    let this = std::env::current_exe().unwrap();
    let child = Command::new(this)
        .args(["child_goes_over_the_host", "--exact", "--ignored", "--nocapture"])
        .env(ENABLE_FALLBACK, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&child.stderr)
    );
}

#[test]
#[ignore = "run by the_variable_of_ferrotorch_lets_tensors_go_over_the_host"]
fn child_goes_over_the_host() {
    on_gpus(2, |backend, device| {
        let mine = tensor_to_gpu(&numbers(backend.rank()), device).unwrap();
        let sum = gpu_allreduce(&mine, backend, ReduceOp::Sum).unwrap();
        assert_eq!(of(&sum), [10.0, 12.0, 14.0, 16.0, 18.0, 20.0]);
        assert_eq!(of(&gpu_broadcast(&mine, backend, 1).unwrap()), numbers(1).data_vec().unwrap());
    });
}
