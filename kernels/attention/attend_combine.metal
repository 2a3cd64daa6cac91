// Joins the shares that a row's cache was split into. A share left {{ width }} sums of values, the maximum score that they
// are weighted against, and the sum of weights; an empty one left zeros under a maximum below -1e37. A thread has a channel
// of every {{ parts }}th share: there may be a hundred, and nobody is to wait for one after the other.
{% if gates %}
// What they give is multiplied by the sigmoids of gates.
{% endif %}
struct {{ args }} {
    uint rows;
    uint splits;
};

// grid: {{ query_heads }}, rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* partials [[buffer({{ slot() }})]],
{% if gates %}
    device const float* gates [[buffer({{ slot() }})]],
{% endif %}
    device float* heads [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float sums[{{ threads }}];
    const uint head = group.y * {{ query_heads }}u + group.x;
    device const float* partial = partials + head * args.splits * {{ width + 2 }}u;

    // The maximum over shares, and all weights: every simdgroup finds them, a lane has every 32nd share.
    float highest = -1.0e38f;
    for (uint split = lane; split < args.splits; split += 32u) {
        highest = max(highest, partial[split * {{ width + 2 }}u + {{ width }}u]);
    }
    highest = simd_max(highest);
    float total = 0.0f;
    for (uint split = lane; split < args.splits; split += 32u) {
        device const float* share = partial + split * {{ width + 2 }}u;
        total += exp(share[{{ width }}] - highest) * share[{{ width + 1 }}];
    }
    total = simd_sum(total);

    // Each share weighted against it.
    const uint channel = thread_id % {{ padded }}u;
    float sum = 0.0f;
{% if width % 32 != 0 %}
    if (channel < {{ width }}u) {
        for (uint split = thread_id / {{ padded }}u; split < args.splits; split += {{ parts }}u) {
            device const float* share = partial + split * {{ width + 2 }}u;
            sum += exp(share[{{ width }}] - highest) * share[channel];
        }
    }
{% else %}
    for (uint split = thread_id / {{ padded }}u; split < args.splits; split += {{ parts }}u) {
        device const float* share = partial + split * {{ width + 2 }}u;
        sum += exp(share[{{ width }}] - highest) * share[channel];
    }
{% endif %}
    sums[thread_id] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_id < {{ width }}u) {
        #pragma unroll
        for (uint part = 1u; part < {{ parts }}u; part++) {
            sum += sums[part * {{ padded }}u + thread_id];
        }
{% if gates %}
        const float gate = gates[group.y * {{ gates.pitch }}u + {{ gates.first }}u + group.x * {{ width }}u + thread_id];
        heads[head * {{ width }}u + thread_id] = sum / total * sigmoid(gate);
{% else %}
        heads[head * {{ width }}u + thread_id] = sum / total;
{% endif %}
    }
}
