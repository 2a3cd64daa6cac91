//! How to install the tools that some commands need.

/// How to install clang.
pub(crate) fn clang_advice() -> &'static str {
    if cfg!(target_os = "macos") {
        "xcode-select --install"
    } else {
        "sudo apt-get install clang-19 (or any clang from 15 on)"
    }
}

/// How to install a clang with the NVPTX target, which Apple's lacks.
pub(crate) fn ptx_advice() -> &'static str {
    if cfg!(target_os = "macos") {
        "brew install llvm, and put its clang on the path"
    } else {
        "sudo apt-get install clang-19 (or any clang from 15 on)"
    }
}
