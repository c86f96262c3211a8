//! Elements that others name.

use super::element::Number;
use super::params::{Kernel, Params, Work};

pub(super) fn find<T: Number>(root: &str) -> Option<Kernel> {
    let (kind, index) = root.split_once('_')?;
    match index {
        "u8" => of::<u8, T>(kind),
        "u32" => of::<u32, T>(kind),
        "i64" => of::<i64, T>(kind),
        _ => None,
    }
}

fn of<I: Number, T: Number>(kind: &str) -> Option<Kernel> {
    let kernel: Kernel = match kind {
        "is" => index_select::<I, T>,
        "gather" => gather::<I, T>,
        "ia" => index_add::<I, T>,
        "sa" => scatter_add::<I, T>,
        _ => return None,
    };
    Some(kernel)
}

/// Of tensors whose elements lie in order: candle asks for no other.
fn index_select<I: Number, T: Number>(params: &mut Params) -> Work {
    let (len, _dims, _info) = (params.size(), params.size(), params.next::<u64>());
    let (ids, from, to) = (params.memory::<I>(), params.memory::<T>(), params.memory::<T>());
    let [_left, of_dim, ids_len, right] = std::array::from_fn(|_| params.size());
    Box::new(move || {
        for i in 0..len {
            let (left, id) = (i / (ids_len * right), ids.at(i / right % ids_len).wide() as usize);
            to.set(i, from.at((left * of_dim + id) * right + i % right));
        }
    })
}

fn gather<I: Number, T: Number>(params: &mut Params) -> Work {
    let len = params.size();
    let (ids, from, to) = (params.memory::<I>(), params.memory::<T>(), params.memory::<T>());
    let [_left, of_dim, ids_len, right] = std::array::from_fn(|_| params.size());
    Box::new(move || {
        for i in 0..len {
            let (left, id) = (i / (right * ids_len), ids.at(i).wide() as usize);
            to.set(i, from.at((left * of_dim + id) * right + i % right));
        }
    })
}

fn index_add<I: Number, T: Number>(params: &mut Params) -> Work {
    let (ids, ids_len) = (params.memory::<I>(), params.size());
    let (from, to) = (params.memory::<T>(), params.memory::<T>());
    let [left, _of_dim, to_dim, right] = std::array::from_fn(|_| params.size());
    Box::new(move || {
        for i in 0..left * right {
            let (before, behind) = (i / right, i % right);
            for j in 0..ids_len {
                let at = (before * to_dim + ids.at(j).wide() as usize) * right + behind;
                let added = from.at((before * ids_len + j) * right + behind);
                to.set(at, T::narrow(to.at(at).wide() + added.wide()));
            }
        }
    })
}

fn scatter_add<I: Number, T: Number>(params: &mut Params) -> Work {
    let ids = params.memory::<I>();
    let (from, to) = (params.memory::<T>(), params.memory::<T>());
    let [left, of_dim, to_dim, right] = std::array::from_fn(|_| params.size());
    Box::new(move || {
        for i in 0..left * right {
            let (before, behind) = (i / right, i % right);
            for j in 0..of_dim {
                let source = (before * of_dim + j) * right + behind;
                let at = (before * to_dim + ids.at(source).wide() as usize) * right + behind;
                to.set(at, T::narrow(to.at(at).wide() + from.at(source).wide()));
            }
        }
    })
}
