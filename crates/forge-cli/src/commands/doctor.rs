//! `forge doctor`: reports the installed tools and devices, and how to install missing ones.

use crate::error::Error;
use crate::install_advice::{clang_advice, ptx_advice};
use crate::terminal;
use std::process::Command;

/// Result of one check.
struct Finding {
    name: &'static str,
    found: Result<String, String>,
    /// What needs it.
    needed_for: &'static str,
    /// Whether forge needs it for basic use.
    required: bool,
}

/// Prints the findings; fails if a required tool is missing.
pub(crate) fn doctor() -> Result<(), Error> {
    let mut findings = vec![
        Finding {
            name: "cargo",
            found: version("cargo", &["--version"])
                .ok_or_else(|| "install Rust 1.90 or later: https://rustup.rs".to_owned()),
            needed_for: "building compiled crates",
            required: true,
        },
        Finding {
            name: "clang",
            found: forge_kernels::check::find_clang()
                .and_then(|clang| {
                    version(&clang.to_string_lossy(), &["--version"])
                        .map(|text| format!("{text} ({})", clang.display()))
                })
                .ok_or_else(|| clang_advice().to_owned()),
            needed_for: "forge verify (runs Metal kernels on the CPU)",
            required: false,
        },
    ];
    findings.push(Finding {
        name: "PTX",
        found: forge_kernels::ptx::find_clang()
            .map(|clang| format!("NVIDIA GPU kernels supported ({})", clang.display()))
            .ok_or_else(|| ptx_advice().to_owned()),
        needed_for: "--target cuda",
        required: false,
    });
    findings.push(Finding {
        name: "Metal",
        found: match cfg!(target_os = "macos") {
            true => version("xcrun", &["--find", "metal"])
                .ok_or_else(|| "no offline compiler: kernels are compiled at program start".to_owned()),
            false => Err("needs a Mac; programs use the CPU or an NVIDIA GPU here".to_owned()),
        },
        needed_for: "running on the GPU",
        required: false,
    });
    findings.push(Finding { name: "CPU", found: Ok(cpu()), needed_for: "running anywhere", required: true });
    let (mut well, mut text) = (true, String::new());
    for finding in &findings {
        match &finding.found {
            Ok(what) => text += &format!("  {:<7} {what}\n", finding.name),
            Err(advice) => {
                text += &format!(
                    "  {:<7} not found, needed for {}: {advice}\n",
                    finding.name, finding.needed_for
                );
                well &= !finding.required;
            }
        }
    }
    terminal::print(&text)?;
    if well { Ok(()) } else { Err(Error::Reported(1)) }
}

fn version(program: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().map(|line| line.trim().to_owned())
}

/// Core count and the widest instruction set that the CPU device uses.
fn cpu() -> String {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    #[cfg(target_arch = "x86_64")]
    let instructions = if std::arch::is_x86_feature_detected!("avx512vnni") {
        // AMX is usable only on Linux, which lists it here.
        let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let has = |name: &str| flags.split_whitespace().any(|flag| flag == name);
        if has("amx_int8") && has("amx_bf16") { "AVX-512 with AMX" } else { "AVX-512" }
    } else if std::arch::is_x86_feature_detected!("avx2") {
        "AVX2"
    } else {
        "portable instructions"
    };
    #[cfg(target_arch = "aarch64")]
    let instructions = "NEON";
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let instructions = "portable instructions";
    format!("{cores} cores, {instructions}")
}
