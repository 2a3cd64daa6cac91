//! `info`: what the model is, what memory it takes to the byte, and what a token costs.

use crate::cli::arguments::Info;
use crate::cli::command::{Command, Context};
use crate::cli::output::{Outcome, print, print_json};
use crate::error::Error;
use crate::model::Cost;
use crate::model::memory::human;
use crate::offload::{CacheLayout, ExpertPlacement, ExpertWeights};
#[cfg(target_vendor = "apple")]
use crate::program::CompiledModel;
use serde_json::{Value, json};
use std::collections::BTreeMap;

impl Command for Info {
    const NAME: &'static str = "info";

    fn run(&self, context: &Context<'_>) -> Outcome {
        let (program, common, command) = (context.program, context.common, self);
        let info = program.info;
        let setup = common.setup();
        let loaded = setup.load(program, None)?;
        let (memory, context, slots) = (loaded.memory, loaded.context, setup.slots);
        if command.disk_bandwidth.is_some() && loaded.room.is_none() {
            return Err(Error::usage(
                "--disk-bandwidth says how fast experts are streamed: with --experts stream",
            )
            .into());
        }
        let sizes = record_sizes(&loaded.model.layout().experts);
        let kernels: Vec<&str> = program.kernels.iter().map(|kernel| kernel.name).collect();
        let device = if cfg!(target_vendor = "apple") { "metal" } else { "cpu" };
        #[cfg(feature = "cuda")]
        let card = crate::gpu::cuda::card(program.ptx);
        if command.json {
            let formats: serde_json::Map<String, Value> =
                info.formats.iter().map(|(format, bytes)| ((*format).to_owned(), json!(bytes))).collect();
            let told = json!({
                "model": info.name,
                "architecture": info.architecture,
                "parameters": info.parameters,
                "layers": info.layers,
                "hidden": info.hidden,
                "vocabulary": info.vocabulary,
                "context": info.context,
                "cache": info.cache,
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
                "beyond": info.beyond.iter().map(|(step, reason)| json!({"step": step, "reason": reason})).collect::<Vec<_>>(),
                "experts": loaded.room.as_ref().map(|room| streamed_json(room, command.disk_bandwidth)),
                "records": sizes.iter().map(|(bytes, count)| json!({"bytes": bytes, "experts": count})).collect::<Vec<_>>(),
                "chunk": info.chunk,
                "kernels": kernels,
                "device": device,
            });
            #[cfg(target_vendor = "apple")]
            let told = with_route(told, program);
            #[cfg(feature = "cuda")]
            let told = with_card(told, card);
            print_json(&told)?;
            return Ok(true);
        }
        let formats: Vec<String> =
            info.formats.iter().map(|(format, bytes)| format!("{} in {format}", human(*bytes))).collect();
        print(&format!(
            "{} · {} · {} layers · hidden {} · vocabulary {} · {} parameters\n\
         weights  {:>16} bytes  {}\n\
         cache    {:>16} bytes  {slots} × {} in {}\n\
         arena    {:>16} bytes\n\
         {}{}\
         total    {:>16} bytes  {}\n\
         decode   {}, {} read a token\n\
         {}\
         prefill  {} for {} rows\n\
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
            positions(&info, context),
            info.cache,
            memory.arena,
            match (&loaded.room, setup.experts) {
                (Some(room), _) => streamed(room, command.disk_bandwidth),
                (None, ExpertPlacement::Mapped) => mapped(&loaded.model.layout().experts),
                (None, _) => String::new(),
            },
            records(&sizes),
            memory.total(),
            human(memory.total()),
            submitted(&info.decode),
            human(info.decode.bytes_read),
            beyond(info.beyond),
            submitted(&info.prefill),
            info.chunk,
            kernels.join(" "),
        ))?;
        #[cfg(target_vendor = "apple")]
        print(&format!("metal    {}\n", route(program)))?;
        #[cfg(feature = "cuda")]
        print(&format!("cuda     {}\n", card.unwrap_or_else(|why| why)))?;
        Ok(true)
    }
}

/// Bytes of what an expert has in the weight file, and how many experts have as much.
fn record_sizes(layers: &[ExpertWeights]) -> BTreeMap<usize, usize> {
    let mut sizes = BTreeMap::new();
    for stacks in layers {
        *sizes.entry(stacks.record()).or_default() += stacks.experts;
    }
    sizes
}

fn records(sizes: &BTreeMap<usize, usize>) -> String {
    let line = |(bytes, count): (&usize, &usize)| {
        format!("record   {bytes:>16} bytes  of the weight file for each of {count} experts, whole pages\n")
    };
    sizes.iter().map(line).collect()
}

