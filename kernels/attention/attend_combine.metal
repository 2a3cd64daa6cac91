// Combines the KV splits of a row. A split has {{ width }} sums of values, their maximum score, and the
// denominator. An empty split has zeros and a maximum below -1e37. A thread processes one channel of every
// {{ parts }}th split, so that up to a hundred splits are read in parallel.
{% if gates %}
// The result is multiplied by the sigmoids of gates.
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
{% if quantizes %}
    device uint* quantized_heads [[buffer({{ slot() }})]],
{% endif %}
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float sums[{{ threads }}];
    const uint head = group.y * {{ query_heads }}u + group.x;
    device const float* partial = partials + head * args.splits * {{ width + 2 }}u;

    // Maximum over splits, and denominator. Every simdgroup computes both; a lane reads every 32nd split.
    float highest = -1.0e38f;
    for (uint split = lane; split < args.splits; split += 32u) {
        highest = max(highest, partial[split * {{ width + 2 }}u + {{ width }}u]);
    }
    highest = simd_max(highest);
    float total = 0.0f;
    for (uint split = lane; split < args.splits; split += 32u) {
        device const float* split_partial = partial + split * {{ width + 2 }}u;
        total += exp(split_partial[{{ width }}] - highest) * split_partial[{{ width + 1 }}];
    }
    total = simd_sum(total);

    // Sum of the splits, rescaled to the common maximum.
    const uint channel = thread_id % {{ padded }}u;
    float sum = 0.0f;
{% if width % 32 != 0 %}
    if (channel < {{ width }}u) {
        for (uint split = thread_id / {{ padded }}u; split < args.splits; split += {{ parts }}u) {
            device const float* split_partial = partial + split * {{ width + 2 }}u;
            sum += exp(split_partial[{{ width }}] - highest) * split_partial[channel];
        }
    }
{% else %}
    for (uint split = thread_id / {{ padded }}u; split < args.splits; split += {{ parts }}u) {
        device const float* split_partial = partial + split * {{ width + 2 }}u;
        sum += exp(split_partial[{{ width }}] - highest) * split_partial[channel];
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
        const float result = sum / total * sigmoid(gate);
{% else %}
        const float result = sum / total;
{% endif %}
        heads[head * {{ width }}u + thread_id] = result;
{% if quantizes %}
        const uint block = (group.x * {{ width }}u + thread_id) / 32u;
        store_quantized(quantized_heads, {{ query_heads * width // 128 }}u, group.y, block, lane, result);
{% endif %}
    }
}
