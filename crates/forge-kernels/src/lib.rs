//! Kernel library: Metal templates rendered for one shape, with their signatures parsed back.
//!
//! [`render()`] takes a name and a [`Spec`] and returns an [`Instance`]: the source of one Metal kernel with
//! literal shapes, and the [`KernelDecl`] parsed from that source. There is no other declaration of a kernel:
//! bindings, scalars, threads, grid and threadgroup memory are read from the signature and the comment above
//! it. [`assemble`] joins instances to one file.
//!
//! # Guarantees
//!
//! - A spec that cannot be rendered is a [`KernelError`] with the offending value and what to do. All
//!   hardware limits are checked: a rendered kernel has no length limit, at most 32 KiB of threadgroup
//!   memory, 31 slots and 1024 threads.
//! - Equal specs and names render equal source.
//! - For any number of rows, a kernel reads nothing outside its arguments, and has barriers exactly where
//!   threads read what other threads wrote.
//!
//! The crate does no I/O, except for [`check`] and [`ptx`], which run clang to check a source or to compile
//! it for NVIDIA GPUs.
//!
//! # Modules
//!
//! Templates are in `kernels/<family>/`, shared functions in `kernels/support/`; [`catalog`] lists both.
//! `context` computes derived template variables, `render` renders templates, `forge-msl` parses the result.

pub(crate) mod attention;
pub mod catalog;
pub mod check;
mod context;
mod error;
mod layout;
mod limits;
pub(crate) mod matmul;
pub(crate) mod mla;
pub(crate) mod moe;
pub(crate) mod norm;
mod on_core;
pub mod ptx;
pub(crate) mod recurrent;
mod render;
pub mod spec;
mod support;

pub use crate::attention::limits::prologue_fits;
pub use crate::error::KernelError;
pub use crate::layout::Family;
pub use crate::mla::limits::prologue_fits as latent_prologue_fits;
pub use crate::render::{Instance, assemble, render};
pub use crate::spec::Spec;
pub use forge_msl::{Buffer, Builtin, DeclError, DeclFault, Expr, KernelDecl};
