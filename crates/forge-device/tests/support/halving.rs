//! The smallest model with recurrent state: one f32 element per slot. Each token multiplies it by 0.5 and adds its id.
//! It is the logit of token 0; the other logits are near it, so that the argmax varies.

use forge_device::cpu::KernelArgs;
use forge_device::device::kernel_cost::KernelCost;
use forge_device::device::{Buffer, Kernel, Pass, Schedule, Span};
use forge_device::error::Error;
use forge_device::model::state::StateLayout;
use forge_device::model::{Batch, Cost, Layout, LogitRows, Model, ModelInfo, PredictedDecode};
use forge_device::sampling::argmax::argmax;
use forge_device::weights::WeightFile;

const VOCABULARY: usize = 50;
const CHUNK: usize = 8;
const HEAD_ROWS: usize = 2;
const SUMS: Span<f32> = Span::new(Buffer::Scratch, 0, CHUNK * 4);
const LOGITS: Span<f32> = Span::new(Buffer::Scratch, 256, HEAD_ROWS * VOCABULARY * 4);

pub struct Halving {
    state: Span<f32>,
    layout: Layout,
}

static UPDATE: Kernel = Kernel {
    name: "update",
    buffers: &["ids", "slots", "positions", "state", "sums"],
    threads: 32,
    strips: None,
    cost: KernelCost::NONE,
    cpu: update,
};
static READ_OUT: Kernel = Kernel {
    name: "read_out",
    buffers: &["sums", "wanted", "logits", "next"],
    threads: 32,
    strips: None,
    cost: KernelCost::NONE,
    cpu: read_out,
};

fn update(call: &KernelArgs<'_>) {
    let (rows, all) = (call.scalar(0), call.scalar(1));
    let [ids, slots, positions] = ["ids", "slots", "positions"].map(|name| call.input::<u32>(name, rows));
    let state = call.output::<f32>("state", all);
    let sums = call.output::<f32>("sums", rows);
    for _ in call.claim(1, 1) {
        for row in 0..rows {
            let slot = slots[row] as usize;
            // SAFETY: there is one range, so one thread has it.
            let (own, sum) = unsafe { (&mut state.part(slot..slot + 1)[0], &mut sums.part(row..row + 1)[0]) };
            let before = if positions[row] == 0 { 0.0 } else { *own };
            *sum = before / 2.0 + ids[row] as f32;
            *own = *sum;
        }
    }
}

fn read_out(call: &KernelArgs<'_>) {
    let rows = call.scalar(0);
    let wanted = call.input::<u32>("wanted", rows);
    let sums = call.input::<f32>("sums", CHUNK);
    let logits = call.output::<f32>("logits", rows * VOCABULARY);
    let next = call.output::<u32>("next", rows);
    for _ in call.claim(1, 1) {
        // SAFETY: there is one range, so one thread has it.
        let (logits, next) = unsafe { (logits.part(0..rows * VOCABULARY), next.part(0..rows)) };
        for ((row, logits), next) in wanted.iter().zip(logits.chunks_exact_mut(VOCABULARY)).zip(next) {
            let sum = sums[*row as usize];
            logits
                .iter_mut()
                .enumerate()
                .for_each(|(id, logit)| *logit = sum + 3.0 * (id as f32 * sum).sin());
            *next = argmax(logits) as u32;
        }
    }
}

const NOTHING: Cost = Cost {
    dispatches: 2,
    barriers: 1,
    bytes_read: 0,
    operations: 0,
    dispatches_per_layer: &[1],
    extra_when_split: &[0],
};

static INFO: ModelInfo = ModelInfo {
    name: "halving",
    architecture: "HalvingForCausalLM",
    parameters: 0,
    vocabulary: VOCABULARY as u32,
    hidden: 1,
    layers: 1,
    context: 12,
    prefill_chunk: CHUNK as u32,
    head_rows: HEAD_ROWS as u32,
    decode_rows: 1,
    independent_rows: 1,
    max_decoded_rows: 1,
    bos: None,
    eos: &[],
    formats: &[],
    kv_cache_format: "f32",
    kv_bytes_per_token: 0,
    sliding_caches: &[],
    recurrent_state_bytes: 4,
    decode: NOTHING,
    prefill: NOTHING,
    predicted: PredictedDecode { chip: "m4-max", context: 64, tokens_per_second: &[(1, 100.0), (2, 190.0)] },
    extra_dispatches: &[],
};

impl Halving {
    pub(crate) fn load(_: &WeightFile, _: u32, slots: u32) -> Result<Box<dyn Model>, Error> {
        let mut states = StateLayout::new(slots);
        let state = states.recurrent_state(1);
        Ok(Box::new(Halving { state, layout: Layout::new(&INFO, states, 1024, LOGITS) }))
    }
}

impl Model for Halving {
    fn info(&self) -> &'static ModelInfo {
        &INFO
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn forward(&self, pass: &mut dyn Pass, rows: &Batch) {
        let &Batch { ids, slots, positions, count, .. } = rows;
        let bindings = [ids.read(), slots.read(), positions.read(), self.state.write(), SUMS.write()];
        let slots = self.state.bytes as u32 / 4;
        pass.dispatch(&UPDATE, &bindings, &[count, slots], [1, 1, 1]);
    }

    fn head(&self, pass: &mut dyn Pass, _program: Schedule, wanted: &LogitRows) {
        pass.barrier();
        let bindings = [SUMS.read(), wanted.row_indices.read(), LOGITS.write(), wanted.next_tokens.write()];
        pass.dispatch(&READ_OUT, &bindings, &[wanted.rows], [1, 1, 1]);
    }
}
