//! `info`: prints the model's sizes, the memory it takes in bytes, and the cost of a token.

use crate::cli::arguments::Info;
use crate::cli::command::{Command, Context};
use crate::cli::output::{Outcome, print, print_json};
use forge_device::error::Error;
use forge_device::gpu::metal_backend::{self, MetalBackend};
use forge_device::model::memory::format_bytes;
use forge_device::model::{Cost, PredictedDecode};
use forge_device::offload::{CacheLayout, ExpertPlacement, ExpertWeights};
use forge_device::program::CompiledModel;
use serde_json::{Value, json};
use std::collections::BTreeMap;

impl Command for Info {
    const NAME: &'static str = "info";

    fn run(&self, context: &Context<'_>) -> Outcome {
        let (program, common, command) = (context.program, context.common, self);
        let info = program.info;
        let setup = common.load_options();
        let loaded = setup.load(program, None)?;
        let (memory, context, slots) = (loaded.memory, loaded.context, setup.slots);
        if command.disk_bandwidth.is_some() && loaded.cache_layout.is_none() {
            return Err(Error::usage("--disk-bandwidth needs --experts stream").into());
        }
        let sizes = record_sizes(&loaded.model.layout().experts);
        let kernels: Vec<&str> = program.kernels.iter().map(|kernel| kernel.name).collect();
        let metal = metal_backend::backend();
        let device = if metal.is_some() { "metal" } else { "cpu" };
        #[cfg(feature = "cuda")]
        let gpu = forge_device::gpu::cuda::find_gpu(program.ptx);
        if command.json {
            let formats: serde_json::Map<String, Value> =
                info.formats.iter().map(|(format, bytes)| ((*format).to_owned(), json!(bytes))).collect();
            let value = json!({
                "model": info.name,
                "architecture": info.architecture,
                "parameters": info.parameters,
                "layers": info.layers,
                "hidden_size": info.hidden,
                "vocab_size": info.vocabulary,
                "context": info.context,
                "cache": info.kv_cache_format,
                "formats": formats,
                "memory": {
                    "weights_bytes": memory.weights,
                    "experts_bytes": memory.experts,
                    "kv_bytes": memory.state,
                    "arena_bytes": memory.arena,
                    "total_bytes": memory.total(),
                    "context": context,
                    "slots": slots,
                },
                "decode": cost(&info.decode),
                "prefill": cost(&info.prefill),
                "predicted_decode": predicted_json(&info.predicted),
                "extra_dispatches": info.extra_dispatches.iter().map(|(step, reason)| json!({"step": step, "reason": reason})).collect::<Vec<_>>(),
                "experts": loaded.cache_layout.as_ref().map(|layout| streamed_json(layout, command.disk_bandwidth)),
                "expert_records": sizes.iter().map(|(bytes, count)| json!({"bytes": bytes, "experts": count})).collect::<Vec<_>>(),
                "prefill_chunk": info.prefill_chunk,
                "kernels": kernels,
                "device": device,
            });
            let value = match metal {
                Some(metal) => with_metal(value, metal, program),
                None => value,
            };
            #[cfg(feature = "cuda")]
            let value = with_gpu(value, gpu);
            print_json(&value)?;
            return Ok(true);
        }
        let formats: Vec<String> = info
            .formats
            .iter()
            .map(|(format, bytes)| format!("{} in {format}", format_bytes(*bytes)))
            .collect();
        print(&format!(
            "{} · {} · {} layers · hidden size {} · vocab size {} · {} parameters\n\
         weights  {:>16} bytes  {}\n\
         KV cache {:>16} bytes  {slots} × {} in {}\n\
         scratch  {:>16} bytes\n\
         {}{}\
         total    {:>16} bytes  {}\n\
         decode   {}, {} read per token\n\
         {}\
         prefill  {} for {} rows\n\
         {}\
         kernels  {}\n",
            info.name,
            info.architecture,
            info.layers,
            info.hidden,
            info.vocabulary,
            info.parameters,
            memory.weights,
            formats.join(", "),
            memory.state,
            state_per_slot(info, context),
            info.kv_cache_format,
            memory.arena,
            match (&loaded.cache_layout, setup.experts) {
                (Some(layout), _) => streamed(layout, command.disk_bandwidth),
                (None, ExpertPlacement::Mmap) => mapped(&loaded.model.layout().experts),
                (None, _) => String::new(),
            },
            records(&sizes),
            memory.total(),
            format_bytes(memory.total()),
            submitted(&info.decode),
            format_bytes(info.decode.bytes_read),
            extra_dispatches(info.extra_dispatches),
            submitted(&info.prefill),
            info.prefill_chunk,
            predicted(&info.predicted),
            kernels.join(" "),
        ))?;
        if let Some(metal) = metal {
            print(&metal_lines(metal, program))?;
        }
        #[cfg(feature = "cuda")]
        print(&format!("cuda     {}\n", gpu.unwrap_or_else(|why| why)))?;
        Ok(true)
    }
}

