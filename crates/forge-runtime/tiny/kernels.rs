//! The kernels of the tiny model: what is made from each kernel's signature, and a typed function to dispatch it.

use crate::model::{RING, WINDOW};
use crate::runtime::cpu::{self, Q4_0, Q8_0};
use crate::runtime::device::kernel_cost::KernelCost;
use crate::runtime::device::{Kernel, Pass, Span};
use crate::runtime::ops::{self, Activation, Epilogue, Format, Gating, KvSource, Pairing, RopeParameters};
use crate::runtime::weights::Matrix;
use half::f16;
use std::borrow::Cow;

pub static ALL: &[&Kernel] = &[
    &EMBED,
    &NORM,
    &FINAL_NORM,
    &QKV,
    &ROPE_APPEND,
    &ROPE_APPEND_RING,
    &ATTEND_SPLIT,
    &ATTEND_SPLIT_RING,
    &ATTEND_JOIN,
    &OUTPUT,
    &GATE_UP,
    &DOWN,
    &HEAD,
    &ARGMAX,
    &SAMPLE,
];

pub static EMBED: Kernel = Kernel {
    name: "embed",
    buffers: &["table_codes", "table_scales", "ids", "stream"],
    threads: 64,
    strips: None,
    cost: KernelCost::NONE,
    cpu: |call| {
        cpu::embed::<Q8_0>(
            call,
            &ops::Embed {
                format: Format::Q8_0,
                vocabulary: 50,
                width: 40,
                scale: 1.0,
                adds: false,
                squares: None,
            },
        )
    },
};

pub fn embed(pass: &mut dyn Pass, table: Matrix<Q8_0>, ids: Span<u32>, stream: Span<f32>, rows: u32) {
    let bindings = [table.codes().read(), table.scales().read(), ids.read(), stream.write()];
    pass.dispatch(&EMBED, &bindings, &[rows], [rows, 1, 1]);
}

pub static NORM: Kernel = Kernel {
    name: "norm",
    buffers: &["x", "gain", "y"],
    threads: 64,
    strips: None,
    cost: KernelCost::NONE,
    cpu: |call| {
        cpu::rms_norm(
            call,
            &ops::RmsNorm { width: 40, parts: 1, epsilon: 1e-5, gain: true, gather: false, pitch: None },
        )
    },
};

pub fn norm(pass: &mut dyn Pass, x: Span<f32>, gain: Span<f32>, y: Span<f32>, rows: u32) {
    pass.dispatch(&NORM, &[x.read(), gain.read(), y.write()], &[rows], [rows, 1, 1]);
}

pub static FINAL_NORM: Kernel = Kernel {
    name: "final_norm",
    buffers: &["x", "gain", "wanted", "y"],
    threads: 64,
    strips: None,
    cost: KernelCost::NONE,
    cpu: |call| {
        cpu::rms_norm(
            call,
            &ops::RmsNorm { width: 40, parts: 1, epsilon: 1e-5, gain: true, gather: true, pitch: None },
        )
    },
};

pub fn final_norm(
    pass: &mut dyn Pass,
    x: Span<f32>,
    gain: Span<f32>,
    wanted: Span<u32>,
    y: Span<f32>,
    rows: u32,
) {
    let bindings = [x.read(), gain.read(), wanted.read(), y.write()];
    pass.dispatch(&FINAL_NORM, &bindings, &[rows], [rows, 1, 1]);
}

macro_rules! linear {
    ($name:ident, $kernel:ident, $format:ident, $outputs:literal, $inputs:literal, $epilogue:expr) => {
        pub static $kernel: Kernel = Kernel {
            name: stringify!($name),
            buffers: &["weight_codes", "weight_scales", "x", "y"],
            threads: 64,
            strips: None,
            cost: KernelCost::NONE,
            cpu: |call| {
                cpu::linear::<$format>(
                    call,
                    &ops::Linear {
                        format: Format::$format,
                        outputs: $outputs,
                        inputs: $inputs,
                        norm: None,
                        own_norm: None,
                        bias: false,
                        unary: None,
                        epilogue: $epilogue,
                        chooses: false,
                    },
                )
            },
        };

        pub fn $name(pass: &mut dyn Pass, weight: Matrix<$format>, x: Span<f32>, y: Span<f32>, rows: u32) {
            let bindings = [weight.codes().read(), weight.scales().read(), x.read(), y.write()];
            pass.dispatch(&$kernel, &bindings, &[rows], [$outputs, rows, 1]);
        }
    };
}

linear!(qkv, QKV, Q4_0, 80, 40, Epilogue::Store);
linear!(output, OUTPUT, Q8_0, 40, 40, Epilogue::Add);
linear!(gate_up, GATE_UP, Q8_0, 48, 40, Epilogue::Gate(Gating::Plain(Activation::Silu)));
linear!(down, DOWN, Q8_0, 40, 24, Epilogue::Add);
linear!(head, HEAD, Q8_0, 50, 40, Epilogue::Store);

pub const FREQUENCIES: [f32; 5] = [1.0, 0.158_489_3, 0.025_118_864, 0.003_981_071_7, 0.000_630_957_36];

