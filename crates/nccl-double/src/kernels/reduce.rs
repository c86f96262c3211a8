//! Many elements become one.

use super::element::Number;
use super::params::{Kernel, Layout, Params, Work};

pub(super) fn find<T: Number>(root: &str) -> Option<Kernel> {
    let kernel: Kernel = match root {
        "fast_sum" => |params| reduce::<T, T>(params, false, |all| all.iter().sum()),
        "fast_sum_small" => |params| reduce::<T, T>(params, true, |all| all.iter().sum()),
        "fast_max" => |params| reduce::<T, T>(params, false, |all| all[best(all, f64::gt)]),
        "fast_min" => |params| reduce::<T, T>(params, false, |all| all[best(all, f64::lt)]),
        "fast_argmax" => |params| reduce::<T, u32>(params, false, |all| best(all, f64::gt) as f64),
        "fast_argmin" => |params| reduce::<T, u32>(params, false, |all| best(all, f64::lt) as f64),
        _ => return None,
    };
    Some(kernel)
}

/// The first place with a value that none is better than.
fn best(all: &[f64], is_better: fn(&f64, &f64) -> bool) -> usize {
    (1..all.len()).fold(0, |best, i| if is_better(&all[i], &all[best]) { i } else { best })
}

/// `of_outputs`: the kernel is told the number of outputs instead of inputs.
fn reduce<T: Number, To: Number>(params: &mut Params, of_outputs: bool, op: fn(&[f64]) -> f64) -> Work {
    let (len, run, dims, info) = (params.size(), params.size(), params.size(), params.memory());
    let (from, to) = (params.memory::<T>(), params.memory::<To>());
    Box::new(move || {
        let layout = Layout::read(info, dims, 1);
        let outputs = if of_outputs { len } else { len / run };
        for output in 0..outputs {
            let at = |i| from.at(Layout::index(layout.as_ref(), 0, output * run + i)).wide();
            to.set(output, To::narrow(op(&(0..run).map(at).collect::<Vec<_>>())));
        }
    })
}
