//! The catalogue of kernels: Metal templates, rendered for one shape, and their signatures read back.
//!
//! [`render()`] takes a name and a [`Spec`] and gives an [`Instance`]: the text of one Metal kernel in which every shape
//! is a literal, and the [`KernelDecl`] that was parsed from that very text. Nothing else declares a kernel: bindings,
//! scalars, threads, grid and threadgroup memory are read from the signature and from the one comment above it.
//! [`assemble`] puts instances together as one file.
//!
//! # Promises
//!
//! - A spec that cannot be rendered is a [`KernelError`] that names the value and the way out. A limit of the hardware
//!   is met here or not at all: a rendered kernel has no length cap, at most 32 KiB of threadgroup memory, 31 slots
//!   and 1024 threads.
//! - Equal specs and names render equal text.
//! - A kernel reads nothing outside its arguments for any number of rows, and waits where, and only where, threads
//!   read what others wrote.
//!
//! This crate does no I/O, except in [`check`] and [`ptx`], which run clang over a text: to check it, and to translate it
//! for an NVIDIA GPU.
//!
//! # Where things are
//!
//! Templates are files of `kernels/<family>/`, what several kernels share is in `kernels/support/`; [`catalogue`]
//! lists both. `context` computes what a template needs and the spec does not say, `render` puts the two together,
//! [`decl`] reads the result.

pub(crate) mod attention;
pub mod catalogue;
pub mod check;
mod context;
pub mod decl;
mod error;
mod layout;
mod limits;
pub(crate) mod matmul;
pub(crate) mod mla;
pub(crate) mod moe;
pub(crate) mod norm;
pub mod ptx;
pub(crate) mod recurrent;
mod render;
pub mod spec;
mod support;

pub use crate::decl::{Buffer, Builtin, DeclError, DeclFault, Expr, KernelDecl};
pub use crate::error::KernelError;
pub use crate::layout::Family;
pub use crate::limits::{latent_prologue_fits, prologue_fits};
pub use crate::render::{Instance, assemble, render};
pub use crate::spec::Spec;
