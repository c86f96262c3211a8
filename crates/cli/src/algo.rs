//! `phalanx algo`: what the library knows about its algorithms, as text.

use crate::cli::Algo;
use crate::tune;
use phalanx_algo::{Algorithm, Job, LevelsCall, Link, MemoryCall, Selector, Way, check, draw};
use phalanx_core::{Error, Layout, OpKind, Result};
use phalanx_group::Prices;
use std::fmt::Write;

/// The text that a command prints.
pub(crate) fn text(command: Algo) -> Result<String> {
    match command {
        Algo::List => Ok(list()),
        Algo::Draw { name, world } => picture(name, world),
        Algo::Explain { op, bytes, world, local_world, cores, force } => {
            let local_world = local_world.unwrap_or(world).min(world);
            let prices = Prices::of_this_machine();
            let here = std::thread::available_parallelism().map_or(1, usize::from);
            let link = prices.link(world, local_world, cores.unwrap_or(here));
            let selector = Selector { link, ..force };
            let shared = link.ranks_per_core;
            let memory = Link { ranks_per_core: shared, turn_s: link.turn_s, ..Link::MEMORY };
            let first = if world == 1 {
                String::new()
            } else if local_world == world {
                let call = MemoryCall { is_crowded: shared > 1.0, ..MemoryCall::new(op, bytes, world) };
                selector.explain_memory(&call, &memory) + "\n"
            } else if local_world > 1 && world.is_multiple_of(local_world) {
                let call = LevelsCall::new(op, bytes);
                selector.explain_levels(&call, world / local_world, local_world, &memory) + "\n"
            } else {
                String::new()
            };
            let messages = selector.explain(op, bytes, world);
            Ok(format!("{first}{messages}\n{}Ranks for each core: {shared}\n", tune::text(&prices)))
        }
        Algo::Check { world } => prove(world),
    }
}

fn list() -> String {
    let cells = |way: Way| {
        let (rounds, sent) = match way {
            Way::Messages(algorithm) => (algorithm.properties().rounds, algorithm.properties().sent),
            Way::Memory(op, way) => (way.rounds(), way.copied(op)),
            Way::Levels(..) => ("those of its parts", "that of its parts"),
        };
        [way.to_string(), rounds.to_owned(), sent.to_owned()]
    };
    let rows: Vec<_> = [["algorithm", "rounds", "most elements sent or copied by a rank"].map(str::to_owned)]
        .into_iter()
        .chain(Way::all().map(cells))
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1)];
    let mut text = String::from(
        "P ranks, n elements, b the largest block. shm/…: ranks that share memory; two_level/…: several hosts; others: messages\n\n",
    );
    for [name, rounds, sent] in &rows {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<0$}  {rounds:<1$}  {sent}", widths[0], widths[1]);
    }
    text
}

fn picture(way: Way, world: usize) -> Result<String> {
    let algorithm = match way {
        Way::Messages(algorithm) => algorithm,
        Way::Memory(op, way) => {
            let (rounds, copied) = (way.rounds(), way.copied(op));
            let name = Way::Memory(op, way);
            return Ok(format!("{name}: {}\n  rounds   {rounds}\n  copied   {copied}\n", way.idea()));
        }
        Way::Levels(_, levels) => {
            let idea = levels.idea();
            return Ok(format!("{way}: {idea}\n\nan all_reduce of 2 hosts of 2 ranks\n{}", levels.picture()));
        }
    };
    if !algorithm.supports(world) {
        return Err(Error::config(format!(
            "{algorithm} needs {}, not {world}",
            algorithm.properties().worlds
        )));
    }
    Ok(format!("{}\n{}", algorithm.properties(), draw(algorithm, world)))
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
    use phalanx_algo::LevelsWay;

    #[test]
    fn every_way_is_listed_and_explained_and_every_schedule_proved() {
        let (list, proof) = (list(), prove(6).unwrap());
        for way in Way::all() {
            assert!(list.lines().any(|line| line.starts_with(&format!("{way} "))), "{list}");
            assert!(picture(way, 4).unwrap().starts_with(&format!("{way}: ")), "{way}");
        }
        for algorithm in Algorithm::ALL {
            assert!(proof.lines().any(|line| line.starts_with(&format!("{algorithm} "))), "{proof}");
        }
    }

    #[test]
    fn pictures_are_for_worlds_that_there_are() {
        let ring = Way::Messages(Algorithm::AllReduceRing);
        let text = picture(ring, 3).unwrap();
        assert!(text.contains(&draw(Algorithm::AllReduceRing, 3)) && text.contains("source"), "{text}");
        let halving = Way::Messages(Algorithm::ReduceScatterHalving);
        assert!(matches!(picture(halving, 3), Err(Error::Config { .. })));
        let slices = picture(Way::Levels(OpKind::AllReduce, LevelsWay::Slices), 3).unwrap();
        assert!(slices.contains("0 ←───→ 2"), "{slices}");
    }

    fn explained(force: &str, local_world: Option<usize>) -> String {
        let force = Selector::forced_from(force).unwrap();
        let (op, cores) = (OpKind::AllReduce, Some(4));
        text(Algo::Explain { op, bytes: 1 << 20, world: 4, local_world, cores, force }).unwrap()
    }

    #[test]
    fn a_forced_choice_is_explained() {
        let messages = explained("all_reduce=flat", Some(1));
        assert!(messages.contains("> flat") && messages.contains("(forced)"), "{messages}");
        assert!(messages.contains("Prices: ") && messages.contains("Ranks for each core: "), "{messages}");
        let memory = explained("all_reduce=shm/push", None);
        assert!(memory.contains("> shm/push") && memory.contains("(forced)"), "{memory}");
        let levels = explained("all_reduce=two_level/speakers", Some(2));
        assert!(levels.contains("> two_level/speakers") && levels.contains("2 hosts of 2 ranks"), "{levels}");
    }
}
