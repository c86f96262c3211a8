//! Prices from a file or from rank 0, and algorithms from the environment.

use crate::bootstrap::prices::{Prices, decode};
use phalanx_algo::{Algorithm, Selector};
use phalanx_core::OpKind;

/// With whatever prices are accepted, every operation gets an algorithm that can do it.
pub fn prices(data: &[u8]) {
    let (text, forced) = match data.iter().position(|&byte| byte == 0) {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (data, &[][..]),
    };
    let forced = Selector::forced_from(&String::from_utf8_lossy(forced));
    let file = Prices::parse(text).ok().map(|prices| prices.link(8, 4, 2));
    for link in decode(text).ok().into_iter().chain(file) {
        let selector = Selector { link, ..forced.as_ref().cloned().unwrap_or_default() };
        for (op, bytes, world_size) in
            [(OpKind::AllReduce, 0, 1), (OpKind::AllReduce, 1 << 40, 8), (OpKind::Gather, 7, 5)]
        {
            let algorithm = selector.select(op, bytes, world_size);
            assert!(Algorithm::of(op).any(|known| known == algorithm) && algorithm.supports(world_size));
            assert!(selector.explain(op, bytes, world_size).contains(algorithm.name()));
        }
    }
}
