//! Mutations of the host code: each changes the source of one of its files.

use std::collections::BTreeMap;

/// One mutation.
pub struct HostFault {
    /// Name of the fault.
    pub name: &'static str,
    from: &'static str,
    to: &'static str,
    /// Part of the emulator's violation message.
    pub found: &'static str,
}

const fn fault(name: &'static str, from: &'static str, to: &'static str, found: &'static str) -> HostFault {
    HostFault { name, from, to, found }
}

/// Faults of the host code for models with resident weights.
pub const HOST_FAULTS: [HostFault; 27] = [
    fault(
        "offset_off_by_a_byte",
        "Some(buffer), offset, slot)",
        "Some(buffer), offset + 1, slot)",
        "not a multiple of",
    ),
    fault(
        "offset_of_the_next",
        "Some(buffer), offset, slot)",
        "Some(buffer), offset + 256 * usize::from(binding.buffer.index() == 2 && slot == 0), slot)",
        "never_written",
    ),
    fault("offset_left_out", "Some(buffer), offset, slot)", "Some(buffer), offset * 0, slot)", "read_only"),
    fault(
        "two_buffers_swapped",
        "&self.regions[buffer.index()]",
        "&self.regions[[0, 2, 1, 3][buffer.index()]]",
        "out of range: state has",
    ),
    fault(
        "a_buffer_not_bound",
        "in bindings.iter().enumerate() {",
        "in bindings.iter().enumerate().skip(1) {",
        "is not bound",
    ),
    fault("barriers_left_out", "encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);", "", "hazard"),
    fault(
        "barriers_of_textures",
        "MTLBarrierScope::Buffers)",
        "MTLBarrierScope::Textures)",
        "does not include buffers",
    ),
    fault(
        "a_short_grid",
        "MTLSize { width, height, depth },",
        "MTLSize { width: width.div_ceil(2), height, depth },",
        "never_written",
    ),
    fault(
        "no_grid",
        "MTLSize { width, height, depth },",
        "MTLSize { width: 0, height, depth },",
        "empty grid",
    ),
    fault(
        "too_few_threads",
        "width: kernel.threads as usize",
        "width: kernel.threads as usize / 2",
        "the kernel declares",
    ),
    fault("scalars_cut_short", "size_of_val(scalars),", "size_of_val(scalars) - 4,", "its scalars are"),
    fault("too_many_scalars", "size_of_val(scalars),", "5000,", "setBytes"),
    fault(
        "scalars_in_another_slot",
        "bindings.len(),\n                );",
        "bindings.len() + 1,\n );",
        "are not bound",
    ),
    fault(
        "weights_given_back",
        "_weights: weights,",
        "_weights: Arc::new(memmap2::MmapMut::map_anon(1).unwrap().make_read_only().unwrap()),",
        "modified or released",
    ),
    fault("weights_not_on_pages", "part.end.next_multiple_of(PAGE)", "part.end + 1", "not page-aligned"),
    fault("encoder_not_ended", "encoder.endEncoding();", "", "before its encoder has ended"),
    fault(
        "committed_twice",
        "commands.commit();",
        "commands.commit();\n commands.commit();",
        "Committed already",
    ),
    fault("not_waited_for", "commands.waitUntilCompleted();", "", "never waited for"),
    fault(
        "looked_at_too_early",
        "left == 0 || self.passes_underway() > left",
        "self.passes_underway() > left + 1",
        "a pass in flight accesses",
    ),
    fault(
        "no_pools",
        "use objc2::rc::autoreleasepool;",
        "fn autoreleasepool<T>(f: impl FnOnce(()) -> T) -> T { f(()) }\n",
        "without an autorelease pool",
    ),
    fault(
        "a_reference_too_many",
        "commands.commit();",
        "std::mem::forget(commands.clone());\n commands.commit();",
        "objects grow",
    ),
    fault("left_too_soon", "let _ = self.wait(0);", "", "never waited for"),
    fault("not_all_resident", "set.commit();", "", "uncommitted allocations"),
    fault(
        "views_side_by_side",
        "most.saturating_sub(longest.next_multiple_of(PAGE))",
        "most",
        "cross the end of a Metal buffer",
    ),
    fault(
        "bytes_further_in_the_next_view",
        "offset - view.start)",
        "offset - view.start / PAGE * (PAGE - 64))",
        "other numbers",
    ),
    fault("fast_math", "MTLMathMode::Safe", "MTLMathMode::Fast", "compiled with fast math"),
    fault(
        "fast_functions",
        "MTLMathFloatingPointFunctions::Precise",
        "MTLMathFloatingPointFunctions::Fast",
        "fast math functions",
    ),
];

