//! Memory bandwidth of Apple chips, by Metal's device name.

/// Bandwidth in bytes per second, from Apple's technical specifications; the maximum for chips with several
/// configurations.
pub fn bandwidth(name: &str) -> Option<f64> {
    let gigabytes = match name.strip_prefix("Apple ")? {
        "M1" => 68.0,
        "M2" | "M3" => 100.0,
        "M4" => 120.0,
        "M5" => 153.0,
        "M3 Pro" => 150.0,
        "M1 Pro" | "M2 Pro" => 200.0,
        "M4 Pro" => 273.0,
        "M5 Pro" => 307.0,
        "M1 Max" | "M2 Max" | "M3 Max" => 400.0,
        "M4 Max" => 546.0,
        "M5 Max" => 614.0,
        "M1 Ultra" | "M2 Ultra" => 800.0,
        "M3 Ultra" => 819.0,
        _ => return None,
    };
    Some(1e9 * gigabytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chips_are_found_by_full_name() {
        let found = ["Apple M4 Max", "Apple M4", "M4", "Apple M40", "Emulated GPU"].map(bandwidth);
        assert_eq!(found, [Some(546e9), Some(120e9), None, None, None]);
    }
}