/// Where experts are that are left to the system.
fn mapped(layers: &[ExpertWeights]) -> String {
    let bytes: usize = layers.iter().map(|stacks| stacks.records.bytes).sum();
    format!(
        "experts  {bytes:>16} bytes  in the mapped file, of which the system keeps what it has room for\n"
    )
}

/// Where experts are that are streamed, and what that is expected to cost.
fn streamed(room: &CacheLayout, disk: Option<u64>) -> String {
    let told = room.forecast();
    let mut text = format!(
        "experts  {:>16} bytes  {} seats for {} experts, streamed from disk\n\
         disk     {} read a token if all are equally likely, which finds {:.1}% of them in memory\n",
        room.bytes(),
        room.seats(),
        room.experts(),
        human(told.bytes as u64),
        100.0 * told.hits,
    );
    if let Some(disk) = disk {
        let speed = match told.per_second(disk) {
            Some(speed) => format!("at most {speed:.1} tokens/s"),
            None => "no token waits".to_owned(),
        };
        text += &format!("         predicted of a disk of {} a second: {speed}\n", human(disk));
    }
    text
}

fn streamed_json(room: &CacheLayout, disk: Option<u64>) -> Value {
    let told = room.forecast();
    json!({
        "seats": room.seats(),
        "experts": room.experts(),
        "hit_rate": told.hits,
        "disk_bytes_per_token": told.bytes,
        "predicted_tokens_per_second_at_most": disk.and_then(|disk| told.per_second(disk)),
    })
}

/// What a slot keeps: `4096 positions of 256 bytes and 512 of 1280 bytes`, the latter in layers that see the last ones only.
fn positions(info: &crate::model::ModelInfo, context: u32) -> String {
    let of_all = (context, info.state_bytes_per_position);
    let rings = info.rings.iter().map(|ring| (ring.capacity(context), ring.bytes_per_position));
    let parts = std::iter::once(of_all).chain(rings).filter(|(_, bytes)| *bytes > 0);
    let texts = parts.enumerate().map(|(index, (positions, bytes))| match index {
        0 => format!("{positions} positions of {bytes} bytes"),
        _ => format!("{positions} of {bytes} bytes"),
    });
    let memories = (info.memory_bytes > 0).then(|| format!("{} bytes of memories", info.memory_bytes));
    texts.chain(memories).collect::<Vec<_>>().join(" and ")
}

/// What a pass submits: `13 dispatches (5 a layer, 6 where the cache is split, and 3), 12 barriers`.
fn submitted(cost: &Cost) -> String {
    let each = |of: &dyn Fn(usize) -> u32| {
        let mut counts: Vec<u32> = (0..cost.dispatches_per_layer.len()).map(of).collect();
        counts.dedup();
        counts.iter().map(u32::to_string).collect::<Vec<_>>().join(" or ")
    };
    let plain = |layer: usize| cost.dispatches_per_layer[layer];
    let split = |layer: usize| plain(layer) + cost.more_when_split[layer];
    let outside = cost.dispatches - cost.dispatches_per_layer.iter().sum::<u32>();
    let mut layers = format!("{} a layer", each(&plain));
    if cost.more_when_split.iter().any(|&more| more > 0) {
        layers += &format!(", {} where the cache is split,", each(&split));
    }
    format!("{} dispatches ({layers} and {outside}), {} barriers", cost.dispatches, cost.barriers)
}

/// Why layers have more dispatches than five, a line for each step that is one more.
fn beyond(steps: &[(&str, &str)]) -> String {
    let width = steps.iter().map(|(step, _)| step.len()).max().unwrap_or(0);
    let label = |index| if index == 0 { "beyond 5" } else { "" };
    let lines = steps.iter().enumerate();
    lines.map(|(index, (step, reason))| format!("{:<8} {step:<width$}  {reason}\n", label(index))).collect()
}

/// Where kernels for Metal come from.
#[cfg(target_vendor = "apple")]
fn route(program: &CompiledModel) -> String {
    crate::gpu::metal::route(program, crate::load::cache().as_deref())
}

/// What is told, and where kernels for Metal come from.
#[cfg(target_vendor = "apple")]
fn with_route(mut told: Value, program: &CompiledModel) -> Value {
    told["metal"] = route(program).into();
    told
}

/// What is told, and of which card kernels run on, if there is one.
#[cfg(feature = "cuda")]
fn with_card(mut told: Value, card: Result<String, String>) -> Value {
    if let Ok(card) = card {
        (told["device"], told["card"]) = (json!("cuda"), json!(card));
    }
    told
}

fn cost(cost: &Cost) -> Value {
    json!({
        "dispatches": cost.dispatches,
        "barriers": cost.barriers,
        "bytes_read": cost.bytes_read,
        "dispatches_per_layer": cost.dispatches_per_layer,
        "more_when_split": cost.more_when_split,
    })
}
