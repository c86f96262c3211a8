//! `phalanx simulate`: what operations would cost on a cluster that is not here, by the cost model.

use crate::cli::Simulate;
use phalanx_algo::{Algorithm, Choice, Link, Prediction, Predictor, World};
use phalanx_bench::{short, time};
use phalanx_core::{OpKind, Result};
use serde_json::{Value, json};
use std::fmt::Write;

/// The element whose blocks sizes are dealt out in, as `phalanx bench` does by default: `f32`.
const ELEMENT_BYTES: usize = 4;

/// All that is predicted for one operation.
struct Table {
    op: OpKind,
    rows: Vec<(usize, Vec<Prediction>)>,
    /// What is chosen, from which size on.
    changes: Vec<(usize, Choice)>,
}

/// The text that the command prints.
///
/// # Errors
/// `Config`: the flags contradict each other.
pub(crate) fn text(flags: &Simulate) -> Result<String> {
    flags.sizes.check()?;
    let world = World {
        ranks: flags.ranks,
        per_host: flags.ranks_per_host.min(flags.ranks),
        network: flags.link.of(Link::TCP),
        inside: flags.host_link.of(Link::MEMORY),
    };
    let tables = tables(flags, &world, &flags.sizes.sweep());
    if flags.json {
        return Ok(format!("{:#}\n", json(&world, &tables)));
    }
    let mut text = preamble(&world);
    for table in &tables {
        text += &shown(table, &world);
        #[cfg(feature = "plot")]
        if flags.draw {
            text += &drawn(table, &world)?;
        }
    }
    Ok(text)
}

fn tables(flags: &Simulate, world: &World, sizes: &[usize]) -> Vec<Table> {
    let mut predictor = Predictor::new(*world);
    let of = |op: &OpKind| {
        let op = *op;
        let sizes = sizes_of(op, world.ranks, sizes);
        let rows = sizes.iter().map(|&bytes| (bytes, predictor.predict(op, bytes))).collect();
        Table { op, rows, changes: world.changes(op, &sizes) }
    };
    let mut ops = flags.ops.clone();
    if ops.is_empty() {
        ops.extend(Algorithm::ALL.iter().map(|algorithm| algorithm.op()));
        ops.dedup();
    }
    ops.iter().map(of).collect()
}

/// Those of `sizes` that make sense: a barrier has none, and what is dealt out has an element for each rank.
fn sizes_of(op: OpKind, ranks: usize, sizes: &[usize]) -> Vec<usize> {
    let least = match op {
        OpKind::Barrier => return vec![0],
        OpKind::AllGather | OpKind::ReduceScatter | OpKind::Gather | OpKind::Scatter | OpKind::AllToAll => {
            ELEMENT_BYTES.saturating_mul(ranks)
        }
        _ => 0,
    };
    sizes.iter().copied().filter(|bytes| *bytes >= least).collect()
}

fn preamble(world: &World) -> String {
    let World { ranks, per_host, network, inside } = world;
    let hosts = match (world.hosts(), ranks % per_host) {
        (1, _) => "one host".to_owned(),
        (hosts, 0) => format!("{hosts} hosts of {per_host}"),
        (hosts, rest) => format!("{hosts} hosts of {per_host}, the last of {rest}"),
    };
    let link = |link: &Link| {
        format!(
            "{:.1} µs a message, {:.1} GB/s moved, {:.1} GB/s combined",
            1e6 * link.latency_s,
            link.bandwidth_bytes_per_s / 1e9,
            link.combine_bytes_per_s / 1e9
        )
    };
    format!(
        "# phalanx {}: {ranks} ranks on {hosts}; predicted by the cost model, not measured\n\
         # between hosts {}\n# inside a host {}\n\
         # Each rank has a core. The ranks of a host share one network card, which moves so much in each direction at a time.\n\
         # sent: most bytes that a rank sends in messages; card: most bytes that a card carries in one direction; messages: of the busiest rank;\n\
         # rounds: transfers one after the other. > what is chosen, * what costs least of what can be chosen for plain sums\n",
        env!("CARGO_PKG_VERSION"),
        link(network),
        link(inside)
    )
}

