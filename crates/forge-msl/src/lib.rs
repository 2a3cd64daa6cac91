//! The parser of Metal source text. No other code of the project parses Metal.
//!
//! # Data
//!
//! ```text
//! text ── tokenize ──▶ Token ──▶ Signature ── rules ──▶ KernelDecl
//!                        ├─────▶ ThreadgroupDecl
//!                        └─────▶ Function
//! ```
//!
//! - [`Token`]: kind, text, line and byte offset. Comments are dropped, except `// grid:`.
//! - [`Signature`]: a kernel as written. Name, threads, buffers (name, element type, slot, whether it is
//!   written), the scalars' struct, launch builtins (name, type, attribute), and the byte ranges of the kernel
//!   and its body.
//! - [`KernelDecl`]: a signature that obeys the rules of the kernel templates, with the fields of its scalars,
//!   its grid and its threadgroup memory. A kernel has no template parameters: shapes are literals in the
//!   rendered text.
//! - [`ThreadgroupDecl`]: threadgroup variables and their dimensions. [`Function`]: a name and a body.
//!
//! Tokens and declarations of variables and functions borrow the text; signatures and kernel declarations own
//! their strings. The caller owns the text, and offsets refer to it. A rejected text is a [`DeclError`] with
//! the line.
//!
//! # Users
//!
//! - `forge-kernels` keeps the [`KernelDecl`] of every rendered kernel; planner and code generator read it
//!   from there. It also finds calls of support functions, and prepares the text for clang.
//! - `forge-sim` keeps the [`Signature`] of every kernel that it executes, and rewrites and mutates the text
//!   by tokens. `forge-emulation` reads the signatures from there, and selects the branches for a version of
//!   the language ([`for_language`]).
//!
//! # Language
//!
//! Only what kernels use is parsed: `kernel void` functions whose parameters are `device` pointers, one
//! `constant` reference and launch builtins, each with its attribute. Clang checks everything else.

mod cursor;
mod decl;
mod edit;
mod error;
mod function;
mod grid;
mod language;
mod parse;
mod signature;
mod threadgroup;
mod token;

pub use crate::decl::KernelDecl;
pub use crate::edit::{edit, line_breaks};
pub use crate::error::{DeclError, DeclFault};
pub use crate::function::{Function, called_names, functions};
pub use crate::grid::Expr;
pub use crate::language::for_language;
pub use crate::signature::{Buffer, Builtin, Scalars, Signature};
pub use crate::threadgroup::{ThreadgroupDecl, ThreadgroupVariable, threadgroup_decls};
pub use crate::token::{Token, TokenKind, closing, split_list, tokenize};
