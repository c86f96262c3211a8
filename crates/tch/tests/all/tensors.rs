//! Tensors that can't be sent as they are, and those that lie in an unusual way.

use phalanx::{ReduceOp, on_threads, threads};
use phalanx_tch::{all_gather, all_reduce, scatter, send};
use tch::{Device, Kind, Tensor};

fn alone() -> phalanx::ProcessGroup {
    threads(1).remove(0)
}

#[test]
fn all_types_that_both_have_are_added_up() {
    use Kind::{BFloat16, Double, Float, Half, Int, Int8, Int16, Int64, Uint8};
    for kind in [Double, Float, Half, BFloat16, Int64, Int, Int16, Int8, Uint8] {
        on_threads(2, move |group| {
            let mut tensor = Tensor::from_slice(&[1i64, 2, 3]).to_kind(kind);
            all_reduce(&group, &mut tensor, ReduceOp::Sum).unwrap();
            assert_eq!(tensor, Tensor::from_slice(&[2i64, 4, 6]).to_kind(kind), "{kind:?}");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn other_types_are_refused_by_name() {
    for kind in [Kind::Bool, Kind::ComplexFloat] {
        let mut tensor = Tensor::zeros([2], (kind, Device::Cpu));
        let error = all_reduce(&alone(), &mut tensor, ReduceOp::Sum).unwrap_err().to_string();
        assert!(error.contains(&format!("elements of type {kind:?} cannot be sent")), "{error}");
    }
}

#[test]
fn an_undefined_tensor_is_refused() {
    let error = all_reduce(&alone(), &mut Tensor::new(), ReduceOp::Sum).unwrap_err().to_string();
    assert!(error.contains("undefined"), "{error}");
}

#[test]
fn a_sparse_tensor_is_refused() {
    let mut tensor = Tensor::eye(2, (Kind::Float, Device::Cpu)).to_sparse(None, None::<i64>, None);
    let error = all_reduce(&alone(), &mut tensor, ReduceOp::Sum).unwrap_err().to_string();
    assert!(error.contains("make it dense"), "{error}");
}

/// Rows of a transposed matrix lie apart: they are sent in the order of their dimensions, and not changed in place.
#[test]
fn elements_in_another_order_are_read_in_row_major_order_and_not_written() {
    on_threads(2, |group| {
        let across = Tensor::from_slice2(&[[1f32, 2.0], [3.0, 4.0]]).tr();
        let all = all_gather(&group, &across).unwrap();
        assert_eq!(all, Tensor::from_slice2(&[[1f32, 3.0], [2.0, 4.0], [1.0, 3.0], [2.0, 4.0]]));
        let error = all_reduce(&group, &mut across.shallow_clone(), ReduceOp::Sum).unwrap_err().to_string();
        assert!(error.contains("row-major"), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_view_is_changed_where_it_lies() {
    on_threads(2, |group| {
        let whole = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0]);
        all_reduce(&group, &mut whole.narrow(0, 1, 2), ReduceOp::Sum).unwrap();
        assert_eq!(whole, Tensor::from_slice(&[1f32, 4.0, 6.0, 4.0]));
        Ok(())
    })
    .unwrap();
}

#[test]
fn input_and_output_may_share_memory() {
    on_threads(2, |group| {
        let whole = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0]);
        let mut mine = whole.narrow(0, 1, 2);
        let input = (group.rank() == 0).then_some(&whole);
        scatter(&group, input, &mut mine, 0).unwrap();
        assert_eq!(mine, Tensor::from_slice(&[[1f32, 2.0], [3.0, 4.0]][group.rank()]));
        Ok(())
    })
    .unwrap();
}

#[test]
fn tensors_without_elements_are_sent_too() {
    on_threads(2, |group| {
        let mut nothing = Tensor::zeros([0, 3], (Kind::Float, Device::Cpu));
        all_reduce(&group, &mut nothing, ReduceOp::Sum).unwrap();
        assert_eq!(all_gather(&group, &nothing).unwrap().size(), [0, 3]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_error_names_the_line_of_the_program() {
    let error = send(&alone(), &Tensor::from(1f32), 7).unwrap_err().to_string();
    assert!(error.contains("tensors.rs"), "{error}");
}
