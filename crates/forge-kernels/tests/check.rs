//! Every kind of kernel, at odd sizes too, renders, parses, and is refused by nothing in clang's type check.

mod common;

use forge_kernels::{assemble, check, render};

#[test]
fn clang_accepts_every_kernel() {
    let Some(clang) = check::find_clang() else {
        panic!(
            "no clang of version 15 or later is installed; `apt-get install clang` or `xcode-select --install`"
        );
    };
    let specs = [common::others(), common::projections(), common::attentions()].concat();
    for (batch, specs) in specs.chunks(64).enumerate() {
        let name = |index: usize| format!("kernel_{batch}_{index}");
        let instances: Result<Vec<_>, _> =
            specs.iter().enumerate().map(|(index, spec)| render(&name(index), spec)).collect();
        let text = assemble(&instances.unwrap_or_else(|error| panic!("{error}")), "");
        if let Err(error) = check::check_text(&clang, &text) {
            let line = |number: usize| text.lines().nth(number).unwrap_or_default();
            let faults = match &error {
                check::CheckError::Refused(faults) => faults.as_slice(),
                _ => &[],
            };
            let shown = |fault: &check::ClangFault| {
                format!("{fault}\n    {}", line((fault.line as usize).wrapping_sub(1)))
            };
            panic!("{error}\n{}", faults.iter().map(shown).collect::<Vec<_>>().join("\n"));
        }
    }
}
