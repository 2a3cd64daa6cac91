// Token id of the largest of {{ vocabulary }} logits; ties go to the lowest id, and 0 is returned if all are
// NaN. One threadgroup per row.
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

{% include "head/parts/block_argmax" %}
    if (thread_id == 0u) {
        ids[row] = highest == 0u ? 0u : lowest_id;
    }
}
