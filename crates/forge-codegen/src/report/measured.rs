//! What the referee measured, in a page that was written before anything could be measured.

use crate::names;
use crate::report::svg::escaped;
use std::fmt::Write;

/// Between these stands what was measured.
const BEGIN: &str = "<!-- measured -->";
const END: &str = "<!-- end of measured -->";

/// What the referee counted of one kernel, all dispatches together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measurement {
    /// The kernel.
    pub kernel: String,
    /// Times it was dispatched.
    pub dispatches: u64,
    /// Bytes loaded from device memory, and the distinct ones among those of each dispatch.
    pub loaded: (u64, u64),
    /// Bytes stored to device memory, and the distinct ones among those of each dispatch.
    pub stored: (u64, u64),
    /// Lines of 128 bytes that simdgroups touch together, and those that their bytes would fill.
    pub lines: (u64, u64),
    /// Bytes of threadgroup memory loaded and stored.
    pub threadgroup: u64,
    /// Barriers that threadgroups passed, and threadgroups.
    pub barriers: (u64, u64),
}

/// What the referee found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Dispatches that were executed.
    pub dispatches: usize,
    /// Barriers of model.rs, and how many of them were needed.
    pub barriers: (usize, usize),
    /// Faults.
    pub faults: usize,
    /// How far logits were from the reference's, in their standard deviations, and how far they may be.
    pub distance: (f64, f64),
}

/// What stands there before.
pub(crate) fn nothing() -> String {
    format!(
        "{BEGIN}<p>Nothing yet. <code>forge verify --report</code> executes this crate's kernels under a referee, and writes \
         here what they asked of memory.</p>{END}"
    )
}

/// The page with these measurements in place of those that it had; `None` if it has no place for them.
pub fn with_measurements(page: &str, verdict: &Verdict, measurements: &[Measurement]) -> Option<String> {
    let begin = page.find(BEGIN)? + BEGIN.len();
    let end = begin + page[begin..].find(END)?;
    Some(format!("{}{}{}", &page[..begin], text(verdict, measurements), &page[end..]))
}

fn text(verdict: &Verdict, measurements: &[Measurement]) -> String {
    let faults = match verdict.faults {
        0 => "no fault".to_owned(),
        1 => "1 fault".to_owned(),
        count => format!("{count} faults"),
    };
    let (barriers, needed) = verdict.barriers;
    let (distance, bound) = verdict.distance;
    let mut text = format!(
        "<p>Executed from kernels.metal on a CPU: {} dispatches, {barriers} barriers of which {needed} were needed, {faults}. \
         Logits differ from the reference's by {distance:.1e} of their deviation; {bound:e} is allowed.</p>\n\
         <div class=\"wide\"><table><thead><tr><th>kernel</th><th>dispatches</th><th>loaded</th><th>of least</th><th>stored</th>\
         <th>of least</th><th>lines of least</th><th>threadgroup memory</th><th>barriers a threadgroup</th></tr></thead>\n<tbody>\n",
        verdict.dispatches
    );
    for measurement in measurements {
        let Measurement { kernel, dispatches, loaded, stored, lines, threadgroup, barriers } = measurement;
        let _ = writeln!(
            text,
            "<tr><td>{}</td><td>{dispatches}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(kernel),
            names::size(loaded.0),
            times(*loaded),
            names::size(stored.0),
            times(*stored),
            times(*lines),
            names::size(*threadgroup),
            barriers.0.checked_div(barriers.1).unwrap_or(0),
        );
    }
    text += "</tbody></table></div>\n";
    text
}

/// How many times the least something is.
fn times((found, least): (u64, u64)) -> String {
    if least == 0 { "–".to_owned() } else { format!("{:.2}", found as f64 / least as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_take_the_place_of_earlier_ones() {
        let page = format!("<p>before</p>{}<p>after</p>", nothing());
        let row = Measurement { kernel: "qkv_<one>".to_owned(), loaded: (30, 10), ..Measurement::default() };
        let once = with_measurements(&page, &Verdict::default(), &[row]).expect("it has a place");
        assert!(once.starts_with("<p>before</p>") && once.ends_with("<p>after</p>"), "{once}");
        assert!(
            once.contains("qkv_&lt;one&gt;")
                && once.contains("<td>3.00</td>")
                && !once.contains("Nothing yet")
        );
        let twice =
            with_measurements(&once, &Verdict { faults: 2, ..Verdict::default() }, &[]).expect("still");
        assert!(twice.contains("2 faults") && !twice.contains("qkv_"), "{twice}");
        assert_eq!(with_measurements("<p>something else</p>", &Verdict::default(), &[]), None);
    }
}
