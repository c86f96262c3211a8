//! The loss and the gradients of the network, by hand, in f64.

use super::{Batch, Named, Toy};
use std::collections::BTreeMap;

/// The loss of a batch at these weights, and its gradients: no entry for what the batch does not use.
pub fn gradients(
    toy: &Toy,
    weights: &BTreeMap<String, Vec<f64>>,
    batch: &Batch,
) -> (f64, BTreeMap<String, Vec<f64>>) {
    let Toy { inputs, hidden, outputs, .. } = *toy;
    let (first, first_bias) = (&weights["first.weight"], &weights["first.bias"]);
    let second_bias = &weights["second.bias"];
    // Where the weight between `j` of the hidden layer and output `k` stands.
    let (second, place): (_, Box<dyn Fn(usize, usize) -> usize>) = match toy.is_tied {
        true => (first, Box::new(|j, k| k * hidden + j)),
        false => (&weights["second.weight"], Box::new(|j, k| j * outputs + k)),
    };
    let zeros = |name: &str| (name.to_owned(), vec![0.0; weights[name].len()]);
    let mut grads: BTreeMap<_, _> = ["first.weight", "first.bias", "second.bias"].map(zeros).into();
    let mut second_grad = vec![0.0; second.len()];
    let mut loss = 0.0;
    let count = (batch.rows * outputs) as f64;
    for row in 0..batch.rows {
        let x: Vec<f64> = batch.x[row * inputs..][..inputs].iter().map(|&x| x.into()).collect();
        let sum = |j: usize| first_bias[j] + (0..inputs).map(|i| x[i] * first[i * hidden + j]).sum::<f64>();
        let h: Vec<f64> = (0..hidden).map(|j| sum(j).tanh()).collect();
        let mut h_grad = vec![0.0; hidden];
        for k in 0..outputs {
            let side = if batch.uses_side { weights["side"][k] } else { 0.0 };
            let out = second_bias[k] + side + (0..hidden).map(|j| h[j] * second[place(j, k)]).sum::<f64>();
            let off = out - f64::from(batch.y[row * outputs + k]);
            loss += off * off / count;
            let out_grad = 2.0 * off / count;
            grads.get_mut("second.bias").expect("it is there")[k] += out_grad;
            for j in 0..hidden {
                second_grad[place(j, k)] += out_grad * h[j];
                h_grad[j] += out_grad * second[place(j, k)];
            }
        }
        for j in 0..hidden {
            let sum_grad = h_grad[j] * (1.0 - h[j] * h[j]);
            grads.get_mut("first.bias").expect("it is there")[j] += sum_grad;
            let first = grads.get_mut("first.weight").expect("it is there");
            x.iter().enumerate().for_each(|(i, x)| first[i * hidden + j] += sum_grad * x);
        }
    }
    if batch.uses_side {
        grads.insert("side".to_owned(), grads["second.bias"].clone());
    }
    if toy.is_tied {
        let first = grads.get_mut("first.weight").expect("it is there");
        first.iter_mut().zip(second_grad).for_each(|(first, second)| *first += second);
    } else {
        grads.insert("second.weight".to_owned(), second_grad);
    }
    (loss, grads)
}

/// The gradients of several batches of which each counts so much: no entry for what none of them uses.
pub(super) fn together(
    toy: &Toy,
    weights: &BTreeMap<String, Vec<f64>>,
    batches: &[(Batch, f64)],
) -> (f64, BTreeMap<String, Vec<f64>>) {
    let (mut loss, mut sum) = (0.0, BTreeMap::<String, Vec<f64>>::new());
    for (batch, weight) in batches {
        let (found, grads) = gradients(toy, weights, batch);
        loss += weight * found;
        for (name, grad) in grads {
            let sum = sum.entry(name).or_insert_with(|| vec![0.0; grad.len()]);
            sum.iter_mut().zip(grad).for_each(|(sum, grad)| *sum += weight * grad);
        }
    }
    (loss, sum)
}

/// A step of plain gradient descent.
pub(super) fn descend(
    weights: &mut BTreeMap<String, Vec<f64>>,
    grads: &BTreeMap<String, Vec<f64>>,
    rate: f64,
) {
    for (name, grad) in grads {
        let weights = weights.get_mut(name).expect("each gradient has a weight");
        weights.iter_mut().zip(grad).for_each(|(weight, grad)| *weight -= rate * grad);
    }
}

/// The same numbers in f64.
pub(super) fn wide(weights: &Named) -> BTreeMap<String, Vec<f64>> {
    weights.iter().map(|(name, all)| (name.clone(), all.iter().map(|&x| x.into()).collect())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each gradient is how the loss changes with its weight.
    #[test]
    fn gradients_are_slopes() {
        for toy in [Toy::new(3), Toy::tied(3)] {
            let (weights, batch) = (wide(&toy.weights), toy.batch(4, 0, 0));
            let (_, grads) = gradients(&toy, &weights, &batch);
            assert_eq!(grads.keys().collect::<Vec<_>>(), weights.keys().collect::<Vec<_>>());
            for (name, grad) in &grads {
                for (i, grad) in grad.iter().enumerate() {
                    let at = |by: f64| {
                        let mut moved = weights.clone();
                        moved.get_mut(name).unwrap()[i] += by;
                        gradients(&toy, &moved, &batch).0
                    };
                    let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                    assert!((slope - grad).abs() < 1e-8, "{name} {i}: {grad} is no {slope}");
                }
            }
        }
    }
}