/// The cheapest of those that are candidates whatever is summed up, as the choice is for plain sums.
fn cheapest(world: &World, all: &[Prediction]) -> Option<Choice> {
    let candidates = all.iter().filter(|one| world.can_choose(&one.choice));
    candidates.min_by(|a, b| a.seconds.total_cmp(&b.seconds)).map(|one| one.choice)
}

fn shown(table: &Table, world: &World) -> String {
    let op = table.op;
    let names = table.rows.iter().flat_map(|(_, all)| all).map(|one| one.choice.name().chars().count());
    let width = names.max().unwrap_or(0).max("algorithm".len());
    // Writing to a String cannot fail.
    let mut text = format!(
        "#\n# {op}\n#{:>11}   {:<width$}   {:>10} {:>14} {:>14} {:>10} {:>10}\n#{:>11}   {:<width$}   {:>10} {:>14} {:>14}\n",
        "size", "algorithm", "time", "sent", "card", "messages", "rounds", "(B)", "", "(us)", "(B)", "(B)"
    );
    for (bytes, all) in &table.rows {
        let (chosen, cheapest) = (world.choose(op, *bytes), cheapest(world, all));
        for one in all {
            let mark = |is_so: bool, mark| if is_so { mark } else { ' ' };
            let _ = writeln!(
                text,
                "{bytes:>12} {}{}{:<width$}   {:>10} {:>14.0} {:>14.0} {:>10} {:>10}",
                mark(one.choice == chosen, '>'),
                mark(Some(one.choice) == cheapest, '*'),
                one.choice.name(),
                time(1e6 * one.seconds),
                one.sent,
                one.card,
                one.messages,
                one.rounds,
            );
        }
    }
    if table.rows.is_empty() {
        let _ = writeln!(
            text,
            "# no size deals each of {} ranks an element of {ELEMENT_BYTES} bytes",
            world.ranks
        );
    }
    if table.changes.len() > 1 {
        text += "# chosen:\n";
        for (bytes, choice) in &table.changes {
            let _ = writeln!(text, "#   from {:>10}  {}", short(*bytes), choice.name());
        }
    }
    text
}

/// Time over size, a line for each way.
#[cfg(feature = "plot")]
fn drawn(table: &Table, world: &World) -> Result<String> {
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    let mut put = |name: String, point: (f64, f64)| match lines.iter_mut().find(|line| line.0 == name) {
        Some((_, points)) => points.push(point),
        None => lines.push((name, vec![point])),
    };
    for (bytes, all) in table.rows.iter().filter(|(bytes, _)| *bytes > 0) {
        for one in all.iter().filter(|one| one.seconds > 0.0) {
            put(one.choice.way.name(), (*bytes as f64, 1e6 * one.seconds));
        }
    }
    if lines.is_empty() {
        return Ok(String::new());
    }
    let title = format!("{}, {} ranks", table.op, world.ranks);
    phalanx_bench::draw_text(&title, "us", &lines, (100, 30))
}

