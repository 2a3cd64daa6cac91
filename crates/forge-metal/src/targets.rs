//! The runtime's text for a crate's targets.
//!
//! What of the runtime is for NVIDIA GPUs alone is marked with [`MARK`], a line of its own above an item, a variant, a
//! statement or an arm, and is a module's folder. A crate for such GPUs has all of it, without the mark; another crate has
//! not a line of it.

/// What stands above a part that only crates for NVIDIA GPUs have.
const MARK: &str = "#[cfg(feature = \"cuda\")]";

/// The folder that only crates for NVIDIA GPUs have.
const FOLDER: &str = "cuda/";

/// A file of the runtime as a crate has it, or nothing if it has none.
pub(crate) fn fit(path: &str, text: &str, cuda: bool) -> Option<String> {
    if path.starts_with(FOLDER) && !cuda {
        return None;
    }
    let mut fitted = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.trim() != MARK {
            fitted.push_str(line);
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

fn kind(kind: Kind) -> u32 {
    match kind {
        Kind::Cpu => 1,
    }
}
";
        let with: Vec<&str> = text.lines().filter(|line| line.trim() != MARK).collect();
        assert_eq!(fit("open.rs", text, false).as_deref(), Some(without));
        assert_eq!(fit("open.rs", text, true), Some(with.join("\n") + "\n"));
        assert_eq!(fit("cuda/mod.rs", "", false), None);
        assert_eq!(fit("cuda/mod.rs", "", true), Some(String::new()));
    }
}
