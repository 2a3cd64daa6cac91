//! How far a device's logits may lie from the reference evaluated on the same stored weights: stated here, once.
//!
//! Distances are the largest absolute difference over a position, divided by the standard deviation of the
//! reference's logits. The weights are the same bytes on both sides, so what differs is arithmetic alone: the order
//! of sums in f32, and the rounding of cached keys and values. Where these are codes of 8 bits the reference rounds them
//! too, so that what codes lose is not in the distance: how a program with such a cache differs from one without is
//! another question, which `perplexity` answers.

use crate::format::Format;

/// A bound and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Largest difference allowed, in standard deviations of the logits.
    pub bound: f64,
    /// Why this much and no more.
    pub reason: &'static str,
}

/// The tolerance of a program whose keys and values are cached in `cache`.
///
/// The weights' own format does not enter: kernels widen every format exactly and compute in f32.
pub fn tolerance(cache: Format) -> Tolerance {
    match cache {
        Format::F32 => Tolerance {
            bound: 2e-4,
            reason: "f32 sums in another order: measured noise against f64 is below 2.1e-5 on every oracle model; \
                     a wrong activation shows from 1e-3",
        },
        Format::Q8_0 => Tolerance {
            bound: 3e-2,
            reason: "the reference makes the same codes of keys and values, and most texts are as near as in f32; but a number \
                     that lies at a tie gets the next code, 1/127 of the largest of its 32, which moves the codes of layers \
                     after it: at most 1.1e-2 was measured, of eight layers; what codes lose is 3e-2 and more",
        },
        _ => Tolerance {
            bound: 1e-2,
            reason: "keys and values rounded to 11 bits: a relative error of 2^-11 an element, averaged over a head; \
                     a window off by one or a missing bias shows from 1e-1",
        },
    }
}

/// How far logits may lie from those that the same program gives with `--f32-activations`, where its weights are codes
/// and the CPU device encodes the rows that it multiplies by them: those of a text's middle position, when positions are in the
/// order of their distance, those of nine in ten, and those of any. Where a model chooses experts a choice may turn out otherwise,
/// and that position's logits are then those of other experts.
pub fn encoded_tolerances(chooses: bool) -> [Tolerance; 3] {
    let any = match chooses {
        false => Tolerance {
            bound: 1.0,
            reason: "where attention is undecided between positions what codes lose decides: at most 8.0e-1 was measured, of one \
                     position in 41, and of all but 10 of 4,223 positions 2.0e-1; logits of something else are 4 off and more",
        },
        true => Tolerance {
            bound: f64::INFINITY,
            reason: "a router that is undecided gives a token to another expert, and of its logits nothing can be said: 19 of 3,280 \
                     positions were more than 1.0 off, at most 2.8, and one of a model beside these 4.1",
        },
    };
    [
        Tolerance {
            bound: 1.5e-1,
            reason: "a code of x is off by 1/254 of the largest of its 32 at most, in every product of every layer: at most 9.5e-2 was \
                     measured, of 103 programs without experts",
        },
        Tolerance {
            bound: 5e-1,
            reason: "near ties are few: at most 3.0e-1 was measured, of the programs with experts",
        },
        any,
    ]
}
