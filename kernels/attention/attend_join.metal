// Joins the shares that a row's cache was split into. A share left {{ width }} sums of values, the maximum score that they
// are weighted against, and the sum of weights; an empty one left zeros under a maximum of -1e38. A thread has a channel.
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
    uint channel [[thread_index_in_threadgroup]]) {
    const uint head = group.y * {{ query_heads }}u + group.x;
    device const float* partial = partials + head * args.splits * {{ width + 2 }}u;
{% if width % 32 != 0 %}
    if (channel >= {{ width }}u) {
        return;
    }
{% endif %}

    // The maximum over shares.
    float highest = -1.0e38f;
    for (uint split = 0u; split < args.splits; split++) {
        highest = max(highest, partial[split * {{ width + 2 }}u + {{ width }}u]);
    }

    // Each share weighted against it.
    float sum = 0.0f;
    float total = 0.0f;
    for (uint split = 0u; split < args.splits; split++) {
        device const float* share = partial + split * {{ width + 2 }}u;
        const float weight = exp(share[{{ width }}] - highest);
        sum += weight * share[channel];
        total += weight * share[{{ width + 1 }}];
    }
{% if gates %}
    const float gate = gates[group.y * {{ gates.pitch }}u + {{ gates.first }}u + group.x * {{ width }}u + channel];
    heads[head * {{ width }}u + channel] = sum / total * sigmoid(gate);
{% else %}
    heads[head * {{ width }}u + channel] = sum / total;
{% endif %}
}