macro_rules! rope_append {
    ($kernel:ident, $name:literal, $ring:expr) => {
        pub static $kernel: Kernel = Kernel {
            name: $name,
            buffers: &["qkv", "slots", "positions", "q", "keys", "values"],
            threads: 64,
            strips: None,
            cost: KernelCost::NONE,
            cpu: |call| {
                cpu::rope_append(
                    call,
                    &ops::RopeAppend {
                        query_heads: 4,
                        key_heads: 2,
                        width: 10,
                        cache: Format::F16,
                        ring: $ring,
                        kv_source: KvSource::KeysAndValues,
                        norm: None,
                        rope: RopeParameters {
                            frequencies: Cow::Borrowed(&FREQUENCIES),
                            pairing: Pairing::Half,
                            magnitude: 1.0,
                            long: None,
                        },
                    },
                )
            },
        };
    };
}

rope_append!(ROPE_APPEND, "rope_append", None);
rope_append!(ROPE_APPEND_RING, "rope_append_ring", Some(RING));

pub fn rope_append(
    pass: &mut dyn Pass,
    qkv: Span<f32>,
    slots: Span<u32>,
    positions: Span<u32>,
    q: Span<f32>,
    keys: Span<f16>,
    values: Span<f16>,
    is_ring: bool,
    [rows, context, capacity]: [u32; 3],
) {
    let bindings = [qkv.read(), slots.read(), positions.read(), q.write(), keys.write(), values.write()];
    match is_ring {
        false => pass.dispatch(&ROPE_APPEND, &bindings, &[rows, context], [rows, 1, 1]),
        true => pass.dispatch(&ROPE_APPEND_RING, &bindings, &[rows, context, capacity], [rows, 1, 1]),
    }
}

macro_rules! attend_split {
    ($kernel:ident, $name:literal, $window:expr, $ring:expr) => {
        pub static $kernel: Kernel = Kernel {
            name: $name,
            buffers: &["q", "keys", "values", "slots", "positions", "partials", "heads"],
            threads: 64,
            strips: None,
            cost: KernelCost::NONE,
            cpu: |call| {
                let scale = 0.316_227_76;
                let shape = ops::Attend {
                    gates: None,
                    query_heads: 4,
                    key_heads: 2,
                    width: 10,
                    cache: Format::F16,
                    ring: $ring,
                    scale,
                    window: $window,
                    softcap: None,
                    sinks: false,
                    prologue: None,
                };
                cpu::attend(call, &shape)
            },
        };
    };
}

attend_split!(ATTEND_SPLIT, "attend_split", None, None);
attend_split!(ATTEND_SPLIT_RING, "attend_split_ring", Some(WINDOW), Some(RING));

pub static ATTEND_JOIN: Kernel = Kernel {
    name: "attend_combine",
    buffers: &["partials", "heads"],
    threads: 64,
    strips: None,
    cost: KernelCost::NONE,
    cpu: |call| cpu::attend_combine(call, &ops::AttendCombine { query_heads: 4, width: 10, gates: None }),
};

pub fn attend(
    pass: &mut dyn Pass,
    q: Span<f32>,
    keys: Span<f16>,
    values: Span<f16>,
    slots: Span<u32>,
    positions: Span<u32>,
    partials: Span<f32>,
    heads: Span<f32>,
    is_ring: bool,
    [rows, context, capacity]: [u32; 3],
) {
    let bindings = [
        q.read(),
        keys.read(),
        values.read(),
        slots.read(),
        positions.read(),
        partials.write(),
        heads.write(),
    ];
    match is_ring {
        false => pass.dispatch(&ATTEND_SPLIT, &bindings, &[rows, context, 2], [2, 2, rows]),
        true => pass.dispatch(&ATTEND_SPLIT_RING, &bindings, &[rows, context, capacity, 2], [2, 2, rows]),
    }
    pass.barrier();
    pass.dispatch(&ATTEND_JOIN, &[partials.read(), heads.write()], &[rows, 2], [4, rows, 1]);
}

pub static ARGMAX: Kernel = Kernel {
    name: "argmax",
    buffers: &["logits", "ids"],
    threads: 64,
    strips: None,
    cost: KernelCost::NONE,
    cpu: |call| cpu::argmax(call, &ops::Argmax { vocabulary: 50 }),
};

pub fn argmax(pass: &mut dyn Pass, logits: Span<f32>, ids: Span<u32>, rows: u32) {
    pass.dispatch(&ARGMAX, &[logits.read(), ids.write()], &[rows], [rows, 1, 1]);
}

pub static SAMPLE: Kernel = Kernel {
    name: "sample",
    buffers: &["logits", "draws", "ids"],
    threads: 64,
    strips: None,
    cost: KernelCost::NONE,
    cpu: |call| cpu::sample(call, &ops::Sample { vocabulary: 50 }),
};

pub fn sample(pass: &mut dyn Pass, logits: Span<f32>, draws: Span<u32>, ids: Span<u32>, rows: u32) {
    pass.dispatch(&SAMPLE, &[logits.read(), draws.read(), ids.write()], &[rows], [rows, 1, 1]);
}
