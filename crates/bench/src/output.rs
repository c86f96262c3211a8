//! Figures for programs: JSON in the words of nccl-tests, and CSV.

use crate::check::Checked;
use crate::compare::{Row, rows};
use crate::op::Place;
use crate::report::{Case, Report};
use phalanx::{Error, Result};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::Path;

/// Everything, as one JSON document: each case's typical round in place and out of place, and the comparison.
///
/// Times are in microseconds, bandwidths in GB/s.
pub(crate) fn json(report: &Report, checked: Option<&Checked>) -> Value {
    let mut results = Vec::new();
    for case in report.cases() {
        results.extend(report.libraries().into_iter().filter_map(|name| result(report, case, name)));
    }
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "command": report.command,
        "machine": report.machine,
        "method": report.method,
        "results": results,
        "comparison": rows(report).iter().map(compared).collect::<Vec<_>>(),
        "check": checked,
        "wrong": report.wrong(),
        "average_bus_bandwidth": report.average_busbw(),
    })
}

fn result(report: &Report, case: Case, library: &str) -> Option<Value> {
    let m = report.typical(case, library, &Place::BOTH)?;
    let mut value = json!({
        "library": m.library,
        "backend": m.case.backend,
        "transport": m.transport,
        "ranks": m.case.ranks,
        "op": m.case.op,
        "size": m.bytes,
        "count": m.count,
        "type": report.dtype.name(),
        "redop": m.case.op.reduces().then_some(report.reduce.name()),
        "root": m.case.op.has_root().then_some(0),
    });
    for m in Place::BOTH.into_iter().filter_map(|place| report.typical(case, library, &[place])) {
        let place = serde_json::to_value(m.place).expect("a name is plain data");
        value[place.as_str().unwrap_or_default()] = json!({
            "algorithm": m.variant, "time_us": m.stats.p50_us, "alg_bw": m.algbw(), "bus_bw": m.busbw(),
            "nwrong": m.wrong, "times": m.stats,
        });
    }
    Some(value)
}

fn compared(row: &Row) -> Value {
    let mut value = serde_json::to_value(row).expect("figures are plain data");
    value["backend"] = json!(row.case.backend);
    value["ranks"] = json!(row.case.ranks);
    value["op"] = json!(row.case.op);
    value["size"] = json!(row.case.asked_bytes);
    value
}

/// One measurement as a line of CSV.
#[derive(Serialize)]
struct Record<'a> {
    library: &'a str,
    backend: &'a str,
    transport: &'a str,
    ranks: usize,
    round: usize,
    op: &'a str,
    place: crate::op::Place,
    algorithm: &'a str,
    size: usize,
    count: usize,
    r#type: &'a str,
    redop: &'a str,
    min_us: f64,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
    max_us: f64,
    mean_us: f64,
    back_to_back_us: f64,
    samples: usize,
    algbw: f64,
    busbw: f64,
    wrong: u64,
    cpu: &'a str,
    cores: usize,
}

/// Writes every measurement of every round and library.
///
/// # Errors
/// `Io`: the file cannot be written.
pub(crate) fn write_csv(report: &Report, path: &Path) -> Result<()> {
    let failed = |error: csv::Error| Error::io(format!("writing {}", path.display()), error.into());
    let mut writer = csv::Writer::from_path(path).map_err(failed)?;
    for m in &report.measurements {
        let stats = m.stats;
        let rounded = |value: f64| (value * 1e4).round() / 1e4;
        let record = Record {
            library: m.library,
            backend: m.case.backend.name(),
            transport: &m.transport,
            ranks: m.case.ranks,
            round: m.round,
            op: m.case.op.name(),
            place: m.place,
            algorithm: m.variant.as_deref().unwrap_or_default(),
            size: m.bytes,
            count: m.count,
            r#type: report.dtype.name(),
            redop: if m.case.op.reduces() { report.reduce.name() } else { "" },
            min_us: rounded(stats.min_us),
            p50_us: rounded(stats.p50_us),
            p95_us: rounded(stats.p95_us),
            p99_us: rounded(stats.p99_us),
            max_us: rounded(stats.max_us),
            mean_us: rounded(stats.mean_us),
            back_to_back_us: rounded(stats.back_to_back_us),
            samples: stats.samples,
            algbw: rounded(m.algbw()),
            busbw: rounded(m.busbw()),
            wrong: m.wrong,
            cpu: &report.machine.cpu,
            cores: report.machine.cores,
        };
        writer.serialize(record).map_err(failed)?;
    }
    writer.flush().map_err(|error| Error::io(format!("writing {}", path.display()), error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::report::tests::{case, measured, report};

    #[test]
    fn json_has_results_and_ratios() {
        let case = case(Op::AllGather, 64);
        let all = vec![measured("phalanx", case, 0, 2.0), measured("mpich", case, 0, 4.0)];
        let value = json(&report(all), None);
        let ours = &value["results"][0];
        assert_eq!(
            (&ours["library"], &ours["op"], &ours["size"]),
            (&json!("phalanx"), &json!("all_gather"), &json!(64))
        );
        assert_eq!((&ours["count"], &ours["type"], &ours["redop"]), (&json!(8), &json!("f32"), &Value::Null));
        assert_eq!(ours["out_of_place"]["time_us"], 2.0);
        assert_eq!(ours["out_of_place"]["times"]["p99_us"], 6.0);
        assert_eq!(value["results"].as_array().unwrap().len(), 2);
        assert_eq!(value["comparison"][0]["best"], json!({"peer": "mpich", "time_us": 4.0, "ratio": 0.5}));
        assert_eq!((&value["wrong"], &value["machine"]["cores"]), (&json!(0), &json!(2)));
    }

    #[test]
    fn csv_has_a_line_a_measurement() {
        let case = case(Op::AllReduce, 4096);
        let all = (0..3).map(|round| measured("phalanx", case, round, 1.5)).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        write_csv(&report(all), file.path()).unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[0].starts_with("library,backend,transport,ranks,round,op,place,algorithm,size,count,type,")
        );
        assert!(
            lines[3].starts_with("phalanx,tcp,tcp,2,2,all_reduce,in_place,,4096,1024,f32,sum,0.75,1.5,3.0,")
        );
        assert_eq!(lines.len(), 4);
    }
}
