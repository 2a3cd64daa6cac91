//! The CPU device: the same passes as on a GPU, dispatch after dispatch, each spread over a few threads.
//!
//! A kernel here is one function per family that takes a [`Call`] (the buffers and scalars of a dispatch) and a shape
//! (what the compiler decided). It finds its buffers by the names of the Metal kernel's signature, so the two cannot
//! drift apart in silence. Its work is shared item by item among the threads; every item is computed by one thread
//! in a fixed order, so results do not depend on how many threads there are.
//!
//! Number crunching is written once, over one trait of vectors (`simd.rs`), and compiled for each [`level::Level`] of vector
//! instructions; which one runs is found out when the device is made. Arithmetic is in f32, and weights are widened exactly,
//! but for products with codes, for which rows are encoded (`coded`).
//!
//! A model uses few of the kernels, of one format or two, and they take most of the time that a build takes. So families and
//! formats are features of this crate, and a generated crate enables those that its model needs.

mod activation;
mod affine;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(feature = "attention")]
mod append;
mod argmax;
#[cfg(feature = "attention")]
mod attend;
#[cfg(feature = "attention")]
mod attend_share;
#[cfg(feature = "attention")]
mod attend_step;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(feature = "attention")]
mod beside;
mod blocks;
#[cfg(feature = "attention")]
mod cached;
mod call;
mod coded;
mod coded_few;
mod coded_panel;
mod coded_rows;
#[cfg(target_arch = "x86_64")]
mod coded_tiles;
mod compute_speed;
#[cfg(feature = "recurrent")]
mod convolve;
#[cfg(target_os = "linux")]
mod copying;
#[cfg(feature = "recurrent")]
mod delta_rule;
#[cfg(feature = "recurrent")]
mod delta_step;
mod device;
#[cfg(feature = "mla")]
mod each_head;
mod elementwise;
mod embed;
mod encode;
mod ending;
#[cfg(feature = "moe")]
mod experts;
#[cfg(feature = "moe")]
mod experts_tiles;
mod few_rows;
mod finish;
mod formats;
#[cfg(feature = "mla")]
mod latent;
#[cfg(feature = "mla")]
mod latent_attend;
mod layer_norm;
#[cfg(feature = "recurrent")]
mod learning;
#[cfg(feature = "recurrent")]
mod let_through;
pub mod level;
mod mxfp4;
mod neighbours;
#[cfg(target_arch = "aarch64")]
mod neon;
mod norm_add;
mod panel;
#[cfg(target_arch = "x86_64")]
mod parts;
mod past;
mod pieces;
mod plain;
mod pool;
mod portable;
mod project;
mod read_speed;
mod rms_norm;
#[cfg(target_os = "linux")]
mod room;
#[cfg(feature = "attention")]
mod rotate;
#[cfg(feature = "attention")]
mod rotate_append;
mod rotation;
#[cfg(feature = "moe")]
mod route;
mod sample;
mod scales;
mod scratch;
mod simd;
#[cfg(feature = "moe")]
mod stack;
mod stored;
mod streams;
mod strip_products;
pub mod strips;
mod superblock;
mod take;
mod tile;
mod together;
mod turned;
mod turned_few;
#[cfg(feature = "mla")]
mod unfolded;
mod weights;

#[cfg(not(target_os = "linux"))]
mod copying {
    //! Elsewhere nothing is copied: there is no asking for huge pages, nor how much memory is free.

    use super::pool::Pool;
    use super::strips::Strips;
    use memmap2::Mmap;
    use std::convert::Infallible;
    use std::io;
    use std::ops::Range;
    use std::time::Duration;

    /// Of which there is none.
    pub(super) struct Copying(Infallible);

    impl Copying {
        pub(super) fn new(_: usize, _: &[usize], _: &[Range<usize>], _: Vec<Strips>) -> Option<Copying> {
            None
        }

        pub(super) fn go_on(&mut self, _: &Mmap, _: &mut Pool, _: Duration) -> Result<(), String> {
            match self.0 {}
        }

        pub(super) fn bytes(&self) -> [usize; 2] {
            match self.0 {}
        }

        pub(super) fn start(&self) -> *const u8 {
            match self.0 {}
        }

        pub(super) fn end(&self) -> usize {
            match self.0 {}
        }

        pub(super) fn written(self) -> io::Result<Mmap> {
            match self.0 {}
        }
    }
}

pub use self::{
    activation::{Activation, Each},
    affine::{Affine, AffineBf16},
    argmax::{Argmax, ArgmaxJoin, argmax, argmax_join},
    blocks::{Q4_0, Q8_0},
    call::{Call, Output},
    device::CpuDevice,
    elementwise::{Elementwise, Function, elementwise},
    embed::{Embed, embed},
    finish::{DeferredNorm, Epilogue, OwnNorm, Squares},
    formats::Format,
    layer_norm::{LayerNorm, layer_norm},
    mxfp4::Mxfp4,
    norm_add::{NormAdd, norm_add},
    plain::{Bf16, F16, F32},
    project::{Project, project},
    rms_norm::{RmsNorm, rms_norm},
    rotation::{Brings, HeadNorm, Long, Pairing, Rotation},
    sample::{Sample, sample},
    stored::Stored,
    superblock::{Q4K, Q5K, Q6K},
    take::{Take, take},
};
#[cfg(feature = "attention")]
pub use self::{
    append::{Append, append},
    attend::{Attend, AttendJoin, Gates, Prologue, attend, attend_join},
    rotate::{Rotate, rotate},
    rotate_append::{RotateAppend, rotate_append},
};
#[cfg(feature = "recurrent")]
pub use self::{
    convolve::{Convolve, convolve},
    delta_rule::{DeltaRule, delta_chunks, delta_rule},
    delta_step::{DeltaStep, delta_step},
    let_through::{LetThrough, let_through},
};
#[cfg(feature = "mla")]
pub use self::{
    each_head::{EachHead, each_head},
    latent::{LatentAppend, LatentColumns, LatentPrepare, latent_append},
    latent_attend::{LatentAttend, latent_attend},
    unfolded::{AttendUnfolded, LatentShare, attend_unfolded, latent_share},
};
#[cfg(feature = "moe")]
pub use self::{
    experts::{ExpertsInner, ExpertsSum, experts_inner, experts_sum},
    experts_tiles::{ExpertsGroup, ExpertsJoin, ExpertsTiles, experts_group, experts_join, experts_tiles},
    route::{Groups, Route, Scores, route},
};
