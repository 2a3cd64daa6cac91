//! The kernel checker's counters as a table: memory traffic of each kernel relative to the minimum.

use forge_ir::units::size;
use forge_report::Measurement;
use forge_sim::Counters;
use std::collections::BTreeMap;

/// Column headings. Bytes are those requested by threads; repeated requests are served by caches.
const HEADER: [&str; 9] = [
    "kernel",
    "dispatches",
    "loaded",
    "of min",
    "stored",
    "of min",
    "lines of min",
    "threadgroup",
    "barriers",
];

/// The table: one line per kernel.
pub(crate) fn table(counters: &BTreeMap<String, Counters>) -> String {
    let rows: Vec<[String; 9]> = counters.iter().map(|(kernel, counters)| row(kernel, counters)).collect();
    let heads = HEADER.map(str::to_owned);
    let width = |column: usize| {
        std::iter::once(&heads).chain(&rows).map(|row| row[column].chars().count()).max().unwrap_or(0)
    };
    let widths: [usize; 9] = std::array::from_fn(width);
    let mut text = String::new();
    for row in std::iter::once(&heads).chain(&rows) {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        text += &format!("  {}\n", cells.collect::<Vec<_>>().join("  "));
    }
    text
}

fn row(kernel: &str, counters: &Counters) -> [String; 9] {
    let traffic = &counters.traffic;
    let barriers = counters.barriers as f64 / counters.groups.max(1) as f64;
    [
        kernel.to_owned(),
        counters.dispatches.to_string(),
        size(counters.loaded),
        times(counters.loaded, traffic.loaded),
        size(counters.stored),
        times(counters.stored, traffic.stored),
        times(traffic.lines, traffic.least_lines),
        size(counters.threadgroup),
        format!("{barriers:.0} per group"),
    ]
}

/// The counters of a kernel, for the HTML report.
pub(crate) fn measurement(kernel: &str, counters: &Counters) -> Measurement {
    let traffic = &counters.traffic;
    Measurement {
        kernel: kernel.to_owned(),
        dispatches: counters.dispatches,
        loaded: (counters.loaded, traffic.loaded),
        stored: (counters.stored, traffic.stored),
        lines: (traffic.lines, traffic.least_lines),
        threadgroup: counters.threadgroup,
        barriers: (counters.barriers, counters.groups),
    }
}

/// The ratio to the minimum.
fn times(found: u64, least: u64) -> String {
    if least == 0 { "-".to_owned() } else { format!("{:.2}", found as f64 / least as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forge_sim::Traffic;

    #[test]
    fn prints_ratios_to_the_minimum() {
        let traffic = Traffic { loaded: 1000, stored: 64, instructions: 8, lines: 40, least_lines: 10 };
        let counters = Counters {
            dispatches: 3,
            groups: 6,
            loaded: 2500,
            stored: 64,
            barriers: 12,
            traffic,
            ..Counters::default()
        };
        let text = table(&BTreeMap::from([("qkv_one".to_owned(), counters)]));
        let cells: Vec<&str> = text.lines().nth(1).expect("a line").split_whitespace().collect();
        assert_eq!(
            cells,
            ["qkv_one", "3", "2.50", "KB", "2.50", "64", "B", "1.00", "4.00", "0", "B", "2", "per", "group"]
        );
        let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert_eq!(widths[0], widths[1]);
    }

    #[test]
    fn prints_no_ratio_without_counts() {
        let text = table(&BTreeMap::from([("norm".to_owned(), Counters::default())]));
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}
