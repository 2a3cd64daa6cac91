//! A minimal SVG canvas: a few shapes, and placement of labels without overlaps.
//!
//! The font is monospace, so the width of a label is known when the page is rendered.

use std::fmt::Write;

/// Width of a letter relative to the font size.
const LETTER: f64 = 0.61;
/// Font size in pixels.
pub(crate) const FONT: f64 = 12.0;

/// A point: distance from the left and from the top.
pub(crate) type Place = (f64, f64);

/// An SVG image under construction.
pub(crate) struct Canvas {
    width: f64,
    height: f64,
    body: String,
}

/// The part of a text that its position refers to.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

impl Canvas {
    pub(crate) fn new(width: f64, height: f64) -> Canvas {
        Canvas { width, height, body: String::new() }
    }

    pub(crate) fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), class: &str, title: &str) {
        let (x, y, width, height) = (place(x), place(y), place(width.max(0.5)), place(height.max(0.5)));
        let shape =
            format!("<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"");
        self.titled(&shape, "rect", title);
    }

    /// Dots of one class, each with its title.
    pub(crate) fn dots(&mut self, dots: &[(Place, String)], class: &str) {
        let _ = writeln!(self.body, "<g class=\"{class}\">");
        for ((x, y), title) in dots {
            let shape = format!("<circle cx=\"{}\" cy=\"{}\" r=\"4\"", place(*x), place(*y));
            self.titled(&shape, "circle", title);
        }
        self.close();
    }

    pub(crate) fn line(&mut self, from: Place, to: Place, class: &str) {
        self.lines(&[(from, to)], class);
    }

    /// Lines as one path element.
    pub(crate) fn lines(&mut self, lines: &[(Place, Place)], class: &str) {
        let _ = write!(self.body, "<path class=\"{class}\" d=\"");
        for ((x1, y1), (x2, y2)) in lines {
            let (x1, y1, x2, y2) = (place(*x1), place(*y1), place(*x2), place(*y2));
            let _ = write!(self.body, "M{x1} {y1}L{x2} {y2}");
        }
        self.body.push_str("\"/>\n");
    }

    /// A curve that is horizontal at both ends.
    pub(crate) fn curve(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        let middle = place((x1 + x2) / 2.0);
        let (x1, y1, x2, y2) = (place(x1), place(y1), place(x2), place(y2));
        let _ = writeln!(
            self.body,
            "<path class=\"{class}\" d=\"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}\"/>"
        );
    }

    /// Begins a group of shapes with one title.
    pub(crate) fn open(&mut self, title: &str) {
        let _ = writeln!(self.body, "<g><title>{}</title>", escaped(title));
    }

    /// Ends the group.
    pub(crate) fn close(&mut self) {
        self.body.push_str("</g>\n");
    }

    /// Triangles that point down to these points.
    pub(crate) fn marks(&mut self, places: &[Place]) {
        self.body.push_str("<path class=\"mark\" d=\"");
        for (x, y) in places {
            let _ = write!(self.body, "M{} {}h7l-3.5 6z", place(x - 3.5), place(y - 6.0));
        }
        self.body.push_str("\"/>\n");
    }

    /// A text, vertically centered at y.
    pub(crate) fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let (x, y) = (place(x), place(y + FONT * 0.35));
        let anchor = match anchor {
            Anchor::Start => String::new(),
            other => format!(" text-anchor=\"{}\"", other.name()),
        };
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        let _ = writeln!(self.body, "<text{class} x=\"{x}\" y=\"{y}\"{anchor}>{}</text>", escaped(text));
    }

    /// Texts of one class, each centered at its point.
    pub(crate) fn labels(&mut self, labels: &[(Place, String)], class: &str) {
        let anchor = Anchor::Middle.name();
        let _ = writeln!(self.body, "<g class=\"{class}\" text-anchor=\"{anchor}\">");
        for (at, text) in labels {
            self.text(*at, Anchor::Start, "", text);
        }
        self.close();
    }

    /// A vertical text that reads upwards and ends at this point.
    pub(crate) fn upright(&mut self, (x, y): (f64, f64), text: &str) {
        let (x, y) = (place(x + FONT * 0.35), place(y));
        let text = escaped(text);
        let rotation = format!("rotate(-90 {x} {y})");
        let _ = writeln!(
            self.body,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\" transform=\"{rotation}\">{text}</text>"
        );
    }

    /// The finished SVG, with a label for screen readers.
    pub(crate) fn finish(self, label: &str) -> String {
        let (width, height) = (place(self.width), place(self.height));
        format!(
            "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">\n{}</svg>",
            escaped(label),
            self.body
        )
    }

    fn titled(&mut self, shape: &str, element: &str, title: &str) {
        let _ = match title {
            "" => writeln!(self.body, "{shape}/>"),
            title => writeln!(self.body, "{shape}><title>{}</title></{element}>", escaped(title)),
        };
    }
}

/// A coordinate, rounded to a tenth of a pixel.
fn place(value: f64) -> String {
    debug_assert!(value.is_finite(), "a coordinate is a number");
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// A text with XML special characters escaped.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// The text cut to a width in pixels, with an ellipsis where it is cut.
pub(crate) fn fitted(text: &str, width: f64) -> String {
    let max_chars = (width / (FONT * LETTER)) as usize;
    if text.chars().count() <= max_chars {
        return text.to_owned();
    }
    text.chars().take(max_chars.saturating_sub(1)).chain(['…']).collect()
}

/// Positions close to the wanted ones, at least `gap` apart and not below `low`. They exceed `high` only if there are too
/// many to fit.
pub(crate) fn spread(wanted: &[f64], gap: f64, (low, high): (f64, f64)) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    let mut places = vec![0.0; wanted.len()];
    // First push each position up past the previous one, then the last ones back from the end.
    let mut next = low;
    for &index in &order {
        places[index] = wanted[index].max(next);
        next = places[index] + gap;
    }
    let mut last = high;
    for &index in order.iter().rev() {
        places[index] = places[index].min(last);
        last = places[index] - gap;
    }
    let mut next = low;
    for &index in &order {
        places[index] = places[index].max(next);
        next = places[index] + gap;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_do_not_overlap() {
        assert_eq!(spread(&[5.0, 5.0, 5.0], 10.0, (0.0, 100.0)), [5.0, 15.0, 25.0]);
        assert_eq!(spread(&[99.0, 98.0, 10.0], 10.0, (0.0, 100.0)), [100.0, 90.0, 10.0]);
        assert_eq!(spread(&[50.0, 20.0], 10.0, (0.0, 100.0)), [50.0, 20.0]);
        let crowded = spread(&[0.0; 5], 10.0, (0.0, 20.0));
        assert_eq!(crowded, [0.0, 10.0, 20.0, 30.0, 40.0], "too many labels exceed the end");
    }

    #[test]
    fn labels_are_shortened_and_escaped() {
        assert_eq!(fitted("attention_norm", 200.0), "attention_norm");
        assert_eq!(fitted("attention_norm", 60.0), "attenti…");
        let mut canvas = Canvas::new(10.0, 10.0);
        canvas.text((1.0, 2.04), Anchor::Start, "", "a < b & \"c\"");
        let svg = canvas.finish("it's <this>");
        assert!(svg.contains("<text x=\"1\" y=\"6.2\">a &lt; b &amp; &quot;c&quot;</text>"), "{svg}");
        assert!(svg.contains("aria-label=\"it's &lt;this&gt;\""), "{svg}");
    }
}
