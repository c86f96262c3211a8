//! The images: 1,797 scans of 8 × 8 grey values, of which a fifth is held out.

use anyhow::Context;
use std::io::Read;

/// Rows and columns of an image.
pub const SIDE: usize = 8;
/// The largest grey value in the file.
const WHITE: f64 = 16.0;
/// One in this many images is held out for testing.
const HELD_OUT: usize = 5;

/// Images and what they show.
#[derive(Debug, Default)]
pub struct Images {
    /// `SIDE * SIDE` grey values an image, from 0 to 1.
    pixels: Vec<f64>,
    labels: Vec<u32>,
}

/// The images to train on, and those held out.
///
/// # Errors
/// If the file within the program is damaged.
pub fn load() -> anyhow::Result<(Images, Images)> {
    let file = &include_bytes!("../../../digits/data/digits.csv.gz")[..];
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text)?;
    let (mut train, mut test) = (Images::default(), Images::default());
    for (i, line) in text.lines().enumerate() {
        let set = if i % HELD_OUT == 0 { &mut test } else { &mut train };
        set.push(line).with_context(|| format!("line {} of digits.csv", i + 1))?;
    }
    Ok((train, test))
}

impl Images {
    fn push(&mut self, line: &str) -> anyhow::Result<()> {
        let values: Vec<u32> = line.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let Some((&label, pixels)) = values.split_last().filter(|(_, pixels)| pixels.len() == SIDE * SIDE)
        else {
            anyhow::bail!("{} values instead of {}", values.len(), SIDE * SIDE + 1);
        };
        self.pixels.extend(pixels.iter().map(|&p| f64::from(p) / WHITE));
        self.labels.push(label);
        Ok(())
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The grey values of the images at `indices`, one image after the other, and what these show.
    ///
    /// # Panics
    /// If an index is not below [`len`](Self::len).
    pub fn at(&self, indices: &[usize]) -> (Vec<f64>, Vec<u32>) {
        let size = SIDE * SIDE;
        let pixels = indices.iter().flat_map(|&i| &self.pixels[i * size..][..size]).copied();
        (pixels.collect(), indices.iter().map(|&i| self.labels[i]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_whole_and_a_fifth_is_held_out() {
        let (train, test) = load().unwrap();
        assert_eq!((train.len(), test.len()), (1437, 360));
        let mut counts = [0; 10];
        train.labels.iter().chain(&test.labels).for_each(|&l| counts[l as usize] += 1);
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        assert!(train.pixels.iter().chain(&test.pixels).all(|p| (0.0..=1.0).contains(p)));
    }

    #[test]
    fn damage_is_reported() {
        assert!(Images::default().push("1,2,3").is_err());
        assert!(Images::default().push("").is_err());
        assert!(Images::default().push("x").is_err());
    }
}
