// Token id of the best of {{ candidates }} candidates of each row; ties go to the lowest id, and 0 is
// returned if all are NaN. A candidate is an order-preserving key of its logit, and an id. One threadgroup
// per row.
struct {{ args }} {
    uint rows;
};

// grid: rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const uint* candidates [[buffer({{ slot() }})]],
    device uint* ids [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint row [[threadgroup_position_in_grid]],
{% if simdgroups > 1 %}
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
{% endif %}
    uint thread_id [[thread_index_in_threadgroup]]) {
{% if simdgroups > 1 %}
    threadgroup uint best_keys[{{ simdgroups }}];
    threadgroup uint best_ids[{{ simdgroups }}];
{% endif %}
    device const uint2* source = (device const uint2*)(candidates + row * {{ 2 * candidates }}u);

    // Best candidate of each thread.
    uint2 best = uint2(0u, 0xffffffffu);
    for (uint i = thread_id; i < {{ candidates }}u; i += {{ threads }}u) {
        const uint2 candidate = source[i];
        const bool better = candidate.x > best.x || (candidate.x == best.x && candidate.y < best.y);
        best = better ? candidate : best;
    }

    // Best over lanes{{ ", then over simdgroups" if simdgroups > 1 else "" }}.
{% if simdgroups == 1 %}
    const uint highest = simd_max(best.x);
    const uint lowest_id = simd_min(best.x == highest ? best.y : 0xffffffffu);
    if (thread_id == 0u) {
        ids[row] = highest == 0u ? 0u : lowest_id;
    }
}
{% else %}
    uint highest = simd_max(best.x);
    uint lowest_id = simd_min(best.x == highest ? best.y : 0xffffffffu);
    if (lane == 0u) {
        best_keys[simdgroup_id] = highest;
        best_ids[simdgroup_id] = lowest_id;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup_id == 0u) {
{% if simdgroups < 32 %}
        // Lanes past the last simdgroup repeat the first ones.
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
{% endif %}
