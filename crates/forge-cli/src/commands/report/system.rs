//! The machine of a report: chip, memory, system and tools. Nothing that identifies the machine or its owner.

use serde_json::{Map, Value};
use std::process::Command;

/// Facts by name, and the command that prints each.
const FACTS: [(&str, &[&str]); 14] = [
    ("chip", &["sysctl", "-n", "machdep.cpu.brand_string"]),
    ("model", &["sysctl", "-n", "hw.model"]),
    ("memory_bytes", &["sysctl", "-n", "hw.memsize"]),
    ("cpu_cores", &["sysctl", "-n", "hw.ncpu"]),
    ("performance_cores", &["sysctl", "-n", "hw.perflevel0.physicalcpu"]),
    ("wired_limit_mb", &["sysctl", "-n", "iogpu.wired_limit_mb"]),
    ("macos", &["sw_vers", "-productVersion"]),
    ("macos_build", &["sw_vers", "-buildVersion"]),
    ("xcode", &["xcodebuild", "-version"]),
    ("metal_compiler", &["xcrun", "metal", "--version"]),
    ("kernel", &["uname", "-sr"]),
    ("architecture", &["uname", "-m"]),
    ("rustc", &["rustc", "--version"]),
    ("cargo", &["cargo", "--version"]),
];

/// All facts that this machine tells. On Linux some of them do not exist.
pub(super) fn collect() -> Value {
    let mut facts = Map::new();
    for (name, command) in FACTS {
        if let Some(text) = first_line(command) {
            facts.insert(name.to_owned(), text.into());
        }
    }
    if !facts.contains_key("chip")
        && let Some(chip) = linux_chip()
    {
        facts.insert("chip".to_owned(), chip.into());
    }
    if let Some(cores) = gpu_cores() {
        facts.insert("gpu_cores".to_owned(), cores.into());
    }
    if let Some(power) = first_line(&["pmset", "-g", "batt"]) {
        facts.insert("power".to_owned(), power.into());
    }
    Value::Object(facts)
}

fn output(command: &[&str]) -> Option<String> {
    let output = Command::new(command[0]).args(&command[1..]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn first_line(command: &[&str]) -> Option<String> {
    let text = output(command)?;
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// The number of GPU cores, from the driver's properties.
fn gpu_cores() -> Option<u64> {
    let text = output(&["ioreg", "-r", "-c", "AGXAccelerator", "-d", "1"])?;
    parse_gpu_cores(&text)
}

fn parse_gpu_cores(properties: &str) -> Option<u64> {
    let line = properties.lines().find(|line| line.contains("\"gpu-core-count\""))?;
    line.split('=').nth(1)?.trim().parse().ok()
}

/// The processor's name on Linux.
fn linux_chip() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split(':').nth(1).map(|name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn gpu_cores_are_a_property_of_the_driver() {
        let text = "+-o AGXAcceleratorG13X  <class AGXAcceleratorG13X>\n    {\n      \"gpu-core-count\" = 16\n    }\n";
        assert_eq!(super::parse_gpu_cores(text), Some(16));
        assert_eq!(super::parse_gpu_cores("nothing"), None);
    }
}
