// The id of the largest of {{ vocabulary }} logits, the lowest id of equals, 0 if none is a number. One threadgroup a row.
struct {{ args }} {
    uint rows;
};

// grid: rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* logits [[buffer({{ slot() }})]],
    device uint* ids [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint row [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint best_keys[{{ simdgroups }}];
    threadgroup uint best_ids[{{ simdgroups }}];
    device const float* source = logits + row * {{ vocabulary }}u;

    // Each thread's best. Its ids ascend, so the first of equals is the lowest.
    uint best = 0u;
    uint best_id = 0xffffffffu;
    for (uint id = thread_id; id < {{ vocabulary }}u; id += {{ threads }}u) {
        const uint key = ordered(source[id]);
        if (key > best) {
            best = key;
            best_id = id;
        }
    }

    // The best over lanes, then over simdgroups.
    uint highest = simd_max(best);
    uint lowest_id = simd_min(best == highest ? best_id : 0xffffffffu);
    if (lane == 0u) {
        best_keys[simdgroup_id] = highest;
        best_ids[simdgroup_id] = lowest_id;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup_id == 0u) {
{% if simdgroups < 32 %}
        // Lanes past the last simdgroup look at the first ones again.
        const uint key = best_keys[lane % {{ simdgroups }}u];
        const uint id = best_ids[lane % {{ simdgroups }}u];
{% else %}
        const uint key = best_keys[lane];
        const uint id = best_ids[lane];
{% endif %}
        highest = simd_max(key);
        lowest_id = simd_min(key == highest ? id : 0xffffffffu);
        if (lane == 0u) {
            ids[row] = highest == 0u ? 0u : lowest_id;
        }
    }
}
