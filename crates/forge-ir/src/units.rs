//! Numbers for people: sizes, counts and digit groups.

/// Formats bytes in decimal units: `1.19 GB`.
pub fn size(bytes: u64) -> String {
    let units = [("GB", 1e9), ("MB", 1e6), ("KB", 1e3)];
    match units.into_iter().find(|(_, unit)| bytes as f64 >= *unit) {
        Some((name, unit)) => {
            format!("{} {name}", significant(bytes as f64 / unit))
        }
        None => format!("{bytes} B"),
    }
}

/// Formats a value to three significant digits.
fn significant(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Formats a count: `596 M`.
pub fn count(number: u64) -> String {
    match number {
        0..1_000 => number.to_string(),
        1_000..1_000_000 => format!("{} K", significant(number as f64 / 1e3)),
        1_000_000..1_000_000_000 => format!("{} M", significant(number as f64 / 1e6)),
        _ => format!("{} B", significant(number as f64 / 1e9)),
    }
}

/// Formats an integer with thousands separators: `151,936`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_numbers_for_display() {
        let sizes =
            [(512, "512 B"), (1_190_000_000, "1.19 GB"), (375_100_000, "375 MB"), (22_900, "22.9 KB")];
        assert_eq!(sizes.map(|(bytes, _)| size(bytes)), sizes.map(|(_, text)| text.to_owned()));
        let counts = [(999, "999"), (111_936, "112 K"), (596_049_920, "596 M"), (1_104_218_112, "1.10 B")];
        assert_eq!(counts.map(|(number, _)| count(number)), counts.map(|(_, text)| text.to_owned()));
        assert_eq!(grouped(151_936), "151,936");
        assert_eq!(grouped(12), "12");
    }
}