/// The `speed` line: predicted decode speed on the GPU that the program was compiled for.
fn predicted(decode: &PredictedDecode) -> String {
    let joined = |texts: Vec<String>| texts.join(", ");
    let all = || decode.tokens_per_second.iter();
    format!(
        "speed    {} tok/s predicted for {} sequences, on {} at {} tokens of context\n",
        joined(all().map(|(_, speed)| format!("{speed:.0}")).collect()),
        joined(all().map(|(sequences, _)| sequences.to_string()).collect()),
        decode.chip,
        decode.context,
    )
}

fn predicted_json(decode: &PredictedDecode) -> Value {
    let speeds = decode.tokens_per_second.iter();
    let speeds: Vec<Value> = speeds
        .map(|(sequences, speed)| json!({"sequences": sequences, "tokens_per_second": speed}))
        .collect();
    json!({"chip": decode.chip, "context": decode.context, "decode": speeds})
}

/// The record sizes in bytes, each with the number of experts that have it.
fn record_sizes(layers: &[ExpertWeights]) -> BTreeMap<usize, usize> {
    let mut sizes = BTreeMap::new();
    for stacks in layers {
        *sizes.entry(stacks.record_bytes()).or_default() += stacks.experts;
    }
    sizes
}

fn records(sizes: &BTreeMap<usize, usize>) -> String {
    let line = |(bytes, count): (&usize, &usize)| {
        format!("record   {bytes:>16} bytes  in the weight file for each of {count} experts, page-aligned\n")
    };
    sizes.iter().map(line).collect()
}

/// The `experts` line with `--experts mmap`.
fn mapped(layers: &[ExpertWeights]) -> String {
    let bytes: usize = layers.iter().map(|stacks| stacks.records.bytes).sum();
    format!(
        "experts  {bytes:>16} bytes  in the memory-mapped file; the OS page cache decides what stays in memory\n"
    )
}

/// The `experts` and `disk` lines with `--experts stream`, and the predicted speed for a disk bandwidth.
fn streamed(layout: &CacheLayout, disk: Option<u64>) -> String {
    let forecast = layout.forecast();
    let mut text = format!(
        "experts  {:>16} bytes  {} cache slots for {} experts, streamed from disk\n\
         disk     {} read per token and {:.1}% hits if all experts are equally likely\n",
        layout.bytes(),
        layout.slots(),
        layout.experts(),
        format_bytes(forecast.bytes_per_token as u64),
        100.0 * forecast.hit_rate,
    );
    if let Some(disk) = disk {
        let speed = match forecast.tokens_per_second(disk) {
            Some(speed) => format!("at most {speed:.1} tok/s"),
            None => "no stalls".to_owned(),
        };
        text += &format!("         predicted for a disk of {}/s: {speed}\n", format_bytes(disk));
    }
    text
}

fn streamed_json(layout: &CacheLayout, disk: Option<u64>) -> Value {
    let forecast = layout.forecast();
    json!({
        "cache_slots": layout.slots(),
        "experts": layout.experts(),
        "hit_rate": forecast.hit_rate,
        "read_bytes_per_token": forecast.bytes_per_token,
        "disk_bound_tokens_per_second": disk.and_then(|disk| forecast.tokens_per_second(disk)),
    })
}

