//! `phalanx algo`: what the library knows about its algorithms, as text.

use crate::cli::Algo;
use crate::tune;
use phalanx_algo::{Algorithm, Job, Selector, check, draw};
use phalanx_core::{Error, Layout, OpKind, Result};
use phalanx_group::Prices;
use std::fmt::Write;

/// The text that a command prints.
pub(crate) fn text(command: Algo) -> Result<String> {
    match command {
        Algo::List => Ok(list()),
        Algo::Draw { name, world } => picture(name, world),
        Algo::Explain { op, bytes, world, local_world, cores, force } => {
            let prices = Prices::of_this_machine();
            let here = std::thread::available_parallelism().map_or(1, usize::from);
            let link = prices.link(world, local_world.unwrap_or(world), cores.unwrap_or(here));
            let choice = Selector { link, ..force }.explain(op, bytes, world);
            let shared = link.ranks_per_core;
            Ok(format!("{choice}\n{}Ranks for each core: {shared}\n", tune::text(&prices)))
        }
        Algo::Check { world } => prove(world),
    }
}

fn list() -> String {
    let cards = Algorithm::ALL.iter().map(|algorithm| (algorithm.to_string(), algorithm.card()));
    let cards = cards.map(|(name, card)| [name, card.rounds.to_owned(), card.sent.to_owned()]);
    let rows: Vec<_> = [["algorithm", "rounds", "most elements sent by a rank"].map(str::to_owned)]
        .into_iter()
        .chain(cards)
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1)];
    let mut text = String::from("P ranks, n elements, b the largest block\n\n");
    for [name, rounds, sent] in &rows {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<0$}  {rounds:<1$}  {sent}", widths[0], widths[1]);
    }
    text
}

fn picture(algorithm: Algorithm, world: usize) -> Result<String> {
    if !algorithm.supports(world) {
        return Err(Error::config(format!("{algorithm} needs {}, not {world}", algorithm.card().worlds)));
    }
    Ok(format!("{}\n{}", algorithm.card(), draw(algorithm, world)))
}

/// Runs the checker over every algorithm, every world up to `largest`, several lengths and roots.
fn prove(largest: usize) -> Result<String> {
    let mut text = String::new();
    for &algorithm in Algorithm::ALL {
        let worlds = (1..=largest).filter(|&world| algorithm.supports(world));
        let mut proofs = 0;
        for job in worlds.flat_map(|world| jobs(algorithm.op(), world)) {
            check(algorithm, &job)
                .map_err(|why| Error::Internal { what: format!("{algorithm} does not do {job:?}: {why}") })?;
            proofs += 1;
        }
        let _ = writeln!(text, "{:<30} proved for {proofs} jobs", algorithm.to_string());
    }
    Ok(text)
}

/// Jobs that tend to reveal mistakes: no elements, fewer than ranks, a prime, uneven blocks; first and last root.
fn jobs(op: OpKind, world: usize) -> Vec<Job> {
    let even = [0, 1, world - 1, world, world + 1, 131].map(|len| Layout::even(world, len));
    let uneven = Layout::from_counts(&(0..world).map(|rank| rank * 7 % 5).collect::<Vec<_>>());
    even.into_iter()
        .chain([uneven])
        .flat_map(|layout| [0, world - 1].map(|root| Job::new(op, layout.clone(), root)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_is_listed_and_proved() {
        let (list, proof) = (list(), prove(6).unwrap());
        for algorithm in Algorithm::ALL {
            assert!(list.lines().any(|line| line.starts_with(&format!("{algorithm} "))), "{list}");
            assert!(proof.lines().any(|line| line.starts_with(&format!("{algorithm} "))), "{proof}");
        }
    }

    #[test]
    fn pictures_are_for_worlds_that_there_are() {
        let text = picture(Algorithm::AllReduceRing, 3).unwrap();
        assert!(text.contains(&draw(Algorithm::AllReduceRing, 3)) && text.contains("source"), "{text}");
        assert!(matches!(picture(Algorithm::ReduceScatterHalving, 3), Err(Error::Config { .. })));
    }

    #[test]
    fn a_forced_choice_is_explained() {
        let force = Selector::forced_from("all_reduce=flat").unwrap();
        let op = OpKind::AllReduce;
        let explain =
            Algo::Explain { op, bytes: 1 << 20, world: 4, local_world: None, cores: Some(2), force };
        let text = text(explain).unwrap();
        assert!(text.contains("> flat") && text.contains("(forced)"), "{text}");
        assert!(text.contains("Prices: ") && text.contains("Ranks for each core: 2"), "{text}");
    }
}
