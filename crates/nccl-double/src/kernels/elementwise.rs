//! One element of the output for each of the inputs.

use super::element::Number;
use super::params::{Kernel, Layout, Params, Work};
use half::{bf16, f16};

pub(super) fn find<T: Number>(root: &str) -> Option<Kernel> {
    /// One kernel for each operator.
    macro_rules! unary {
        ($op:expr) => {
            |params| unary::<T>(params, $op)
        };
    }
    macro_rules! binary {
        ($op:expr) => {
            |params| binary::<T, T>(params, $op)
        };
    }
    macro_rules! compare {
        ($op:expr) => {
            |params| binary::<T, u8>(params, |a, b| f64::from(u8::from($op(&a, &b))))
        };
    }
    let kernel: Kernel = match root {
        "affine" => affine::<T>,
        "upowf" => powf::<T>,
        "const_set" => const_set::<T>,
        "copy2d" => copy2d::<T>,
        "where_u8" => select::<u8, T>,
        "where_u32" => select::<u32, T>,
        "where_i64" => select::<i64, T>,
        "cast_u8" => cast::<u8, T>,
        "cast_u32" => cast::<u32, T>,
        "cast_i16" => cast::<i16, T>,
        "cast_i32" => cast::<i32, T>,
        "cast_i64" => cast::<i64, T>,
        "cast_f16" => cast::<f16, T>,
        "cast_bf16" => cast::<bf16, T>,
        "cast_f32" => cast::<f32, T>,
        "cast_f64" => cast::<f64, T>,
        "ucopy" => copy::<T>,
        "uneg" => unary!(|x| -x),
        "uabs" => unary!(f64::abs),
        "uexp" => unary!(f64::exp),
        "ulog" => unary!(f64::ln),
        "usin" => unary!(f64::sin),
        "ucos" => unary!(f64::cos),
        "usqr" => unary!(|x| x * x),
        "usqrt" => unary!(f64::sqrt),
        "urecip" => unary!(f64::recip),
        "utanh" => unary!(f64::tanh),
        "urelu" => unary!(|x| if x > 0.0 { x } else { 0.0 }),
        "badd" => binary!(|a, b| a + b),
        "bsub" => binary!(|a, b| a - b),
        "bmul" => binary!(|a, b| a * b),
        "bdiv" => binary!(|a, b| a / b),
        "bmaximum" => binary!(f64::max),
        "bminimum" => binary!(f64::min),
        "eq" => compare!(f64::eq),
        "ne" => compare!(f64::ne),
        "lt" => compare!(f64::lt),
        "le" => compare!(f64::le),
        "gt" => compare!(f64::gt),
        "ge" => compare!(f64::ge),
        _ => return None,
    };
    Some(kernel)
}

fn unary<T: Number>(params: &mut Params, op: fn(f64) -> f64) -> Work {
    let (len, dims, info) = (params.size(), params.size(), params.memory());
    let (from, to) = (params.memory::<T>(), params.memory::<T>());
    Box::new(move || {
        let layout = Layout::read(info, dims, 1);
        for i in 0..len {
            to.set(i, T::narrow(op(from.at(Layout::index(layout.as_ref(), 0, i)).wide())));
        }
    })
}

/// Bit for bit.
fn copy<T: Number>(params: &mut Params) -> Work {
    let (len, dims, info) = (params.size(), params.size(), params.memory());
    let (from, to) = (params.memory::<T>(), params.memory::<T>());
    Box::new(move || {
        let layout = Layout::read(info, dims, 1);
        (0..len).for_each(|i| to.set(i, from.at(Layout::index(layout.as_ref(), 0, i))));
    })
}

fn cast<From: Number, To: Number>(params: &mut Params) -> Work {
    let (len, dims, info) = (params.size(), params.size(), params.memory());
    let (from, to) = (params.memory::<From>(), params.memory::<To>());
    Box::new(move || {
        let layout = Layout::read(info, dims, 1);
        (0..len).for_each(|i| to.set(i, To::narrow(from.at(Layout::index(layout.as_ref(), 0, i)).wide())));
    })
}

fn affine<T: Number>(params: &mut Params) -> Work {
    let (len, dims, info) = (params.size(), params.size(), params.memory());
    let (from, to) = (params.memory::<T>(), params.memory::<T>());
    let (mul, add) = (params.next::<T>(), params.next::<T>());
    Box::new(move || {
        let layout = Layout::read(info, dims, 1);
        for i in 0..len {
            let x = from.at(Layout::index(layout.as_ref(), 0, i));
            to.set(i, T::narrow(x.wide() * mul.wide() + add.wide()));
        }
    })
}

fn powf<T: Number>(params: &mut Params) -> Work {
    let (len, dims, info, exponent) = (params.size(), params.size(), params.memory(), params.next::<T>());
    let (from, to) = (params.memory::<T>(), params.memory::<T>());
    Box::new(move || {
        let layout = Layout::read(info, dims, 1);
        for i in 0..len {
            to.set(i, T::narrow(from.at(Layout::index(layout.as_ref(), 0, i)).wide().powf(exponent.wide())));
        }
    })
}

fn binary<T: Number, To: Number>(params: &mut Params, op: fn(f64, f64) -> f64) -> Work {
    let (len, dims, info) = (params.size(), params.size(), params.memory());
    let (left, right, to) = (params.memory::<T>(), params.memory::<T>(), params.memory::<To>());
    Box::new(move || {
        let layout = Layout::read(info, dims, 2);
        for i in 0..len {
            let [a, b] =
                [(left, 0), (right, 1)].map(|(x, k)| x.at(Layout::index(layout.as_ref(), k, i)).wide());
            to.set(i, To::narrow(op(a, b)));
        }
    })
}

fn select<C: Number, T: Number>(params: &mut Params) -> Work {
    let (len, dims, info) = (params.size(), params.size(), params.memory());
    let (which, yes, no) = (params.memory::<C>(), params.memory::<T>(), params.memory::<T>());
    let to = params.memory::<T>();
    Box::new(move || {
        let layout = Layout::read(info, dims, 3);
        let at = |k, i| Layout::index(layout.as_ref(), k, i);
        for i in 0..len {
            let is_so = which.at(at(0, i)).wide() != 0.0;
            to.set(i, if is_so { yes.at(at(1, i)) } else { no.at(at(2, i)) });
        }
    })
}

fn const_set<T: Number>(params: &mut Params) -> Work {
    let (len, dims, info, value) = (params.size(), params.size(), params.memory(), params.next::<T>());
    let to = params.memory::<T>();
    Box::new(move || {
        let layout = Layout::read(info, dims, 1);
        (0..len).for_each(|i| to.set(Layout::index(layout.as_ref(), 0, i), value));
    })
}

fn copy2d<T: Number>(params: &mut Params) -> Work {
    let (from, to) = (params.memory::<T>(), params.memory::<T>());
    let [rows, columns, from_stride, to_stride] = std::array::from_fn(|_| params.next::<u32>() as usize);
    Box::new(move || {
        for row in 0..rows {
            for column in 0..columns {
                to.set(row * to_stride + column, from.at(row * from_stride + column));
            }
        }
    })
}