/// Faults of expert streaming.
pub const STREAMING_FAULTS: [HostFault; 15] = [
    fault(
        "routes_not_waited_for",
        "self.device.wait_for_routes(*routed)?;",
        "",
        "an event is set to 1, but has",
    ),
    fault(
        "prefill_not_waited_for",
        "self.serve_request()?;\n        self.device.wait(0)",
        "self.serve_request()",
        "a row is routed to expert",
    ),
    fault("routes_ignored", "routes.is_some_and(|routes| routes.written)", "false", "out_of_bounds"),
    fault(
        "experts_not_waited_for",
        "commands.encodeWaitForEvent_value(streaming.event(), value);",
        "let _ = (streaming, value);",
        "a pass in flight accesses",
    ),
    fault(
        "routes_not_signaled",
        "commands.encodeSignalEvent_value(streaming.event(), value);",
        "let _ = streaming;",
        "waiting for value 2 of an event that has 0",
    ),
    fault(
        "last_request_not_served",
        "self.serve_request()?;\n        if let Some(submitted)",
        "if let Some(submitted)",
        "waiting for value",
    ),
    fault(
        "signaled_before_the_experts",
        "let likely = self.fetch_requested(&request);\n        let streaming = self.streaming()?;\n        streaming.event.setSignaledValue(request.routed + 1);",
        "self.device.wait_for_routes(request.routed)?;\n        self.streaming()?.event.setSignaledValue(request.routed + 1);\n        let likely = self.fetch_requested(&request);\n        let streaming = self.streaming()?;",
        "a pass in flight accesses",
    ),
    fault(
        "slots_swapped",
        "fetch(bound, &experts, &mut words)?;",
        "fetch(bound, &experts, &mut words)?;\n words.iter_mut().filter(|it| **it < 2).for_each(|it| *it = 1 - *it);",
        "other numbers",
    ),
    fault(
        "slots_not_written",
        "std::ptr::copy_nonoverlapping(words.as_ptr(), to.as_ptr(), words.len());",
        "let _ = to;",
        "which nothing has written",
    ),
    fault(
        "slots_written_too_early",
        "self.finish_commands()?;\n        self.streaming()?.fetch(bound, experts)",
        "self.streaming()?.fetch(bound, experts)",
        "hazard",
    ),
    fault(
        "slots_of_other_experts",
        "(*layer, current) == (bound.layer, &experts))",
        "*layer == bound.layer)",
        "which nothing has written",
    ),
    fault(
        "experts_of_the_first_row",
        "let rows: Vec<Vec<usize>> = words.chunks_exact(2 * chosen)",
        "let rows: Vec<Vec<usize>> = words[..2 * chosen].chunks_exact(2 * chosen)",
        "which nothing has written",
    ),
    fault("rows_expert_by_expert", "if reads_routes {", "if false {", "other numbers"),
    fault(
        "slots_offset",
        "place(bound.offset, bound.bytes)",
        "place(bound.offset + 64, bound.bytes)",
        "other numbers",
    ),
    fault(
        "no_prefetch",
        "self.streaming()?.lookahead = Some(lookahead);",
        "let _ = lookahead;",
        "nothing is prefetched",
    ),
];

/// Faults of multi-token passes, which the driver injects: name, and part of the emulator's violation message.
pub const ENGINE_FAULTS: [(&str, &str); 3] = [
    ("rows_without_a_barrier", "hazard"),
    ("an_id_for_another_row", "never_written"),
    ("a_position_twice", "never_written"),
];

impl HostFault {
    /// The host's files by name, with the fault injected. The test of a GPU at start (`probe.rs`) stays as it
    /// is.
    pub(crate) fn apply(&self, files: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let is_changed = |name: &str| name != "probe.rs";
        let changed = files.iter().filter(|(name, _)| is_changed(name));
        let places: usize = changed.map(|(_, text)| text.matches(self.from).count()).sum();
        assert_eq!(places, 1, "{}: the host code has changed", self.name);
        let changed = |(name, text): (&String, &String)| {
            let text = if is_changed(name) { text.replace(self.from, self.to) } else { text.clone() };
            (name.clone(), text)
        };
        files.iter().map(changed).collect()
    }
}
