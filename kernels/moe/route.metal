// The {{ picked }} of {{ candidates }} experts that a row has, and their weights: scores are a {{ scores }}{{ ", corrected for the choice" if correction else "" }}.
{% if shared %}
// After them come {{ shared }} that every row has, {{ "weighed by the sigmoid of the last logit" if gated else "with a weight of 1" }}.
{% endif %}
// One simdgroup a row. A row of `routes` is the experts, the best first, and then the bits of their weights.
struct {{ args }} {
    uint rows;
};

// grid: rows
[[max_total_threads_per_threadgroup(32)]]
kernel void {{ name }}(
    device const float* logits [[buffer({{ slot() }})]],
{% if correction %}
    device const float* correction [[buffer({{ slot() }})]],
{% endif %}
{% if scale %}
    device const float* scale [[buffer({{ slot() }})]],
{% endif %}
    device uint* routes [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint row [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
    device const float* own_logits = logits + row * {{ row_logits }}u;
    device uint* own_routes = routes + row * {{ 2 * chosen }}u;

{% include "moe/parts/topk" %}
{% if expert_groups %}

{% include "moe/parts/group_limit" %}
{% endif %}

    // The best are taken one by one, each with the keys of all lanes at once. Lane s remembers the s-th, lanes past the last one
    // the first.
    uint own = take_best(keys, {{ per_lane }}u, lane);
    for (uint s = 1u; s < {{ picked }}u; s++) {
        const uint next = take_best(keys, {{ per_lane }}u, lane);
        own = lane == s ? next : own;
    }

    // A lane weighs its expert.
{% include "moe/parts/routing_weights" %}
}
