//! The runtime's text for a crate's targets.
//!
//! In a crate every kernel is marked with `#[inline]` ([`UNSHARED`]), so that those which it does not use are not compiled.
//!
//! What of the runtime is for NVIDIA GPUs alone is marked with [`MARK`], a line of its own above an item, a variant, a
//! statement or an arm, and is a module's folder. A crate for such GPUs has all of it, without the mark; another crate has
//! not a line of it.

/// What stands above a part that only crates for NVIDIA GPUs have.
const MARK: &str = "#[cfg(feature = \"cuda\")]";

/// The folder that only crates for NVIDIA GPUs have.
const FOLDER: &str = "cuda/";

/// What stands above a kernel that a crate compiles only if it uses it, and what stands there in the crate.
const UNSHARED: [&str; 2] = ["#[cfg_attr(any(test, not(feature = \"shared\")), inline)]", "#[inline]"];

/// A file of the runtime as a crate has it, or nothing if it has none.
pub(crate) fn fit(path: &str, text: &str, cuda: bool) -> Option<String> {
    if path.starts_with(FOLDER) && !cuda {
        return None;
    }
    let mut fitted = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.trim() != MARK {
            fitted.push_str(&line.replace(UNSHARED[0], UNSHARED[1]));
            fitted.push('\n');
            continue;
        }
        if cuda {
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        // The part ends where a line as far to the left as its mark ends something.
        lines.by_ref().find(|line| {
            let outside = line.len() - line.trim_start().len() == indent;
            outside && !line.trim_start().starts_with("//") && line.ends_with([';', ',', '}'])
        });
        // Of the empty lines on both sides one is enough.
        if fitted.ends_with("\n\n") && lines.peek().is_none_or(|line| line.is_empty()) {
            fitted.pop();
        }
    }
    Some(fitted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_parts_are_in_or_out() {
        let text = "\
pub mod cpu;
#[cfg(feature = \"cuda\")]
pub mod cuda;
pub enum Kind {
    #[cfg(feature = \"cuda\")]
    /// An NVIDIA GPU,
    Cuda,
    /// The CPU
    Cpu,
}

#[cfg(feature = \"cuda\")]
fn cuda(
    what: u32,
) -> u32 {
    match what {
        1 => 2,
        other => other,
    }
}

#[cfg_attr(any(test, not(feature = \"shared\")), inline)]
fn kind(kind: Kind) -> u32 {
    match kind {
        #[cfg(feature = \"cuda\")]
        Kind::Cuda => cuda(1),
        Kind::Cpu => 1,
    }
}
";
        let without = "\
pub mod cpu;
pub enum Kind {
    /// The CPU
    Cpu,
}

#[inline]
fn kind(kind: Kind) -> u32 {
    match kind {
        Kind::Cpu => 1,
    }
}
";
        let with: Vec<&str> = text.lines().filter(|line| line.trim() != MARK).collect();
        assert_eq!(fit("open.rs", text, false).as_deref(), Some(without));
        let with = with.join("\n").replace(UNSHARED[0], UNSHARED[1]) + "\n";
        assert_eq!(fit("open.rs", text, true), Some(with));
        assert_eq!(fit("cuda/mod.rs", "", false), None);
        assert_eq!(fit("cuda/mod.rs", "", true), Some(String::new()));
    }

    #[test]
    fn every_kernel_is_compiled_only_where_it_is_used() {
        for (path, text) in crate::runtime_files::FILES.iter().filter(|(path, _)| path.starts_with("cpu/")) {
            let fitted = fit(path, text, false).expect("every crate has it");
            assert!(!fitted.contains("shared\""), "{path}: the mark is written otherwise");
            // What is generic is compiled only for what is named.
            let is_kernel = |line: &str| {
                line.contains("fn ") && line.contains("(call: &Call<'_>, shape: &") && line.ends_with('{')
            };
            let is_whole = |line: &str| !line.contains('<') || line.find('<') > line.find('(');
            let lines: Vec<&str> = fitted.lines().collect();
            for pair in lines.windows(2) {
                let [before, line] = [pair[0], pair[1]];
                let is_own = line.starts_with("pub fn ") || path.ends_with("stored.rs");
                if is_kernel(line) && is_whole(line) && is_own {
                    assert_eq!(before.trim(), UNSHARED[1], "{path}: above {line}");
                }
            }
        }
    }
}
