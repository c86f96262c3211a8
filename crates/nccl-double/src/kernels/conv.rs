//! Convolutions and pools over images `[n, channels, height, width]`.

use super::element::Number;
use super::params::{Kernel, Params, Work};

pub(super) fn find<T: Number>(root: &str) -> Option<Kernel> {
    let kernel: Kernel = match root {
        "im2col" => im2col::<T>,
        "conv_transpose2d" => conv_transpose2d::<T>,
        "max_pool2d" => {
            |params| pool::<T>(params, |values| values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
        }
        "avg_pool2d" => |params| pool::<T>(params, |values| values.iter().sum::<f64>() / values.len() as f64),
        "upsample_nearest2d" => upsample_nearest2d::<T>,
        _ => return None,
    };
    Some(kernel)
}

/// The place on each axis of the `i`th element of a tensor of these dimensions.
fn place(i: usize, [_, channels, height, width]: [usize; 4]) -> [usize; 4] {
    let row = i / width;
    [row / height / channels, row / height % channels, row % height, i % width]
}

fn at(place: [usize; 4], strides: &[usize]) -> usize {
    place.iter().zip(strides).map(|(at, stride)| at * stride).sum()
}

/// A row for each place of the output, with all that the weights are multiplied with there.
fn im2col<T: Number>(params: &mut Params) -> Work {
    let [len, h_out, w_out, h_k, w_k, stride, padding, dilation] = std::array::from_fn(|_| params.size());
    let (info, from, to) = (params.memory::<usize>(), params.memory::<T>(), params.memory::<T>());
    Box::new(move || {
        let info = info.some(8);
        let (dims, strides) = info.split_at(4);
        let (channels, h_in, w_in) = (dims[1], dims[2], dims[3]);
        for i in 0..len {
            let [row, c, h, w] = place(i, [0, channels, h_k, w_k]);
            let (n, y, x) = (row / (h_out * w_out), row / w_out % h_out, row % w_out);
            let (y, x) = (y * stride + h * dilation, x * stride + w * dilation);
            let is_inside = (padding..padding + h_in).contains(&y) && (padding..padding + w_in).contains(&x);
            let value = is_inside.then(|| from.at(at([n, c, y - padding, x - padding], strides)));
            to.set(i, value.unwrap_or_else(|| T::narrow(0.0)));
        }
    })
}

fn conv_transpose2d<T: Number>(params: &mut Params) -> Work {
    let [_len, w_out, h_out, stride, padding, _out_padding, dilation] =
        std::array::from_fn(|_| params.size());
    let (info, from) = (params.memory::<usize>(), params.memory::<T>());
    let (weights, to) = (params.memory::<T>(), params.memory::<T>());
    Box::new(move || {
        let info = info.some(16);
        let [dims, strides, k_dims, k_strides] = std::array::from_fn(|i| &info[4 * i..4 * i + 4]);
        let out = [dims[0], k_dims[1], h_out, w_out];
        for i in 0..out.iter().product() {
            let [n, c_out, y_out, x_out] = place(i, out);
            // Where an input comes from, if this weight takes one here.
            let source = |out: usize, k: usize, len: usize| {
                let from = (out + padding).checked_sub(k * dilation)?;
                (from % stride == 0 && from / stride < len).then_some(from / stride)
            };
            let mut sum = 0.0;
            for y_k in 0..k_dims[2] {
                let Some(y) = source(y_out, y_k, dims[2]) else { continue };
                for x_k in 0..k_dims[3] {
                    let Some(x) = source(x_out, x_k, dims[3]) else { continue };
                    for c in 0..dims[1] {
                        let weight = weights.at(at([c, c_out, y_k, x_k], k_strides));
                        sum += from.at(at([n, c, y, x], strides)).wide() * weight.wide();
                    }
                }
            }
            to.set(i, T::narrow(sum));
        }
    })
}

fn pool<T: Number>(params: &mut Params, op: fn(&[f64]) -> f64) -> Work {
    let [_len, k_0, k_1, stride_0, stride_1] = std::array::from_fn(|_| params.size());
    let (info, from, to) = (params.memory::<usize>(), params.memory::<T>(), params.memory::<T>());
    Box::new(move || {
        let info = info.some(8);
        let (dims, strides) = info.split_at(4);
        let out = [dims[0], dims[1], (dims[2] - k_0) / stride_0 + 1, (dims[3] - k_1) / stride_1 + 1];
        for i in 0..out.iter().product() {
            let [n, c, y, x] = place(i, out);
            let window =
                (0..k_0).flat_map(|dy| (0..k_1).map(move |dx| (y * stride_0 + dy, x * stride_1 + dx)));
            let values = window.map(|(y, x)| from.at(at([n, c, y, x], strides)).wide());
            to.set(i, T::narrow(op(&values.collect::<Vec<_>>())));
        }
    })
}

fn upsample_nearest2d<T: Number>(params: &mut Params) -> Work {
    let (out_0, out_1) = (params.size(), params.size());
    let (scale_0, scale_1) = (params.next::<f64>(), params.next::<f64>());
    let (info, from, to) = (params.memory::<usize>(), params.memory::<T>(), params.memory::<T>());
    Box::new(move || {
        let info = info.some(8);
        let (dims, strides) = info.split_at(4);
        let out = [dims[0], dims[1], out_0, out_1];
        for i in 0..out.iter().product() {
            let [n, c, y, x] = place(i, out);
            let source = |out: usize, scale: f64, len: usize| ((out as f64 * scale) as usize).min(len - 1);
            let (y, x) = (source(y, scale_0, dims[2]), source(x, scale_1, dims[3]));
            to.set(i, from.at(at([n, c, y, x], strides)));
        }
    })
}