/// The state of a slot: `4096 positions of 256 bytes and 512 of 1280 bytes`. The second part is of
/// sliding-window layers.
fn state_per_slot(info: &forge_device::model::ModelInfo, context: u32) -> String {
    let of_all = (context, info.kv_bytes_per_token);
    let rings = info.sliding_caches.iter().map(|ring| (ring.capacity(context), ring.bytes_per_position));
    let parts = std::iter::once(of_all).chain(rings).filter(|(_, bytes)| *bytes > 0);
    let texts = parts.enumerate().map(|(index, (positions, bytes))| match index {
        0 => format!("{positions} positions of {bytes} bytes"),
        _ => format!("{positions} of {bytes} bytes"),
    });
    let recurrent = (info.recurrent_state_bytes > 0)
        .then(|| format!("{} bytes of recurrent state", info.recurrent_state_bytes));
    texts.chain(recurrent).collect::<Vec<_>>().join(" and ")
}

/// The size of a pass: `13 dispatches (5 a layer, 6 with split KV, and 3), 12 barriers`.
fn submitted(cost: &Cost) -> String {
    let each = |of: &dyn Fn(usize) -> u32| {
        let mut counts: Vec<u32> = (0..cost.dispatches_per_layer.len()).map(of).collect();
        counts.dedup();
        counts.iter().map(u32::to_string).collect::<Vec<_>>().join(" or ")
    };
    let plain = |layer: usize| cost.dispatches_per_layer[layer];
    let split = |layer: usize| plain(layer) + cost.extra_when_split[layer];
    let outside = cost.dispatches - cost.dispatches_per_layer.iter().sum::<u32>();
    let mut layers = format!("{} a layer", each(&plain));
    if cost.extra_when_split.iter().any(|&more| more > 0) {
        layers += &format!(", {} with split KV,", each(&split));
    }
    format!("{} dispatches ({layers} and {outside}), {} barriers", cost.dispatches, cost.barriers)
}

/// One line for each step that takes a layer above five dispatches, with the reason.
fn extra_dispatches(steps: &[(&str, &str)]) -> String {
    let width = steps.iter().map(|(step, _)| step.len()).max().unwrap_or(0);
    let label = |index| if index == 0 { "extra dispatches" } else { "" };
    let lines = steps.iter().enumerate();
    lines.map(|(index, (step, reason))| format!("{:<16} {step:<width$}  {reason}\n", label(index))).collect()
}

/// The `metal` and `gpu` lines: where the kernels come from, and the memory that the GPU may use.
fn metal_lines(metal: MetalBackend, program: &CompiledModel) -> String {
    let gpu = match (metal.find)() {
        Ok(gpu) => match gpu.working_set {
            Some(bytes) => format!("{bytes:>16} bytes  {} may use {}", gpu.name, format_bytes(bytes)),
            None => gpu.name,
        },
        Err(why) => why,
    };
    format!(
        "metal    {}\ngpu      {gpu}\n",
        (metal.route)(program, crate::load::cache_directory().as_deref())
    )
}

/// Adds the origin of the Metal kernels, and the GPU.
fn with_metal(mut value: Value, metal: MetalBackend, program: &CompiledModel) -> Value {
    value["metal"] = (metal.route)(program, crate::load::cache_directory().as_deref()).into();
    match (metal.find)() {
        Ok(gpu) => {
            value["gpu"] = gpu.name.into();
            value["gpu_memory_bytes"] = gpu.working_set.into();
        }
        Err(why) => value["gpu_error"] = why.into(),
    }
    value
}

/// Adds the NVIDIA GPU, if there is one.
#[cfg(feature = "cuda")]
fn with_gpu(mut value: Value, gpu: Result<String, String>) -> Value {
    if let Ok(gpu) = gpu {
        (value["device"], value["gpu"]) = (json!("cuda"), json!(gpu));
    }
    value
}

fn cost(cost: &Cost) -> Value {
    json!({
        "dispatches": cost.dispatches,
        "barriers": cost.barriers,
        "bytes_read": cost.bytes_read,
        "dispatches_per_layer": cost.dispatches_per_layer,
        "extra_dispatches_when_split": cost.extra_when_split,
    })
}
