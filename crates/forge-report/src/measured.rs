//! Kernel checker results, inserted into an existing report page.

use crate::svg::escaped;
use forge_ir::units::size;
use std::fmt::Write;

/// The markers around the results.
const BEGIN: &str = "<!-- measured -->";
const END: &str = "<!-- end of measured -->";

/// Memory traffic of one kernel, summed over all dispatches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measurement {
    /// Name of the kernel.
    pub kernel: String,
    /// Number of dispatches.
    pub dispatches: u64,
    /// Bytes loaded from device memory, and the distinct bytes per dispatch among them.
    pub loaded: (u64, u64),
    /// Bytes stored to device memory, and the distinct bytes per dispatch among them.
    pub stored: (u64, u64),
    /// 128-byte cache lines accessed by simdgroups, and the minimum for the same bytes.
    pub lines: (u64, u64),
    /// Bytes loaded from and stored to threadgroup memory.
    pub threadgroup: u64,
    /// Threadgroup barriers executed, summed over threadgroups, and the number of threadgroups.
    pub barriers: (u64, u64),
}

/// The summary of a kernel checker run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Number of executed dispatches.
    pub dispatches: usize,
    /// Number of barriers in model.rs, and how many of them are required.
    pub barriers: (usize, usize),
    /// Number of faults found.
    pub faults: usize,
    /// Maximum difference of the logits from the reference, in standard deviations of the logits, and its tolerance.
    pub distance: (f64, f64),
}

/// The section of a page without results.
pub(crate) fn nothing() -> String {
    format!(
        "{BEGIN}<p>No measurements yet. <code>forge verify --report</code> runs this crate's kernels in the kernel checker and \
         adds their memory traffic here.</p>{END}"
    )
}

/// Replaces the measurements of a page; `None` if the page has no section for them.
pub fn with_measurements(page: &str, verdict: &Verdict, measurements: &[Measurement]) -> Option<String> {
    let begin = page.find(BEGIN)? + BEGIN.len();
    let end = begin + page[begin..].find(END)?;
    Some(format!("{}{}{}", &page[..begin], text(verdict, measurements), &page[end..]))
}

fn text(verdict: &Verdict, measurements: &[Measurement]) -> String {
    let faults = match verdict.faults {
        0 => "no faults found".to_owned(),
        1 => "1 fault".to_owned(),
        count => format!("{count} faults"),
    };
    let (barriers, needed) = verdict.barriers;
    let (distance, bound) = verdict.distance;
    let mut text = format!(
        "<p>kernels.metal, executed on a CPU: {} dispatches, {barriers} barriers of which {needed} are required, {faults}. \
         Maximum logit error {distance:.1e} standard deviations; tolerance {bound:e}.</p>\n\
         <div class=\"wide\"><table><thead><tr><th>kernel</th><th>dispatches</th><th>loaded</th><th>× minimum</th><th>stored</th>\
         <th>× minimum</th><th>cache lines × minimum</th><th>threadgroup memory</th><th>barriers per threadgroup</th></tr></thead>\n<tbody>\n",
        verdict.dispatches
    );
    for measurement in measurements {
        let Measurement { kernel, dispatches, loaded, stored, lines, threadgroup, barriers } = measurement;
        let _ = writeln!(
            text,
            "<tr><td>{}</td><td>{dispatches}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(kernel),
            size(loaded.0),
            times(*loaded),
            size(stored.0),
            times(*stored),
            times(*lines),
            size(*threadgroup),
            barriers.0.checked_div(barriers.1).unwrap_or(0),
        );
    }
    text += "</tbody></table></div>\n";
    text
}

/// The ratio of a count to its minimum.
fn times((found, least): (u64, u64)) -> String {
    if least == 0 { "–".to_owned() } else { format!("{:.2}", found as f64 / least as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_measurements_replace_earlier_ones() {
        let page = format!("<p>before</p>{}<p>after</p>", nothing());
        let row = Measurement { kernel: "qkv_<one>".to_owned(), loaded: (30, 10), ..Measurement::default() };
        let once = with_measurements(&page, &Verdict::default(), &[row]).expect("it has a place");
        assert!(once.starts_with("<p>before</p>") && once.ends_with("<p>after</p>"), "{once}");
        assert!(
            once.contains("qkv_&lt;one&gt;")
                && once.contains("<td>3.00</td>")
                && !once.contains("No measurements yet")
        );
        let twice =
            with_measurements(&once, &Verdict { faults: 2, ..Verdict::default() }, &[]).expect("still");
        assert!(twice.contains("2 faults") && !twice.contains("qkv_"), "{twice}");
        assert_eq!(with_measurements("<p>something else</p>", &Verdict::default(), &[]), None);
    }
}