fn json(world: &World, tables: &[Table]) -> Value {
    let link = |link: &Link| serde_json::to_value(link).unwrap_or_default();
    let algorithm = |choice: &Choice| {
        let across = choice.across.map(Algorithm::name);
        json!({ "algorithm": choice.way.name(), "across": across })
    };
    let (mut results, mut changes) = (Vec::new(), Vec::new());
    for Table { op, rows, changes: of_op } in tables {
        for (bytes, all) in rows {
            let (chosen, cheapest) = (world.choose(*op, *bytes), cheapest(world, all));
            results.extend(all.iter().map(|one| {
                let mut value = algorithm(&one.choice);
                value["op"] = json!(op.name());
                value["size"] = json!(bytes);
                value["time_us"] = json!(1e6 * one.seconds);
                value["sent_bytes"] = json!(one.sent);
                value["card_bytes"] = json!(one.card);
                value["messages"] = json!(one.messages);
                value["rounds"] = json!(one.rounds);
                value["chosen"] = json!(one.choice == chosen);
                value["cheapest"] = json!(Some(one.choice) == cheapest);
                value
            }));
        }
        changes.extend(of_op.iter().map(|(bytes, choice)| {
            let mut value = algorithm(choice);
            value["op"] = json!(op.name());
            value["from_size"] = json!(bytes);
            value
        }));
    }
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ranks": world.ranks,
        "ranks_per_host": world.per_host,
        "hosts": world.hosts(),
        "network": link(&world.network),
        "inside": link(&world.inside),
        "results": results,
        "choices": changes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn asked(words: &[&str]) -> Result<String> {
        let words = ["phalanx", "simulate"].iter().chain(words);
        match Cli::try_parse_from(words)
            .map_err(|error| phalanx_core::Error::config(error.to_string()))?
            .command
        {
            Command::Simulate(flags) => text(&flags),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_table_names_every_way_with_the_choice_and_where_it_changes() {
        let words = [
            "--ranks",
            "30",
            "--ranks-per-host",
            "4",
            "--ops",
            "all_reduce,barrier",
            "-b",
            "1K",
            "-e",
            "1M",
            "-f",
            "1024",
        ];
        let text = asked(&words).unwrap().replace(env!("CARGO_PKG_VERSION"), "VERSION");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn a_large_world_is_predicted_in_json() {
        let text =
            asked(&["--ranks", "10000", "--ranks-per-host", "8", "--json", "--link", "25G,10us"]).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&value["hosts"], &value["network"]["bandwidth_bytes_per_s"]),
            (&json!(1250), &json!(3.125e9))
        );
        let results = value["results"].as_array().unwrap();
        for op in ["all_reduce", "all_to_all", "barrier"] {
            let of_op: Vec<_> = results.iter().filter(|one| one["op"] == op).collect();
            assert!(of_op.iter().any(|one| one["chosen"] == true), "{op}");
            assert!(of_op.iter().any(|one| one["cheapest"] == true), "{op}");
        }
        let slices =
            results.iter().find(|one| one["algorithm"] == "two_level/slices" && one["across"] == "circulant");
        assert!(slices.is_some_and(|one| one["card_bytes"].as_f64() > Some(0.0)), "{text}");
        let choices = value["choices"].as_array().unwrap();
        assert!(
            choices.iter().any(|one| one["op"] == "all_reduce" && one["from_size"] == 8192),
            "{choices:?}"
        );
    }

    #[test]
    fn worlds_of_every_kind_are_predicted_and_impossible_ones_refused() {
        for words in [["1", "1"], ["1", "8"], ["2", "1"], ["8", "8"], ["9", "8"], ["1001", "16"]] {
            let text = asked(&["--ranks", words[0], "--ranks-per-host", words[1]]).unwrap();
            assert!(text.contains("> ") || text.contains(">*"), "{text}");
        }
        assert!(
            asked(&["--ranks", "9", "--ranks-per-host", "8"])
                .unwrap()
                .contains("2 hosts of 8, the last of 1;")
        );
        for per_host in ["1", "3", "8"] {
            let words =
                ["--ranks", "8", "--ranks-per-host", per_host, "-e", "17179869183G", "-f", "1073741824"];
            assert!(asked(&words).is_ok(), "sizes have no end");
        }
        for words in [
            ["--ranks", "0"],
            ["--ranks", "1000001"],
            ["--ranks=8", "--ranks-per-host=0"],
            ["--ranks=8", "--link=25G"],
            ["--ranks=8", "--link=0G,10us"],
            ["--ranks=8", "--link=25KB,1us"],
            ["--ranks=8", "--link=25G,10"],
            ["--ranks=8", "--ops=send_recv"],
        ] {
            assert!(asked(&words).is_err(), "{words:?}");
        }
        assert!(asked(&["--ranks=8", "-b", "8", "-e", "4"]).is_err());
    }

    #[cfg(feature = "plot")]
    #[test]
    fn times_are_drawn_over_sizes() {
        let text = asked(&["--ranks", "64", "--ops", "broadcast,barrier", "--draw"]).unwrap();
        assert!(
            text.contains("broadcast, 64 ranks: us over size")
                && text.contains("a flat")
                && text.contains("256 KiB"),
            "{text}"
        );
    }
}
