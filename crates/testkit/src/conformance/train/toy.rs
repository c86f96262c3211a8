//! The network that the suite trains, and its batches.

use std::collections::BTreeMap;

/// Numbers by the names that [`Toy`] gives weights.
pub type Named = BTreeMap<String, Vec<f32>>;

/// A network of two layers: `tanh(x · first.weight + first.bias) · second.weight + second.bias`, and `+ side` for batches that use it.
///
/// Weights are in row-major order, `[inputs, hidden]` and `[hidden, outputs]`; the others have one dimension. The loss of a batch is the mean, over
/// rows and outputs, of the square of what the output is off.
#[derive(Debug, Clone, PartialEq)]
pub struct Toy {
    /// Numbers in a row of `x`.
    pub inputs: usize,
    /// Numbers between the layers.
    pub hidden: usize,
    /// Numbers in a row of `y`.
    pub outputs: usize,
    /// Whether the second layer has the first one's weight, transposed, in place of one of its own. There are as many outputs as inputs then.
    pub is_tied: bool,
    /// What to begin with: `first.weight`, `first.bias`, `second.weight` unless it is tied, `second.bias`, `side`.
    pub weights: Named,
}

impl Toy {
    /// Some network with some weights: others for each seed.
    pub fn new(seed: usize) -> Self {
        Self::sized(3, 5, 2, false, seed)
    }

    /// One whose layers share their weight.
    pub fn tied(seed: usize) -> Self {
        Self::sized(3, 4, 3, true, seed)
    }

    /// One with other layers.
    pub fn sized(inputs: usize, hidden: usize, outputs: usize, is_tied: bool, seed: usize) -> Self {
        let mut shapes = vec![
            ("first.weight", inputs * hidden),
            ("first.bias", hidden),
            ("second.bias", outputs),
            ("side", outputs),
        ];
        if !is_tied {
            shapes.push(("second.weight", hidden * outputs));
        }
        let named = shapes.into_iter().enumerate();
        let weights = named.map(|(i, (name, len))| (name.to_owned(), numbers(len, 31 * seed + 7 * i)));
        Self { inputs, hidden, outputs, is_tied, weights: weights.collect() }
    }

    /// The batch of some rank in some step.
    pub fn batch(&self, rows: usize, rank: usize, step: usize) -> Batch {
        let seed = 1000 + 17 * rank + 101 * step;
        Batch {
            rows,
            x: numbers(rows * self.inputs, seed),
            y: numbers(rows * self.outputs, seed + 5),
            uses_side: true,
        }
    }
}

/// Rows to train with.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// How many.
    pub rows: usize,
    /// `[rows, inputs]`.
    pub x: Vec<f32>,
    /// `[rows, outputs]`.
    pub y: Vec<f32>,
    /// Whether the weight `side` is added to the output.
    pub uses_side: bool,
}

impl Batch {
    /// The same without the weight `side`.
    #[must_use]
    pub fn without_side(self) -> Self {
        Self { uses_side: false, ..self }
    }
}

/// Numbers from -1 to 1, exact in f32.
fn numbers(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|i| ((37 * i + 53 * seed + 11 * i * i) % 129) as f32 / 64.0 - 1.0).collect()
}
