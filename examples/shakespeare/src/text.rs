//! The text: characters as numbers, cut into windows.

use candle_core::{Device, Result, Tensor};
use std::collections::BTreeSet;
use std::io::Read;

/// One character in so many, at the end, is held out.
const HELD_OUT: usize = 10;

/// A part of the text, in windows of equal length.
#[derive(Debug)]
pub(crate) struct Text {
    /// The number of each character in the alphabet.
    characters: Vec<u32>,
    /// Of a window.
    context: usize,
}

/// All kinds of characters that occur, in order.
#[derive(Debug)]
pub(crate) struct Alphabet(Vec<char>);

/// The text to train on, that held out, in windows of `context` characters, and the alphabet of both.
pub(crate) fn load(context: usize) -> anyhow::Result<(Text, Text, Alphabet)> {
    let mut text = String::new();
    let packed = &include_bytes!("../data/shakespeare.txt.gz")[..];
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text)?;
    let alphabet = Alphabet(text.chars().collect::<BTreeSet<_>>().into_iter().collect());
    let mut characters = alphabet.numbers(&text);
    let held_out = characters.split_off(characters.len() - characters.len() / HELD_OUT);
    anyhow::ensure!(context < held_out.len(), "a window of {context} characters is longer than the text");
    Ok((Text { characters, context }, Text { characters: held_out, context }, alphabet))
}

impl Alphabet {
    /// How many kinds.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The numbers of characters; others are left out.
    pub(crate) fn numbers(&self, text: &str) -> Vec<u32> {
        text.chars().filter_map(|c| self.0.binary_search(&c).ok()).map(|number| number as u32).collect()
    }

    /// The character with this number.
    pub(crate) fn character(&self, number: u32) -> char {
        self.0[number as usize]
    }
}

impl Text {
    /// Number of windows.
    pub(crate) fn windows(&self) -> usize {
        (self.characters.len() - 1) / self.context
    }

    /// The windows at `indices`, `[n, context]`, and for each character the one that follows it, of the same shape.
    pub(crate) fn batch(&self, indices: &[usize]) -> Result<(Tensor, Tensor)> {
        let from = |shift: usize| {
            let windows =
                indices.iter().map(|&i| &self.characters[i * self.context + shift..][..self.context]);
            Tensor::from_vec(
                windows.flatten().copied().collect(),
                (indices.len(), self.context),
                &Device::Cpu,
            )
        };
        Ok((from(0)?, from(1)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_whole_and_a_tenth_is_held_out() {
        let (train, held_out, alphabet) = load(64).unwrap();
        assert_eq!((train.characters.len(), held_out.characters.len()), (1_003_855, 111_539));
        assert_eq!(alphabet.len(), 65);
        let read = |numbers: &[u32]| numbers.iter().map(|&n| alphabet.character(n)).collect::<String>();
        assert!(read(&train.characters).starts_with("First Citizen:\nBefore we proceed"));
        assert!(read(&held_out.characters).ends_with("Whiles thou art waking.\n"));
        assert_eq!(alphabet.numbers("a§b"), alphabet.numbers("ab"));
    }

    #[test]
    fn each_character_is_followed_by_the_next() {
        let (train, _, _) = load(5).unwrap();
        let (now, next) = train.batch(&[0, train.windows() - 1]).unwrap();
        let rows = |tensor: &Tensor| tensor.to_vec2::<u32>().unwrap();
        let (now, next) = (rows(&now), rows(&next));
        assert_eq!(now[0], train.characters[..5]);
        assert_eq!(next[0], train.characters[1..6]);
        assert_eq!(now[1][1..], next[1][..4]);
        assert_eq!(now.len(), 2);
    }

    #[test]
    fn a_window_longer_than_the_text_is_refused() {
        assert!(load(1_000_000).is_err());
    }
}
