//! Collectives on tensors: every type, what is in use elsewhere, and what is refused.

use crate::common::everywhere;
use burn::tensor::kind::Numeric;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use phalanx::ReduceOp;
use phalanx_burn::{
    Error, all_gather, all_reduce, all_to_all, broadcast, gather, recv, recv_any, reduce, reduce_scatter,
    scan, scatter, send,
};

/// `rows` × 2 small numbers that differ between ranks.
fn numbers<K: Numeric>(rank: usize, rows: usize, dtype: DType) -> Tensor<2, K> {
    let values: Vec<f64> = (0..2 * rows).map(|i| (i + 10 * rank) as f64).collect();
    let data = TensorData::new(values, [rows, 2]).convert_dtype(dtype);
    Tensor::from_data(data, (&Device::default(), dtype))
}

fn values<const D: usize, K: Numeric>(tensor: Tensor<D, K>) -> Vec<f64> {
    tensor.into_data().convert::<f64>().try_into_vec().unwrap()
}

fn every_collective<K: Numeric>(dtype: DType) {
    everywhere(3, move |group| {
        let rank = group.rank();
        let mine = |rows| numbers::<K>(rank, rows, dtype);

        let sum = all_reduce(&group, mine(2), ReduceOp::Sum).unwrap();
        assert_eq!(sum.dtype(), dtype);
        assert_eq!(values(sum), [30.0, 33.0, 36.0, 39.0], "{dtype:?}");

        assert_eq!(values(broadcast(&group, mine(2), 1).unwrap()), [10.0, 11.0, 12.0, 13.0], "{dtype:?}");

        let largest = reduce(&group, mine(2), ReduceOp::Max, 2).unwrap().map(values);
        assert_eq!(largest, (rank == 2).then(|| vec![20.0, 21.0, 22.0, 23.0]), "{dtype:?}");

        let all = all_gather(&group, mine(1)).unwrap();
        assert_eq!((all.dims(), all.dtype()), ([3, 2], dtype));
        assert_eq!(values(all), [0.0, 1.0, 10.0, 11.0, 20.0, 21.0]);

        let part = reduce_scatter(&group, mine(3), ReduceOp::Sum).unwrap();
        assert_eq!((part.dims(), part.dtype()), ([1, 2], dtype));
        let first = 30.0 + 6.0 * rank as f64;
        assert_eq!(values(part), [first, first + 3.0], "{dtype:?}");

        let before = [[0.0, 1.0], [10.0, 12.0], [30.0, 33.0]][rank];
        assert_eq!(values(scan(&group, mine(1), ReduceOp::Sum).unwrap()), before, "{dtype:?}");

        let all = gather(&group, mine(1), 1).unwrap().map(|all| (all.dims(), values(all)));
        let expected = ([3, 2], vec![0.0, 1.0, 10.0, 11.0, 20.0, 21.0]);
        assert_eq!(all, (rank == 1).then_some(expected), "{dtype:?}");

        let part = scatter(&group, (rank == 2).then(|| mine(3)), mine(1), 2).unwrap();
        let first = 20.0 + 2.0 * rank as f64;
        assert_eq!(values(part), [first, first + 1.0], "{dtype:?}");

        let exchanged = all_to_all(&group, mine(3)).unwrap();
        assert_eq!(exchanged.dims(), [3, 2]);
        let theirs = |from: usize| [0, 1].map(|i| (10 * from + 2 * rank + i) as f64);
        assert_eq!(values(exchanged), [theirs(0), theirs(1), theirs(2)].concat(), "{dtype:?}");

        // Round the ring, and then to rank 0.
        send(&group, mine(1), (rank + 1) % 3).unwrap();
        let received = recv(&group, mine(1), (rank + 2) % 3).unwrap();
        let from = 10.0 * ((rank + 2) % 3) as f64;
        assert_eq!(values(received), [from, from + 1.0], "{dtype:?}");
        if rank > 0 {
            send(&group, mine(1), 0).unwrap();
        } else {
            for _ in 0..2 {
                let (received, from) = recv_any(&group, mine(1)).unwrap();
                assert_eq!(values(received), [10.0 * from as f64, 10.0 * from as f64 + 1.0]);
            }
        }
    });
}

#[test]
fn every_type_is_carried_by_every_collective() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        every_collective::<burn::tensor::Float>(dtype);
    }
    for dtype in
        [DType::I64, DType::I32, DType::I16, DType::I8, DType::U64, DType::U32, DType::U16, DType::U8]
    {
        every_collective::<Int>(dtype);
    }
}

#[test]
fn who_else_holds_a_tensor_sees_no_change() {
    everywhere(2, |group| {
        let whole = numbers::<burn::tensor::Float>(group.rank(), 3, DType::F32);
        let own = values(whole.clone());
        // Of a view, whose elements do not lie in row-major order.
        let turned = all_reduce(&group, whole.clone().transpose(), ReduceOp::Sum).unwrap();
        assert_eq!(turned.dims(), [2, 3]);
        assert_eq!(values(turned), [10.0, 14.0, 18.0, 12.0, 16.0, 20.0]);
        broadcast(&group, whole.clone(), 1).unwrap();
        assert_eq!(values(whole), own);
    });
}

#[test]
fn a_result_has_no_history_and_stays_where_gradients_are_recorded() {
    everywhere(2, |group| {
        let device = Device::default().autodiff();
        let weight = Tensor::<1>::from_data([1.0, 2.0], &device).require_grad();
        let sum = all_reduce(&group, weight.clone() * 3.0, ReduceOp::Sum).unwrap();
        assert!(sum.is_autodiff() && !sum.is_require_grad());
        let grads = (sum * weight.clone()).sum().backward();
        let grad = weight.grad(&grads).unwrap();
        assert_eq!(values(grad), [6.0, 12.0]); // the sum itself, and nothing of what it was made of
    });
}

#[test]
fn what_makes_no_sense_is_refused_and_hurts_nobody() {
    everywhere(2, |group| {
        let floats = numbers::<burn::tensor::Float>(0, 1, DType::F32);
        let halves = floats.clone().cast(DType::F16);
        let odd = numbers::<burn::tensor::Float>(0, 3, DType::F32);
        for refused in [
            reduce_scatter(&group, odd.clone(), ReduceOp::Sum).map(drop),
            all_to_all(&group, odd).map(drop),
            scatter(&group, Some(halves), floats.clone(), group.rank()).map(drop),
            send(&group, floats.clone(), 2),
            broadcast(&group, floats.clone(), 2).map(drop),
        ] {
            assert!(matches!(refused, Err(Error::Group(phalanx::Error::Misuse { .. }))), "{refused:?}");
        }
        assert_eq!(values(all_reduce(&group, floats, ReduceOp::Sum).unwrap()), [0.0, 2.0]);
    });
}

#[test]
fn ranks_that_disagree_are_named_with_the_lines_of_the_program() {
    everywhere(2, |group| {
        let floats = numbers::<burn::tensor::Float>(0, 1 + group.rank(), DType::F32);
        let error = all_reduce(&group, floats, ReduceOp::Sum).unwrap_err().to_string();
        assert!(error.contains("collectives.rs"), "{error}");
    });
}
