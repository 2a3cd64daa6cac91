// The {{ picked }} of {{ candidates }} experts of a row and their weights: scores are a
// {{ scores }}{{ ", corrected for the selection" if correction else "" }}.
{% if shared %}
// They are followed by {{ shared }} shared experts,
// {{ "weighted by the sigmoid of the last logit" if gated else "with a weight of 1" }}.
{% endif %}
// One simdgroup per row. A row of `routes` has the experts, best first, and then the bits of their weights.
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

    // The best experts are selected one by one over the keys of all lanes. Lane s keeps the s-th; further
    // lanes keep the first.
    uint lane_expert = take_best(keys, {{ per_lane }}u, lane);
    for (uint s = 1u; s < {{ picked }}u; s++) {
        const uint next = take_best(keys, {{ per_lane }}u, lane);
        lane_expert = lane == s ? next : lane_expert;
    }

    // Each lane computes the weight of its expert.
{% include "moe/parts/routing_weights" %}
}
