// The {{ chosen }} of {{ experts }} experts that a row has, and their weights: scores are a {{ scores }}{{ ", corrected for the choice" if correction else "" }}.
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
    device const float* own_logits = logits + row * {{ experts }}u;
    device uint* own_routes = routes + row * {{ 2 * chosen }}u;

{% include "experts/choose" %}
{% if groups %}

    // A lane has a group, and its worth: the {{ "sum of its two best ranks" if best == 2 else "best of its ranks" }}.
    uint of_groups[1] = {0u};
    if (lane < {{ groups }}u) {
        uint best = 0u;
        float worth = 0.0f;
{% if best == 2 %}
        uint next_best = 0u;
        float next = 0.0f;
{% endif %}
        for (uint i = 0u; i < {{ group_size }}u; i++) {
            const uint place = lane * {{ group_size }}u + i;
            const float logit = own_logits[place];
            const float rank = {{ rank }}{{ " + correction[place]" if correction else "" }};
            const uint key = rank_key(rank);
            const bool is_best = key > best;
{% if best == 2 %}
            const bool is_next = !is_best && key > next_best;
            next = is_best ? worth : is_next ? rank : next;
            next_best = is_best ? best : is_next ? key : next_best;
{% endif %}
            worth = is_best ? rank : worth;
            best = is_best ? key : best;
        }
        of_groups[0] = rank_key(worth{{ " + next" if best == 2 else "" }});
    }

    // Experts of groups that are not kept are below all others.
    uint kept = 0u;
    for (uint s = 0u; s < {{ kept }}u; s++) {
        kept |= 1u << take_best(of_groups, 1u, lane);
    }
    #pragma unroll
    for (uint i = 0u; i < {{ per_lane }}u; i++) {
        keys[i] = (kept >> ((lane + 32u * i) / {{ group_size }}u) & 1u) != 0u ? keys[i] : 0u;
    }
{% endif %}

    // The best are taken one by one, each with the keys of all lanes at once. Lane s remembers the s-th, lanes past the last one
    // the first.
    uint own = take_best(keys, {{ per_lane }}u, lane);
    for (uint s = 1u; s < {{ chosen }}u; s++) {
        const uint next = take_best(keys, {{ per_lane }}u, lane);
        own = lane == s ? next : own;
    }

    // A lane weighs its expert.
{% include "experts/weigh" %}
}
