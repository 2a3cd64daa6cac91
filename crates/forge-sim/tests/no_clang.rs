//! Without clang, the error names the command that installs it.

use forge_sim::{CompileError, Program};

#[test]
fn reports_missing_clang() {
    // SAFETY: this is the only test of its process, so no other thread reads the environment.
    unsafe { std::env::set_var("PATH", "/nowhere") };
    let error = Program::compile("kernel void nothing() {}").err();
    assert!(matches!(error, Some(CompileError::NoClang)), "{error:?}");
    let message = error.map(|error| error.to_string()).unwrap_or_default();
    assert!(message.contains("sudo apt-get install clang-19"), "{message}");
    assert!(message.contains("xcode-select --install"), "{message}");
}
